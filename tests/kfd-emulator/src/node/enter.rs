//! Putting a program into a node, between fork and exec.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::inject::{Inject, filter};

use super::{CACHE_DIRECTORY, INJECT_SOCKET, NODE_DIRECTORY, PROGRAM_DIRECTORY};

/// Makes a command run inside the node of that mount namespace.
pub(super) fn prepare(command: &mut Command, namespace: Arc<OwnedFd>, inject: Inject) {
    let inside = Path::new(NODE_DIRECTORY);
    let mut path = vec![inside.join(PROGRAM_DIRECTORY)];
    path.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    // A PATH that cannot be joined could not be split either.
    let path = std::env::join_paths(path).unwrap_or_else(|_| OsString::from("/bin:/usr/bin"));
    command.env("PATH", path);
    command.env("AMD_COMGR_CACHE_DIR", inside.join(CACHE_DIRECTORY));
    let socket = (inject == Inject::Seccomp).then(|| Address::of(&inside.join(INJECT_SOCKET)));
    let enter = move || {
        enter_namespace(namespace.as_raw_fd())?;
        if let Some(socket) = &socket {
            install_filter(socket)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec in a program with threads, only async-signal-safe things may
    // happen. The closure makes plain system calls on values that were computed before, and
    // allocates nothing, not even for errors (they are raw OS errors).
    unsafe { command.pre_exec(enter) };
}

/// A socket address, ready for connect.
struct Address {
    address: libc::sockaddr_un,
}

impl Address {
    /// `path` is a constant of this crate and fits.
    fn of(path: &Path) -> Self {
        // SAFETY: all zeros is a valid value of this struct of integers.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_encoded_bytes();
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        Self { address }
    }
}

/// Enters the mount namespace, and goes on in the directory of the same name there.
///
/// setns(2) lets a process into a mount namespace only while it has one thread and shares its
/// root and working directory with nobody; the child of a fork is like that.
fn enter_namespace(namespace: RawFd) -> io::Result<()> {
    let mut directory = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: getcwd writes at most as many bytes as it is told, which the array has.
    let known = !unsafe { libc::getcwd(directory.as_mut_ptr().cast(), directory.len()) }.is_null();
    // SAFETY: plain system call; `namespace` is kept open by the closure that calls this.
    check(unsafe { libc::setns(namespace, libc::CLONE_NEWNS) })?;
    if known {
        // SAFETY: getcwd has left a string that ends with a zero.
        check(unsafe { libc::chdir(directory.as_ptr().cast()) })?;
    }
    Ok(())
}

/// Installs the filter, and sends its listener to the server.
fn install_filter(socket: &Address) -> io::Result<()> {
    // SAFETY: plain system call.
    let stream = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    check(stream)?;
    // SAFETY: `check` passed, so this is a new descriptor that nobody else owns.
    let stream = unsafe { OwnedFd::from_raw_fd(stream) };
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is a whole sockaddr_un, and `length` is its size.
    check(unsafe {
        libc::connect(
            stream.as_raw_fd(),
            (&raw const socket.address).cast(),
            length,
        )
    })?;
    // SAFETY: as above: a new descriptor.
    let listener = unsafe { OwnedFd::from_raw_fd(filter::install()?) };
    send_descriptor(stream.as_raw_fd(), listener.as_raw_fd())
}

/// Sends a descriptor. (nix would allocate for this.)
fn send_descriptor(stream: RawFd, descriptor: RawFd) -> io::Result<()> {
    /// Room for one message with one descriptor, aligned as a header must be.
    #[repr(C, align(8))]
    struct Space([u8; 32]);
    const DATA: u32 = size_of::<RawFd>() as u32;

    let mut space = Space([0; 32]);
    let mut byte = [0_u8];
    let mut part = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    // SAFETY: all zeros is a valid msghdr: no name, no parts, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute; 24 bytes fit into `space`.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(DATA) } as usize;
    // SAFETY: `message` has room for one header and its data at `space`, which is aligned for it.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(DATA) as usize;
        libc::CMSG_DATA(header)
            .cast::<RawFd>()
            .write_unaligned(descriptor);
    }
    // SAFETY: everything that `message` points to lives until the call returns.
    let sent = unsafe { libc::sendmsg(stream, &raw const message, libc::MSG_NOSIGNAL) };
    check(sent as libc::c_int)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
