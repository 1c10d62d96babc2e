//! The listener's end of the seccomp filter: gives callers the descriptors that their ioctls
//! return. See [`crate::inject`].

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::stat::fstat;
use serde_json::{Map, Value};

use crate::abi::{Command, drm, kfd, load};
use crate::ioctl::Caller;
use crate::state::{BlockId, Driver, FileId, FileKind};
use crate::trace::{Entry, now_ns};

use super::caller::RemoteCaller;
use super::fuse::WHICH_FILE;
use super::shared::Shared;

/// linux/seccomp.h; the notification structs come from libc.
const NOTIF_RECV: u64 = ioctl_number(3, 0, size_of::<libc::seccomp_notif>());
const NOTIF_SEND: u64 = ioctl_number(3, 1, size_of::<libc::seccomp_notif_resp>());
const NOTIF_ADDFD: u64 = ioctl_number(1, 3, size_of::<libc::seccomp_notif_addfd>());
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`: the kernel runs the system call itself.
const CONTINUE: u32 = 1;

/// How long a program may take from connecting to sending its listener.
const PATIENCE: Duration = Duration::from_secs(10);

const fn ioctl_number(direction: u32, number: u8, size: usize) -> u64 {
    Command::new(direction, b'!', number, size).0 as u64
}

/// What opens the files that callers get.
pub struct Injector {
    /// The state.
    pub shared: Arc<Shared>,
    /// Where the dma-bufs of the node are files.
    pub dmabufs: PathBuf,
    /// Device number of the node's FUSE file system.
    pub file_system: libc::dev_t,
}

/// A descriptor for a caller.
struct Gift {
    file: OwnedFd,
    /// The memory block behind it, if any.
    block: Option<u64>,
    close_on_exec: bool,
    /// Where in the argument its number goes.
    offset: u64,
}

impl Injector {
    /// Takes listeners from programs that enter the node, and serves each on its own thread.
    pub fn run(self: &Arc<Self>, socket: &UnixListener) {
        for stream in socket.incoming().flatten() {
            // Who connects and says nothing holds up nobody else.
            let injector = Arc::clone(self);
            let accept = move || injector.accept(&stream);
            if let Err(error) = std::thread::Builder::new().spawn(accept) {
                eprintln!("kfd-emulator: no thread for a seccomp listener: {error}");
            }
        }
    }

    fn accept(&self, stream: &UnixStream) {
        let received = stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| receive_descriptor(stream));
        match received {
            Ok(Some(listener)) => while self.serve(&listener) {},
            // Whoever connected has gone without installing a filter.
            Ok(None) => {}
            Err(error) => eprintln!("kfd-emulator: a seccomp listener was lost: {error}"),
        }
    }

    /// Serves one notification. `false`: every task under the filter is gone.
    fn serve(&self, listener: &OwnedFd) -> bool {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Err(Errno::EINTR) => return true,
            Err(_) => return false,
            Ok(_) => {}
        }
        if !ready[0]
            .revents()
            .is_some_and(|events| events.contains(PollFlags::POLLIN))
        {
            return false;
        }
        // SAFETY: all zeros is a valid value of this struct of integers, and the kernel wants it.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        if notify(listener, NOTIF_RECV, &mut call).is_err() {
            return true; // The task was killed before it could be asked.
        }
        let mut answer = libc::seccomp_notif_resp {
            id: call.id,
            val: 0,
            error: 0,
            flags: 0,
        };
        let caller = RemoteCaller::new(call.pid, None);
        let [fd, command, address, ..] = call.data.args;
        let command = Command(command as u32);
        let mut given = Map::from_iter([("injected".to_owned(), true.into())]);
        match self.gift(&caller, fd, command, address) {
            None => answer.flags = CONTINUE,
            Some(Err(errno)) => answer.error = -(errno as i32),
            Some(Ok(gift)) => match give(listener, call.id, &caller, address, &gift) {
                Ok(fd) => {
                    given.insert("fd".to_owned(), fd.into());
                    given.insert("block".to_owned(), gift.block.into());
                }
                Err(errno) => answer.error = -(errno as i32),
            },
        }
        if answer.flags != CONTINUE {
            self.note(&caller, command, given, answer.error);
        }
        // It fails only when the task was killed meanwhile, which is all the same.
        let _killed = notify(listener, NOTIF_SEND, &mut answer);
        true
    }

    /// What the caller shall get. `None`: the ioctl is not for this node.
    fn gift(
        &self,
        caller: &RemoteCaller,
        fd: u64,
        command: Command,
        address: u64,
    ) -> Option<Result<Gift, Errno>> {
        let file = self.which_file(caller, fd)?;
        let is_kfd = matches!(self.shared.driver().file(file)?.kind, FileKind::Kfd(_));
        let mut bytes = vec![0; command.size()];
        let argument = caller.read(address, &mut bytes);
        match (command.kind(), command.number()) {
            (kfd::TYPE, kfd::number::EXPORT_DMABUF) if is_kfd => Some(argument.and_then(|()| {
                let args: kfd::ExportDmabuf = load(&bytes);
                let block =
                    exported_buffer(&self.shared.driver(), file, caller.pid(), args.handle)?;
                self.dmabuf(
                    block,
                    args.flags,
                    std::mem::offset_of!(kfd::ExportDmabuf, dmabuf_fd),
                )
            })),
            (kfd::TYPE, kfd::number::SMI_EVENTS) if is_kfd => Some(argument.and_then(|()| {
                let args: kfd::SmiEvents = load(&bytes);
                self.shared
                    .driver()
                    .device(args.gpu_id)
                    .ok_or(Errno::EINVAL)?;
                smi_events()
            })),
            (drm::TYPE, drm::number::PRIME_HANDLE_TO_FD) if !is_kfd => {
                Some(argument.and_then(|()| {
                    let args: drm::PrimeHandle = load(&bytes);
                    let block = self
                        .shared
                        .driver()
                        .handles(file)
                        .and_then(|handles| handles.get(args.handle))
                        .ok_or(Errno::ENOENT)?;
                    self.dmabuf(
                        block,
                        args.flags,
                        std::mem::offset_of!(drm::PrimeHandle, fd),
                    )
                }))
            }
            _ => None,
        }
    }

    /// Which open file of this node a descriptor of the caller is; `None` when it is none. The
    /// descriptor is borrowed and asked: a path, or a process, can have several open.
    fn which_file(&self, caller: &RemoteCaller, fd: u64) -> Option<FileId> {
        let file = caller.borrow_descriptor(u32::try_from(fd).ok()?).ok()?;
        if fstat(&file).ok()?.st_dev != self.file_system {
            return None;
        }
        let mut id = 0_u64;
        // SAFETY: the command says that the answer is 8 bytes, which `id` has; the file is one of
        // this node's mount, so it is this server that answers.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), WHICH_FILE.0.into(), &raw mut id) };
        (result == 0).then_some(FileId(id))
    }

    /// Opens the dma-buf of a block. That is a request to this very server, so no lock may be
    /// held here.
    fn dmabuf(&self, BlockId(block): BlockId, flags: u32, offset: usize) -> Result<Gift, Errno> {
        let path = self.dmabufs.join(block.to_string());
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        let close_on_exec = flags & libc::O_CLOEXEC as u32 != 0;
        Ok(Gift {
            file: file.into(),
            block: Some(block),
            close_on_exec,
            offset: offset as u64,
        })
    }

    fn note(&self, caller: &RemoteCaller, command: Command, args: Map<String, Value>, result: i32) {
        let (device, name) = match command.kind() {
            drm::TYPE => ("render", drm::name(command)),
            _ => ("kfd", kfd::name(command)),
        };
        self.shared.trace.add(Entry {
            time_ns: now_ns(),
            pid: caller.pid(),
            tid: caller.tid(),
            device: device.to_owned(),
            name: name.to_owned(),
            command: command.0,
            args,
            result,
        });
    }
}

fn exported_buffer(driver: &Driver, file: FileId, pid: u32, handle: u64) -> Result<BlockId, Errno> {
    let process = match driver.file(file).map(|f| &f.kind) {
        Some(FileKind::Kfd(key)) => driver.processes.get(key),
        _ => None,
    };
    // A forked child cannot use its parent's descriptor (kfd_ioctl).
    let process = process.filter(|p| p.opener.pid == pid);
    process
        .ok_or(Errno::EBADF)?
        .buffers
        .get(&handle)
        .and_then(|b| b.block)
        .ok_or(Errno::EINVAL)
}

/// A descriptor that never has an event to read: an eventfd at 0.
fn smi_events() -> Result<Gift, Errno> {
    use nix::sys::eventfd::{EfdFlags, EventFd};
    let events = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    Ok(Gift {
        file: events.into(),
        block: None,
        close_on_exec: true,
        offset: std::mem::offset_of!(kfd::SmiEvents, fd) as u64,
    })
}

/// Adds a descriptor to the caller, and writes its number into the argument.
fn give(
    listener: &OwnedFd,
    id: u64,
    caller: &RemoteCaller,
    address: u64,
    gift: &Gift,
) -> Result<RawFd, Errno> {
    let mut order = libc::seccomp_notif_addfd {
        id,
        flags: 0,
        srcfd: gift.file.as_raw_fd() as u32,
        newfd: 0,
        newfd_flags: if gift.close_on_exec {
            libc::O_CLOEXEC as u32
        } else {
            0
        },
    };
    let fd = notify(listener, NOTIF_ADDFD, &mut order)?;
    caller.write(address.wrapping_add(gift.offset), &fd.to_ne_bytes())?;
    Ok(fd)
}

fn notify<T>(listener: &OwnedFd, command: u64, argument: &mut T) -> Result<RawFd, Errno> {
    // SAFETY: each command is used with the struct that it is for (its size is part of the
    // command), which the kernel reads and may overwrite with any integers.
    let result =
        unsafe { libc::ioctl(listener.as_raw_fd(), command, std::ptr::from_mut(argument)) };
    Errno::result(result)
}

/// Takes the descriptor that a program sends. `None`: it hung up instead.
fn receive_descriptor(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = recvmsg::<()>(
        stream.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = part
            && let Some(&fd) = fds.first()
        {
            // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
            return Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_linux_seccomp_h() {
        assert_eq!(NOTIF_RECV, 0xc050_2100);
        assert_eq!(NOTIF_SEND, 0xc018_2101);
        assert_eq!(NOTIF_ADDFD, 0x4018_2103);
    }
}
