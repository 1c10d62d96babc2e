//! A process's membership of a budget: what the hooks call.

use crate::denial::Denial;
use crate::error::JoinError;
use crate::gpu::GpuSpec;
use crate::limit::Limit;
use crate::notice::Notice;
use crate::place::{BudgetName, Place};
use crate::view::{GpuView, HookEngine};

/// What a process says of itself when it joins. Shown to people, never relied upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The command name; the first 16 bytes are kept.
    pub comm: Vec<u8>,
    /// The version of the library that books; the first 48 bytes are kept.
    pub library_version: String,
}

/// The result of [`Member::join`].
#[derive(Debug)]
pub struct Joined {
    /// The membership.
    pub member: Member,
    /// What the user should be told, one line each.
    pub notices: Vec<Notice>,
}

/// Bytes that are reserved and neither booked nor given back yet.
///
/// Give it to [`Member::commit`] or [`Member::cancel`]. Dropping it does nothing: the bytes then
/// stay charged until the process ends.
#[derive(Debug)]
#[must_use = "reserved bytes stay charged until commit or cancel"]
pub struct Reservation {
    gpu: usize,
    bytes: u64,
}

impl Reservation {
    /// The GPU, by its index in the list that was given to [`Member::join`].
    #[must_use]
    pub fn gpu(&self) -> usize {
        self.gpu
    }

    /// How many bytes are reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A live process's slot in a ledger.
///
/// Operations allocate nothing, take no lock that another process could hold, and never panic.
/// `gpu` is always the index in the list given to [`Member::join`].
///
/// A forked child inherits a copy that is dead: [`Member::is_stale_after_fork`] says so, every
/// operation on it does nothing (requests are refused), and the child joins anew. Dropping a member
/// does nothing either; its slot is released by [`Member::leave`] or reaped after the process's end.
#[derive(Debug)]
pub struct Member {}

/// Why [`Member::leave`] did not release the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stayed {
    /// Something is still booked or reserved.
    InUse,
    /// The slot is not this process's: it has left already, or inherited the member by a fork.
    NotAMember,
}

impl Member {
    /// Joins a budget: makes or opens its ledger, checks everything about it, reaps dead members,
    /// claims a slot and takes the lock that shows this process alive.
    ///
    /// * A ledger without a live member is replaced by a fresh one with the limits in `gpus`.
    /// * In a ledger that is in use, the stricter of its limit and the one in `gpus` holds for this
    ///   process, and a [`Notice`] says so. Where both are equal, a later change of the ledger's
    ///   limit applies to this process too.
    /// * GPUs are matched by key. One that the ledger does not have yet is added with the limit that
    ///   this process brings, as long as there is room (a ledger is made with room for at least 8).
    ///
    /// # Errors
    /// [`JoinError`]; its text says what to do. Waits up to about 2 s for another process that is
    /// joining or making a ledger.
    pub fn join(
        place: &Place,
        budget: &BudgetName,
        gpus: &[GpuSpec],
        identity: &Identity,
    ) -> Result<Joined, JoinError> {
        let _ = (place, budget, identity);
        Err(JoinError::GpuList {
            brought: gpus.len().to_string(),
            max: crate::MAX_GPUS,
        })
    }

    /// Reserves `bytes` before the native call, or says why not.
    ///
    /// Before it refuses it reaps dead members once, and waits a few milliseconds at most while
    /// nothing but reservations of others, which may yet be given back, stands in the way.
    ///
    /// # Errors
    /// [`Denial`]; nothing is charged then.
    pub fn reserve(&self, gpu: usize, bytes: u64) -> Result<Reservation, Denial> {
        Err(refused(gpu, bytes))
    }

    /// Enlarges a reservation by `extra` bytes (when a pitch turns out wider than estimated).
    ///
    /// # Errors
    /// [`Denial`]; the reservation stays as it was.
    pub fn grow(&self, reservation: &mut Reservation, extra: u64) -> Result<(), Denial> {
        Err(refused(reservation.gpu, extra))
    }

    /// Books `actual` bytes in place of a reservation: the native call succeeded. Counts one
    /// allocation.
    pub fn commit(&self, reservation: Reservation, actual: u64) {
        let _ = (reservation, actual);
    }

    /// Gives a reservation back: the native call failed.
    pub fn cancel(&self, reservation: Reservation) {
        let _ = reservation;
    }

    /// Gives `bytes` of what was booked back: the native free succeeded. Counts one free. Giving
    /// back more than is booked leaves 0 and counts an anomaly.
    pub fn release(&self, gpu: usize, bytes: u64) {
        let _ = (gpu, bytes);
    }

    /// The account of one GPU as this process sees it; `None` for an index it does not have.
    pub fn view(&self, gpu: usize) -> Option<GpuView> {
        let _ = gpu;
        None
    }

    /// The limit that holds for this process; `None` for an index it does not have. One load or two.
    pub fn limit(&self, gpu: usize) -> Option<Limit> {
        let _ = gpu;
        None
    }

    /// Says how much the driver holds for this process beyond what is booked, in bytes.
    pub fn set_overhead(&self, gpu: usize, bytes: u64) {
        let _ = (gpu, bytes);
    }

    /// Counts a refusal and keeps its size, time and API name (the first 32 bytes) for observers.
    pub fn record_refusal(&self, gpu: usize, size: u64, api: &str) {
        let _ = (gpu, size, api);
    }

    /// Says which engine holds hook number `hook` (below [`crate::MAX_HOOKS`]; others are ignored).
    pub fn set_engine(&self, hook: usize, engine: HookEngine) {
        let _ = (hook, engine);
    }

    /// Reaps members that are dead; returns how many. A few system calls for each live member.
    pub fn reap(&self) -> usize {
        0
    }

    /// Releases the slot, if nothing is booked or reserved on any GPU. Fit for exit handlers: no
    /// allocation, no lock, no output.
    ///
    /// # Errors
    /// [`Stayed`] when the slot was not released.
    pub fn leave(&self) -> Result<(), Stayed> {
        Err(Stayed::NotAMember)
    }

    /// Whether this process inherited the member by a fork. One load.
    pub fn is_stale_after_fork(&self) -> bool {
        true
    }
}

fn refused(gpu: usize, requested: u64) -> Denial {
    let _ = gpu;
    Denial {
        reason: crate::denial::DenialReason::NotAMember,
        requested,
        limit: Limit::Bytes(0),
        mine: 0,
        others: 0,
        overhead: 0,
        available: 0,
    }
}
