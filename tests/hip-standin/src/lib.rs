//! A HIP runtime without a GPU, for tests: where the built libraries are, how to configure them, and what
//! they gave to whom.
//!
//! The libraries themselves are C (`runtime/`), compiled by the build script; the README lists what they do and all
//! their settings.

mod account;
mod build;
mod liveness;
mod settings;

pub use account::{Account, AccountError, Kind, Process};
pub use build::{Build, profiler_register};
pub use settings::Settings;
