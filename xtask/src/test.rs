//! `cargo xtask test`: every test of every tier that this machine can run.

mod tiers;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::cargo::{build_release, cargo};
use crate::{machine, rocm};

use tiers::Plan;

/// Prepares what the tests need, runs them, and says last what could not be run.
///
/// `filter` is a nextest filter expression that narrows the choice further.
pub(crate) fn test(filter: Option<&str>) -> Result<()> {
    machine::install_tools()?;
    if !machine::is_on_path("cargo-nextest") {
        println!("installing the test runner, cargo-nextest ...");
        crate::cargo::run(&["install", "--quiet", "--locked", "cargo-nextest"])?;
    }
    let mut plan = Plan::default();
    let missing = machine::missing_for_node();
    if missing.is_empty() {
        let fetched = rocm::fetch("all")?;
        plan.with_runtimes(&fetched);
    } else {
        plan.without_node(&missing);
    }
    plan.for_real_gpu(machine::has_real_gpu());
    build_release()?;
    plan.announce();
    let summary = nextest(&plan, filter)?;
    plan.remind();
    // The runner's own summary closes the run.
    println!("{summary}");
    Ok(())
}

/// Runs the tests; the runner's summary line.
fn nextest(plan: &Plan, filter: Option<&str>) -> Result<String> {
    let mut expression = plan.filter();
    if let Some(filter) = filter {
        expression = format!("({expression}) and ({filter})");
    }
    let mut runner = cargo()
        .args([
            "nextest",
            "run",
            "--workspace",
            "--no-fail-fast",
            "--ignore-default-filter",
        ])
        .args(["--filterset", &expression])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run cargo nextest")?;
    let stderr = runner.stderr.take().context("no stderr")?;
    let mut summary = None;
    for line in BufReader::new(stderr).lines() {
        let line = line.context("cannot read what the runner says")?;
        eprintln!("{line}");
        if line.trim_start().starts_with("Summary [") {
            summary = Some(line);
        }
    }
    let status = runner.wait().context("cannot wait for the runner")?;
    if !status.success() {
        plan.remind();
        bail!(
            "tests failed ({status}){}",
            summary.map(|s| format!("\n{s}")).unwrap_or_default()
        );
    }
    summary.context("the runner closed without a summary")
}
