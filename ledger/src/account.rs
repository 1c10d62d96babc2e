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

use crate::layout::Cell;
use crate::limit::Limit;
use crate::size::MAX_BYTES;
use crate::sync::{AtomicU64, Ordering, fence};
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
        fence(Ordering::SeqCst);
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
            return Ok(());
        }
        subtract(&self.own.pending, bytes);
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
        self.own.peak.fetch_max(sum(before), Ordering::Relaxed);
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

    /// The sum over all slots.
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals {
            mine: CellView::default(),
            others: 0,
            others_pending: 0,
        };
        for cell in used(self.cells, self.high_water) {
            let figures = read(cell);
            if core::ptr::eq(cell, self.own) {
                totals.mine = figures;
            } else {
                totals.others = totals.others.saturating_add(figures.charged());
                totals.others_pending = totals.others_pending.saturating_add(figures.pending);
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
    let figures = used(cells, high_water).iter().map(read);
    figures.fold(0, |sum, cell| sum.saturating_add(cell.charged()))
}

/// A cell's figures, in the order that keeps a sum from missing bytes.
pub(crate) fn read(cell: &Cell) -> CellView {
    let pending = cell.pending.load(Ordering::Acquire);
    let live = cell.live.load(Ordering::Acquire);
    let overhead = cell.overhead.load(Ordering::Relaxed);
    CellView {
        live,
        pending,
        overhead,
        peak: cell.peak.load(Ordering::Relaxed),
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
