//! What was found out about HIP's device numbers: each stands for something of ours by its index, or for nothing.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::runtime::{self, MOST_RUNTIMES};

/// Device numbers that are remembered; higher ones are looked up every time.
const REMEMBERED: usize = 128;
/// In a number's place: not asked yet.
const UNKNOWN: u16 = 0;
/// In a number's place: nothing of ours.
const NOWHERE: u16 = u16::MAX;

/// For each runtime, by number: an index plus 1, or one of the constants above. Two copies of the runtime may number
/// devices differently.
pub(crate) struct ByNumber([[AtomicU16; REMEMBERED]; MOST_RUNTIMES]);

impl ByNumber {
    pub(crate) const fn new() -> Self {
        Self([const { [const { AtomicU16::new(UNKNOWN) }; REMEMBERED] }; MOST_RUNTIMES])
    }

    /// The index that `device` stands for, in the runtime of this call. `find` finds it out, once: the index or
    /// nothing, and `None` if that cannot be told now and must not be remembered.
    #[inline]
    pub(crate) fn index(
        &self,
        device: c_int,
        find: impl FnOnce() -> Option<Option<usize>>,
    ) -> Option<usize> {
        let runtime = runtime::of_this_call().map_or(0, |runtime| runtime.number());
        let place = usize::try_from(device)
            .ok()
            .and_then(|number| self.0.get(runtime)?.get(number));
        match place.map_or(UNKNOWN, |place| place.load(Ordering::Relaxed)) {
            NOWHERE => None,
            UNKNOWN => {
                let index = find()?;
                if let Some(place) = place {
                    let mark = index
                        .and_then(|index| u16::try_from(index).ok()?.checked_add(1))
                        .unwrap_or(NOWHERE);
                    place.store(mark, Ordering::Relaxed);
                }
                index
            }
            known => usize::from(known).checked_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_not_looked_for_again() {
        let devices = ByNumber::new();
        assert_eq!(devices.index(0, || Some(Some(7))), Some(7));
        assert_eq!(devices.index(1, || Some(None)), None);
        for (device, index) in [(0, Some(7)), (1, None)] {
            assert_eq!(devices.index(device, || unreachable!()), index);
        }
    }

    #[test]
    fn what_cannot_be_told_now_is_asked_again() {
        let devices = ByNumber::new();
        for far in [-1, 2, c_int::MAX] {
            assert_eq!(devices.index(far, || None), None);
            assert_eq!(devices.index(far, || Some(Some(3))), Some(3));
        }
    }
}
