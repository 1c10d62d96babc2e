//! "This thread is inside a hooked call."
//!
//! Runtimes call their own exports (ROCm 5 through the PLT, so that the calls come to us), and so may
//! anything that runs while we set ourselves up. Such a nested call goes to the runtime as it is: its
//! memory belongs to the outer call, which is counted.
//!
//! The mark of the outer call can outlive it. A C++ exception, a `siglongjmp` or a cancelled thread leaves
//! the runtime's function without returning to us, and nothing can be run then: landing pads in our frames
//! would meet another copy of the unwinder than the one that is linked into this library. So a mark is not
//! taken at its word: a call that finds one looks whether the outer call's frame still is on the stack
//! ([`crate::stack`]). If it is not, the call is an outer one itself, and what the lost one left under way is
//! put right first.

use core::cell::Cell;
use core::ptr;

use crate::allocation::{Plan, Unsettled};
use crate::entries::belt;
use crate::runtime::Runtime;
use crate::signals::uncancelled;
use crate::stack::{self, Found};

/// What a thread is doing.
pub(crate) struct Thread {
    /// An address in the frame of the outer call, 0 outside of calls.
    frame: Cell<usize>,
    /// What the outer call has reserved or taken out of the books.
    under_way: Cell<Option<Plan>>,
    /// What of it the runtime's answer will tell. Apart from the plan, since most calls have none.
    unsettled: Cell<Option<Unsettled>>,
    /// The runtime that the outer call is for.
    runtime: Cell<Option<&'static Runtime>>,
    /// The library is setting itself up in this thread. Whatever calls HIP now must not wait for that.
    setting_up: Cell<bool>,
}

thread_local! {
    // A constant without a destructor: no allocation and no registration at first use, nothing that
    // could already be gone when a program makes HIP calls while it exits.
    static THREAD: Thread = const { Thread::new() };
}
const _: () = assert!(!core::mem::needs_drop::<Thread>());

/// The calling thread's state.
///
/// # Safety
/// The reference must stay in this thread. (It is not handed to a closure, as `LocalKey::with` does: that one
/// would be around the native call, with a landing pad in builds that are not optimised.)
#[inline]
pub(crate) unsafe fn this_thread<'a>() -> &'a Thread {
    // SAFETY: the state has no destructor, so it stays as long as the thread.
    unsafe { &*THREAD.with(ptr::from_ref) }
}

/// Runs `step`, which sets the library up: HIP calls of this thread go to the runtime meanwhile.
pub(crate) fn setting_up<T>(step: impl FnOnce() -> T) -> T {
    THREAD.with(|thread| {
        let before = thread.setting_up.replace(true);
        let result = step();
        thread.setting_up.set(before);
        result
    })
}

/// Whether [`setting_up`] runs in this thread.
pub(crate) fn is_setting_up() -> bool {
    THREAD.with(|thread| thread.setting_up.get())
}

/// The runtime that the outer call of this thread is for, or the last one was.
#[inline]
pub(crate) fn runtime() -> Option<&'static Runtime> {
    THREAD.with(|thread| thread.runtime.get())
}

impl Thread {
    const fn new() -> Self {
        Self {
            frame: Cell::new(0),
            under_way: Cell::new(None),
            unsettled: Cell::new(None),
            runtime: Cell::new(None),
            setting_up: Cell::new(false),
        }
    }

    /// Marks this thread as inside the hooked call with `frame`, an address in the caller's frame. False if it
    /// is inside of one already.
    #[inline]
    pub(crate) fn enter(&self, frame: usize) -> bool {
        if self.frame.get() != 0 && self.is_nested() {
            return false;
        }
        self.frame.set(frame);
        true
    }

    /// Says which runtime the outer call is for.
    #[inline]
    pub(crate) fn serve(&self, runtime: &'static Runtime) {
        self.runtime.set(Some(runtime));
    }

    /// Ends what a successful [`Thread::enter`] began.
    #[inline]
    pub(crate) fn leave(&self) {
        self.frame.set(0);
    }

    /// Keeps what the outer call has to finish after the runtime's function.
    #[inline]
    pub(crate) fn begin(&self, plan: Plan) {
        self.under_way.set(Some(plan));
    }

    /// What [`Thread::begin`] kept.
    #[inline]
    pub(crate) fn take(&self) -> Option<Plan> {
        self.under_way.take()
    }

    /// Keeps what the runtime's answer will tell of an allocation.
    pub(crate) fn keep(&self, unsettled: Unsettled) {
        self.unsettled.set(Some(unsettled));
    }

    /// What [`Thread::keep`] kept.
    pub(crate) fn take_kept(&self) -> Option<Unsettled> {
        self.unsettled.take()
    }

    /// Whether the outer call that marked this thread still runs.
    #[cold]
    fn is_nested(&self) -> bool {
        if self.setting_up.get() {
            return true;
        }
        match stack::find(self.frame.get()) {
            Found::Alive => return true,
            Found::Gone => {
                self.frame.set(0);
                if let Some(plan) = self.take() {
                    belt(|| uncancelled(|| plan.abandon()));
                }
            }
            // What the outer call left is not touched: should it be there after all, it ends as it must.
            Found::Unknown => {}
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_enters_once_and_threads_do_not_see_each_other() {
        let frame = 0_u8;
        let enter = |thread: &Thread| thread.enter(&raw const frame as usize);
        assert!(THREAD.with(enter));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| THREAD.with(|thread| thread.frame.get()));
            assert_eq!(other.join().unwrap(), 0);
        });
        THREAD.with(Thread::leave);
        assert!(THREAD.with(enter));
        THREAD.with(Thread::leave);
    }

    #[test]
    fn nobody_enters_while_the_library_sets_itself_up() {
        let frame = 0_u8;
        let enter = |thread: &Thread| thread.enter(&raw const frame as usize);
        assert!(THREAD.with(enter));
        setting_up(|| {
            setting_up(|| assert!(!THREAD.with(enter)));
            assert!(!THREAD.with(enter));
        });
        THREAD.with(Thread::leave);
    }

    /// The frame of `lost` is gone without a word.
    #[test]
    fn a_mark_without_a_frame_is_forgotten() {
        #[inline(never)]
        fn lost() {
            let frame = [0_u8; 64];
            assert!(THREAD.with(|thread| thread.enter(&raw const frame as usize)));
        }
        lost();
        let frame = 0_u8;
        assert!(THREAD.with(|thread| thread.enter(&raw const frame as usize)));
        THREAD.with(Thread::leave);
    }
}
