//! What a program and its user are told when an allocation is refused.

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use hipflex_kfd::Bdf;
use hipflex_ledger::Denial;

use crate::clock;
use crate::entries::Api;
use crate::hip;
use crate::runtime::{self, Native};
use crate::signals::uncancelled;
use crate::stderr::say;

/// The least time between two lines about one GPU, in milliseconds.
const INTERVAL: u64 = 60_000;

/// The error for a refused allocation, from the runtime itself: it is asked for more than can exist.
///
/// So `hipGetLastError` knows of it in the way of the runtime at hand (how long an error is remembered differs
/// between releases), a uprobe on the runtime's export sees the refused call, and on a machine where nothing
/// can be allocated anyway the program gets the runtime's own reason. Runtimes check this
/// before they touch the device.
fn native_error() -> c_int {
    let (Native::Runtime(malloc), Native::Runtime(free)) = (
        runtime::native(Api::hipMalloc),
        runtime::native(Api::hipFree),
    ) else {
        return hip::ERROR_OUT_OF_MEMORY;
    };
    let mut nothing: *mut c_void = ptr::null_mut();
    // SAFETY: the addresses are the runtime's hipMalloc and hipFree; `nothing` outlives the calls.
    unsafe {
        let malloc: unsafe extern "C-unwind" fn(*mut *mut c_void, usize) -> c_int =
            core::mem::transmute(malloc.own);
        let error = malloc(&raw mut nothing, hip::IMPOSSIBLE_SIZE);
        match error {
            hip::SUCCESS => {
                let free: unsafe extern "C-unwind" fn(*mut c_void) -> c_int =
                    core::mem::transmute(free.own);
                free(nothing);
                hip::ERROR_OUT_OF_MEMORY
            }
            // Not an answer to a request that is merely too large.
            hip::ERROR_INVALID_VALUE => hip::ERROR_OUT_OF_MEMORY,
            error => error,
        }
    }
}

/// The error of a call that is refused.
pub(crate) fn refuse() -> c_int {
    uncancelled(native_error)
}

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
        let told = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| pace.step(5).is_some()))
                .collect();
            threads
                .into_iter()
                .map(|t| t.join().unwrap())
                .filter(|t| *t)
                .count()
        });
        assert_eq!(told, 1);
        assert_eq!(pace.untold.load(Ordering::Relaxed), 7);
    }
}
