//! Places between two steps of an operation, at which a test may watch a process, hold it or end it.
//!
//! They exist with the feature `fault-points` only; without it the macro `fault_point` is
//! nothing at all.

#[cfg(feature = "fault-points")]
pub use points::{FaultPoint, set_hook};

/// Marks a place between two steps by a name of `FaultPoint`.
macro_rules! fault_point {
    ($name:ident) => {
        #[cfg(feature = "fault-points")]
        crate::fault::reached(crate::fault::FaultPoint::$name);
    };
}

pub(crate) use fault_point;

#[cfg(feature = "fault-points")]
pub(crate) use points::reached;

#[cfg(feature = "fault-points")]
mod points {
    use std::mem::transmute;
    use std::ptr::null_mut;
    use std::sync::atomic::{AtomicPtr, Ordering};

    macro_rules! fault_points {
        ($($(#[$about:meta])* $name:ident,)*) => {
            /// A place between two steps. Its name says what has just been done.
            #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
            pub enum FaultPoint { $($(#[$about])* $name,)* }

            impl FaultPoint {
                /// All there are. One that no operation of the tests comes by is a failure there.
                pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            }
        };
    }

    fault_points! {
        /// Joining: the directory's lock is shared.
        JoinShared,
        /// Joining: the directory's lock is held alone.
        JoinLocked,
        /// Making a ledger: the draft exists, without space.
        DraftMade,
        /// Making a ledger: the draft has its space.
        DraftAllocated,
        /// Making a ledger: the draft has its GPUs, not yet its header.
        DraftGpusWritten,
        /// Making a ledger: the draft is complete.
        DraftWritten,
        /// Making a ledger: it has its name, and that of the draft.
        LedgerLinked,
        /// Removing a ledger: its name is gone, that of the owners file is not.
        LedgerUnlinked,
        /// Removing a ledger: all names are gone that this user may remove.
        OwnersUnlinked,
        /// Joining: the record of another GPU is written, not counted.
        GpuWritten,
        /// Joining: the record of another GPU is counted.
        GpuAdded,
        /// Taking a slot's lock: locked, held through the descriptor.
        LivenessLocked,
        /// Taking a slot's lock: held through the mapping alone.
        LivenessKept,
        /// Claiming: every sum reaches the slot, which is still free.
        HighWaterRaised,
        /// Claiming: the slot's state is CLAIMING.
        SlotClaiming,
        /// Claiming: the member's own limits are in its cells.
        SlotLimited,
        /// Claiming: the member's identity is in the slot.
        SlotFilled,
        /// Claiming: the slot's state is CLAIMED.
        SlotClaimed,
        /// Joining: the ledger was found to be another than that of the budget, the slot is given back.
        JoinGaveUp,
        /// Joining: the ledger is still that of the budget.
        JoinChecked,
        /// Joining: others can ask for the PID.
        OwnerLocked,
        /// Beginning an operation: this thread is inside, and the slot is the member's.
        Entered,
        /// Reserving: the bytes are pending, nothing was summed.
        ReserveAdded,
        /// Reserving: everything is summed and fits.
        ReserveGranted,
        /// Reserving: everything is summed, does not fit, and is still pending.
        ReserveOver,
        /// Reserving: what did not fit is taken back.
        ReserveTakenBack,
        /// Committing managed memory: it is told that the driver does not show the bytes, which are
        /// pending still.
        CommitUnseen,
        /// Committing: the bytes are live, and pending.
        CommitBooked,
        /// Committing: the peak is noted.
        CommitPeaked,
        /// Committing: the bytes are no more pending.
        CommitSettled,
        /// Committing: the allocation is counted.
        CommitCounted,
        /// Cancelling: the bytes are no more pending.
        CancelSettled,
        /// Releasing: the bytes are no more live.
        ReleaseSettled,
        /// Releasing managed memory: nor are they among those that the driver does not show.
        ReleaseUnseen,
        /// Releasing: the free is counted.
        ReleaseCounted,
        /// Telling the overhead: it is stored, that it is known is not.
        OverheadStored,
        /// Telling the overhead: it is known.
        OverheadKnown,
        /// Telling that the overhead is not known: it is not.
        OverheadForgotten,
        /// Telling of a refusal: it is counted, and the record is marked as being written.
        RefusalBegun,
        /// Telling of a refusal: the record is written and still marked.
        RefusalWritten,
        /// Leaving: the slot's state is CLEARING.
        LeaveClearing,
        /// Leaving: something is held after all, and the slot is the member's again.
        LeaveStayed,
        /// Leaving: the slot is free and still locked.
        LeaveFreed,
        /// Leaving: the slot's anomalies are the ledger's.
        LeaveCounted,
        /// Leaving: the slot's lock is gone.
        LeaveUnlocked,
        /// Reaping: a slot in use is not locked.
        ReapAsked,
        /// Reaping: its lock is taken.
        ReapLocked,
        /// Reaping: its state is CLEARING.
        ReapClearing,
        /// Reaping: whoever reaps has been told.
        ReapTold,
        /// Reaping: it is free and still locked.
        ReapFreed,
        /// Reaping: it is counted.
        ReapCounted,
        /// Clearing, whoever does it: one more figure of a cell is 0.
        FigureEmptied,
        /// Clearing, whoever does it: the identity is gone.
        IdentityForgotten,
        /// Removing a ledger that is empty: the directory's lock is held.
        RemoveLocked,
        /// Removing a ledger that is empty: it was found to be so.
        RemoveDecided,
    }

    static HOOK: AtomicPtr<()> = AtomicPtr::new(null_mut());

    /// What this process, and children forked from now on, do at each point; `None` for nothing.
    pub fn set_hook(hook: Option<fn(FaultPoint)>) {
        let hook = hook.map_or(null_mut(), |hook| hook as *mut ());
        HOOK.store(hook, Ordering::SeqCst);
    }

    pub(crate) fn reached(point: FaultPoint) {
        let hook = HOOK.load(Ordering::SeqCst);
        if !hook.is_null() {
            // SAFETY: only `set_hook` stores something else than null, a function of this type.
            let hook = unsafe { transmute::<*mut (), fn(FaultPoint)>(hook) };
            hook(point);
        }
    }
}
