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
        let mut group = [f64::INFINITY; 3];
        for _ in 0..GROUP {
            for (way, least) in ways.iter_mut().zip(&mut group) {
                *least = least.min(start(way)?);
            }
        }
        fastest.push(group);
    }
    let bare = summary(fastest.iter().map(|[bare, _, _]| *bare));
    let any = summary(fastest.iter().map(|[bare, any, _]| any - bare));
    let ours = summary(fastest.iter().map(|[bare, _, ours]| ours - bare));
    let (Some(bare), Some(any), Some(ours)) = (bare, any, ours) else {
        table.skip(format!("{PROGRAM}: it was never started"));
        return Ok(());
    };
    let note = format!(
        "{:.0} us without; an empty library adds {:.0}",
        bare.median, any.median
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

/// From the call that starts it to its end, in microseconds.
fn start(command: &mut Command) -> Result<f64> {
    command.stdin(Stdio::null());
    let begun = Instant::now();
    let status = command.status();
    let spent = begun.elapsed();
    let status = status.with_context(|| format!("cannot start {PROGRAM}"))?;
    ensure!(status.success(), "{PROGRAM}: {status}");
    Ok(spent.as_secs_f64() * 1e6)
}
