//! Threads that can use the node's own files.
//!
//! A thread that waits for an answer of the node's FUSE mount cannot be killed once the server has
//! taken the request. When the server is killed, the kernel ends such waits as soon as nothing has
//! `/dev/fuse` open any more. A waiting thread of the server itself must therefore not have it
//! open: it could then never end, and neither could any client that waits.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::{SFlag, fstat};

/// `/dev/fuse`: MISC_MAJOR of linux/major.h, FUSE_MINOR of linux/miscdevice.h.
const FUSE: libc::dev_t = libc::makedev(10, 229);

/// Gives the calling thread a table of descriptors of its own, without `/dev/fuse`. Threads that it
/// starts share that table. `/proc/self/fd` keeps showing the other one; this one is
/// `/proc/thread-self/fd`.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn leave_fuse() -> io::Result<()> {
    unshare(CloneFlags::CLONE_FILES)?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc/thread-self/fd")? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for descriptor in found.into_iter().filter(|&fd| is_fuse(fd)) {
        // SAFETY: the table is this thread's alone, so this closes nothing that other threads use;
        // fuser, which owns the number there, never runs in this thread.
        nix::errno::Errno::result(unsafe { libc::close(descriptor) })?;
    }
    Ok(())
}

fn is_fuse(descriptor: RawFd) -> bool {
    // SAFETY: nothing else closes descriptors of this thread's table meanwhile. (The one of the
    // directory itself is closed by now; looking at it is an error, and it is not FUSE.)
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) };
    fstat(descriptor).is_ok_and(|status| {
        SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR
            && status.st_rdev == FUSE
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn other_descriptors_stay_and_other_threads_keep_theirs() {
        let Ok(fuse) = File::open("/dev/fuse") else {
            return; // A machine without FUSE runs no node.
        };
        let other = File::open("/dev/null").unwrap();
        let (fuse_fd, other_fd) = (fuse.as_raw_fd(), other.as_raw_fd());
        assert!(is_fuse(fuse_fd) && !is_fuse(other_fd));
        std::thread::spawn(move || {
            leave_fuse().unwrap();
            let link = |fd| std::fs::read_link(format!("/proc/thread-self/fd/{fd}"));
            assert!(link(fuse_fd).is_err());
            assert!(link(other_fd).is_ok());
        })
        .join()
        .unwrap();
        assert!(is_fuse(fuse_fd), "here it is still open");
    }
}
