//! Giving the slot back while the process lives.

use super::Member;
use crate::account;
use crate::fault::fault_point;
use crate::layout::Cell;
use crate::liveness::Liveness;
use crate::reap::{empty, forget_identity};
use crate::slot::State;
use crate::sync::{Ordering, yield_now};
use crate::sys;

/// How often it is looked whether other threads have ended what they are doing.
const TURNS: u32 = if cfg!(all(test, loom)) { 2 } else { 32 };

/// Why [`Member::leave`] did not release the slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stayed {
    /// Something is still booked or reserved, or another thread is in the middle of an operation.
    InUse,
    /// The slot is not this process's: it has left already, or inherited the member by a fork.
    NotAMember,
}

impl Member {
    /// Releases the slot, if nothing is booked or reserved on any GPU and no other thread is in the
    /// middle of an operation. Fit for exit handlers: no allocation, no lock, no output.
    ///
    /// # Errors
    /// [`Stayed`] when the slot was not released.
    pub fn leave(&self) -> Result<(), Stayed> {
        let slot = self.map.slot(self.slot).filter(|_| self.is_member());
        let slot = slot.ok_or(Stayed::NotAMember)?;
        if !self.is_idle() {
            return Err(Stayed::InUse);
        }
        let clearing = self.claimed.with(State::Clearing);
        if !self.claimed.swap(&slot.claim, clearing) {
            return Err(Stayed::NotAMember);
        }
        fault_point!(LeaveClearing);
        // Whoever comes later sees that the slot is being cleared and keeps out. Those who were inside
        // before are given a moment to go; what they did is seen then.
        if !self.others_go() || !self.is_idle() {
            clearing.swap(&slot.claim, self.claimed);
            fault_point!(LeaveStayed);
            return Err(Stayed::InUse);
        }
        let anomalies = slot.anomalies.load(Ordering::Relaxed);
        self.cells().for_each(empty);
        forget_identity(slot);
        clearing.swap(&slot.claim, self.claimed.with(State::Free));
        fault_point!(LeaveFreed);
        self.map
            .header()
            .anomalies
            .fetch_add(anomalies, Ordering::Relaxed);
        fault_point!(LeaveCounted);

        // Only now may another have the slot.
        let address = self.liveness.swap(0, Ordering::AcqRel);
        // SAFETY: the address comes from the lock that this process was given when it joined (a
        // forked child is no member, and does not come here); the swap hands it out once.
        drop(unsafe { Liveness::from_address(address) });
        fault_point!(LeaveUnlocked);
        if let Some(owner) = &self.owner
            && sys::raw_status(owner.fd).is_ok_and(|status| status.file == owner.file)
        {
            // The lock on this slot's byte goes with it. (So do those of other memberships of this
            // process in the same budget, if it has any, by which others could tell its PID; nothing
            // else depends on them.)
            sys::close(owner.fd);
        }
        Ok(())
    }

    /// Waits a little for the operations under way to end; whether they have.
    fn others_go(&self) -> bool {
        (0..TURNS).any(|_| {
            self.gate.is_empty() || {
                yield_now();
                false
            }
        })
    }

    fn is_idle(&self) -> bool {
        self.cells()
            .map(account::read)
            .all(|cell| cell.live == 0 && cell.pending == 0)
    }

    /// The cells that this process has written to.
    fn cells(&self) -> impl Iterator<Item = &Cell> {
        let columns = self.gpus.iter().map(|gpu| self.map.column(gpu.index));
        columns.filter_map(|column| column.get(self.slot))
    }
}
