//! Why something was not hooked, in words for a person.

use crate::EngineKind;

/// Why a function, or a whole session, was refused. Nothing of what was refused is live.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// An engine that this build does not have.
    #[error("this build has no engine '{}'", .0.name())]
    NoEngine(EngineKind),
    /// The system does not give what is needed here: `/proc`, executable memory, writing to code.
    #[error("{what}: {why}")]
    System {
        /// What was tried.
        what: String,
        /// What came of it.
        why: String,
    },
    /// An address that is not code out of a file.
    #[error("{0:#x} is not code of a library's file")]
    NotInFile(usize),
    /// The file that the code came from cannot be read any more.
    #[error(
        "{path} was deleted or replaced while it is in use, and what is mapped of it cannot be read: {why}"
    )]
    FileGone {
        /// Its path, as it was.
        path: String,
        /// What the kernel said.
        why: String,
    },
    /// A first instruction that can be neither undone nor repeated.
    #[error("its instruction at +{offset} ({bytes}) can be neither undone nor repeated")]
    CannotKeep {
        /// Where it is, from the function's entry.
        offset: usize,
        /// The instruction, in hexadecimal.
        bytes: String,
    },
    /// The function is over before a jump would have room, or is not valid code.
    #[error("it has no room for a jump at +{offset}")]
    TooShort {
        /// Where the jump would begin.
        offset: usize,
    },
    /// A jump of the function leads to where the hook's jump would be, or to an instruction before it.
    #[error("a branch at {from:#x} leads to {to:#x}, which the hook needs")]
    BranchInto {
        /// Where the branch is.
        from: usize,
        /// Where it leads.
        to: usize,
    },
    /// A call or a system call under the jump, from which threads would come back into the middle of it.
    #[error("a call at {0:#x} comes back into the middle of where the jump would be")]
    ReturnsInto(usize),
    /// The code in memory is not what the file says: somebody else's hook, or a breakpoint.
    #[error("somebody changed its code: at {at:#x} there is {memory:#04x}, not {file:#04x}")]
    Differs {
        /// Where.
        at: usize,
        /// The byte in the file.
        file: u8,
        /// The byte in memory.
        memory: u8,
    },
    /// A function with a variable number of arguments: no hook can pass them on.
    #[error("it takes a variable number of arguments")]
    Variadic,
    /// It begins with jumps to jumps to jumps.
    #[error("it is a chain of jumps")]
    Jumps,
    /// Two functions of one session are the same code.
    #[error("its code at {0:#x} is hooked already under another name")]
    Alias(usize),
    /// The engine could not do it.
    #[error("the engine '{}': {why}", .engine.name())]
    Engine {
        /// Which one.
        engine: EngineKind,
        /// What it said.
        why: String,
    },
    /// The program's other threads could not be kept out of the functions.
    #[error("the program's threads could not be stopped: {0}")]
    Threads(String),
}

impl Refusal {
    pub(crate) fn system(what: impl Into<String>, error: &std::io::Error) -> Self {
        Self::System {
            what: what.into(),
            why: error.to_string(),
        }
    }
}
