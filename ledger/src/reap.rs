//! Clearing the slots of the dead: exactly their share, exactly once, and never a live one's.

use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use crate::account;
use crate::directory_lock::DirectoryLock;
use crate::fault::fault_point;
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

/// Which slots are looked at. Asking for a lock takes the kernel longer the more locks there are, so
/// that looking at all slots takes a time that grows with the square of the number of members.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scan {
    /// All.
    All,
    /// Those that have something charged on the GPU of this index in the ledger.
    Charged(usize),
    /// A few, other ones each time; all if a dead one is among them.
    Some,
}

/// How many members [`Scan::Some`] looks at.
const SOME: usize = 8;

/// Clears the slots of dead members and tells `each` of it just before a slot becomes free.
/// Allocates nothing itself. Returns how many there were.
pub(crate) fn reap(
    target: Target<'_>,
    right: &Right<'_>,
    scan: Scan,
    each: &mut dyn FnMut(Cleared<'_>),
) -> usize {
    // Asking through a descriptor that is opened for it: one that is kept could have been closed by
    // the program, and its number given to another file by now.
    let Ok(fd) = liveness::open_same(target.at, target.file, libc::O_RDONLY) else {
        return 0;
    };
    let start = match scan {
        Scan::Some => first_of_some(target.map),
        Scan::All | Scan::Charged(_) => 0,
    };
    let mut asked: usize = 0;
    let mut count: usize = 0;
    let used = target.map.used_slots().len();
    // The mark is raised before a slot is claimed, so that nobody leaves a claim above it. If one is there all
    // the same, somebody has written the mark who should not have: whoever has the directory's lock alone,
    // beside whom nobody claims, takes nothing on trust and looks at all.
    let count_of_slots = match (scan, right) {
        (Scan::All, Right::Directory(_)) => target.map.slots().len(),
        _ => used,
    };
    let all = || target.map.slots().iter().enumerate().take(count_of_slots);
    for (index, slot) in all().skip(start).chain(all().take(start)) {
        let used = !matches!(
            Claim::load(&slot.claim).state(),
            State::Free | State::Invalid
        );
        let wanted = match scan {
            Scan::All => true,
            Scan::Charged(gpu) => {
                let cell = target.map.column(gpu).get(index);
                cell.is_some_and(|cell| account::charged_in(cell) > 0)
            }
            Scan::Some => asked < SOME || count > 0,
        };
        if used && wanted {
            asked = asked.saturating_add(1);
            let cleared = clear_if_dead(target, fd.as_fd(), right, index, slot, each);
            count = count.saturating_add(usize::from(cleared));
        }
    }
    count
}

/// Where a look at [`SOME`] members begins.
fn first_of_some(map: &Mapping) -> usize {
    let cursor = &map.header().reap_cursor;
    let cursor = cursor.fetch_add(SOME as u64, Ordering::Relaxed);
    let marked = map.used_slots().len() as u64;
    usize::try_from(cursor.checked_rem(marked).unwrap_or(0)).unwrap_or(0)
}

/// Whether there are members, and those live that are looked at: a few, other ones each time. No lock is
/// taken and nothing is cleared, so that this can be asked by many at a time without one taking another
/// for a member. `fd` is a descriptor of the ledger.
pub(crate) fn some_live(map: &Mapping, fd: BorrowedFd<'_>) -> bool {
    let start = first_of_some(map);
    let used = map
        .used_slots()
        .skip(start)
        .chain(map.used_slots().take(start));
    let used = used.filter(|(_, slot)| {
        let state = Claim::load(&slot.claim).state();
        !matches!(state, State::Free | State::Invalid)
    });
    let mut lives = used
        .take(SOME)
        .map(|(index, slot)| is_alive(map, fd, index, slot) == Alive::Yes)
        .peekable();
    lives.peek().is_some() && lives.all(|lives| lives)
}

/// Whether a member lives, or may live. Dead ones that are met on the way are cleared.
pub(crate) fn somebody_lives(target: Target<'_>, right: &Right<'_>) -> bool {
    let Ok(fd) = liveness::open_same(target.at, target.file, libc::O_RDONLY) else {
        return true;
    };
    target.map.used_slots().any(|(index, slot)| {
        Claim::load(&slot.claim).state() != State::Free
            && !clear_if_dead(target, fd.as_fd(), right, index, slot, &mut |_| {})
    })
}

/// Clears a slot that is in use, if its owner is dead. `fd` is a descriptor of the ledger.
fn clear_if_dead(
    target: Target<'_>,
    fd: BorrowedFd<'_>,
    right: &Right<'_>,
    index: usize,
    slot: &Slot,
    each: &mut dyn FnMut(Cleared<'_>),
) -> bool {
    let claim = Claim::load(&slot.claim);
    if matches!(claim.state(), State::Free | State::Invalid) {
        return false;
    }
    match (target.map.liveness(), right) {
        (LivenessMode::Locks, _) => match liveness::is_locked(fd, index) {
            Ok(false) => {
                fault_point!(ReapAsked);
                clear_locked(target, index, slot, each)
            }
            _ => false,
        },
        (LivenessMode::Witness, Right::Directory(_)) => {
            // Slots are claimed under the directory's lock, which is held here: a claim that is half
            // made was left by a dead process, and may name the slot's owner before.
            let dead = claim.state() == State::Claiming || liveness::witness(slot) == Alive::No;
            dead && clear(target.map, index, slot, claim, each)
        }
        (LivenessMode::Witness, Right::SlotLocks) => false,
    }
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
    fault_point!(ReapLocked);
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
    fault_point!(ReapClearing);
    let mut figures = map.row(index).map(account::read);
    each(Cleared {
        index,
        claim,
        slot,
        figures: &mut figures,
    });
    fault_point!(ReapTold);
    map.row(index).for_each(empty);
    let anomalies = slot.anomalies.load(Ordering::Relaxed);
    forget_identity(slot);
    if !clearing.swap(&slot.claim, claim.with(State::Free)) {
        return false;
    }
    fault_point!(ReapFreed);
    let header = map.header();
    header.reaped.fetch_add(1, Ordering::Relaxed);
    header.last_reap_at.store(now(), Ordering::Relaxed);
    header.anomalies.fetch_add(anomalies, Ordering::Relaxed);
    fault_point!(ReapCounted);
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
        &cell.overhead_at,
        &cell.kept,
    ];
    for figure in figures {
        figure.store(0, Ordering::Release);
        fault_point!(FigureEmptied);
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
    fault_point!(IdentityForgotten);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::create;
    use crate::directory::Directory;
    use crate::file::{self, Access, LedgerFile, Names, View};
    use crate::layout::Header;
    use crate::{BudgetName, GpuSpec, Limit, Place};

    struct Made {
        _root: tempfile::TempDir,
        directory: Directory,
        names: Names,
        ledger: LedgerFile,
    }

    impl Made {
        fn new() -> Self {
            let root = tempfile::tempdir_in("/dev/shm")
                .or_else(|_| tempfile::tempdir())
                .unwrap();
            let directory = Directory::open_or_create(&Place::new(root.path(), false)).unwrap();
            let budget = BudgetName::new("b").unwrap();
            let names = Names::of(&budget).unwrap();
            let gpu = GpuSpec {
                key: GpuKey(0x300),
                limit: Limit::Bytes(9),
                board_bytes: 0,
            };
            create::create(&directory, &names, &budget, &[gpu], "test").unwrap();
            let access = Access {
                writable: true,
                view: View::Mapping,
                owner: None,
            };
            let ledger = file::open(&directory, &names.ledger, access).unwrap();
            Self {
                _root: root,
                directory,
                names,
                ledger,
            }
        }

        fn header(&self) -> &Header {
            self.ledger.map.header()
        }

        fn slot(&self, index: usize) -> &Slot {
            self.ledger.map.slot(index).unwrap()
        }

        /// A slot as somebody left it in the middle of something.
        fn leave(&self, index: usize, state: State, live: u64) {
            let claim = Claim(5 << 8).with(state);
            self.slot(index).claim.store(claim.0, Ordering::SeqCst);
            self.ledger
                .map
                .column(0)
                .get(index)
                .unwrap()
                .live
                .store(live, Ordering::SeqCst);
            self.header()
                .high_water
                .word
                .fetch_max(index as u64 + 1, Ordering::SeqCst);
        }

        fn at(&self) -> At<'_> {
            At {
                directory: Some(self.directory.fd()),
                name: &self.names.ledger,
            }
        }

        fn reap(&self, right: &Right<'_>) -> Vec<Reaped> {
            let map = &self.ledger.map;
            let target = Target {
                map,
                at: self.at(),
                file: self.ledger.id,
            };
            let mut all = Vec::new();
            reap(target, right, Scan::All, &mut |cleared| {
                all.push(cleared.describe(map));
            });
            all
        }
    }

    #[test]
    fn whatever_a_dead_process_was_doing_its_slot_is_cleared() {
        let made = Made::new();
        for (index, state) in [State::Claiming, State::Claimed, State::Clearing]
            .iter()
            .enumerate()
        {
            made.leave(index, *state, 7);
        }
        made.leave(3, State::Free, 0);
        made.leave(4, State::Invalid, 7);
        let reaped = made.reap(&Right::SlotLocks);
        let slots: Vec<_> = reaped
            .iter()
            .map(|one| (one.slot, one.generation))
            .collect();
        assert_eq!(slots, [(0, 5), (1, 5), (2, 5)]);
        assert!(
            reaped
                .iter()
                .all(|one| one.returned == [(GpuKey(0x300), 7)])
        );
        for index in 0..3 {
            let claim = Claim::load(&made.slot(index).claim);
            assert_eq!((claim.state(), claim.generation()), (State::Free, 5));
            let cell = made.ledger.map.column(0).get(index).unwrap();
            assert_eq!(account::read(cell).charged(), 0);
        }
        // Nobody knows what that is; so nobody touches it.
        assert_eq!(Claim::load(&made.slot(4).claim).state(), State::Invalid);
        assert_eq!(
            account::charged(made.ledger.map.column(0), &made.header().high_water.word),
            7
        );
        assert_eq!(made.reap(&Right::SlotLocks), []);
    }

    #[test]
    fn a_claim_that_was_left_above_the_mark_is_found_under_the_directorys_lock() {
        let made = Made::new();
        made.leave(1023, State::Claiming, 7);
        made.header().high_water.word.store(1, Ordering::SeqCst);
        let lock = DirectoryLock::take(&made.directory, crate::directory_lock::DEADLINE).unwrap();
        let reaped = made.reap(&Right::holding(&lock));
        assert_eq!(reaped.len(), 1);
        assert_eq!(
            Claim::load(&made.slot(1023).claim).state(),
            State::Free,
            "and may be claimed"
        );
    }

    #[test]
    fn a_locked_slot_is_nobody_elses_in_any_state() {
        let made = Made::new();
        let Ok(Taken::Held(lock)) = liveness::take(made.at(), made.ledger.id, 0) else {
            panic!()
        };
        for state in [State::Claiming, State::Claimed, State::Clearing] {
            made.leave(0, state, 7);
            assert_eq!(made.reap(&Right::SlotLocks), []);
        }
        assert!(matches!(
            liveness::take(made.at(), made.ledger.id, 0),
            Ok(Taken::Busy)
        ));
        release_lock(lock);
        assert_eq!(made.reap(&Right::SlotLocks).len(), 1);
    }

    #[test]
    fn nobody_is_reaped_through_another_file_of_the_same_name() {
        let made = Made::new();
        made.leave(0, State::Claimed, 7);
        sys_remove(&made);
        assert_eq!(made.reap(&Right::SlotLocks), []);
        let budget = BudgetName::new("b").unwrap();
        let gpu = GpuSpec {
            key: GpuKey(1),
            limit: Limit::Unlimited,
            board_bytes: 0,
        };
        create::create(&made.directory, &made.names, &budget, &[gpu], "test").unwrap();
        assert_eq!(made.reap(&Right::SlotLocks), []);
        assert!(!file::is_current(
            &made.directory,
            &made.names.ledger,
            made.ledger.id
        ));
    }

    fn sys_remove(made: &Made) {
        assert!(file::remove(&made.directory, &made.names).unwrap());
        assert!(!Path::new(&made.directory.path_of(&made.names.ledger)).exists());
    }

    #[test]
    fn without_locks_a_slot_is_cleared_only_under_the_directorys_lock_and_with_a_witness() {
        let made = Made::new();
        made.header()
            .liveness
            .store(crate::layout::LIVENESS_WITNESS, Ordering::SeqCst);
        // Its owner is not known.
        made.leave(0, State::Claimed, 7);
        // A claim that was half made.
        made.leave(1, State::Claiming, 7);
        // This process, which lives, and one with its PID that started at another time.
        let who = crate::process::Who::this();
        for (index, start_time) in [(2, who.start_time), (3, who.start_time + 1)] {
            made.leave(index, State::Claimed, 7);
            let slot = made.slot(index);
            slot.pid.store(u64::from(who.pid), Ordering::SeqCst);
            slot.start_time.store(start_time, Ordering::SeqCst);
            slot.pid_namespace
                .store(who.pid_namespace, Ordering::SeqCst);
            slot.time_namespace
                .store(who.time_namespace, Ordering::SeqCst);
        }
        assert_eq!(made.reap(&Right::SlotLocks), []);
        let lock = DirectoryLock::take(&made.directory, crate::directory_lock::DEADLINE).unwrap();
        let reaped = made.reap(&Right::holding(&lock));
        let slots: Vec<_> = reaped.iter().map(|one| one.slot).collect();
        assert_eq!(slots, [1, 3]);
    }
}
