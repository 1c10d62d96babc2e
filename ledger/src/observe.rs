//! A ledger seen from outside: no slot is claimed.

use std::path::{Path, PathBuf};

use crate::error::{ChangeError, OpenError, PlaceError};
use crate::gpu::GpuKey;
use crate::limit::Limit;
use crate::place::Place;
use crate::view::{LedgerSnapshot, Reaped};

/// An open ledger. Reading needs only permission to read the file.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
}

/// One entry of [`Ledger::list`].
#[derive(Debug)]
pub struct Listed {
    /// The file.
    pub path: PathBuf,
    /// The user in whose directory it lies; `None` for the directory of all users.
    pub uid: Option<u32>,
    /// The ledger, or why it cannot be read.
    pub ledger: Result<Ledger, OpenError>,
}

impl Ledger {
    /// Opens a ledger and checks everything about it; read-only where writing is not permitted.
    ///
    /// # Errors
    /// [`OpenError`] says what does not fit.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Err(OpenError::Missing(path.to_owned()))
    }

    /// Every ledger of this user and the shared ones; those of all users when called by root.
    /// Both kinds are listed whether or not `place` is shared. A root that does not exist is empty.
    ///
    /// # Errors
    /// When the root exists and cannot be read.
    pub fn list(place: &Place) -> Result<Vec<Listed>, PlaceError> {
        let _ = place;
        Ok(Vec::new())
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether changes are possible.
    #[must_use]
    pub fn writable(&self) -> bool {
        false
    }

    /// A plain copy of everything.
    #[must_use]
    pub fn snapshot(&self) -> Option<LedgerSnapshot> {
        None
    }

    /// Clears the slots of dead members, each exactly once whoever reaps at the same time.
    ///
    /// # Errors
    /// [`ChangeError::ReadOnly`].
    pub fn reap(&self) -> Result<Vec<Reaped>, ChangeError> {
        Err(ChangeError::ReadOnly(self.path.clone()))
    }

    /// Reaps, and removes the ledger if no member is left; `false` if one is, or if the file has
    /// been replaced by another.
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only or its lock cannot be had.
    pub fn remove_if_empty(&self) -> Result<bool, ChangeError> {
        Err(ChangeError::ReadOnly(self.path.clone()))
    }

    /// Changes the ledger's limit on one GPU. It holds at once for all members without a stricter
    /// limit of their own. Nothing is freed.
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only or has no such GPU.
    pub fn set_limit(&self, gpu: GpuKey, limit: Limit) -> Result<(), ChangeError> {
        let _ = (gpu, limit);
        Err(ChangeError::ReadOnly(self.path.clone()))
    }

    /// Tells a member its PID in the initial PID namespace.
    ///
    /// # Errors
    /// [`ChangeError`] when the ledger is read-only or the slot has another owner by now.
    pub fn set_host_pid(&self, slot: usize, generation: u64, pid: u32) -> Result<(), ChangeError> {
        let _ = (slot, generation, pid);
        Err(ChangeError::ReadOnly(self.path.clone()))
    }
}
