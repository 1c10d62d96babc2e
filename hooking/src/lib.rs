//! Inline hooks that live together with uprobes.
//!
//! A uprobe replaces the first byte of an instruction by a breakpoint, and then runs that instruction *as the
//! file has it*. A jump written over a probed instruction is never executed, and the thread goes on in the
//! middle of it; an engine that copies a probed instruction from memory copies the breakpoint. Either kills
//! the program, whichever came first. So here the instructions which probes sit on are kept, and the jump is
//! written behind them.
//!
//! ```no_run
//! # fn original() -> usize { 0 }
//! # fn main() -> Result<(), hipflex_hooking::Refusal> {
//! # let (function, hook) = (0, 0);
//! use hipflex_hooking::{EngineKind, Session};
//! let mut session = Session::new(EngineKind::Detour)?;
//! // SAFETY: ...
//! let staged = unsafe { session.stage(function, hook) }?;
//! // store staged.original where the hook looks for it, then
//! // SAFETY: ...
//! unsafe { session.commit() }?;
//! # Ok(()) }
//! ```

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    target_pointer_width = "64"
)))]
compile_error!("hooks are made of x86-64 instructions, by the means of Linux");

mod code;
mod elf;
mod engine;
mod islands;
mod kept;
mod maps;
mod plan;
mod raw;
mod refusal;
mod session;
mod stop;
mod thunk;
mod writer;

pub use engine::EngineKind;
pub use refusal::Refusal;
pub use session::{Hook, Session};
