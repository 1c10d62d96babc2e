//! "This thread is inside a hooked call."
//!
//! Runtimes call their own exports (ROCm 5 through the PLT, so that the calls come to us), and so may
//! anything that runs while we set ourselves up. Such a nested call goes to the runtime as it is: its
//! memory belongs to the outer call, which is counted.

use core::cell::Cell;

thread_local! {
    // A constant without a destructor: no allocation and no registration at first use, nothing that
    // could already be gone when a program makes HIP calls while it exits.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as inside a hooked call; false when it was already.
#[inline]
pub(crate) fn enter() -> bool {
    !INSIDE.replace(true)
}

/// Ends what a successful [`enter`] began.
#[inline]
pub(crate) fn leave() {
    INSIDE.set(false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_outer_call_of_a_thread_enters() {
        assert!(enter());
        assert!(!enter());
        assert!(
            std::thread::spawn(enter).join().unwrap(),
            "threads do not see each other"
        );
        leave();
        assert!(enter());
        leave();
    }
}
