//! `hipflex run` and `hipflex status` on a node.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::{self, Bench};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;

const GIB: u64 = 1 << 30;

on_each_runtime!(
    run_limits_a_program,
    run_limits_compute_units,
    each_run_has_a_budget_of_its_own,
    runs_share_a_named_budget,
    run_checks_before_anything_starts,
    status_shows_a_refusal,
    status_removes_what_nobody_uses,
);

/// `hipflex run ARGUMENTS -- hipsh`.
fn run(bench: &Bench, arguments: &[&str]) -> Result<Command> {
    let mut command = bench.hipflex(&["run", "--lib"]);
    command.arg(bench::library()).args(arguments).arg("--");
    command.arg(program::build("hipsh", &bench.runtime, Access::Linked)?);
    Ok(command)
}

fn run_limits_a_program(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = Shell::start(run(&bench, &["--memory", "4GiB"])?)?;
    let info = shell.info()?;
    let free = 4 * GIB - bench.idle_overhead();
    assert_eq!((info.free, info.total), (free, 4 * GIB));
    ensure!(!shell.malloc("a", 5 * GIB)?);
    ensure!(
        shell.end("quit")?.success(),
        "its exit status is the program's"
    );
    let aborted = Shell::start(run(&bench, &["--memory", "4GiB"])?)?.end("abort")?;
    assert_eq!(aborted.code(), None, "and so is its signal");
    Ok(())
}

fn run_limits_compute_units(version: &str) -> Result<()> {
    const COUNT: &str = "attribute 63 0";
    let bench = Bench::start(version)?;
    let mut alone = Shell::start(run(&bench, &["--cus", "0-37"])?)?;
    assert_eq!(alone.say(COUNT)?, "value 38");
    assert_eq!(status::of(&bench)?.budgets.len(), 0, "no account is used");
    let mut both = Shell::start(run(&bench, &["--cus", "0-7", "--memory", "4GiB"])?)?;
    assert_eq!(both.say(COUNT)?, "value 8");
    assert_eq!(both.info()?.total, 4 * GIB);
    assert_eq!(status::of(&bench)?.budgets.len(), 1);
    for range in ["400-500", "banana"] {
        let output = run(&bench, &["--cus", range])?
            .stdin(Stdio::null())
            .output()?;
        assert_eq!(output.status.code(), Some(2), "{range}");
        assert!(output.stdout.is_empty(), "nothing was started");
    }
    Ok(())
}

fn each_run_has_a_budget_of_its_own(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut one = Shell::start(run(&bench, &["--memory", "4GiB"])?)?;
    let mut two = Shell::start(run(&bench, &["--memory", "4GiB"])?)?;
    let all = 4 * GIB - bench.idle_overhead();
    ensure!(one.malloc("a", all)?);
    ensure!(two.malloc("a", all)?);
    let budgets = status::of(&bench)?.budgets;
    assert_eq!(budgets.len(), 2);
    assert_ne!(budgets[0].name, budgets[1].name);
    Ok(())
}

fn runs_share_a_named_budget(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let arguments = ["--memory", "4GiB", "--budget", "team"];
    let mut one = Shell::start(run(&bench, &arguments)?)?;
    let mut two = Shell::start(run(&bench, &arguments)?)?;
    ensure!(one.malloc("a", 3 * GIB)?);
    assert_eq!(two.info()?.free, GIB - 2 * bench.idle_overhead());
    let budget = status::of(&bench)?.budget("team")?;
    assert_eq!((budget.limit, budget.booked), (Some(4 * GIB), 3 * GIB));
    assert_eq!(budget.process(one.pid())?.booked, 3 * GIB);
    Ok(())
}

fn run_checks_before_anything_starts(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for memory in ["banana", "0", "-1", "1Gi x", "1GiX", "99999999999T"] {
        let output = run(&bench, &[&format!("--memory={memory}")])?.output()?;
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{memory}: {told}");
        ensure!(told.contains(memory), "{memory}: {told}");
        ensure!(output.stdout.is_empty(), "{memory}: the program ran");
    }
    let output = run(&bench, &["--memory", "1GiB", "--budget", "../escape"])?.output()?;
    assert_eq!(output.status.code(), Some(2), "a budget's name is no path");
    Ok(())
}

fn status_shows_a_refusal(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(shell.malloc("a", GIB)?);
    ensure!(!shell.malloc("b", 5 * GIB)?);
    assert_eq!(
        status::of(&bench)?
            .budget("default")?
            .process(shell.pid())?
            .refusals,
        1
    );
    let output = bench.hipflex(&["status"]).output()?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [
        "default",
        "4.0 GiB",
        "1.0 GiB",
        "5.0 GiB",
        "hipMalloc",
        "hipsh",
    ] {
        ensure!(table.contains(part), "{part} is not in:\n{table}");
    }
    Ok(())
}

fn status_removes_what_nobody_uses(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(shell.malloc("a", GIB)?);
    shell.kill()?;
    let listing = |when: &str| -> Result<String> {
        let output = bench
            .command("/bin/ls")
            .args(["-A", "/dev/shm/hipflex/0"])
            .output()?;
        ensure!(output.status.success(), "{when}");
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    ensure!(listing("before")?.contains("default"));
    ensure!(status::of(&bench)?.budgets.is_empty());
    let after = listing("after")?;
    ensure!(
        !after.lines().any(|l| l.starts_with("default")),
        "still there: {after}"
    );
    // With nothing to show it says so, and succeeds.
    let output = bench
        .hipflex(&["status"])
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success());
    String::from_utf8(output.stdout).context("status prints text")?;
    Ok(())
}
