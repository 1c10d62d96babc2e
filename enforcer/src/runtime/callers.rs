//! Who calls one of our exports, and which runtime that is for.
//!
//! An export is reached by the linker's doing, from any library of the process; without us each of them would
//! have reached a runtime of its own choice. Which one is found out once for a library ([`super::choose`]) and
//! kept by the addresses that it is loaded at.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{Runtime, numbered};
use crate::elf;

/// A library, by its addresses, and the number of the runtime that it reaches.
struct Range {
    /// 0 while the rest is written.
    start: AtomicUsize,
    end: AtomicUsize,
    runtime: AtomicUsize,
    /// How many libraries had been unloaded when that was found out.
    unloaded: AtomicU64,
}

/// Libraries that are remembered.
const REMEMBERED: usize = 64;

static RANGES: [Range; REMEMBERED] = [const {
    Range {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        runtime: AtomicUsize::new(0),
        unloaded: AtomicU64::new(0),
    }
}; REMEMBERED];

/// How many of them are taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

fn taken() -> impl Iterator<Item = &'static Range> {
    RANGES.iter().take(TAKEN.load(Ordering::Acquire))
}

/// The runtime that a caller reaches, if that was found out before.
#[inline]
pub(super) fn known(caller: usize) -> Option<&'static Runtime> {
    let found = taken().find(|range| {
        let start = range.start.load(Ordering::Acquire);
        start != 0 && caller >= start && caller < range.end.load(Ordering::Relaxed)
    });
    if numbered(1).is_some() {
        return found.and_then(still_true);
    }
    match found {
        Some(range) => numbered(range.runtime.load(Ordering::Relaxed)),
        // There is no room for more, and one runtime only.
        None if TAKEN.load(Ordering::Relaxed) >= REMEMBERED => numbered(0),
        None => None,
    }
}

/// Another library may be where one was that reached another runtime.
#[cold]
fn still_true(range: &Range) -> Option<&'static Runtime> {
    if range.unloaded.load(Ordering::Acquire) != elf::unloaded_so_far() {
        return None;
    }
    numbered(range.runtime.load(Ordering::Relaxed))
}

/// Remembers it. (Two threads may remember the same: the first entry counts.)
pub(super) fn remember((start, end): (usize, usize), runtime: &Runtime) {
    if start == 0 {
        return;
    }
    let present = taken().find(|range| range.start.load(Ordering::Acquire) == start);
    let range = present.or_else(|| {
        let place = TAKEN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |taken| {
            (taken < REMEMBERED).then(|| taken.saturating_add(1))
        });
        RANGES.get(place.ok()?)
    });
    let Some(range) = range else { return };
    // Nobody finds it meanwhile.
    range.start.store(0, Ordering::Release);
    range.end.store(end, Ordering::Relaxed);
    range.runtime.store(runtime.number(), Ordering::Relaxed);
    range
        .unloaded
        .store(elf::unloaded_so_far(), Ordering::Release);
    range.start.store(start, Ordering::Release);
}
