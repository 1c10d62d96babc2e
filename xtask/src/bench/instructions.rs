//! Instructions, counted by valgrind: the same in every run, whatever else the machine does. What they take is another
//! matter: an atomic operation counts as one.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use hipflex_e2e::bench;

use super::program::{Folder, Program};
use super::start::{PROGRAM, with, without};
use super::table::{Row, Table};

/// How many calls the two runs differ by.
const CALLS: f64 = 1000.0;

/// What a pair of calls and a query take.
pub(super) fn of_calls(program: &Program<'_>, table: &mut Table) -> Result<()> {
    for (call, name) in [("pair", "alloc + free"), ("info", "hipMemGetInfo")] {
        let what = format!("{name}, {}: added", program.runtime.name());
        let per_call = |command: Command| -> Result<f64> {
            let count = |calls: f64| count(&command, &format!("{call} 1 {calls:.0}\n"));
            // What the program does besides is in both.
            Ok((count(2.0 * CALLS)? - count(CALLS)?) / CALLS)
        };
        let (bare, ours) = match (per_call(program.bare()), per_call(program.limited())) {
            (Ok(bare), Ok(ours)) => (bare, ours),
            (Err(why), _) | (_, Err(why)) => {
                table.skip(format!("instructions of {what}: {why:#}"));
                continue;
            }
        };
        let note = format!("ours {ours:.0}, bare {bare:.0}");
        table.push(Row::new(what, ours - bare, "instructions").note(note));
    }
    Ok(())
}

/// What a process that never touches HIP takes.
pub(super) fn of_a_start(folder: &Folder, table: &mut Table) -> Result<()> {
    let what = format!("{PROGRAM}: added");
    let ours = with(folder, &bench::library());
    match (count(&without(PROGRAM), ""), count(&ours, "")) {
        (Ok(bare), Ok(ours)) => {
            let note = format!("bare {bare:.0}; the dynamic linker's are in it");
            table.push(Row::new(what, ours - bare, "instructions").note(note));
        }
        (Err(why), _) | (_, Err(why)) => table.skip(format!("instructions of {what}: {why:#}")),
    }
    Ok(())
}

/// The instructions of a whole run of `command` with this input.
fn count(command: &Command, input: &str) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => valgrind.env(name, value),
            None => valgrind.env_remove(name),
        };
    }
    let mut child = valgrind
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run valgrind")?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    // It may end before it has read all.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected = said
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .with_context(|| format!("valgrind says nothing of instructions: {said:.500}"))?;
    Ok(collected.1.trim().parse()?)
}
