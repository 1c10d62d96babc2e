//! A clock that costs next to nothing.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds of the coarse monotonic clock (resolution: a tick, 1 to 10 ms). No system call.
pub(crate) fn coarse_ms() -> u64 {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: clock_gettime writes a whole timespec when it returns 0, and only then is it read.
    let now = unsafe {
        if libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, now.as_mut_ptr()) != 0 {
            return 0;
        }
        now.assume_init()
    };
    let (seconds, nanoseconds) = (now.tv_sec.cast_unsigned(), now.tv_nsec.cast_unsigned());
    seconds
        .saturating_mul(1_000)
        .saturating_add(nanoseconds / 1_000_000)
}

/// When something is to be done again that one of the threads does now and then.
#[derive(Default)]
pub(crate) struct Due(AtomicU64);

impl Due {
    pub(crate) const fn at_once() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whether it is time, and this thread is the one to do it. If so, it is due again after `interval`
    /// milliseconds.
    #[inline]
    pub(crate) fn is_now(&self, interval: u64) -> bool {
        let (now, at) = (coarse_ms(), self.0.load(Ordering::Relaxed));
        let next = now.saturating_add(interval);
        now >= at
            && self
                .0
                .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// It was done: it is due again after `interval` milliseconds.
    pub(crate) fn postpone(&self, interval: u64) {
        self.0
            .store(coarse_ms().saturating_add(interval), Ordering::Relaxed);
    }

    /// It is due now.
    pub(crate) fn hurry(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_due_is_done_by_one_and_then_not_before_its_time() {
        let due = Due::at_once();
        assert!(due.is_now(60_000));
        assert!(!due.is_now(60_000));
        due.hurry();
        assert!(due.is_now(0) && due.is_now(0));
        due.postpone(60_000);
        assert!(!due.is_now(0));
    }

    #[test]
    fn it_moves_forward() {
        let before = super::coarse_ms();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let passed = super::coarse_ms() - before;
        assert!((30..5_000).contains(&passed), "{passed}");
    }
}
