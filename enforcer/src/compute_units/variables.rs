//! The variables by which the runtime learns of the mask, and how they get into the environment.
//!
//! They are set without libc's `setenv`: a constructor must not call it, and at the first HIP call another thread may hold
//! its lock. `environ` is made to point to an array of our own, which has all the entries that were there and ours.
//! Programs may go on changing their environment: libc makes an array of its own when it adds a variable,
//! and changes ours in place when it removes one.

use core::ffi::{CStr, c_char};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use hipflex_kfd::cu::{self, MARKER, Text, Variables};

use crate::environment;

/// The runtime's mask.
pub(super) const MASK: &str = "HSA_CU_MASK";
/// `1` lets ROCr make queues without a mask.
pub(super) const SKIP_INIT: &str = "HSA_CU_MASK_SKIP_INIT";

unsafe extern "C" {
    /// The environment, as all of libc sees it.
    static mut environ: *const *const c_char;
}

pub(super) fn is_one(value: &[u8]) -> bool {
    matches!(value, [b'1'])
}

/// How many variables there are.
pub(super) fn count() -> usize {
    // SAFETY: a read of a pointer, which libc sets as a whole; an array of entries with null at its end.
    unsafe { entries(environ) }.count()
}

/// Sets the mask, and what it was made from, in the environment that the process has (`at_start` where libc has none
/// yet). False if there is no room.
///
/// # Safety
/// `entries` and `array` stay where they are as long as the process lives, and nobody else writes to them. No other thread
/// changes the environment meanwhile, as for `setenv`.
pub(super) unsafe fn set(
    at_start: *const *const c_char,
    from: &Variables<'_>,
    mask: &[u8],
    mut text: Text<'_>,
    array: &mut [*const c_char],
) -> bool {
    let begin = |name: &str, text: &mut Text<'_>| {
        let start = text.len();
        text.bytes(name.as_bytes());
        text.byte(b'=');
        start
    };
    let mask_at = begin(MASK, &mut text);
    text.bytes(mask);
    text.byte(0);
    let marker_at = begin(MARKER, &mut text);
    cu::write_marker(&mut text, from, mask);
    text.byte(0);
    let skip_at = begin(SKIP_INIT, &mut text);
    text.bytes(b"0\0");
    if text.is_cut() {
        return false;
    }
    let entry = |at: usize| text.written().as_ptr().wrapping_add(at).cast::<c_char>();
    // SAFETY: a read of a pointer.
    let present = unsafe { environ };
    let present = if present.is_null() { at_start } else { present };
    let mut places = array.iter_mut();
    let mut put = |entry: *const c_char| match places.next() {
        Some(place) => {
            // SAFETY: a reference. Volatile, so that the compiler makes no `memcpy` of it.
            unsafe { ptr::from_mut(place).write_volatile(entry) };
            true
        }
        None => false,
    };
    let mut has_skip = false;
    // SAFETY: an environment.
    for old in unsafe { entries(present) } {
        // SAFETY: a C string.
        let is = |name: &str| unsafe { environment::value_of(old, name.as_bytes()) }.is_some();
        if is(SKIP_INIT) {
            has_skip = true;
        } else if !is(MASK) && !is(MARKER) && !put(old) {
            return false;
        }
    }
    let complete = put(entry(mask_at))
        && put(entry(marker_at))
        && (!has_skip || put(entry(skip_at)))
        && put(ptr::null());
    if complete {
        // SAFETY: a write of a pointer, which is aligned and so written as a whole; whoever reads it gets the old array or
        // this one, both complete.
        unsafe {
            let place = AtomicPtr::from_ptr((&raw mut environ).cast::<*mut *const c_char>());
            place.store(array.as_mut_ptr(), Ordering::Release);
        }
    }
    complete
}

/// The entries of an environment.
///
/// # Safety
/// Null, or an array of C strings with null at its end, which stays while the iterator lives.
unsafe fn entries(environment: *const *const c_char) -> impl Iterator<Item = *const c_char> {
    let mut next = environment;
    core::iter::from_fn(move || {
        if next.is_null() {
            return None;
        }
        // SAFETY: the end was not passed.
        unsafe {
            let entry = *next;
            if entry.is_null() {
                return None;
            }
            next = next.add(1);
            Some(entry)
        }
    })
}

/// The value of a variable as it is now, without libc's lock.
pub(crate) fn now(name: &str) -> Option<Vec<u8>> {
    // SAFETY: the environment of the process, and its strings.
    unsafe {
        entries(environ)
            .find_map(|entry| environment::value_of(entry, name.as_bytes()))
            .map(|value| CStr::from_ptr(value).to_bytes().to_vec())
    }
}
