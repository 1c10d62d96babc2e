//! What the programs of the bench inherit from whoever runs it.

use std::path::PathBuf;
use std::process::Command;

use crate::paths;

/// `cargo run` and the test runner put folders of their own into the library path. They are not for
/// the programs of the bench: this gives them the path that the developer has.
pub fn without_cargo_libraries(command: &mut Command) {
    let Some(path) = std::env::var_os("LD_LIBRARY_PATH") else {
        return;
    };
    let own = paths::target();
    let toolchain = std::env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".rustup"));
    let kept: Vec<_> = std::env::split_paths(&path)
        .filter(|dir| !dir.starts_with(&own) && !dir.starts_with(&toolchain))
        .collect();
    match std::env::join_paths(&kept) {
        Ok(kept) if !kept.is_empty() => command.env("LD_LIBRARY_PATH", kept),
        _ => command.env_remove("LD_LIBRARY_PATH"),
    };
}
