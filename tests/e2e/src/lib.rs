//! The end-to-end bench: real HIP runtimes on the emulated node (or on a real GPU).
//!
//! What the suites in `tests/` and `cargo xtask` share: where things lie ([`paths`]), which
//! runtimes there are ([`runtime`]), how the test programs are built for one ([`program`]), a node
//! to run them in ([`mod@bench`]), how to talk to them ([`shell`]) and to two side by side ([`pair`]), what the ledger says of
//! them ([`status`]), what the runtimes export ([`exports`]), and AMD's own tools ([`tool`]).

pub mod bench;
pub mod driver;
mod each;
pub mod environment;
pub mod exports;
pub mod pair;
pub mod paths;
pub mod probe;
pub mod program;
pub mod runtime;
pub mod shell;
pub mod status;
pub mod tool;
