//! What a program and its user are told when an allocation is refused.

use core::sync::atomic::{AtomicU64, Ordering};

use hipflex_kfd::Bdf;
use hipflex_ledger::Denial;

use crate::clock;
use crate::stderr::say;

/// The least time between two lines about one GPU, in milliseconds.
const INTERVAL: u64 = 60_000;

/// When refusals on one GPU are told: the first at once, then at most one in a minute.
#[derive(Default)]
pub(crate) struct Pace {
    /// When the last one was told, in [`clock::coarse_ms`] plus 1; 0: none yet.
    told_at: AtomicU64,
    untold: AtomicU64,
}

impl Pace {
    /// Whether to tell a refusal now, and how many were not told since the last line.
    fn step(&self, now: u64) -> Option<u64> {
        let last = self.told_at.load(Ordering::Relaxed);
        let now = now.saturating_add(1);
        let due = last == 0 || now.saturating_sub(last) >= INTERVAL;
        let first = due
            && self
                .told_at
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if first {
            return Some(self.untold.swap(0, Ordering::Relaxed));
        }
        self.untold.fetch_add(1, Ordering::Relaxed);
        None
    }
}

/// Tells the user of a refusal, if it is time to. Neither waits nor allocates.
pub(crate) fn tell(pace: &Pace, api: &str, gpu: Bdf, budget: &str, denial: &Denial) {
    match pace.step(clock::coarse_ms()) {
        None => {}
        Some(0) => say!("{api} on GPU {gpu}, budget '{budget}': {denial}"),
        Some(untold) => {
            say!(
                "{api} on GPU {gpu}, budget '{budget}': {denial} ({untold} refusals before it were not shown)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_refusal_is_told_then_one_a_minute() {
        let pace = Pace::default();
        assert_eq!(pace.step(0), Some(0));
        assert_eq!(pace.step(0), None);
        assert_eq!(pace.step(INTERVAL - 1), None);
        assert_eq!(pace.step(INTERVAL), Some(2));
        assert_eq!(pace.step(INTERVAL + 1), None);
        assert_eq!(pace.step(3 * INTERVAL), Some(1));
    }

    #[test]
    fn of_threads_refused_at_once_one_tells() {
        let pace = Pace::default();
        let told: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| pace.step(5))).collect();
            let steps = threads.into_iter().filter_map(|t| t.join().unwrap());
            steps.collect()
        });
        assert_eq!(told.len(), 1);
        // The one may tell of others that came before it had looked.
        assert_eq!(told[0] + pace.untold.load(Ordering::Relaxed), 7);
    }
}
