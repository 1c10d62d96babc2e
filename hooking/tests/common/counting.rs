//! Hooks for functions of every signature: each counts, and goes on to the original.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many counting hooks there are.
pub(crate) const HOOKS: usize = 48;
static CALLS: [AtomicU64; HOOKS] = [const { AtomicU64::new(0) }; HOOKS];
static ORIGINALS: [AtomicUsize; HOOKS] = [const { AtomicUsize::new(0) }; HOOKS];

macro_rules! counting_hooks {
    ($($index:literal)*) => { [$({
        /// Counts, and goes on to the original with all registers as they came.
        #[unsafe(naked)]
        unsafe extern "C" fn hook() {
            core::arch::naked_asm!(
                // Faults if the stack is not aligned as at any entry.
                "movaps xmmword ptr [rsp - 24], xmm0",
                "lock inc qword ptr [rip + {calls} + {offset}]",
                "jmp qword ptr [rip + {originals} + {offset}]",
                calls = sym CALLS,
                originals = sym ORIGINALS,
                offset = const $index * 8,
            )
        }
        hook as *const () as usize
    }),*] };
}

/// The hook with this number.
pub(crate) fn hook(index: usize) -> usize {
    let hooks = counting_hooks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
        30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47);
    hooks[index]
}

/// How often the hook with this number was called.
pub(crate) fn calls(index: usize) -> u64 {
    CALLS[index].load(Ordering::SeqCst)
}

/// Where the hook with this number goes on.
pub(crate) fn set_original(index: usize, original: usize) {
    ORIGINALS[index].store(original, Ordering::SeqCst);
}
