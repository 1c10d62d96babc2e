//! A clock that costs next to nothing.

use core::mem::MaybeUninit;

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

#[cfg(test)]
mod tests {
    #[test]
    fn it_moves_forward() {
        let before = super::coarse_ms();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let passed = super::coarse_ms() - before;
        assert!((30..5_000).contains(&passed), "{passed}");
    }
}
