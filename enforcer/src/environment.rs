//! The variables, as they were when the program started.
//!
//! Daemons clean their environment, programs that set their title overwrite it, and a limit must not end with
//! that. A constructor keeps the values; a variable that was not set then may still be set later, before the
//! first HIP call. Programs that this one starts inherit what they would without us, but for the mask of compute units
//! ([`before_main`]), which the constructor sets.

use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use hipflex_kfd::cu::MARKER;

use crate::compute_units::before_main;

/// All variables of this library.
const NAMES: [&str; 13] = [
    "FH_BUDGET",
    "FH_CU_RANGE",
    "FH_ENABLE_HOOKS",
    "FH_ENABLE_LOG",
    "FH_FAIL_MODE",
    "FH_HIP_LIB_PATH",
    "FH_HOOK_ENGINE",
    "FH_LOG_LEVEL",
    "FH_LOG_PATH",
    "FH_MEMORY_LIMIT",
    "FH_SHM_PATH",
    "FH_SHM_SHARED",
    "FH_VISIBLE_DEVICES",
];

/// Variables of the runtime: of compute units, and of which devices there are.
const RUNTIME_NAMES: [&str; 6] = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    MARKER,
    "HSA_CU_MASK_SKIP_INIT",
    "HSA_CU_MASK",
];

/// Room for the values of all of them together, in bytes: three paths of at most `PATH_MAX` (4,096), and the
/// rest is for what is short.
const CAPACITY: usize = 16 * 1024;

/// What was found of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Unset,
    /// Where its value is kept, and how long it is.
    Kept(usize, usize),
    /// It is longer than the room that was left.
    TooLong,
}

/// The values of `N` variables that were kept. All zero, so that it costs no place in the file and, while there is
/// nothing to keep, no memory.
struct Kept<const N: usize> {
    values: [u8; CAPACITY],
    used: usize,
    found: [Found; N],
}

impl<const N: usize> Kept<N> {
    const fn new() -> Self {
        Self {
            values: [0; CAPACITY],
            used: 0,
            found: [Found::Unset; N],
        }
    }

    /// Keeps the variables of these names in this environment.
    ///
    /// Calls nothing: libraries whose constructors run later than ours may stand before libc. (The reads
    /// are volatile so that the compiler does not call `strlen` or `memcpy`.)
    ///
    /// # Safety
    /// `environment` is null or an array of C strings that ends with null.
    unsafe fn take(&mut self, names: &[&str; N], environment: *const *const c_char) {
        let mut next = environment;
        if next.is_null() {
            return;
        }
        // SAFETY: see above; the end is not passed.
        unsafe {
            while !(*next).is_null() {
                self.take_entry(names, *next);
                next = next.add(1);
            }
        }
    }

    /// # Safety
    /// `entry` is a C string.
    unsafe fn take_entry(&mut self, names: &[&str; N], entry: *const c_char) {
        for (name, found) in names.iter().zip(&mut self.found) {
            // As for getenv, the first of several of a name counts.
            if *found != Found::Unset {
                continue;
            }
            // SAFETY: see above.
            let Some(value) = (unsafe { value_of(entry, name.as_bytes()) }) else {
                continue;
            };
            let free = self.values.get_mut(self.used..).unwrap_or_default();
            // SAFETY: a C string, as its beginning is one.
            *found = match unsafe { copy(value, free) } {
                Some(len) => Found::Kept(self.used, len),
                None => Found::TooLong,
            };
            if let Found::Kept(start, len) = *found {
                self.used = start.saturating_add(len);
            }
            return;
        }
    }

    fn found(&self, names: &[&str; N], name: &str) -> Found {
        let mut all = names.iter().zip(&self.found);
        // Byte by byte: a comparison of texts is a call of `memcmp`.
        all.find(|(known, _)| known.bytes().eq(name.bytes()))
            .map_or(Found::Unset, |(_, found)| *found)
    }

    fn get(&self, names: &[&str; N], name: &str) -> Option<&[u8]> {
        match self.found(names, name) {
            Found::Kept(start, len) => self.values.get(start..)?.get(..len),
            Found::Unset | Found::TooLong => None,
        }
    }
}

/// The value in the entry `NAME=VALUE` if the name is this one.
///
/// # Safety
/// `entry` is a C string.
pub(crate) unsafe fn value_of(entry: *const c_char, name: &[u8]) -> Option<*const c_char> {
    let mut at = entry;
    for byte in name.iter().chain(b"=") {
        // SAFETY: all bytes before `at` were equal to ones that are not 0, so the string goes on here.
        unsafe {
            if at.read_volatile() as u8 != *byte {
                return None;
            }
            at = at.add(1);
        }
    }
    Some(at)
}

/// Copies a C string without its end, and answers its length; `None` if there is no room for all of it.
///
/// # Safety
/// `text` is a C string.
unsafe fn copy(text: *const c_char, room: &mut [u8]) -> Option<usize> {
    let mut at = text;
    let mut len = 0_usize;
    for place in room {
        // SAFETY: the end of the string was not seen yet.
        unsafe {
            let byte = at.read_volatile() as u8;
            if byte == 0 {
                return Some(len);
            }
            *place = byte;
            at = at.add(1);
        }
        len = len.saturating_add(1);
    }
    // SAFETY: as above.
    (unsafe { at.read_volatile() } == 0).then_some(len)
}

/// What the constructor kept. It is written once, before `TAKEN` is set, and only read after.
struct AtStart<const N: usize>(UnsafeCell<Kept<N>>);

// SAFETY: `take_at_start` is the only writer; see there. Readers look at `TAKEN` first.
unsafe impl<const N: usize> Sync for AtStart<N> {}

static AT_START: AtStart<{ NAMES.len() }> = AtStart(UnsafeCell::new(Kept::new()));
/// The runtime's, as they were before the library changed them.
static RUNTIME_AT_START: AtStart<{ RUNTIME_NAMES.len() }> = AtStart(UnsafeCell::new(Kept::new()));
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Runs when the dynamic linker starts this library; glibc passes what `main` gets.
#[cfg_attr(not(test), used)]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
#[cfg_attr(
    test,
    allow(dead_code, reason = "a test executable keeps no variables")
)]
static AT_LOAD: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) = {
    unsafe extern "C" fn take_at_start(
        _: c_int,
        _: *const *const c_char,
        environment: *const *const c_char,
    ) {
        if TAKEN.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the linker runs a constructor once, under its lock; `TAKEN` is not set, so nobody
        // reads. The environment is the one of `main`.
        unsafe { (*AT_START.0.get()).take(&NAMES, environment) };
        // SAFETY: as above; the values are not changed any more.
        let kept = unsafe { &*AT_START.0.get() };
        let is_inert = kept
            .get(&NAMES, "FH_ENABLE_HOOKS")
            .is_some_and(before_main::is_no);
        if has_limit_in(kept) && !is_inert {
            // SAFETY: as above.
            unsafe { (*RUNTIME_AT_START.0.get()).take(&RUNTIME_NAMES, environment) };
        }
        TAKEN.store(true, Ordering::Release);
        if matches!(kept.found(&NAMES, "FH_CU_RANGE"), Found::Kept(..)) && !is_inert {
            // SAFETY: a constructor, once.
            unsafe { before_main::mask(environment) };
        }
    }
    take_at_start
};

/// `None` while the constructor has not run: constructors of other libraries may call HIP.
fn kept_at_start() -> Option<&'static Kept<{ NAMES.len() }>> {
    // SAFETY: nobody writes any more once `TAKEN` is set.
    TAKEN
        .load(Ordering::Acquire)
        .then(|| unsafe { &*AT_START.0.get() })
}

/// The value that a variable of this library had at the start, as it was kept.
pub(crate) fn at_start(name: &str) -> Option<&'static [u8]> {
    kept_at_start()?.get(&NAMES, name)
}

/// The value that a variable of the runtime had at the start; `None` if that is not known, since the program was started
/// without a limit.
pub(crate) fn runtime_at_start(name: &str) -> Option<Option<&'static [u8]>> {
    if !kept_at_start().is_some_and(has_limit_in) {
        return None;
    }
    // SAFETY: nobody writes any more once `TAKEN` is set.
    let kept = unsafe { &*RUNTIME_AT_START.0.get() };
    match kept.found(&RUNTIME_NAMES, name) {
        Found::TooLong => None,
        Found::Unset | Found::Kept(..) => Some(kept.get(&RUNTIME_NAMES, name)),
    }
}

/// The value of a variable: the one at the start of the program if it was set then, else the present one.
pub(crate) fn var(name: &str) -> Option<OsString> {
    let kept = at_start(name).map(|value| OsStr::from_bytes(value).to_os_string());
    kept.or_else(|| env::var_os(name))
}

/// Whether the program was started with a limit. Allocates nothing, and calls nothing.
pub(crate) fn has_limit() -> bool {
    kept_at_start().is_some_and(has_limit_in)
}

fn has_limit_in(kept: &Kept<{ NAMES.len() }>) -> bool {
    let is_set = |name| kept.found(&NAMES, name) != Found::Unset;
    is_set("FH_MEMORY_LIMIT") || is_set("FH_CU_RANGE")
}

/// As [`var`], for a variable on which the account depends: the error says that its value could not be kept,
/// so that what it is now need not be what the user set.
pub(crate) fn kept_var(name: &str) -> Result<Option<OsString>, String> {
    if kept_at_start().is_some_and(|kept| kept.found(&NAMES, name) == Found::TooLong) {
        return Err(format!(
            "{name} is too long: the values of the FH_ variables may have {CAPACITY} bytes together"
        ));
    }
    Ok(var(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    fn kept(environment: &[&str]) -> Box<Kept<{ NAMES.len() }>> {
        let texts: Vec<CString> = environment
            .iter()
            .map(|text| CString::new(*text).unwrap())
            .collect();
        let mut entries: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
        entries.push(core::ptr::null());
        let mut kept = Box::new(Kept::new());
        // SAFETY: an array of C strings with null at its end, all alive.
        unsafe { kept.take(&NAMES, entries.as_ptr()) };
        kept
    }

    #[test]
    fn a_limit_is_either_of_both() {
        let limited = |variable: &str| has_limit_in(&kept(&["FH_BUDGET=one", variable]));
        assert!(limited("FH_MEMORY_LIMIT=") && limited("FH_CU_RANGE=0-3"));
        assert!(!limited("FH_MEMORY_LIMITS=1") && !limited("FH_CU=1"));
    }

    #[test]
    fn known_variables_are_kept_and_the_first_of_a_name_counts() {
        let kept = kept(&[
            "PATH=/bin",
            "FH_BUDGET=one",
            "FH_BUDGET=two",
            "FH_BUDGE=x",
            "FH_BUDGETS=x",
            "FH_MEMORY_LIMIT=0000:03:00.0=8GiB,*=4GiB",
            "FH_LOG_PATH=",
            "FH_SHM_PATH",
            "",
        ]);
        let get = |name| {
            kept.get(&NAMES, name)
                .map(|value| str::from_utf8(value).unwrap())
        };
        assert_eq!(get("FH_BUDGET"), Some("one"));
        assert_eq!(get("FH_MEMORY_LIMIT"), Some("0000:03:00.0=8GiB,*=4GiB"));
        assert_eq!(get("FH_LOG_PATH"), Some(""));
        assert_eq!(get("FH_SHM_PATH"), None);
        assert_eq!(get("PATH"), None);
        assert_eq!(kept.used, 3 + 24);
    }

    #[test]
    fn what_does_not_fit_is_known_to_be_too_long_and_the_rest_is_kept() {
        let entry = |name: &str, len: usize| format!("{name}={}", "x".repeat(len));
        let long = entry("FH_LOG_PATH", CAPACITY + 1);
        let kept_beside = kept(&[&long, "FH_BUDGET=one"]);
        assert_eq!(kept_beside.found(&NAMES, "FH_LOG_PATH"), Found::TooLong);
        assert_eq!(kept_beside.get(&NAMES, "FH_BUDGET"), Some(&b"one"[..]));

        let full = entry("FH_LOG_PATH", CAPACITY);
        let kept_all = kept(&[&full, "FH_BUDGET=one", "FH_SHM_PATH="]);
        assert_eq!(kept_all.get(&NAMES, "FH_LOG_PATH").unwrap().len(), CAPACITY);
        assert_eq!(kept_all.found(&NAMES, "FH_BUDGET"), Found::TooLong);
        assert_eq!(kept_all.get(&NAMES, "FH_SHM_PATH"), Some(&b""[..]));
    }

    #[test]
    fn without_a_constructor_the_present_environment_is_asked() {
        assert!(kept_at_start().is_none());
        assert_eq!(var("PATH"), env::var_os("PATH"));
        assert_eq!(kept_var("PATH"), Ok(env::var_os("PATH")));
    }
}
