//! What cannot be understood or used: one clear line, and closed unless told otherwise.

use std::process::Command;

use anyhow::{Result, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::shell::Shell;

const GIB: u64 = 1 << 30;

on_each_runtime!(
    a_limit_that_is_none_refuses_everything,
    open_mode_runs_unlimited,
    a_foreign_ledger_is_not_used,
    a_damaged_ledger_is_not_used,
    without_a_gpu_the_runtime_speaks_for_itself,
);

fn one_line(told: &str, parts: &[&str]) {
    assert_eq!(told.lines().count(), 1, "one line, not: {told}");
    for part in parts {
        assert!(told.contains(part), "{part:?} is not in: {told}");
    }
}

fn a_limit_that_is_none_refuses_everything(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for limit in ["banana", "0", "-1", "1Gi x", "1GiX", "99999999999T"] {
        let mut shell = bench.limited_shell(Access::Linked, limit)?;
        ensure!(!shell.malloc("a", 1 << 20)?, "{limit}");
        ensure!(!shell.malloc("b", 1)?, "{limit}");
        one_line(&shell.messages(), &["FH_MEMORY_LIMIT", limit]);
        ensure!(shell.end("quit")?.success(), "{limit}");
    }
    Ok(())
}

fn open_mode_runs_unlimited(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let native = bench.shell(Access::Linked)?.info()?;
    let mut command = bench.limited("hipsh", Access::Linked, "banana")?;
    command.env("FH_FAIL_MODE", "open");
    let mut shell = Shell::start(command)?;
    assert_eq!(shell.info()?, native);
    ensure!(shell.malloc("a", 8 * GIB)?);
    one_line(&shell.messages(), &["banana", "WITHOUT a limit"]);
    Ok(())
}

fn a_foreign_ledger_is_not_used(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    // The folder of this user's ledgers belongs to another.
    sh(
        &bench,
        "mkdir -p /dev/shm/hipflex/0 && chown 1234 /dev/shm/hipflex/0",
    )?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(!shell.malloc("a", 1 << 20)?);
    one_line(&shell.messages(), &["/dev/shm/hipflex", "1234"]);
    Ok(())
}

fn a_damaged_ledger_is_not_used(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut first = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(first.malloc("a", GIB)?);
    let ledger = "/dev/shm/hipflex/0/default";
    sh(
        &bench,
        &format!("mv {ledger} {ledger}.moved && head -c 1000 {ledger}.moved > {ledger}"),
    )?;
    let mut second = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(!second.malloc("a", 1 << 20)?, "a truncated ledger");
    one_line(&second.messages(), &[ledger]);
    Ok(())
}

fn without_a_gpu_the_runtime_speaks_for_itself(version: &str) -> Result<()> {
    // Not in a node: this machine has no /dev/kfd, or this test is not run (see the runner).
    let runtime = hipflex_e2e::runtime::find(version)?;
    let program = program::build("hipsh", &runtime, Access::Linked)?;
    let ask = |command: Command| -> Result<(Vec<String>, String)> {
        let mut shell = Shell::start(command)?;
        let replies = ["malloc a 1048576", "info", "total 0"];
        let replies = replies
            .iter()
            .map(|c| shell.say(c))
            .collect::<Result<_>>()?;
        Ok((replies, shell.messages()))
    };
    let folder = tempfile::tempdir()?;
    let mut limited = Command::new(&program);
    limit_to(&mut limited, "4GiB");
    limited.env("FH_SHM_PATH", folder.path().join("ledgers"));
    let (native, _) = ask(Command::new(&program))?;
    let (replies, told) = ask(limited)?;
    assert_eq!(replies, native);
    one_line(&told, &["/sys/class/kfd"]);
    Ok(())
}

fn sh(bench: &Bench, script: &str) -> Result<()> {
    let output = bench.command("/bin/sh").args(["-c", script]).output()?;
    ensure!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
