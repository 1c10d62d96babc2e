//! The end of the process.
//!
//! Nothing runs late: no thread-local destructor, no handler, no output. The one thing done is to release
//! the slot in the ledger, if nothing is booked in it; otherwise the slot is reaped after the process's end,
//! when the driver has taken the memory back. Programs may still make HIP calls after this
//! (from other libraries' destructors): those begin anew.

use crate::entries::belt;
use crate::process;

/// Runs when the dynamic linker ends this library, after the program's own exit handlers.
#[cfg_attr(not(test), used)]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
#[cfg_attr(
    test,
    allow(dead_code, reason = "a test executable has no slot to release")
)]
static AT_END: extern "C" fn() = {
    extern "C" fn release_slot() {
        belt(process::leave);
    }
    release_slot
};
