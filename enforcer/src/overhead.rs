//! What the driver holds for this process beyond its bookings: queues, scratch, code objects, and whatever was
//! allocated past HIP.
//!
//! It is what the driver counts less what the bookings come to there. It is measured in calls that the
//! program makes anyway: at most every [`INTERVAL`], and before a request is refused. Where the driver's counter
//! cannot be read, the overhead is unknown, which is not 0.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use hipflex_kfd::{ProcessVram, Root, process_vram};
use hipflex_ledger::{CellView, Member};

use crate::clock::Due;
use crate::driver_pid::DriverPid;
use crate::helpers::{self, Reserved};
use crate::live::{Class, LiveBlocks};
use crate::tally::{self, Tally};

/// How often the driver is asked at most about a GPU, in milliseconds.
const INTERVAL: u64 = 100;
/// How often the driver is asked at once when the bookings change meanwhile.
const ATTEMPTS: u32 = 3;

/// The measuring of one process, on all its GPUs.
pub(crate) struct Overhead {
    root: Root,
    pid: DriverPid,
    gpus: Vec<Gpu>,
    /// Calls under way whose memory the books may lack, wholly or in part.
    unsettled: AtomicU64,
    said_unreadable: AtomicBool,
}

/// One GPU.
struct Gpu {
    /// The driver's name for it; `None`: the driver knows nothing of it.
    gpu_id: Option<u32>,
    /// When it is time to measure again.
    due: Due,
    /// What blocks take in the driver's counter beyond what is booked for them ([`tally::slack`]).
    slack: AtomicU64,
    /// Bytes of blocks whose free has come to an end, ever (it wraps). Those that are taken out of the books
    /// ([`Tally::taken`]) and not yet here are being freed: they are booked, and the driver may not count them any
    /// more.
    left: AtomicU64,
    /// How often it was measured. Of two threads that do so at a time the one that began last tells.
    measured: AtomicU64,
}

/// What is known of the bookings on a GPU at one moment.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Books {
    cell: CellView,
    tally: Tally,
    slack: u64,
    leaving: u64,
    unsettled: bool,
}

impl Overhead {
    /// For GPUs that the driver has these names for.
    pub(crate) fn new(gpu_ids: impl Iterator<Item = Option<u32>>) -> Self {
        let gpus = gpu_ids.map(|gpu_id| Gpu {
            gpu_id,
            due: Due::at_once(),
            slack: AtomicU64::new(0),
            left: AtomicU64::new(0),
            measured: AtomicU64::new(0),
        });
        Self {
            root: Root::system(),
            pid: DriverPid::new(),
            gpus: gpus.collect(),
            unsettled: AtomicU64::new(0),
            said_unreadable: AtomicBool::new(false),
        }
    }

    /// A call begins that the books may lack something of until it is [`Overhead::settled`].
    pub(crate) fn begin_unsettled(&self) {
        self.unsettled.fetch_add(1, Ordering::AcqRel);
    }

    /// The end of such a call.
    pub(crate) fn settled(&self) {
        self.unsettled.fetch_sub(1, Ordering::AcqRel);
    }

    /// Lets the next call measure.
    pub(crate) fn hurry(&self, gpu: usize) {
        if let Some(gpu) = self.gpus.get(gpu) {
            gpu.due.hurry();
        }
    }

    /// A block of `bytes` is about to be asked of the runtime.
    #[inline]
    pub(crate) fn expect(&self, gpu: usize, class: Class, bytes: u64) {
        let slack = tally::slack(class, bytes);
        if slack != 0
            && let Some(gpu) = self.gpus.get(gpu)
        {
            gpu.slack.fetch_add(slack, Ordering::Relaxed);
        }
    }

    /// A block of `before` bytes turns out to be one of `bytes`.
    pub(crate) fn expect_instead(&self, gpu: usize, class: Class, before: u64, bytes: u64) {
        self.expect(gpu, class, bytes);
        self.expect_no_more(gpu, class, before);
    }

    /// A block of `bytes` is not there (any more).
    #[inline]
    pub(crate) fn expect_no_more(&self, gpu: usize, class: Class, bytes: u64) {
        let slack = tally::slack(class, bytes);
        if slack != 0
            && let Some(gpu) = self.gpus.get(gpu)
        {
            let less = |now: u64| Some(now.saturating_sub(slack));
            let _ = gpu
                .slack
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// The free of a block of `bytes` has come to an end, of whatever kind.
    #[inline]
    pub(crate) fn left(&self, gpu: usize, bytes: u64) {
        if let Some(gpu) = self.gpus.get(gpu) {
            gpu.left.fetch_add(bytes, Ordering::Release);
        }
    }

    /// Whether it is time to measure, and this thread is the one to do so.
    #[inline]
    pub(crate) fn is_due(&self, gpu: usize) -> bool {
        let Some(Gpu {
            gpu_id: Some(_),
            due,
            ..
        }) = self.gpus.get(gpu)
        else {
            return false;
        };
        due.is_now(INTERVAL)
    }

    /// Asks the driver and tells the account. `device` is the GPU's number in HIP. A native call and reads of
    /// files: not to be cancelled.
    pub(crate) fn measure(&self, member: &Member, live: &LiveBlocks, gpu: usize, device: c_int) {
        let Some(this) = self.gpus.get(gpu) else {
            return;
        };
        this.due.postpone(INTERVAL);
        // What goes on meanwhile must be in one of the looks, so the second goes the other way round.
        let begun = || {
            let unsettled = self.unsettled.load(Ordering::Acquire) != 0;
            let left = this.left.load(Ordering::Acquire);
            let tally = live.tally(gpu);
            let cell = member.cell(gpu)?;
            let slack = this.slack.load(Ordering::Acquire);
            Some(Books {
                cell,
                tally,
                slack,
                leaving: tally.taken.wrapping_sub(left),
                unsettled,
            })
        };
        let ended = || {
            let cell = member.cell(gpu)?;
            let slack = this.slack.load(Ordering::Acquire);
            let left = this.left.load(Ordering::Acquire);
            let tally = live.tally(gpu);
            let unsettled = self.unsettled.load(Ordering::Acquire) != 0;
            Some(Books {
                cell,
                tally,
                slack,
                leaving: tally.taken.wrapping_sub(left),
                unsettled,
            })
        };
        let turn = this
            .measured
            .fetch_add(1, Ordering::Relaxed)
            .wrapping_add(1);
        for attempt in 1..=ATTEMPTS {
            let Some(before) = begun() else {
                return;
            };
            let reserved = if before.tally.has_default_pool() {
                helpers::reserved_by_default_pool(device)
            } else {
                None
            };
            let given = match self.given(member, gpu) {
                Ok(Some(given)) => given,
                Ok(None) => {
                    member.forget_overhead(gpu);
                    return;
                }
                // What was known is the best there is.
                Err(_) => return,
            };
            let Some(after) = ended() else {
                return;
            };
            if before.changed_until(&after) && attempt < ATTEMPTS {
                continue;
            }
            if this.measured.load(Ordering::Relaxed) != turn {
                return;
            }
            // Room that cannot be there beside the known overhead was given back.
            let (mut before, mut after) = (before, after);
            let missing = before.missing_until(&after, given, reserved);
            if missing > 0
                && let Some((booked, tally)) = live.change_tally(gpu, |tally| {
                    let booked = tally.settle(missing);
                    member.set_kept(gpu, tally.kept());
                    (booked, *tally)
                })
            {
                // What pools had kept of freed blocks was booked still.
                member.give_back(gpu, booked);
                after.cell.kept = after.cell.kept.saturating_sub(booked);
                after.tally = tally;
                before = after;
            }
            if let Some(overhead) = overhead_between(&before, &after, given, reserved) {
                member.set_overhead(gpu, overhead);
            }
            return;
        }
    }

    /// What the driver counts for this process on a GPU, in bytes. `None`: it has no entry for the process,
    /// or it is not known under which PID. An error, which is said once, may pass.
    pub(crate) fn given(&self, member: &Member, gpu: usize) -> Result<Option<u64>, Unreadable> {
        let Some(gpu_id) = self.gpus.get(gpu).and_then(|gpu| gpu.gpu_id) else {
            return Ok(None);
        };
        let Some(pid) = self.pid.get(member) else {
            return Ok(None);
        };
        match process_vram(&self.root, pid, gpu_id) {
            Ok(ProcessVram::Bytes(bytes)) => Ok(Some(bytes)),
            Ok(ProcessVram::Ending | ProcessVram::Absent) => Ok(None),
            Err(error) => {
                if !self.said_unreadable.swap(true, Ordering::Relaxed) {
                    tracing::warn!("the overhead cannot be measured: {error}");
                }
                Err(Unreadable)
            }
        }
    }
}

/// The driver's entry could not be read.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// What the overhead is by what two looks at the books found, before and after the driver was asked. `None`:
/// that cannot be said, because what was given may lack in the books and nothing was known before.
fn overhead_between(
    before: &Books,
    after: &Books,
    given: u64,
    reserved: Option<Reserved>,
) -> Option<u64> {
    // Blocks that came or went between the two looks: the driver may have counted them, or not.
    let moved = after.tally.moved.wrapping_sub(before.tally.moved);
    let most = before
        .most(reserved)
        .max(after.most(reserved))
        .saturating_add(moved);
    let least = before
        .least(reserved)
        .min(after.least(reserved))
        .saturating_sub(moved);
    // The overhead is somewhere between. What was known stays as long as it may still be true: what is
    // under way must neither count as overhead nor hide any.
    let (low, high) = (given.saturating_sub(most), given.saturating_sub(least));
    let unsettled = before.unsettled || after.unsettled;
    match after.cell.overhead {
        // Some of what the driver has given may lack in the books: it may be less, not more.
        Some(known) if unsettled => Some(known.min(high)),
        None if unsettled => None,
        known => Some(known.unwrap_or(low).max(low).min(high)),
    }
}

impl Books {
    fn changed_until(&self, later: &Self) -> bool {
        let figures = |books: &Self| {
            (
                books.cell.live,
                books.cell.kept,
                books.cell.pending,
                books.tally.changes,
            )
        };
        figures(self) != figures(later)
    }

    /// What the driver counts less than it must if the known overhead and all the room of shared buffers
    /// and pools were there. 0 also while something is under way, when that cannot be told.
    fn missing_until(&self, later: &Self, given: u64, reserved: Option<Reserved>) -> u64 {
        let unsettled = self.unsettled || later.unsettled;
        let freeing = self.leaving != 0 || later.leaving != 0;
        if self.changed_until(later) || later.cell.pending != 0 || freeing || unsettled {
            return 0;
        }
        later
            .least(reserved)
            .saturating_add(later.cell.overhead.unwrap_or(0))
            .saturating_sub(given)
    }

    /// What the driver would count at most if there were no overhead: with all that is under way. `reserved`:
    /// what pools have taken, if they say so.
    ///
    /// Managed memory is part of it: some releases of the driver count what of it is in VRAM, others do not.
    fn most(&self, reserved: Option<Reserved>) -> u64 {
        self.cell
            .live
            .saturating_add(self.cell.kept)
            .saturating_add(self.cell.pending)
            .saturating_add(self.slack)
            .saturating_add(self.tally.room(reserved))
    }

    /// And at least: without it.
    fn least(&self, reserved: Option<Reserved>) -> u64 {
        self.most(reserved)
            .saturating_sub(self.cell.live_unseen)
            .saturating_sub(self.cell.pending)
            .saturating_sub(self.leaving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Books of blocks that are buffers of their own.
    fn books(live: u64, pending: u64, leaving: u64, overhead: Option<u64>) -> Books {
        Books {
            cell: CellView {
                live: live * MIB,
                pending: pending * MIB,
                overhead: overhead.map(|mib| mib * MIB),
                ..CellView::default()
            },
            tally: Tally::default(),
            slack: 0,
            leaving: leaving * MIB,
            unsettled: false,
        }
    }

    fn overhead(before: &Books, after: &Books, given: u64) -> u64 {
        overhead_between(before, after, given * MIB, None).unwrap() / MIB
    }

    #[test]
    fn what_is_under_way_neither_is_overhead_nor_hides_any() {
        for known in [0, 7] {
            let quiet = books(100, 0, 0, Some(known));
            assert_eq!(overhead(&quiet, &quiet, 100 + known), known);
            // The driver may count it already, or not yet.
            let asking = books(100, 600, 0, Some(known));
            for given in [100 + known, 700 + known] {
                assert_eq!(overhead(&asking, &asking, given), known);
                assert_eq!(overhead(&quiet, &asking, given), known);
                assert_eq!(overhead(&asking, &quiet, given), known);
            }
            // It may count it still, or not any more.
            let freeing = books(700, 0, 600, Some(known));
            for given in [100 + known, 700 + known] {
                assert_eq!(overhead(&freeing, &freeing, given), known);
            }
        }
    }

    #[test]
    fn a_block_that_came_between_the_looks_may_have_been_counted() {
        let before = books(100, 0, 0, Some(0));
        let mut after = books(700, 0, 0, Some(0));
        after.tally.moved = 600 * MIB;
        for given in [100, 700] {
            assert_eq!(overhead(&before, &after, given), 0);
        }
    }

    #[test]
    fn overhead_is_what_the_books_cannot_be() {
        let asking = books(100, 600, 0, Some(0));
        assert_eq!(overhead(&asking, &asking, 750), 50);
        let unknown = books(100, 0, 0, None);
        assert_eq!(overhead(&unknown, &unknown, 140), 40);
        let less = books(100, 0, 0, Some(40));
        assert_eq!(overhead(&less, &less, 110), 10);
        assert_eq!(overhead(&less, &less, 60), 0);
    }

    #[test]
    fn room_that_cannot_be_there_beside_the_overhead_was_given_back() {
        let known = books(100, 0, 0, Some(40));
        let missing = |before: &Books, after: &Books, given: u64| {
            before.missing_until(after, given * MIB, None) / MIB
        };
        assert_eq!(missing(&known, &known, 140), 0);
        assert_eq!(missing(&known, &known, 130), 10);
        assert_eq!(missing(&known, &known, 60), 80);
        let asking = books(100, 600, 0, Some(40));
        assert_eq!(missing(&asking, &asking, 130), 0, "it cannot be told");
        assert_eq!(missing(&known, &asking, 130), 0);
        let freeing = books(100, 0, 50, Some(40));
        assert_eq!(missing(&freeing, &freeing, 90), 0);
        assert_eq!(missing(&known, &freeing, 90), 0);
    }

    #[test]
    fn while_something_may_lack_in_the_books_the_overhead_does_not_grow() {
        let unsettled = |overhead| Books {
            unsettled: true,
            ..books(100, 0, 0, overhead)
        };
        let known = unsettled(Some(40));
        assert_eq!(overhead(&known, &known, 900), 40);
        assert_eq!(overhead(&known, &known, 110), 10);
        let unknown = unsettled(None);
        let found = overhead_between(&unknown, &unknown, 900 * MIB, None);
        assert_eq!(found, None);
    }
}
