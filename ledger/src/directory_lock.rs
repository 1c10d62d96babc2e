//! The lock under which ledgers of one directory are made, joined and removed.
//!
//! Whoever makes, replaces or removes a ledger, brings a GPU or clears slots from outside has it alone.
//! Newcomers who do no more than to claim a slot beside a living member share it, so that many can start
//! at once.
//!
//! The kernel drops it when its holder dies. A holder that is stopped keeps it; so it is asked for
//! again and again until a deadline, and never waited for in the kernel. Whoever has it alone, or moved in
//! by a share, says so by the time of the file's last change: as long as that moves, the queue moves, and
//! is waited for.
//!
//! Those who wait to have it alone share the lock of another byte. Newcomers give way to them for a
//! moment, so that a stream of shares has an end; no longer, as one who waits may be stopped too.
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

/// How long a newcomer gives way to those who wait for the lock alone. Shares that are held are gone by
/// then, apart from a stopped process's.
const COURTESY: Duration = Duration::from_millis(200);

/// When somebody whom a share did not help tries one again, though nobody had the lock alone meanwhile as
/// far as the file says: the clock of files is coarse, and slots become free without the lock.
const SHARE_AGAIN: Duration = Duration::from_millis(250);

/// The byte that is locked, and the one whose lock only tells who holds the first: the owner of an
/// open-file lock has no PID.
const LOCK: Range = Range::Byte(0);
const NAME: Range = Range::Byte(1);

/// The byte whose lock those share who wait for the first one alone.
const WAITING: Range = Range::Byte(2);

/// The open lock file, not locked.
#[derive(Debug)]
pub(crate) struct LockFile<'a> {
    directory: &'a Directory,
    fd: OwnedFd,
    /// Whether others see that this one waits.
    announced: bool,
}

impl<'a> LockFile<'a> {
    pub(crate) fn open(directory: &'a Directory) -> Result<Self, SystemError> {
        let fd = directory.helper_file(LOCK_FILE)?;
        Ok(Self {
            directory,
            fd,
            announced: false,
        })
    }

    /// Takes the lock together with others who share it. Not while somebody has it alone, and never
    /// where the file system has no such locks: there it is always had alone.
    pub(crate) fn try_share(&self) -> Option<SharedLock<'_>> {
        let overtakes = self.somebody_waits();
        let held = sys::try_share(self.fd.as_fd(), Kind::OpenFile, LOCK);
        if !held.unwrap_or(false) {
            return None;
        }
        // Only for the name in an error message; without it the message is poorer.
        let _ = sys::try_share(self.fd.as_fd(), Kind::Process, NAME);
        Some(SharedLock {
            file: self,
            overtakes,
        })
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
                self.withdraw();
                Ok(Ok(DirectoryLock { fd: self.fd, way }))
            }
            Ok(None) => Ok(Err(self)),
            Err(source) => Err(JoinError::NoLocks {
                path: self.directory.path_of(LOCK_FILE),
                source,
            }),
        }
    }

    /// Whether somebody else waits for the lock alone.
    fn somebody_waits(&self) -> bool {
        let holder = sys::lock_holder(self.fd.as_fd(), Kind::OpenFile, WAITING);
        holder.is_ok_and(|holder| holder != Holder::Nobody)
    }

    /// Lets others see that this one waits for the lock alone.
    fn announce(&mut self) {
        if !self.announced {
            // Without it newcomers do not give way, as once they never did.
            let held = sys::try_share(self.fd.as_fd(), Kind::OpenFile, WAITING);
            self.announced = held.unwrap_or(false);
        }
    }

    fn withdraw(&self) {
        if self.announced {
            // Closing is not enough, see `DirectoryLock`.
            drop(sys::unlock(self.fd.as_raw_fd(), Kind::OpenFile, WAITING));
        }
    }

    fn last_change(&self) -> Option<sys::Changed> {
        sys::last_change(self.fd.as_fd()).ok()
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
    needs: Need,
}

#[derive(Debug)]
enum Need {
    /// A share may be enough.
    Share,
    /// To have it alone.
    Alone,
    /// A share was not enough at that time, when the file said this.
    MoreThanAShare(Instant, Option<sys::Changed>),
}

/// What one who waits is to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Ask for a share, and if that does not help, for the lock alone.
    Share,
    /// Ask for the lock alone.
    Alone,
    /// Ask for nothing, as somebody waits for the lock alone.
    GiveWay,
}

impl Queue {
    /// Of one for whom a share may be enough.
    pub(crate) fn new(deadline: Duration) -> Self {
        let now = Instant::now();
        Self {
            deadline,
            started: now,
            moved: now,
            seen: None,
            needs: Need::Share,
        }
    }

    /// What to do next. Whom a share did not help does not ask for one at every turn, since the others wait
    /// to see the shares gone, but when somebody may have changed what stood in the way.
    pub(crate) fn turn(&self, file: &LockFile<'_>) -> Turn {
        match &self.needs {
            Need::Share if self.started.elapsed() < COURTESY && file.somebody_waits() => {
                Turn::GiveWay
            }
            Need::Share => Turn::Share,
            Need::MoreThanAShare(since, seen)
                if since.elapsed() >= SHARE_AGAIN || file.last_change() != *seen =>
            {
                Turn::Share
            }
            Need::MoreThanAShare(..) | Need::Alone => Turn::Alone,
        }
    }

    /// Waits a little before the lock is asked for again, or says that it has been long enough.
    pub(crate) fn wait(&mut self, file: &mut LockFile<'_>) -> Result<(), JoinError> {
        let changed = file.last_change();
        if changed != self.seen {
            self.seen = changed;
            self.moved = Instant::now();
        }
        let waited = self.started.elapsed();
        if self.moved.elapsed() >= self.deadline || waited >= LONGEST {
            file.withdraw();
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
        if !matches!(self.needs, Need::Share) {
            file.announce();
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
    file: &'a LockFile<'a>,
    /// Whether somebody was waiting for the lock alone when this share was taken.
    overtakes: bool,
}

impl SharedLock<'_> {
    /// The share was enough, and is as good as given back: the queue moves. Not for those who were
    /// overtaken: as many as come by beside a stopped process, they do not bring the lock nearer.
    pub(crate) fn sufficed(&self) {
        if !self.overtakes {
            sys::touch(self.file.fd.as_fd());
        }
        self.file.withdraw();
    }

    /// The share was not enough: it is given back, and the one who waits needs the lock alone, unless
    /// somebody changes what stands in the way.
    pub(crate) fn did_not_help(self, queue: &mut Queue) {
        // While the share is held nobody has the lock alone, so that no change is overlooked.
        queue.needs = Need::MoreThanAShare(Instant::now(), self.file.last_change());
    }
}

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        let fd = self.file.fd.as_raw_fd();
        drop(sys::unlock(fd, Kind::Process, NAME));
        drop(sys::unlock(fd, Kind::OpenFile, LOCK));
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
        let mut queue = Queue {
            needs: Need::Alone,
            ..Queue::new(deadline)
        };
        loop {
            file = match file.try_take()? {
                Ok(lock) => return Ok(lock),
                Err(file) => file,
            };
            queue.wait(&mut file)?;
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
