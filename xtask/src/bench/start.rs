//! A process that never touches HIP: how much longer it takes with the library preloaded.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench;

use super::program::Folder;
use super::statistics::summary;
use super::table::{Row, Table};
use super::{under_a_limit, without_settings};

/// The program that every shell script starts all the time.
pub(super) const PROGRAM: &str = "/bin/true";

/// How much longer a start may take, in microseconds.
const ADDED: f64 = 100.0;

/// So many starts of each kind are looked at together, and the fastest of them counts: what else the machine does
/// makes starts slower, never faster.
const GROUP: usize = 20;

/// Starts the program in three ways in turn.
pub(super) fn measure(folder: &Folder, groups: usize, table: &mut Table) -> Result<()> {
    let empty = folder.empty_library()?;
    let mut ways = [
        without(PROGRAM),
        with(folder, &empty),
        with(folder, &bench::library()),
    ];
    let mut fastest = Vec::new();
    for _ in 0..groups {
        let mut group = [Spent::MOST; 3];
        for _ in 0..GROUP {
            for (way, least) in ways.iter_mut().zip(&mut group) {
                let spent = start(way)?;
                least.time = least.time.min(spent.time);
                least.processor = least.processor.min(spent.processor);
            }
        }
        fastest.push(group);
    }
    let time = |of: fn(&[Spent; 3]) -> f64| summary(fastest.iter().map(of));
    let (Some(bare), Some(any), Some(ours), Some(processor)) = (
        time(|[bare, _, _]| bare.time),
        time(|[bare, any, _]| any.time - bare.time),
        time(|[bare, _, ours]| ours.time - bare.time),
        time(|[bare, _, ours]| ours.processor - bare.processor),
    ) else {
        table.skip(format!("{PROGRAM}: it was never started"));
        return Ok(());
    };
    let note = format!(
        "{:.0} us without; an empty library adds {:.0}; processor time {:.0} more",
        bare.median, any.median, processor.median
    );
    table.push(
        Row::of(format!("{PROGRAM}: added"), ours, "us")
            .at_most(ADDED)
            .note(note),
    );
    Ok(())
}

/// The program by itself.
pub(super) fn without(program: &str) -> Command {
    let mut command = Command::new(program);
    without_settings(&mut command);
    command
}

/// The program under a limit, with this library preloaded.
pub(super) fn with(folder: &Folder, library: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    under_a_limit(&mut command, folder, "start");
    command.env("LD_PRELOAD", library);
    command
}

/// What a start took, in microseconds.
#[derive(Clone, Copy)]
struct Spent {
    /// From the call that starts it to its end.
    time: f64,
    /// Of a processor, by the kernel's count: what others do at the same time is not in it.
    processor: f64,
}

impl Spent {
    const MOST: Spent = Spent {
        time: f64::INFINITY,
        processor: f64::INFINITY,
    };
}

fn start(command: &mut Command) -> Result<Spent> {
    command.stdin(Stdio::null());
    let begun = Instant::now();
    let child = command.spawn();
    let child = child.with_context(|| format!("cannot start {PROGRAM}"))?;
    let pid = libc::pid_t::try_from(child.id()).context("no such PID")?;
    let mut status = 0;
    // SAFETY: the structure consists of numbers, for which all zero is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both outputs live through the call; the child is ours and was not waited for.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut used) };
    let time = begun.elapsed().as_secs_f64() * 1e6;
    ensure!(
        waited == pid && status == 0,
        "{PROGRAM} failed: status {status:#x}"
    );
    let processor = [used.ru_utime, used.ru_stime]
        .iter()
        .map(|spent| spent.tv_sec as f64 * 1e6 + spent.tv_usec as f64)
        .sum();
    Ok(Spent { time, processor })
}
