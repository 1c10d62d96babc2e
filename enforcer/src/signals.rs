//! What must not happen to the program's threads while they are in our hands: being cancelled, and being
//! killed by a signal that a write of ours raised.

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;

unsafe extern "C-unwind" {
    /// `int pthread_setcancelstate(int state, int *oldstate)`, `pthread.h`.
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc's `pthread.h`.
const CANCEL_DISABLE: c_int = 1;

/// Runs a step of ours that may come to a cancellation point (open, write, poll, sleep ...), without
/// acting on a `pthread_cancel` of this thread: it stays pending.
///
/// A cancelled thread is unwound, and steps of ours have frames that must not be: locks are held, and
/// `catch_unwind` would take the foreign unwinding for an error and end the process. It costs some 50 ns,
/// so it stands around what is slow anyway, and the quick steps are kept free of cancellation points.
/// (Asynchronous cancellation is not provided for: a thread may call only three functions of libc in that
/// state, and nothing of HIP.)
pub(crate) fn uncancelled<T>(step: impl FnOnce() -> T) -> T {
    let _state = CancelState::disable();
    step()
}

/// Puts the state back when dropped.
struct CancelState(c_int);

impl CancelState {
    fn disable() -> Self {
        let mut before = CANCEL_DISABLE;
        // SAFETY: a valid state and a place for the old one, which outlives the call. Disabling does
        // not act on a pending cancellation.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for CancelState {
    fn drop(&mut self) {
        if self.0 != CANCEL_DISABLE {
            // SAFETY: the state that the thread had. With deferred cancellation nothing is acted on
            // before the next cancellation point.
            unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
        }
    }
}

/// The signals that a write may raise in the thread that writes: the other end is gone (EPIPE), or the
/// file would exceed `RLIMIT_FSIZE` (EFBIG; growing a file raises it too). By default both end the process.
const OF_WRITES: [c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Runs `step` with the signals of writes blocked in this thread, and takes back those that it raised.
pub(crate) fn without_write_signals<T>(step: impl FnOnce() -> T) -> T {
    let mut blocked = empty_set();
    let mut before = empty_set();
    // SAFETY: the sets are initialised and outlive the calls, the signal numbers are valid.
    unsafe {
        for signal in OF_WRITES {
            libc::sigaddset(&raw mut blocked, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const blocked, &raw mut before);
    }
    let were_pending = OF_WRITES.map(is_pending);
    let result = step();
    for (signal, was_pending) in OF_WRITES.into_iter().zip(were_pending) {
        if !was_pending && is_pending(signal) {
            take_back(signal);
        }
    }
    // SAFETY: `before` was filled in above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    result
}

fn is_pending(signal: c_int) -> bool {
    let mut pending = empty_set();
    // SAFETY: the set is initialised and outlives the calls.
    unsafe {
        libc::sigpending(&raw mut pending) == 0
            && libc::sigismember(&raw const pending, signal) == 1
    }
}

/// Takes a pending signal, so that it is not delivered.
fn take_back(signal: c_int) {
    let mut only = empty_set();
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the set is initialised; set and time outlive the calls; no information is asked for.
    unsafe {
        libc::sigaddset(&raw mut only, signal);
        libc::sigtimedwait(&raw const only, ptr::null_mut(), &raw const at_once);
    }
}

fn empty_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the whole set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_step_raises_is_taken_back_and_what_was_pending_stays() {
        // SAFETY: signals that are raised in this thread while they are blocked in it; both are taken before
        // they are unblocked.
        unsafe {
            let mut both = empty_set();
            libc::sigaddset(&raw mut both, libc::SIGPIPE);
            libc::sigaddset(&raw mut both, libc::SIGXFSZ);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const both, ptr::null_mut());
            libc::raise(libc::SIGPIPE);
            let result = without_write_signals(|| {
                libc::raise(libc::SIGPIPE);
                libc::raise(libc::SIGXFSZ);
                assert!(is_pending(libc::SIGXFSZ));
                5
            });
            assert_eq!(result, 5);
            assert!(is_pending(libc::SIGPIPE));
            assert!(!is_pending(libc::SIGXFSZ));
            take_back(libc::SIGPIPE);
            assert!(!is_pending(libc::SIGPIPE));
        }
    }

    #[test]
    fn the_state_of_cancellation_is_as_before() {
        let state = || CancelState::disable().0;
        assert_eq!(state(), 0);
        uncancelled(|| {
            assert_eq!(state(), CANCEL_DISABLE);
            uncancelled(|| ());
            assert_eq!(state(), CANCEL_DISABLE);
        });
        assert_eq!(state(), 0);
    }
}
