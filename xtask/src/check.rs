//! `cargo xtask check`: what needs no test to run. Format, lints, documentation, the coverage of the hooks, licences.

mod gum;
mod licences;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::cargo::{cargo, run};
use crate::{coverage, machine};

/// Runs every check; the first that fails ends it.
pub(crate) fn check() -> Result<()> {
    step("format");
    run(&["fmt", "--all", "--check"])?;
    step("lints");
    run(&[
        "clippy",
        "--quiet",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ])?;
    step("lints of the engine GUM");
    gum::check()?;
    step("documentation");
    let status = cargo()
        .args([
            "doc",
            "--quiet",
            "--workspace",
            "--no-deps",
            "--document-private-items",
        ])
        .env("RUSTDOCFLAGS", "-D warnings")
        .status()
        .context("cannot run cargo doc")?;
    if !status.success() {
        bail!("the documentation has warnings, see above");
    }
    step("coverage of the hooks");
    coverage::check()?;
    step("licences");
    licences::check()?;
    step("advisories");
    advisories()
}

fn step(what: &str) {
    println!("== {what}");
}

/// Known vulnerabilities, by cargo-audit and the database that it has. The database is not
/// fetched: a build must not depend on that.
fn advisories() -> Result<()> {
    match missing_for_advisories() {
        Some(missing) => println!("SKIPPED advisories: {missing}"),
        None => run(&["audit", "--no-fetch", "--deny", "warnings"])?,
    }
    Ok(())
}

/// Why advisories cannot be looked at here, or `None` if they can.
pub(crate) fn missing_for_advisories() -> Option<String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.unwrap_or_else(|| std::env::home_dir().unwrap_or_default().join(".cargo"));
    let database = home.join("advisory-db");
    let there = machine::is_on_path("cargo-audit") && database.is_dir();
    (!there).then(|| {
        format!(
            "needs cargo-audit and its database in {} (`cargo install cargo-audit`, then `cargo \
             audit` once, online)",
            database.display()
        )
    })
}
