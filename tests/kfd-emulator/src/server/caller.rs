//! The process behind a FUSE or seccomp request.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::ioctl::{Caller, Descriptor};
use crate::state::BlockId;

use super::procfs;

/// Directory of the node's dma-bufs in the FUSE tree.
pub const DMABUF_DIRECTORY: &str = "dmabuf";

/// A thread of this machine, seen from the emulator's PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteCaller {
    pid: u32,
    tid: u32,
}

impl RemoteCaller {
    /// The thread `tid`. `likely_pid` saves work when the thread belongs to that process.
    pub fn new(tid: u32, likely_pid: Option<u32>) -> Self {
        let pid = likely_pid
            .filter(|&pid| procfs::is_thread_of(pid, tid))
            .unwrap_or_else(|| procfs::thread_group(tid));
        Self { pid, tid }
    }

    /// A descriptor for the same open file as one of the caller's.
    ///
    /// # Errors
    /// When the thread is gone, has no such descriptor, or may not be looked at.
    pub fn borrow_descriptor(&self, fd: u32) -> Result<OwnedFd, Errno> {
        /// `PIDFD_THREAD` of linux/pidfd.h (Linux 6.9): the first thread may have ended.
        const PIDFD_THREAD: i32 = libc::O_EXCL;
        // SAFETY: plain system call.
        let thread = unsafe { libc::syscall(libc::SYS_pidfd_open, self.tid, PIDFD_THREAD) };
        // SAFETY: a new descriptor that nobody else owns.
        let thread = unsafe { OwnedFd::from_raw_fd(Errno::result(thread)? as i32) };
        // SAFETY: plain system call.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), fd, 0) };
        // SAFETY: as above.
        Ok(unsafe { OwnedFd::from_raw_fd(Errno::result(copy)? as i32) })
    }

    /// What a descriptor's link in `/proc` leads to.
    pub fn link(&self, fd: u64) -> Option<String> {
        let link = std::fs::read_link(format!("/proc/{}/fd/{fd}", self.tid)).ok()?;
        link.into_os_string().into_string().ok()
    }
}

/// Reads memory of a process.
///
/// # Errors
/// `EFAULT` when not all of it is there.
pub fn read_memory(id: u32, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
    let wanted = buffer.len();
    let remote = [RemoteIoVec {
        base: place(address)?,
        len: wanted,
    }];
    let pid = Pid::from_raw(id as i32);
    match process_vm_readv(pid, &mut [IoSliceMut::new(buffer)], &remote) {
        Ok(count) if count == wanted => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Writes memory of a process.
///
/// # Errors
/// `EFAULT` when not all of it is there and writable.
pub fn write_memory(id: u32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let remote = [RemoteIoVec {
        base: place(address)?,
        len: bytes.len(),
    }];
    let pid = Pid::from_raw(id as i32);
    match process_vm_writev(pid, &[IoSlice::new(bytes)], &remote) {
        Ok(count) if count == bytes.len() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

fn place(address: u64) -> Result<usize, Errno> {
    usize::try_from(address).map_err(|_| Errno::EFAULT)
}

impl Caller for RemoteCaller {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn tid(&self) -> u32 {
        self.tid
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        read_memory(self.tid, address, buffer)
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        write_memory(self.tid, address, bytes)
    }

    fn descriptor(&self, fd: u32) -> Descriptor {
        self.link(u64::from(fd))
            .map_or(Descriptor::Closed, |link| classify(&link))
    }
}

/// What a descriptor is, by the path that it was opened by.
pub fn classify(link: &str) -> Descriptor {
    let Some((directory, name)) = link.rsplit_once('/') else {
        return Descriptor::Other;
    };
    if directory.ends_with(DMABUF_DIRECTORY)
        && let Ok(block) = name.parse()
    {
        return Descriptor::Dmabuf(BlockId(block));
    }
    match name
        .strip_prefix("renderD")
        .and_then(|minor| minor.parse().ok())
    {
        Some(minor) => Descriptor::Render(minor),
        None => Descriptor::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_by_their_path() {
        assert_eq!(classify("/dev/dri/renderD129"), Descriptor::Render(129));
        assert_eq!(
            classify("/dev/kfd-emulator/dmabuf/17"),
            Descriptor::Dmabuf(BlockId(17))
        );
        for other in [
            "/dev/kfd",
            "pipe:[3]",
            "/dmabuf/x",
            "anon_inode:[eventpoll]",
            "",
        ] {
            assert_eq!(classify(other), Descriptor::Other, "{other}");
        }
    }

    #[test]
    fn a_descriptor_of_this_process() {
        let me = RemoteCaller::new(nix::unistd::gettid().as_raw() as u32, None);
        let (mut reader, writer) = std::io::pipe().unwrap();
        let copy = me.borrow_descriptor(writer.as_raw_fd() as u32).unwrap();
        drop(writer);
        std::io::Write::write_all(&mut std::fs::File::from(copy), b"x").unwrap();
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "x");
        assert!(me.borrow_descriptor(u32::MAX).is_err());
    }

    #[test]
    fn memory_of_this_process() {
        let me = RemoteCaller::new(nix::unistd::gettid().as_raw() as u32, None);
        assert_eq!(me.pid(), std::process::id());
        let mut number = 5_u32;
        let address = std::ptr::from_mut(&mut number) as u64;
        let mut back = [0; 4];
        me.read(address, &mut back).unwrap();
        assert_eq!(u32::from_ne_bytes(back), 5);
        assert_eq!(me.read(0, &mut back), Err(Errno::EFAULT));
        assert_eq!(me.write(16, &back), Err(Errno::EFAULT));
        assert_eq!(me.descriptor(u32::MAX), Descriptor::Closed);
    }
}
