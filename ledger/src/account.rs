//! The arithmetic of reserve, commit and release over one GPU's cells. No files, no mapping, no
//! system calls: plain slices of atomics, so that a model checker can run it.
//!
//! The rule that keeps the sum below the limit: **add to the own cell, fence, then sum**. Of two
//! members that do this at a time at least one sees the other's addition, whatever the order of
//! their loads; so both may be refused for a moment and never may both pass.
//!
//! The rule that keeps the sum from missing bytes on their way from `pending` to `live`: a writer
//! adds to `live` *before* it takes from `pending`, a reader reads `pending` *before* `live`. The
//! reader may see the bytes twice, never not at all.

use crate::fault::fault_point;
use crate::layout::Cell;
use crate::limit::Limit;
use crate::size::MAX_BYTES;
use crate::sync::{AtomicU64, Ordering, fence_behind_change};
use crate::view::CellView;

/// One GPU's cells as one member uses them.
#[derive(Clone, Copy)]
pub(crate) struct Account<'a> {
    /// The cells of all slots.
    pub(crate) cells: &'a [Cell],
    /// One more than the highest slot that was ever claimed.
    pub(crate) high_water: &'a AtomicU64,
    /// The member's own cell.
    pub(crate) own: &'a Cell,
    /// The state of the member's slot, and the value it has as long as the slot is the member's.
    pub(crate) claim: &'a AtomicU64,
    pub(crate) claimed: u64,
}

/// What is charged on a GPU, as one sum saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Totals {
    /// The own cell.
    pub(crate) mine: CellView,
    /// Charged to all other slots.
    pub(crate) others: u64,
    /// The part of `others` that is only reserved.
    pub(crate) others_pending: u64,
}

impl Totals {
    pub(crate) fn charged(&self) -> u64 {
        self.mine.charged().saturating_add(self.others)
    }
}

/// Why nothing was reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Above [`MAX_BYTES`].
    TooLarge,
    /// The slot is not the member's any more.
    NotAMember,
    /// The limit would be exceeded. `totals` is without the request.
    OverLimit {
        totals: Totals,
        /// The request would fit if other reservations came to nothing.
        only_pending_in_the_way: bool,
    },
}

impl Account<'_> {
    /// Adds `bytes` to the own `pending` if the limit allows it. On refusal nothing stays added.
    pub(crate) fn try_reserve(&self, bytes: u64, limit: Limit) -> Result<(), Refusal> {
        if bytes > MAX_BYTES {
            return Err(Refusal::TooLarge);
        }
        // What can never fit is refused without disturbing others by adding it for a moment.
        if matches!(limit, Limit::Bytes(most) if bytes > most) || !add(&self.own.pending, bytes) {
            let totals = self.totals();
            return Err(Refusal::OverLimit {
                totals,
                only_pending_in_the_way: false,
            });
        }
        fault_point!(ReserveAdded);
        fence_behind_change();
        // A leaving member changes the state, fences and then looks at `pending`: either it sees
        // what was added above, or the change is seen here.
        if self.claim.load(Ordering::Relaxed) != self.claimed {
            subtract(&self.own.pending, bytes);
            return Err(Refusal::NotAMember);
        }
        let Limit::Bytes(most) = limit else {
            return Ok(());
        };
        let mut totals = self.totals();
        if totals.charged() <= most {
            fault_point!(ReserveGranted);
            return Ok(());
        }
        fault_point!(ReserveOver);
        subtract(&self.own.pending, bytes);
        fault_point!(ReserveTakenBack);
        totals.mine.pending = totals.mine.pending.saturating_sub(bytes);
        let in_flight = totals.others_pending.saturating_add(totals.mine.pending);
        let settled = totals.charged().saturating_sub(in_flight);
        let only_pending_in_the_way = in_flight > 0 && settled.saturating_add(bytes) <= most;
        Err(Refusal::OverLimit {
            totals,
            only_pending_in_the_way,
        })
    }

    /// Books `actual` bytes in place of `reserved` ones. Returns how many anomalies were met.
    pub(crate) fn commit(&self, reserved: u64, actual: u64) -> u64 {
        // The truth is booked even where it is absurd: at worst the figure stays at its maximum.
        let sum = |now: u64| now.saturating_add(actual).min(MAX_BYTES);
        let before = self
            .own
            .live
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| Some(sum(now)))
            .unwrap_or(MAX_BYTES);
        fault_point!(CommitBooked);
        // Most bookings do not reach the peak, and a look is cheaper than a change.
        if self.own.peak.load(Ordering::Relaxed) < sum(before) {
            self.own.peak.fetch_max(sum(before), Ordering::Release);
        }
        fault_point!(CommitPeaked);
        let exact = before
            .checked_add(actual)
            .is_some_and(|sum| sum <= MAX_BYTES);
        let taken = subtract(&self.own.pending, reserved);
        u64::from(!exact).saturating_add(u64::from(!taken))
    }

    /// Gives reserved bytes back. Returns how many anomalies were met.
    pub(crate) fn cancel(&self, reserved: u64) -> u64 {
        u64::from(!subtract(&self.own.pending, reserved))
    }

    /// Gives booked bytes back. Returns how many anomalies were met.
    pub(crate) fn release(&self, bytes: u64) -> u64 {
        u64::from(!subtract(&self.own.live, bytes))
    }

    /// Says that `bytes` which are about to be booked are not in the driver's counter: before
    /// [`Self::commit`], so that what the driver should show is never overstated.
    pub(crate) fn add_unseen(&self, bytes: u64) {
        let sum = |now: u64| Some(now.saturating_add(bytes).min(MAX_BYTES));
        let _ = self
            .own
            .live_unseen
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, sum);
    }

    /// Says how much of what is booked is kept by pools.
    pub(crate) fn set_kept(&self, bytes: u64) {
        self.own.kept.store(bytes.min(MAX_BYTES), Ordering::Release);
    }

    /// Takes [`Self::add_unseen`] back, after [`Self::release`]. Returns how many anomalies were met.
    pub(crate) fn release_unseen(&self, bytes: u64) -> u64 {
        u64::from(!subtract(&self.own.live_unseen, bytes))
    }

    /// Says what the overhead is, and since when.
    pub(crate) fn set_overhead(&self, bytes: u64, now: u64) {
        // Whoever sees that it is known sees this figure, or one that is told later.
        let bytes = bytes.min(MAX_BYTES);
        self.own.overhead.store(bytes, Ordering::Release);
        fault_point!(OverheadStored);
        self.own.overhead_at.store(now.max(1), Ordering::Release);
    }

    /// Says that the overhead is not known. The figure stays: a reader that still takes it for known
    /// has one that was true a moment ago. If it were cleared, that reader would take it for 0, and so
    /// would everyone for good where another thread tells a new one at the same time.
    pub(crate) fn forget_overhead(&self) {
        self.own.overhead_at.store(0, Ordering::Release);
    }

    /// What is charged to the own slot, and to all others together.
    #[inline]
    pub(crate) fn charged(&self) -> (u64, u64) {
        let (mut mine, mut others) = (0, 0_u64);
        for cell in used(self.cells, self.high_water) {
            let charged = charged_in(cell);
            if core::ptr::eq(cell, self.own) {
                mine = charged;
            } else {
                others = others.saturating_add(charged);
            }
        }
        (mine, others)
    }

    /// The sum over all slots.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals {
            mine: CellView::default(),
            others: 0,
            others_pending: 0,
        };
        for cell in used(self.cells, self.high_water) {
            if core::ptr::eq(cell, self.own) {
                totals.mine = read(cell);
            } else {
                let (settled, pending) = parts(cell);
                let charged = settled.saturating_add(pending);
                totals.others = totals.others.saturating_add(charged);
                totals.others_pending = totals.others_pending.saturating_add(pending);
            }
        }
        totals
    }
}

/// The cells that may hold something.
fn used<'a>(cells: &'a [Cell], high_water: &AtomicU64) -> &'a [Cell] {
    let count = usize::try_from(high_water.load(Ordering::Acquire)).unwrap_or(usize::MAX);
    cells.get(..count).unwrap_or(cells)
}

/// What is charged to all slots together.
pub(crate) fn charged(cells: &[Cell], high_water: &AtomicU64) -> u64 {
    let cells = used(cells, high_water).iter();
    cells.fold(0, |sum, cell| sum.saturating_add(charged_in(cell)))
}

/// What is charged to one slot.
pub(crate) fn charged_in(cell: &Cell) -> u64 {
    let (settled, pending) = parts(cell);
    settled.saturating_add(pending)
}

/// What a sum needs of a cell, in the order that keeps it from missing bytes: what is live or overhead,
/// and what is pending.
#[inline]
fn parts(cell: &Cell) -> (u64, u64) {
    let pending = cell.pending.load(Ordering::Acquire);
    let live = cell.live.load(Ordering::Acquire);
    let overhead = if cell.overhead_at.load(Ordering::Acquire) == 0 {
        0
    } else {
        cell.overhead.load(Ordering::Acquire)
    };
    (live.saturating_add(overhead), pending)
}

/// All of a cell's figures, in the same order.
pub(crate) fn read(cell: &Cell) -> CellView {
    // What the driver does not show is added before it is live and taken away after, so that `live`
    // never has more of it than is told: hence a look on either side. (A block that comes and goes
    // between them is not told, for this one look.)
    let unseen = cell.live_unseen.load(Ordering::Acquire);
    let pending = cell.pending.load(Ordering::Acquire);
    let live = cell.live.load(Ordering::Acquire);
    let kept = cell.kept.load(Ordering::Acquire).min(live);
    let known = cell.overhead_at.load(Ordering::Acquire) != 0;
    let overhead = cell.overhead.load(Ordering::Acquire);
    CellView {
        live: live.saturating_sub(kept),
        kept,
        pending,
        overhead: known.then_some(overhead),
        peak: cell.peak.load(Ordering::Acquire),
        live_unseen: unseen.max(cell.live_unseen.load(Ordering::Acquire)),
    }
}

/// Adds, unless the figure would exceed [`MAX_BYTES`]; then it stays and the result is `false`.
fn add(figure: &AtomicU64, bytes: u64) -> bool {
    let sum = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= MAX_BYTES);
    figure
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, sum)
        .is_ok()
}

/// Subtracts, but not below 0; `false` if that was in the way.
fn subtract(figure: &AtomicU64, bytes: u64) -> bool {
    let difference = |now: u64| Some(now.saturating_sub(bytes));
    figure
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, difference)
        .is_ok_and(|before| before >= bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slot::{Claim, State};

    const CLAIMED: Claim = Claim(1 << 8 | 2);

    /// Cells and slots without a file.
    struct Ledger {
        cells: Vec<Cell>,
        claims: Vec<AtomicU64>,
        high_water: AtomicU64,
    }

    impl Ledger {
        fn new(slots: usize) -> Self {
            // SAFETY: a cell is made of AtomicU64, for which zeroed memory is a value.
            let cell = || unsafe { core::mem::zeroed::<Cell>() };
            Self {
                cells: (0..slots).map(|_| cell()).collect(),
                claims: (0..slots).map(|_| AtomicU64::new(CLAIMED.0)).collect(),
                high_water: AtomicU64::new(slots as u64),
            }
        }

        fn account(&self, slot: usize) -> Account<'_> {
            Account {
                cells: &self.cells,
                high_water: &self.high_water,
                own: &self.cells[slot],
                claim: &self.claims[slot],
                claimed: CLAIMED.0,
            }
        }
    }

    fn only_pending(refusal: Result<(), Refusal>) -> bool {
        match refusal {
            Err(Refusal::OverLimit {
                only_pending_in_the_way,
                ..
            }) => only_pending_in_the_way,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_refusal_leaves_nothing_behind() {
        let ledger = Ledger::new(2);
        let account = ledger.account(0);
        let limit = Limit::Bytes(10);
        assert_eq!(account.try_reserve(10, limit), Ok(()));
        for bytes in [1, 10, 11, MAX_BYTES, u64::MAX] {
            assert!(account.try_reserve(bytes, limit).is_err());
            assert!(ledger.account(1).try_reserve(bytes, limit).is_err());
        }
        assert_eq!(account.totals().charged(), 10);
        assert_eq!(account.totals().mine.pending, 10);
        assert_eq!(account.try_reserve(0, limit), Ok(()));
    }

    #[test]
    fn it_is_told_when_only_reservations_of_others_are_in_the_way() {
        let ledger = Ledger::new(2);
        let (a, b) = (ledger.account(0), ledger.account(1));
        let limit = Limit::Bytes(10);
        a.try_reserve(8, limit).unwrap();
        assert!(only_pending(b.try_reserve(5, limit)));
        // Another thread of the same process counts as another.
        assert!(only_pending(a.try_reserve(5, limit)));
        assert!(!only_pending(b.try_reserve(11, limit)));
        assert_eq!(a.commit(8, 8), 0);
        assert!(!only_pending(b.try_reserve(5, limit)));
        b.try_reserve(2, limit).unwrap();
        assert!(!only_pending(a.try_reserve(5, limit)));
        assert!(only_pending(a.try_reserve(2, limit)));
    }

    #[test]
    fn figures_have_a_maximum_and_no_sum_wraps() {
        let ledger = Ledger::new(8);
        for slot in 0..8 {
            let account = ledger.account(slot);
            assert_eq!(account.try_reserve(MAX_BYTES, Limit::Unlimited), Ok(()));
            assert!(account.try_reserve(1, Limit::Unlimited).is_err());
        }
        let totals = ledger.account(0).totals();
        assert_eq!((totals.others, totals.charged()), (u64::MAX, u64::MAX));
        assert!(
            ledger
                .account(0)
                .try_reserve(1, Limit::Bytes(MAX_BYTES))
                .is_err()
        );
        assert_eq!(ledger.account(0).commit(MAX_BYTES, u64::MAX), 1);
        assert_eq!(ledger.account(0).totals().mine.live, MAX_BYTES);
    }

    #[test]
    fn what_would_go_below_zero_stays_zero_and_is_an_anomaly() {
        let ledger = Ledger::new(1);
        let account = ledger.account(0);
        assert_eq!(account.release(1), 1);
        assert_eq!(account.cancel(1), 1);
        assert_eq!(account.commit(1, 5), 1);
        assert_eq!(account.release(6), 1);
        assert_eq!(account.totals().charged(), 0);
    }

    #[test]
    fn a_slot_that_is_not_the_members_any_more_gets_nothing() {
        let ledger = Ledger::new(1);
        for state in [State::Clearing, State::Free, State::Claiming] {
            ledger.claims[0].store(CLAIMED.with(state).0, Ordering::SeqCst);
            let refusal = ledger.account(0).try_reserve(1, Limit::Unlimited);
            assert_eq!(refusal, Err(Refusal::NotAMember));
            assert_eq!(ledger.account(0).totals().charged(), 0);
        }
    }

    #[test]
    fn a_sum_stops_at_the_high_water_mark_and_at_the_end() {
        let ledger = Ledger::new(4);
        ledger.account(3).try_reserve(5, Limit::Unlimited).unwrap();
        ledger.high_water.store(3, Ordering::SeqCst);
        assert_eq!(charged(&ledger.cells, &ledger.high_water), 0);
        ledger.high_water.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(charged(&ledger.cells, &ledger.high_water), 5);
    }

    #[test]
    fn threads_never_get_more_than_the_limit() {
        let ledger = Ledger::new(3);
        let limit = Limit::Bytes(100);
        let held = AtomicU64::new(0);
        let worst = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for slot in 0..3 {
                let (ledger, held, worst) = (&ledger, &held, &worst);
                scope.spawn(move || {
                    let account = ledger.account(slot);
                    for round in 0..20_000 {
                        let bytes = 1 + (round * 7 + slot as u64 * 13) % 60;
                        if account.try_reserve(bytes, limit).is_err() {
                            continue;
                        }
                        let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        worst.fetch_max(now, Ordering::SeqCst);
                        account.commit(bytes, bytes);
                        held.fetch_sub(bytes, Ordering::SeqCst);
                        account.release(bytes);
                    }
                });
            }
        });
        assert!(worst.load(Ordering::SeqCst) <= 100);
        assert_eq!(ledger.account(0).totals().charged(), 0);
    }

    #[test]
    fn no_byte_vanishes_on_its_way_from_pending_to_live() {
        let ledger = Ledger::new(2);
        // How many bytes were reserved so far; none is given back.
        let reserved = AtomicU64::new(0);
        const ROUNDS: u64 = 300_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = ledger.account(0);
                for round in 1..=ROUNDS {
                    assert_eq!(writer.try_reserve(1, Limit::Unlimited), Ok(()));
                    reserved.store(round, Ordering::SeqCst);
                    writer.commit(1, 1);
                }
            });
            let reader = ledger.account(1);
            loop {
                let least = reserved.load(Ordering::SeqCst);
                let seen = reader.totals().others;
                assert!(seen >= least, "{seen} of {least} bytes were seen");
                if least == ROUNDS {
                    break;
                }
            }
        });
    }
}
