//! Clearing the slots of the dead: exactly their share, exactly once, and never a live one's.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use crate::account;
use crate::directory_lock::DirectoryLock;
use crate::file::now;
use crate::gpu::GpuKey;
use crate::layout::{Cell, FOLLOW, Slot, load_text};
use crate::liveness::{self, At, Liveness, Taken};
use crate::mapping::Mapping;
use crate::slot::{Claim, State};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::FileId;
use crate::view::{Alive, CellView, LivenessMode, Reaped};

/// The right to clear slots of dead members.
pub(crate) enum Right<'a> {
    /// The ledger keeps locks: each slot's own lock is taken while it is cleared.
    SlotLocks,
    /// The directory's lock is held, which is what it takes where the ledger keeps none.
    Directory(PhantomData<&'a DirectoryLock>),
}

impl<'a> Right<'a> {
    /// The right of the holder of the directory's lock, for as long as it is held.
    pub(crate) fn holding(_: &'a DirectoryLock) -> Self {
        Self::Directory(PhantomData)
    }
}

/// What reaping needs to know of a ledger.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) map: &'a Mapping,
    /// Where its file lies. If another file lies there by now, nobody is reaped.
    pub(crate) at: At<'a>,
    pub(crate) file: FileId,
}

/// A slot that was cleared.
pub(crate) struct Cleared<'a> {
    pub(crate) index: usize,
    pub(crate) claim: Claim,
    pub(crate) slot: &'a Slot,
    /// What was in its cells, by GPU index.
    pub(crate) figures: &'a mut dyn Iterator<Item = CellView>,
}

/// Clears the slot of every dead member and tells `each` of it just before the slot becomes free.
/// Allocates nothing itself. Returns how many there were.
pub(crate) fn reap(
    target: Target<'_>,
    right: &Right<'_>,
    each: &mut dyn FnMut(Cleared<'_>),
) -> usize {
    let mode = target.map.liveness();
    // Asking through a descriptor that is opened for it: one that is kept could have been closed by
    // the program, and its number given to another file by now.
    let Ok(fd) = liveness::open_same(target.at, target.file, libc::O_RDONLY) else {
        return 0;
    };
    let mut count: usize = 0;
    for (index, slot) in target.map.used_slots() {
        let claim = Claim::load(&slot.claim);
        if matches!(claim.state(), State::Free | State::Invalid) {
            continue;
        }
        let cleared = match (mode, right) {
            (LivenessMode::Locks, _) => match liveness::is_locked(fd.as_fd(), index) {
                Ok(false) => clear_locked(target, index, slot, each),
                _ => false,
            },
            (LivenessMode::Witness, Right::Directory(_)) => {
                // Slots are claimed under the directory's lock, which is held here: a claim that is
                // half made was left by a dead process, and may name the slot's owner before.
                let dead = claim.state() == State::Claiming || liveness::witness(slot) == Alive::No;
                dead && clear(target.map, index, slot, claim, each)
            }
            (LivenessMode::Witness, Right::SlotLocks) => false,
        };
        count = count.saturating_add(usize::from(cleared));
    }
    count
}

/// Clears a slot while holding its lock.
fn clear_locked(
    target: Target<'_>,
    index: usize,
    slot: &Slot,
    each: &mut dyn FnMut(Cleared<'_>),
) -> bool {
    let Ok(Taken::Held(lock)) = liveness::take(target.at, target.file, index) else {
        return false;
    };
    // Another reaper may have been here, and another owner may have come and gone.
    let claim = Claim::load(&slot.claim);
    let dead = !matches!(claim.state(), State::Free | State::Invalid);
    let cleared = dead && clear(target.map, index, slot, claim, each);
    release_lock(lock);
    cleared
}

/// Named, so that the order is seen: the lock goes after the slot is free.
fn release_lock(lock: Liveness) {
    drop(lock);
}

fn clear(
    map: &Mapping,
    index: usize,
    slot: &Slot,
    claim: Claim,
    each: &mut dyn FnMut(Cleared<'_>),
) -> bool {
    let clearing = claim.with(State::Clearing);
    // A reaper that died here left it clearing; what is not cleared yet is cleared now.
    if claim != clearing && !claim.swap(&slot.claim, clearing) {
        return false;
    }
    let mut figures = map.row(index).map(account::read);
    each(Cleared {
        index,
        claim,
        slot,
        figures: &mut figures,
    });
    map.row(index).for_each(empty);
    let anomalies = slot.anomalies.load(Ordering::Relaxed);
    forget_identity(slot);
    if !clearing.swap(&slot.claim, claim.with(State::Free)) {
        return false;
    }
    let header = map.header();
    header.reaped.fetch_add(1, Ordering::Relaxed);
    header.last_reap_at.store(now(), Ordering::Relaxed);
    header.anomalies.fetch_add(anomalies, Ordering::Relaxed);
    true
}

/// Sets all figures of a cell to 0.
pub(crate) fn empty(cell: &Cell) {
    let figures = [
        &cell.pending,
        &cell.live,
        &cell.overhead,
        &cell.peak,
        &cell.live_unseen,
    ];
    for figure in figures.into_iter().chain(&cell.spare) {
        figure.store(0, Ordering::Release);
    }
    cell.member_limit.store(FOLLOW, Ordering::Release);
}

/// So that a slot that is claimed next does not show its last owner, even for a moment.
pub(crate) fn forget_identity(slot: &Slot) {
    let words: [&AtomicU64; 4] = [
        &slot.pid,
        &slot.start_time,
        &slot.pid_namespace,
        &slot.host_pid,
    ];
    for word in words {
        word.store(0, Ordering::Release);
    }
}

impl Cleared<'_> {
    /// A plain copy for whoever wants to know.
    pub(crate) fn describe(self, map: &Mapping) -> Reaped {
        let keys = map
            .gpus()
            .iter()
            .map(|gpu| GpuKey(gpu.key.load(Ordering::Relaxed)));
        let returned = keys.zip(self.figures.map(|cell| cell.charged()));
        Reaped {
            slot: self.index,
            generation: self.claim.generation(),
            pid: u32::try_from(self.slot.pid.load(Ordering::Relaxed)).unwrap_or(0),
            comm: load_text(&self.slot.comm),
            returned: returned.filter(|(_, bytes)| *bytes > 0).collect(),
        }
    }
}

/// Whether a member lives, asked through a descriptor of the ledger.
pub(crate) fn is_alive(map: &Mapping, fd: BorrowedFd<'_>, index: usize, slot: &Slot) -> Alive {
    match map.liveness() {
        LivenessMode::Locks => match liveness::is_locked(fd, index) {
            Ok(true) => Alive::Yes,
            Ok(false) => Alive::No,
            Err(_) => Alive::Unknown,
        },
        LivenessMode::Witness => liveness::witness(slot),
    }
}
