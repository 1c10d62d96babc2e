//! Hooks below the runtimes' exports: for calls that come by an address which we never see.
//!
//! A function that is hooked here is hooked *late*: our export only jumps on to the runtime's, and the call is
//! counted behind that. So whatever watches the runtime's export (a uprobe, a profiler) sees every call once, with the
//! result that the program gets, also if it is refused.
//!
//! * [`table`]: ROCm 6 and later have a table of functions behind the exports. Its slots are swapped; no code changes.
//! * inline: the code of the function begins with a jump to us (crate `hipflex-hooking`).
//!
//! What cannot be hooked so is left to the exports and to look-ups by name, function by function, with a reason in
//! the log. Nothing here ends the program.

mod table;

use crate::entries::Api;
use crate::process;
use crate::runtime::Runtime;
use crate::settings::{self, EngineChoice, Wish};
use crate::stderr::say_once;

pub(crate) use table::register;

/// In a function's `engine`: only its export leads to the hook.
pub(crate) const NONE: u8 = 0;
/// In a function's `engine`: the slot of the dispatch table.
pub(crate) const TABLE: u8 = 1;
/// In a function's `engine`: an inline hook, by crate `detour`.
pub(crate) const DETOUR: u8 = 2;
/// In a function's `engine`: an inline hook, by GUM.
pub(crate) const GUM: u8 = 3;

/// Puts the hooks of a runtime in place, as far as they are wanted and can be.
pub(crate) fn install(runtime: &'static Runtime) {
    if matches!(settings::read(), Wish::Inert) {
        return;
    }
    let choice = settings::engine();
    let result = match choice {
        // It stops every allocation, as the user will be told at the first.
        Err(_) | Ok(EngineChoice::None) => Ok(()),
        Ok(EngineChoice::Auto | EngineChoice::Table) => table::hook(runtime),
        Ok(EngineChoice::Detour | EngineChoice::Gum) => {
            Err(String::from("this build has no inline hooks"))
        }
    };
    if let Err(why) = result {
        match choice {
            Ok(EngineChoice::Auto) => tracing::info!("{why}"),
            _ => say_once!(
                "FH_HOOK_ENGINE cannot be used with this HIP runtime: {why}. Calls are counted by the names of \
                 their functions only"
            ),
        }
    }
    for api in Api::ALL {
        tracing::debug!("{:?}: {:?}", api.name(), runtime.engine(api));
    }
    if let Some(account) = process::account() {
        account.show_engines();
    }
}
