//! `cargo xtask prove`: the account, model-checked and killed at every step. With `--mutations`: the tests themselves,
//! see [`mutations`].
//!
//! Apart from `cargo xtask test`, because both build the ledger in forms of their own.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::paths;

use crate::cargo::{cargo, run};
use crate::mutations;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Instead: show that the tests of docs/known-failures.md fail when what they hold is removed (all
    /// mutations, or those of these names)
    #[arg(long, value_name = "NAME", num_args = 0..)]
    mutations: Option<Vec<String>>,
}

/// Runs the models, then the kills; or the mutations.
pub(crate) fn prove(arguments: &Arguments) -> Result<()> {
    match &arguments.mutations {
        Some(names) => mutations::prove(names),
        None => prove_the_account(),
    }
}

fn prove_the_account() -> Result<()> {
    println!("== models of the account under every order of threads (loom)");
    let folder = paths::target().join("loom");
    let status = cargo()
        .args([
            "test",
            "--package",
            "hipflex-ledger",
            "--profile",
            "model",
            "--lib",
        ])
        .args(["--features", "fault-points", "--target-dir"])
        .arg(folder)
        .arg("models::")
        .env("RUSTFLAGS", "--cfg loom")
        .status()
        .context("cannot run cargo test")?;
    ensure!(status.success(), "a model failed, see above");
    println!("== processes killed between any two steps");
    run(&[
        "nextest",
        "run",
        "--package",
        "hipflex-ledger",
        "--features",
        "fault-points",
    ])
}
