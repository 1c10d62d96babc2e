//! `cargo xtask prove`: the account, model-checked and killed at every step.
//!
//! Apart from `cargo xtask test`, because both build the ledger in forms of their own.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::paths;

use crate::cargo::{cargo, run};

/// Runs the models, then the kills.
pub(crate) fn prove() -> Result<()> {
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
