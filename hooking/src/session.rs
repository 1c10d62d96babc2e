//! Functions are staged one by one, and go live together.

use crate::{EngineKind, Refusal};

/// A function that was staged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Calling this address is calling the function without the hook.
    pub original: usize,
    /// The entry of what was hooked: the function, or what it jumps to at once.
    pub entry: usize,
    /// Where the jump to the hook is.
    pub jump: usize,
}

/// Hooks that go live together, or not at all.
#[derive(Debug)]
pub struct Session {
    engine: EngineKind,
}

impl Session {
    /// Begins a session with an engine. Reads `/proc/self/maps`, and tries whether code can be written to here.
    ///
    /// # Errors
    /// The build lacks the engine, or the system does not allow what hooks need: for no function then.
    pub fn new(engine: EngineKind) -> Result<Self, Refusal> {
        Ok(Self { engine })
    }

    /// Prepares a hook. Nothing is live before [`commit`](Self::commit).
    ///
    /// The hook is entered with stack and argument registers as at the function's entry. `original` may be
    /// called before the commit, too.
    ///
    /// # Errors
    /// They concern this function only; the session goes on.
    ///
    /// # Safety
    /// `function` is the entry of a function in a library that stays loaded for good, and `hook` is one with
    /// the same signature. Both take a fixed number of arguments.
    pub unsafe fn stage(&mut self, function: usize, hook: usize) -> Result<Hook, Refusal> {
        let _ = hook;
        let _ = self.engine;
        Err(Refusal::NotInFile(function))
    }

    /// Makes all staged hooks live: while no thread of the process is inside of what is overwritten. They
    /// stay for good.
    ///
    /// # Errors
    /// No hook of this session is live then.
    ///
    /// # Safety
    /// The hooks can be called from now on: their `original` was stored where they look for it.
    pub unsafe fn commit(self) -> Result<(), Refusal> {
        Ok(())
    }
}
