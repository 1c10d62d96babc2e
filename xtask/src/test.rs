//! `cargo xtask test`: every test of every tier that this machine can run.

mod tiers;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use hipflex_e2e::{paths, probe};

use crate::cargo::{build_release, cargo, run};
use crate::{check, machine, rocm};

use tiers::Plan;

/// The runner whose closing lines are read here.
const RUNNER: [&str; 4] = ["install", "--locked", "cargo-nextest", "--version=0.9"];

/// Prepares what the tests need, runs them, and says last what could not be run.
///
/// `filter` is a nextest filter expression that narrows the choice further. `llama`: with the tier of llama.cpp.
pub(crate) fn test(filter: Option<&str>, llama: bool) -> Result<()> {
    machine::check_workspace()?;
    if !has_runner()? {
        println!("installing the test runner, cargo-nextest (this takes minutes) ...");
        run(&RUNNER)?;
    }
    let plan = plan(llama)?;
    build_release()?;
    // For the enforcer's own tests, with what only a build for development checks.
    run(&["build", "--package", "hipflex-enforcer"])?;
    plan.announce();
    let outcome = documentation().and_then(|()| nextest(&plan, filter));
    plan.remind();
    // The runner's own summary closes the run.
    println!("{}", outcome?);
    Ok(())
}

/// What can be run on this machine. Fetches the runtimes.
fn plan(llama: bool) -> Result<Plan> {
    let mut plan = Plan::default();
    let mut missing = machine::missing_for_node();
    if missing.is_empty()
        && let Err(error) = machine::install_tools()
    {
        missing.push(format!("{error:#}"));
    }
    if missing.is_empty() {
        let fetched = rocm::fetch("all")?;
        if fetched.runtimes.is_empty() && std::env::var_os("CI").is_some() {
            bail!(
                "no HIP runtime could be fetched: {}",
                fetched.skipped.join("; ")
            );
        }
        plan.with_runtimes(&fetched);
        if llama {
            // Who asks for it wants to know when it cannot be had.
            plan.with_llama(&rocm::llama::fetch()?);
        } else {
            plan.without_llama();
        }
    } else if llama {
        bail!(
            "llama.cpp needs the emulated node, and that needs {}",
            missing.join("; ")
        );
    } else {
        plan.without_node(&missing);
    }
    plan.for_real_gpu(machine::has_real_gpu());
    plan.without("probes on hooked functions", probe::missing().map(needs));
    plan.without("advisories", check::missing_for_advisories());
    let prove = "built apart, `cargo xtask prove` runs them (minutes)".to_string();
    plan.without("models of the account, kills at every step", Some(prove));
    Ok(plan)
}

fn needs(missing: String) -> String {
    format!("needs {missing}")
}

fn has_runner() -> Result<bool> {
    let output = cargo()
        .args(["nextest", "--version"])
        .output()
        .context("cannot run cargo")?;
    Ok(output.status.success())
}

/// Examples in the documentation, which nextest does not run.
fn documentation() -> Result<()> {
    run(&["test", "--quiet", "--workspace", "--doc"])
}

/// Runs the tests; the runner's summary line.
fn nextest(plan: &Plan, filter: Option<&str>) -> Result<String> {
    let mut expression = plan.filter();
    if let Some(filter) = filter {
        expression = format!("({expression}) and ({filter})");
    }
    let mut runner = cargo();
    with_keyboard_signals(&mut runner);
    let mut runner = runner
        .args([
            "nextest",
            "run",
            "--workspace",
            "--no-fail-fast",
            "--ignore-default-filter",
        ])
        // Its lines are read here.
        .args(["--color", "never", "--filterset", &expression])
        // Else each of the enforcer's tests would ask cargo whether it is up to date.
        .env("HIPFLEX_LIB", paths::target().join("debug/libhipflex.so"))
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
        bail!(
            "tests failed ({status}){}",
            summary.map(|s| format!("\n{s}")).unwrap_or_default()
        );
    }
    summary.context("the runner closed without a summary")
}

/// A shell that starts something in the background lets it ignore Ctrl-C, and all that it starts
/// inherits that. Tests of what a signal does must not depend on how they were started.
fn with_keyboard_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGQUIT] {
            // SAFETY: setting the default action has no pointers and runs no code.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure calls signal alone, which is async-signal-safe.
    unsafe { command.pre_exec(reset) };
}
