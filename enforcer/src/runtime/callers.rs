//! Who calls one of our exports, and which runtime that is for.
//!
//! An export is reached by the linker's doing, from any library of the process; without us each of them would
//! have reached a runtime of its own choice. Which one is found out once for a library ([`super::choose`]) and
//! kept by the addresses that it is loaded at.

use core::sync::atomic::{AtomicUsize, Ordering};

use super::{Runtime, numbered};

/// A library, by its addresses, and the number of the runtime that it reaches.
struct Range {
    /// 0 until the rest is written.
    start: AtomicUsize,
    end: AtomicUsize,
    runtime: AtomicUsize,
}

/// Libraries that are remembered; others are looked up for each call.
const REMEMBERED: usize = 32;

static RANGES: [Range; REMEMBERED] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        runtime: AtomicUsize::new(0),
    }
}; REMEMBERED];

/// How many of them are taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The runtime that a caller reaches, if that was found out before.
#[inline]
pub(super) fn known(caller: usize) -> Option<&'static Runtime> {
    for range in &RANGES {
        let start = range.start.load(Ordering::Acquire);
        if start == 0 {
            return None;
        }
        if caller >= start && caller < range.end.load(Ordering::Relaxed) {
            return numbered(range.runtime.load(Ordering::Relaxed));
        }
    }
    None
}

/// Remembers it. (Two threads may remember the same; the first entry counts.)
pub(super) fn remember((start, end): (usize, usize), runtime: &Runtime) {
    if start == 0 {
        return;
    }
    let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
    let Some(range) = RANGES.get(taken) else {
        // Many calls may come here, and the number must not wrap.
        TAKEN.store(REMEMBERED, Ordering::Relaxed);
        return;
    };
    range.end.store(end, Ordering::Relaxed);
    range.runtime.store(runtime.number(), Ordering::Relaxed);
    range.start.store(start, Ordering::Release);
}
