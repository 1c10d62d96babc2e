//! The state of a slot: one word, changed by compare-and-swap only.
//!
//! ```text
//! FREE(g) -> CLAIMING(g+1) -> CLAIMED(g+1) -> CLEARING(g+1) -> FREE(g+1)
//! ```
//!
//! Whoever takes a slot out of FREE, or clears that of a dead member, holds the slot's lock (or,
//! where the file system keeps no such locks, the lock of the directory) while it does so. One who is
//! no member itself has the lock of the directory alone in any case: a newcomer, who has it or a share of
//! it, would take the lock of the slot for a sign of life. The kernel
//! drops the lock when its holder dies; so a slot that is not free and not locked has no owner,
//! whatever its state, and may be cleared. Only the owner of a live slot clears it without the lock
//! of a stranger: it holds that of the slot itself.

use crate::sync::{AtomicU64, Ordering};

/// Bits of the word that are the state; the rest is the generation.
const STATE_BITS: u32 = 8;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;

/// What a slot is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody's; all figures are 0.
    Free,
    /// A process is moving in.
    Claiming,
    /// A member's.
    Claimed,
    /// Its figures are being cleared, by a leaving member or a reaper.
    Clearing,
    /// Not a state of this version, so nobody's to touch.
    Invalid,
}

/// A value of the word: generation and state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim(pub(crate) u64);

impl Claim {
    pub(crate) fn load(word: &AtomicU64) -> Self {
        Self(word.load(Ordering::SeqCst))
    }

    pub(crate) fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Free,
            1 => State::Claiming,
            2 => State::Claimed,
            3 => State::Clearing,
            _ => State::Invalid,
        }
    }

    /// How often the slot was claimed.
    pub(crate) fn generation(self) -> u64 {
        self.0 >> STATE_BITS
    }

    /// The same generation in another state.
    pub(crate) fn with(self, state: State) -> Self {
        let number = match state {
            State::Free => 0,
            State::Claiming => 1,
            State::Claimed => 2,
            State::Clearing => 3,
            State::Invalid => STATE_MASK,
        };
        Self(self.0 & !STATE_MASK | number)
    }

    /// The next generation, moving in.
    pub(crate) fn next_claiming(self) -> Self {
        Self(self.generation().wrapping_add(1) << STATE_BITS).with(State::Claiming)
    }

    /// Goes from `self` to `to`, if the word still holds `self`.
    pub(crate) fn swap(self, word: &AtomicU64, to: Self) -> bool {
        word.compare_exchange(self.0, to.0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_generation_and_state() {
        let free = Claim(0);
        assert_eq!((free.state(), free.generation()), (State::Free, 0));
        let claiming = free.next_claiming();
        assert_eq!(
            (claiming.state(), claiming.generation()),
            (State::Claiming, 1)
        );
        let claimed = claiming.with(State::Claimed);
        assert_eq!((claimed.state(), claimed.generation()), (State::Claimed, 1));
        let freed = claimed.with(State::Clearing).with(State::Free);
        assert_eq!(freed.next_claiming().generation(), 2);
        assert_eq!(Claim(0xff).state(), State::Invalid);
        // The last generation is followed by the first.
        assert_eq!(Claim(!STATE_MASK).next_claiming().generation(), 0);
    }

    #[test]
    fn a_swap_fails_once_the_generation_has_moved_on() {
        let word = AtomicU64::new(0);
        let seen = Claim::load(&word);
        assert!(seen.swap(&word, seen.next_claiming()));
        assert!(!seen.swap(&word, seen.next_claiming()));
    }
}
