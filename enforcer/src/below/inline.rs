//! Inline hooks: for runtimes without a dispatch table, and for functions without a slot of their own.

use hipflex_hooking::{EngineKind, Session};

use hipflex_ledger::HookEngine;

use crate::entries::Api;
use crate::runtime::{Function, Runtime};

/// Hooks every function of this runtime that is not hooked yet. The error says why none was; what cannot be hooked
/// by itself is in the log.
pub(super) fn hook(runtime: &'static Runtime, kind: EngineKind) -> Result<(), String> {
    let left: Vec<(Api, &Function, usize)> = Api::ALL
        .into_iter()
        .filter_map(|api| {
            let function = runtime.function(api)?;
            let export = function.export().filter(|_| !function.is_hooked())?;
            Some((api, function, export))
        })
        .collect();
    if left.is_empty() {
        return Ok(());
    }
    let mut session = Session::new(kind).map_err(|refusal| refusal.to_string())?;
    let mut staged = Vec::with_capacity(left.len());
    let mut first_refusal = None;
    for (api, function, export) in left {
        let Some(entry) = api.entry_of(runtime.number()) else {
            return Err(String::from("there are too many runtimes"));
        };
        // SAFETY: the export of a runtime that stays loaded, and the entry for it, of the same signature. None of
        // them is variadic.
        match unsafe { session.stage(export, entry) } {
            Ok(hook) => {
                function.set_original(hook.original);
                staged.push((function, export));
                // The code may be that behind another function's slot. What is counted there must not come here.
                for other in Api::ALL.into_iter().filter_map(|api| runtime.function(api)) {
                    if other.is_hooked() && other.original() == hook.entry {
                        other.set_original(hook.original);
                        staged.push((other, hook.entry));
                    }
                }
            }
            Err(refusal) => {
                tracing::info!(
                    "{:?} is not hooked in the runtime's code: {refusal}",
                    api.name()
                );
                first_refusal = first_refusal.or(Some(refusal));
            }
        }
    }
    // A system may forbid what every function needs, and let the session begin.
    if let (true, Some(refusal)) = (staged.is_empty(), first_refusal) {
        return Err(refusal.to_string());
    }
    let engine = match kind {
        EngineKind::Detour => HookEngine::Detour,
        EngineKind::Gum => HookEngine::Gum,
    };
    // SAFETY: the originals are where the entries look for them.
    let done = unsafe { session.commit() };
    for (function, before) in staged {
        if done.is_err() {
            function.set_original(before);
        } else if !function.is_hooked() {
            function.set_hooked(engine);
        }
    }
    done.map_err(|refusal| refusal.to_string())
}
