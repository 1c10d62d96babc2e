//! What moves the instructions under a jump to where they can be run from.

mod detour;
#[cfg(feature = "gum")]
mod gum;

use core::fmt;

use crate::Refusal;

/// What moves the instructions that a jump overwrites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// The crate `detour`.
    Detour,
    /// GUM, of Frida. Needs the feature `gum`.
    Gum,
}

impl EngineKind {
    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Detour => "detour",
            Self::Gum => "gum",
        }
    }

    /// Whether this build has it.
    pub fn is_built_in(self) -> bool {
        match self {
            Self::Detour => true,
            Self::Gum => cfg!(feature = "gum"),
        }
    }

    pub(crate) fn start(self) -> Result<Box<dyn Engine>, Refusal> {
        match self {
            Self::Detour => Ok(Box::new(detour::Detour)),
            #[cfg(feature = "gum")]
            Self::Gum => Ok(Box::new(gum::Gum::start())),
            #[cfg(not(feature = "gum"))]
            Self::Gum => Err(Refusal::NoEngine(self)),
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One engine. What it makes stays for good, also when it is dropped: a thread may be in any piece of its code
/// at any time.
pub(crate) trait Engine {
    /// Moves the instructions at `jump` that five bytes overwrite, and returns where they can be run from. They
    /// go on behind what is overwritten. Nothing is overwritten yet.
    ///
    /// # Safety
    /// `jump` is in code that a plan allows to overwrite, `thunk` is what the jump will lead to.
    unsafe fn prepare(&mut self, jump: usize, thunk: usize) -> Result<usize, Refusal>;

    /// Whether the engine writes the jumps itself, by [`activate`](Self::activate). Else the session does.
    fn writes(&self) -> bool {
        false
    }

    /// Writes all jumps that were prepared.
    ///
    /// # Safety
    /// All that they lead to is in place.
    unsafe fn activate(&mut self) -> Result<(), Refusal> {
        Ok(())
    }
}
