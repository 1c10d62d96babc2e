//! Takes the place of `liveness` in models: locks of a kernel that is a model too.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use super::models::kernel::Kernel;
use crate::layout::Slot;
use crate::sys::FileId;
use crate::view::Alive;

/// A file's place; models have none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) directory: Option<BorrowedFd<'a>>,
    pub(crate) name: &'a CStr,
}

/// A slot's lock, held until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Liveness {
    slot: usize,
}

impl Liveness {
    /// Any word that is not 0 and leads back to the lock.
    pub(crate) fn into_address(self) -> usize {
        std::mem::ManuallyDrop::new(self).slot + 1
    }

    /// # Safety
    /// None is needed here; the signature is that of the real one.
    pub(crate) unsafe fn from_address(address: usize) -> Option<Self> {
        address.checked_sub(1).map(|slot| Self { slot })
    }
}

impl Drop for Liveness {
    fn drop(&mut self) {
        Kernel::current().unlock(self.slot);
    }
}

/// What came of an attempt to take a slot's lock.
#[derive(Debug)]
pub(crate) enum Taken {
    Held(Liveness),
    Busy,
    #[expect(dead_code, reason = "this kernel keeps every lock")]
    NotKept,
}

pub(crate) fn take(_: At<'_>, _: FileId, slot: usize) -> io::Result<Taken> {
    if !Kernel::current().try_lock(slot) {
        return Ok(Taken::Busy);
    }
    crate::fault::fault_point!(LivenessKept);
    Ok(Taken::Held(Liveness { slot }))
}

pub(crate) fn is_locked(_: BorrowedFd<'_>, slot: usize) -> io::Result<bool> {
    Ok(Kernel::current().is_locked(slot))
}

pub(crate) fn probe(_: At<'_>, _: FileId) -> bool {
    true
}

pub(crate) fn open_same(_: At<'_>, _: FileId, _: libc::c_int) -> io::Result<OwnedFd> {
    super::models::nothing().try_clone()
}

pub(crate) fn witness(_: &Slot) -> Alive {
    Alive::Unknown
}
