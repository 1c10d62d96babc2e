//! Hooks below the runtimes' exports: for calls that come by an address which we never see.
//!
//! A function that is hooked here is hooked *late*: our export only jumps on to the runtime's, and the call is
//! counted behind that. So whatever watches the runtime's export (a uprobe, a profiler) sees every call once, with the
//! result that the program gets, also if it is refused.
//!
//! * [`table`]: ROCm 6 and later have a table of functions behind the exports. Its slots are swapped; no code changes.
//! * [`inline`]: the code of the function begins with a jump to us (crate `hipflex-hooking`).
//!
//! What cannot be hooked so is left to the exports and to look-ups by name, function by function, with a reason in
//! the log. Nothing here ends the program.

mod inline;
mod table;

use hipflex_hooking::EngineKind;
use hipflex_ledger::EngineChoice;

use crate::entries::Api;
use crate::log;
use crate::process;
use crate::runtime::{self, Runtime};
use crate::settings::{self, Wish};
use crate::stderr::say_once;

pub(crate) use table::register;

/// Puts the hooks of a runtime in place, as far as they are wanted and can be.
pub(crate) fn install(runtime: &'static Runtime) {
    // A limit may be set after the runtime became known: then this is asked again.
    if matches!(settings::read(), Wish::Inert) || !runtime.begin_hooking() {
        return;
    }
    log::start();
    match settings::engine() {
        // It stops every allocation, as the user will be told at the first.
        Err(_) | Ok(EngineChoice::None) => {}
        Ok(EngineChoice::Auto) => {
            let table = table::hook(runtime);
            let inline = inline::hook(runtime, EngineKind::Detour);
            match (table, inline) {
                (Err(table), Err(inline)) => tracing::warn!(
                    "the functions of a HIP runtime are counted by their names only, and what comes by other \
                     addresses is not. Its dispatch table: {table}. Inline hooks: {inline}"
                ),
                (Err(why), Ok(())) => tracing::info!("not hooked in a dispatch table: {why}"),
                (Ok(()), Err(why)) => tracing::info!("not hooked in the runtime's code: {why}"),
                (Ok(()), Ok(())) => {}
            }
        }
        Ok(EngineChoice::Table) => tell("table", table::hook(runtime)),
        Ok(EngineChoice::Detour) => tell("detour", inline::hook(runtime, EngineKind::Detour)),
        Ok(EngineChoice::Gum) => tell("gum", inline::hook(runtime, EngineKind::Gum)),
    }
    for api in Api::ALL {
        tracing::debug!("{:?}: {:?}", api.name(), runtime.engine(api));
    }
    if let Some(account) = process::account() {
        account.show_engines();
    }
}

/// The same for all runtimes that are known.
pub(crate) fn install_all() {
    for runtime in runtime::all() {
        install(runtime);
    }
}

/// Tells the user who has asked for an engine that it cannot be had.
fn tell(engine: &str, hooked: Result<(), String>) {
    if let Err(why) = hooked {
        say_once!(
            "FH_HOOK_ENGINE={engine} cannot be used with this HIP runtime: {why}. Calls are counted by the names of their \
             functions only; what comes by other addresses is not (FH_HOOK_ENGINE=auto takes what can be had)"
        );
    }
}
