//! Who lives. A member holds a record lock on its slot's first byte for as long as it lives, and the
//! kernel drops it at the member's end: at its death (a zombie holds none) and at exec, in whatever
//! PID namespace, and whoever gets its PID next.
//!
//! The lock belongs to an open file of its own that is kept by a mapping alone ([`Keeper`]): programs
//! close all descriptors they do not know, and a forked child would inherit a descriptor, but not the
//! mapping. One gap remains: a child that another thread forks between the opening and the closing of
//! the descriptor, a few microseconds, keeps the lock until it closes its descriptors, execs or ends.
//! Then a dead member is taken for a live one that long; never the other way round.

use std::ffi::CStr;
use std::io;
use std::mem::offset_of;
use std::os::fd::{AsFd, BorrowedFd};

use crate::directory_lock::unsupported;
use crate::fault::fault_point;
use crate::layout::{SLOTS_OFFSET, Slot};
use crate::process::Who;
use crate::sync::Ordering;
use crate::sys::{self, FileId, Holder, Keeper, Kind, Range};
use crate::view::Alive;

/// A file by its directory and name, or by its absolute path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) directory: Option<BorrowedFd<'a>>,
    pub(crate) name: &'a CStr,
}

/// The byte whose lock shows that a slot's owner lives.
pub(crate) fn lock_of(slot: usize) -> Range {
    let offset = slot
        .saturating_mul(size_of::<Slot>())
        .saturating_add(SLOTS_OFFSET);
    Range::Byte(offset.saturating_add(offset_of!(Slot, claim)) as u64)
}

/// A slot's lock, held until it is dropped or the process ends.
///
/// A forked child has a copy of this without the mapping behind it and must forget, not drop it:
/// something else of the child's may lie at that address by then.
#[derive(Debug)]
pub(crate) struct Liveness {
    keeper: Keeper,
}

impl Liveness {
    /// See [`Keeper::into_address`]; the lock stays held.
    pub(crate) fn into_address(self) -> usize {
        self.keeper.into_address()
    }

    /// The lock that was turned into this address.
    ///
    /// # Safety
    /// As of [`Keeper::from_address`].
    pub(crate) unsafe fn from_address(address: usize) -> Option<Self> {
        // SAFETY: the caller promises it.
        unsafe { Keeper::from_address(address) }.map(|keeper| Self { keeper })
    }
}

/// What came of an attempt to take a slot's lock.
#[derive(Debug)]
pub(crate) enum Taken {
    /// It is held, and stays.
    Held(Liveness),
    /// Somebody else holds it.
    Busy,
    /// It was taken and did not stay: the file system does not keep it.
    NotKept,
}

/// Takes the lock of a slot in the file `at`, which must be `file`.
pub(crate) fn take(at: At<'_>, file: FileId, slot: usize) -> io::Result<Taken> {
    let keeper = {
        let fd = open_same(at, file, libc::O_RDWR)?;
        match sys::try_lock(fd.as_fd(), Kind::OpenFile, lock_of(slot)) {
            Ok(true) => {}
            Ok(false) => return Ok(Taken::Busy),
            Err(error) if unsupported(&error) => return Ok(Taken::NotKept),
            Err(error) => return Err(error),
        }
        fault_point!(LivenessLocked);
        Keeper::new(fd.as_fd())?
    };
    fault_point!(LivenessKept);
    // The descriptor is closed. What would another process see?
    let fd = open_same(at, file, libc::O_RDONLY)?;
    Ok(match is_locked(fd.as_fd(), slot) {
        Ok(true) => Taken::Held(Liveness { keeper }),
        _ => Taken::NotKept,
    })
}

/// Whether the lock of a slot is held, asked through a descriptor of the ledger.
pub(crate) fn is_locked(fd: BorrowedFd<'_>, slot: usize) -> io::Result<bool> {
    Ok(sys::lock_holder(fd, Kind::OpenFile, lock_of(slot))? != Holder::Nobody)
}

/// Whether a file in this place keeps such locks: one is kept by a mapping alone, and gone with it.
pub(crate) fn probe(at: At<'_>, file: FileId) -> bool {
    let Ok(Taken::Held(liveness)) = take(at, file, 0) else {
        return false;
    };
    drop(liveness);
    open_same(at, file, libc::O_RDONLY)
        .and_then(|fd| is_locked(fd.as_fd(), 0))
        .is_ok_and(|locked| !locked)
}

/// Opens a file and makes sure that it is the one that is meant.
pub(crate) fn open_same(
    at: At<'_>,
    file: FileId,
    flags: libc::c_int,
) -> io::Result<std::os::fd::OwnedFd> {
    let fd = sys::open_at(at.directory, at.name, flags, 0)?;
    if sys::status(fd.as_fd())?.file != file {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(fd)
}

/// The second witness, where there are no locks: does the process that a slot names exist?
pub(crate) fn witness(slot: &Slot) -> Alive {
    let load = |word: &crate::sync::AtomicU64| word.load(Ordering::Acquire);
    let Ok(pid) = u32::try_from(load(&slot.pid)) else {
        return Alive::Unknown;
    };
    let who = Who {
        pid,
        start_time: load(&slot.start_time),
        pid_namespace: load(&slot.pid_namespace),
        time_namespace: load(&slot.time_namespace),
    };
    who.alive()
}
