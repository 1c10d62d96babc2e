//! The lock under which ledgers of one directory are made, joined and removed.
//!
//! The kernel drops it when its holder dies. A holder that is stopped keeps it; so it is asked for
//! again and again until a deadline, and never waited for in the kernel.
//!
//! It is held through a descriptor, so that it can be dropped at once whoever has a copy of that. One
//! gap remains: if a thread forks a child while another thread of the process holds the lock, and the
//! process is killed before it drops it, the child keeps the lock until it execs or ends.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::directory::Directory;
use crate::error::JoinError;
use crate::sys::{self, Holder, Kind, Range};

/// The lock file of a directory. Budget names do not start with a point.
pub(crate) const LOCK_FILE: &CStr = c".lock";

/// How long a holder may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// The byte that is locked, and the one whose lock only tells who holds the first: the owner of an
/// open-file lock has no PID.
const LOCK: Range = Range::Byte(0);
const NAME: Range = Range::Byte(1);

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    fd: OwnedFd,
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Record,
    /// Where the file system has no record locks per open file.
    WholeFile,
}

impl DirectoryLock {
    /// Takes the lock, waiting until the deadline.
    pub(crate) fn take(directory: &Directory, deadline: Duration) -> Result<Self, JoinError> {
        let fd = directory.helper_file(LOCK_FILE)?;
        let path = || directory.path_of(LOCK_FILE);
        let started = Instant::now();
        let mut pause = Duration::from_micros(50);
        loop {
            match try_ways(&fd) {
                Ok(Some(way)) => {
                    if way == Way::Record {
                        // Only for the name in an error message; without it the message is poorer.
                        let _ = sys::try_lock(fd.as_fd(), Kind::Process, NAME);
                    }
                    return Ok(Self { fd, way });
                }
                Ok(None) => {}
                Err(source) => {
                    return Err(JoinError::NoLocks {
                        path: path(),
                        source,
                    });
                }
            }
            let waited = started.elapsed();
            if waited >= deadline {
                let holder = match sys::lock_holder(fd.as_fd(), Kind::Process, NAME) {
                    Ok(Holder::Process(pid)) => Some(pid),
                    _ => None,
                };
                let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
                return Err(JoinError::LockBusy {
                    path: path(),
                    holder,
                    waited_ms,
                });
            }
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2).min(Duration::from_millis(1));
        }
    }

    /// Takes the lock if nobody holds it, without allocating, by the path of the lock file.
    pub(crate) fn try_take(path: &CStr) -> Option<Self> {
        let fd = sys::open_at(None, path, libc::O_RDWR, 0).ok()?;
        sys::status(fd.as_fd())
            .ok()
            .filter(|status| status.is_regular())?;
        let way = try_ways(&fd).ok()??;
        Some(Self { fd, way })
    }
}

fn try_ways(fd: &OwnedFd) -> io::Result<Option<Way>> {
    match sys::try_lock(fd.as_fd(), Kind::OpenFile, LOCK) {
        Ok(held) => Ok(held.then_some(Way::Record)),
        Err(error) if unsupported(&error) => {
            Ok(sys::try_flock(fd.as_fd())?.then_some(Way::WholeFile))
        }
        Err(error) => Err(error),
    }
}

/// Whether the kernel says that a file system has no such locks.
pub(crate) fn unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOLCK)
    )
}

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that was forked meanwhile has the same open file.
        match self.way {
            Way::Record => drop(sys::unlock(self.fd.as_raw_fd(), Kind::OpenFile, LOCK)),
            Way::WholeFile => sys::drop_flock(self.fd.as_fd()),
        }
    }
}
