//! Calls cargo, as the developer would.

use std::process::Command;

use anyhow::{Context, Result, bail};
use hipflex_e2e::paths;

/// The cargo that runs this task, in the workspace's root.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(paths::workspace());
    command
}

/// Runs cargo; its output goes to the terminal.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let status = cargo()
        .args(arguments)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("`cargo {}` failed, see above", arguments.join(" "));
    }
    Ok(())
}

/// Builds the product and the bench as they are tested: optimised.
pub(crate) fn build_release() -> Result<()> {
    println!("building hipflex and its test bench (the first time takes minutes) ...");
    // As a user builds it: a build of the whole workspace would unite the features of all
    // dependencies, and test another library than the one that is used.
    run(&["build", "--release"])?;
    run(&["build", "--release", "--package", "kfd-emulator"])
}
