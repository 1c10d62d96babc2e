//! The end-to-end bench: real HIP runtimes on the emulated node (or on a real GPU).
//!
//! What the suites in `tests/` and `cargo xtask` share: where things lie ([`paths`]), which
//! runtimes there are ([`runtime`]), and how the test programs are built for one ([`program`]).

pub mod paths;
pub mod program;
pub mod runtime;
