//! Setting `HSA_CU_MASK` before anybody can have looked at it.
//!
//! ROCr reads the variable when HIP starts, which may be before the first call that is hooked, and then never again. So the
//! constructor sets it, in the first process that has `FH_CU_RANGE`: it reads which GPUs there are, and what they get.
//! A second variable, [`MARKER`], says what the mask was made from. Programs that this one starts inherit both, and as long as
//! nothing of that has changed they read nothing.
//!
//! Nothing here calls a function of libc, allocates, takes a lock, or says anything: what is wrong is found again at
//! the first HIP call, and told then.

use core::cell::UnsafeCell;
use core::ffi::c_char;

use hipflex_kfd::cu::{self, MARKER, Machine, Own, Text, Variables};

use super::variables::{self, SKIP_INIT};
use crate::environment;

/// Room for the array of variables: as many as a program can have, with short values, in the 128 KiB that it has for them.
const MOST_VARIABLES: usize = 16 * 1024;
/// Room for what is set, in bytes.
const LONGEST: usize = 64 * 1024;

/// What lives as long as the process, since the environment points to it. All zero, so that it costs no place in the
/// file and, until it is used, no memory.
struct Room {
    machine: Machine,
    mask: [u8; LONGEST],
    entries: [u8; LONGEST],
    array: [*const c_char; MOST_VARIABLES],
}

struct Shared(UnsafeCell<Room>);

// SAFETY: `mask` is the only user, and runs once.
unsafe impl Sync for Shared {}

static ROOM: Shared = Shared(UnsafeCell::new(Room {
    machine: Machine::empty(),
    mask: [0; LONGEST],
    entries: [0; LONGEST],
    array: [core::ptr::null(); MOST_VARIABLES],
}));

/// Sets the mask, if it is not what it should be already.
///
/// # Safety
/// It is called by the constructor and once, after the variables were kept. `environment` is what `main` gets.
pub(crate) unsafe fn mask(environment: *const *const c_char) {
    let Some(range) = environment::at_start("FH_CU_RANGE") else {
        return;
    };
    let get = |name| environment::runtime_at_start(name).flatten();
    let own = Own::of(get("HSA_CU_MASK"), get(MARKER));
    let visible = get("ROCR_VISIBLE_DEVICES");
    if own.is_made_from(range, visible) && !get(SKIP_INIT).is_some_and(variables::is_one) {
        return;
    }
    // SAFETY: see above: nobody else is here.
    let room = unsafe { &mut *ROOM.0.get() };
    if room.machine.read(b"").is_err() {
        return;
    }
    let variables = Variables {
        range,
        visible,
        mask: own.user,
    };
    let mut mask = Text::new(&mut room.mask);
    let given = cu::give(&variables, &room.machine, &mut |number, _, given| {
        cu::write_set(&mut mask, number, &given.mask);
    });
    if given.is_err() || mask.is_cut() || mask.len() == 0 {
        return;
    }
    let entries = Text::new(&mut room.entries);
    // SAFETY: the array and the entries live as long as the process; the environment is one.
    let _ = unsafe {
        variables::set(
            environment,
            &variables,
            mask.written(),
            entries,
            &mut room.array,
        )
    };
}

/// Whether a value is one of the words for no: `hipflex_ledger::yes_or_no`, byte by byte.
pub(crate) fn is_no(value: &[u8]) -> bool {
    let word = value.trim_ascii();
    let words: [&[u8]; 4] = [b"0", b"false", b"off", b"no"];
    words.iter().any(|no| {
        no.len() == word.len()
            && no
                .iter()
                .zip(word)
                .all(|(a, b)| *a == b.to_ascii_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hipflex_ledger::yes_or_no;
    use std::ffi::OsStr;

    #[test]
    fn no_is_what_it_is_elsewhere() {
        for word in [
            "", "0", "1", "false", " OFF ", "no", "nope", "n", "yes", "00",
        ] {
            let expected = yes_or_no(OsStr::new(word)) == Some(false);
            assert_eq!(is_no(word.as_bytes()), expected, "{word:?}");
        }
    }
}
