//! The lock under which ledgers of one directory are made, joined and removed.
//!
//! Whoever makes, replaces or removes a ledger, brings a GPU or clears slots from outside has it alone.
//! Newcomers who do no more than to claim a slot beside a living member share it, so that many can start
//! at once.
//!
//! The kernel drops it when its holder dies. A holder that is stopped keeps it; so it is asked for
//! again and again until a deadline, and never waited for in the kernel. Whoever gets it says so by the
//! time of the file's last change: as long as that moves, the queue moves, and is waited for.
//!
//! It is held through a descriptor, so that it can be dropped at once whoever has a copy of that. One
//! gap remains: if a thread forks a child while another thread of the process holds the lock, and the
//! process is killed before it drops it, the child keeps the lock until it execs or ends.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::directory::Directory;
use crate::error::{JoinError, SystemError};
use crate::sys::{self, Holder, Kind, Range};

/// The lock file of a directory. Budget names do not start with a point.
pub(crate) const LOCK_FILE: &CStr = c".lock";

/// How long a holder may take, and how long nobody may get the lock.
pub(crate) const DEADLINE: Duration = Duration::from_secs(2);

/// How long a queue is waited in that moves.
const LONGEST: Duration = Duration::from_secs(30);

/// The byte that is locked, and the one whose lock only tells who holds the first: the owner of an
/// open-file lock has no PID.
const LOCK: Range = Range::Byte(0);
const NAME: Range = Range::Byte(1);

/// The open lock file, not locked.
#[derive(Debug)]
pub(crate) struct LockFile<'a> {
    directory: &'a Directory,
    fd: OwnedFd,
}

impl<'a> LockFile<'a> {
    pub(crate) fn open(directory: &'a Directory) -> Result<Self, SystemError> {
        let fd = directory.helper_file(LOCK_FILE)?;
        Ok(Self { directory, fd })
    }

    /// Takes the lock together with others who share it. Not while somebody has it alone, and never
    /// where the file system has no such locks: there it is always had alone.
    pub(crate) fn try_share(&self) -> Option<SharedLock<'_>> {
        let held = sys::try_share(self.fd.as_fd(), Kind::OpenFile, LOCK);
        if !held.unwrap_or(false) {
            return None;
        }
        // Only for the name in an error message; without it the message is poorer.
        let _ = sys::try_share(self.fd.as_fd(), Kind::Process, NAME);
        sys::touch(self.fd.as_fd());
        Some(SharedLock { fd: &self.fd })
    }

    /// Takes the lock alone, if nobody has it or a share of it; else gives the file back.
    pub(crate) fn try_take(self) -> Result<Result<DirectoryLock, Self>, JoinError> {
        match try_ways(&self.fd) {
            Ok(Some(way)) => {
                if way == Way::Record {
                    // As above.
                    let _ = sys::try_lock(self.fd.as_fd(), Kind::Process, NAME);
                }
                sys::touch(self.fd.as_fd());
                Ok(Ok(DirectoryLock { fd: self.fd, way }))
            }
            Ok(None) => Ok(Err(self)),
            Err(source) => Err(JoinError::NoLocks {
                path: self.directory.path_of(LOCK_FILE),
                source,
            }),
        }
    }
}

/// One who waits for the lock.
#[derive(Debug)]
pub(crate) struct Queue {
    deadline: Duration,
    started: Instant,
    /// When somebody was last seen to get the lock, and what the file said then.
    moved: Instant,
    seen: Option<sys::Changed>,
}

impl Queue {
    pub(crate) fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline,
            started: now,
            moved: now,
            seen: None,
        }
    }

    /// Waits a little before the lock is asked for again, or says that it has been long enough.
    pub(crate) fn wait(&mut self, file: &LockFile<'_>) -> Result<(), JoinError> {
        let changed = sys::last_change(file.fd.as_fd()).ok();
        if changed != self.seen {
            self.seen = changed;
            self.moved = Instant::now();
        }
        let waited = self.started.elapsed();
        if self.moved.elapsed() >= self.deadline || waited >= LONGEST {
            let holder = match sys::lock_holder(file.fd.as_fd(), Kind::Process, NAME) {
                Ok(Holder::Process(pid)) => Some(pid),
                _ => None,
            };
            return Err(JoinError::LockBusy {
                path: file.directory.path_of(LOCK_FILE),
                holder,
                waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            });
        }
        // The longer the queue, the less often each asks: else those who ask keep the one from the
        // processor that they wait for.
        let pause = waited.checked_div(4).unwrap_or_default();
        std::thread::sleep(pause.clamp(Duration::from_micros(50), Duration::from_millis(10)));
        Ok(())
    }
}

/// A share of the lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct SharedLock<'a> {
    fd: &'a OwnedFd,
}

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        drop(sys::unlock(self.fd.as_raw_fd(), Kind::Process, NAME));
        drop(sys::unlock(self.fd.as_raw_fd(), Kind::OpenFile, LOCK));
    }
}

/// The lock, held alone until it is dropped.
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
    /// Takes the lock alone, waiting until the deadline.
    pub(crate) fn take(directory: &Directory, deadline: Duration) -> Result<Self, JoinError> {
        let mut file = LockFile::open(directory)?;
        let mut queue = Queue::new(deadline);
        loop {
            file = match file.try_take()? {
                Ok(lock) => return Ok(lock),
                Err(file) => file,
            };
            queue.wait(&file)?;
        }
    }

    /// Takes the lock if nobody holds it, without allocating, by the path of the lock file.
    pub(crate) fn try_take(path: &CStr) -> Option<Self> {
        let fd = sys::open_at(None, path, libc::O_RDWR, 0).ok()?;
        sys::status(fd.as_fd())
            .ok()
            .filter(|status| status.is_regular())?;
        let way = try_ways(&fd).ok()??;
        sys::touch(fd.as_fd());
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
