//! The crate `detour`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;

use detour::RawDetour;

use super::{Engine, EngineKind};
use crate::Refusal;

/// What was made, for good: dropping it would give the trampoline back. In a list, and not forgotten, since tools that look
/// for lost memory would find it.
static KEPT: Mutex<Vec<RawDetour>> = Mutex::new(Vec::new());

fn keep(made: RawDetour) {
    // A forked child may find it locked.
    match KEPT.try_lock() {
        Ok(mut kept) => kept.push(made),
        Err(_) => core::mem::forget(made),
    }
}

/// Makes trampolines, and nothing else.
///
/// Its own writing is avoided. It makes the page writable for a moment, and a uprobe that is attached in that
/// moment is silently left out. And where the jump lies in one aligned word it writes the whole word: at +1 that
/// is the entry, too, so that a breakpoint which comes or goes in that moment is lost or comes back.
pub(super) struct Detour;

impl Engine for Detour {
    unsafe fn prepare(&mut self, jump: usize, thunk: usize) -> Result<usize, Refusal> {
        let refusal = |why: String| Refusal::Engine {
            engine: EngineKind::Detour,
            why,
        };
        // SAFETY: forwarded. It reads the code at `jump`, and is never enabled.
        let make = || unsafe { RawDetour::new(jump as *const (), thunk as *const ()) };
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(Ok(made)) => {
                let trampoline = made.trampoline() as usize;
                keep(made);
                Ok(trampoline)
            }
            Ok(Err(error)) => Err(refusal(error.to_string())),
            Err(_) => Err(refusal("it panicked".into())),
        }
    }
}
