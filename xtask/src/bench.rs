//! `cargo xtask bench`: what hipflex costs, in one run, beside what cannot be done for less.
//!
//! * An allocation and its free, and `hipMemGetInfo`, through the library and without it, on runtimes without a GPU
//!   ([`calls`]). The *floor* is two plain atomic operations on shared memory.
//! * A process that never touches HIP: how much longer it takes ([`start`]), and what it does ([`trace`]).
//! * The size of the library.
//!
//! Variants take turns in many short rounds, and what is compared was measured within the same milliseconds, so that
//! a machine that is busy or changes its clock falls on all of them alike. Figures are medians over the rounds. The
//! noise that is shown with them is half of the range that the middle half of the rounds lies in.

mod calls;
mod instructions;
mod program;
mod start;
mod statistics;
mod table;
mod trace;

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hipflex_e2e::{bench, paths};

use crate::cargo;

use table::{Row, Table};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Few rounds: to see that it works, not for figures
    #[arg(long)]
    quick: bool,
    /// End with an error if a target is missed
    #[arg(long)]
    check: bool,
    /// Count instructions, too, with valgrind (minutes): no other program disturbs that
    #[arg(long)]
    instructions: bool,
}

/// How often each measurement is repeated.
struct Effort {
    rounds: usize,
    groups: usize,
}

/// The stripped library is to be smaller than this.
const LIBRARY_BYTES: f64 = 1.5e6;

/// What the words in the table mean.
const LEGEND: &str = "
ours    through libhipflex.so, under a limit; bare: the same program without it
floor   two atomic operations on one word of shared memory (with 2 threads: both on the same)
thin    a runtime whose calls do next to nothing: the target is for all that a pair takes, ours / floor
6, 5    the stand-in, in the shape of ROCm 6 and 5: its own calls take many floors, so the target is for what is added
/bin/true never touches HIP; \"more\" is than without the library
";

/// Measures, and prints the table.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    // As a user builds it.
    cargo::run(&["build", "--quiet", "--release"])?;
    let effort = if arguments.quick {
        Effort {
            rounds: 8,
            groups: 4,
        }
    } else {
        Effort {
            rounds: 200,
            groups: 50,
        }
    };
    let mut table = Table::default();
    let folder = program::Folder::new()?;
    for runtime in program::Runtime::ALL {
        let program = folder.build(runtime)?;
        calls::measure(&program, effort.rounds, &mut table)?;
        if arguments.instructions {
            instructions::of_calls(&program, &mut table)?;
        }
    }
    start::measure(&folder, effort.groups, &mut table)?;
    if arguments.instructions {
        instructions::of_a_start(&folder, &mut table)?;
    }
    trace::compare(&folder, &mut table)?;
    table.push(size(&folder)?);
    print!("{table}{LEGEND}");
    if arguments.check && table.is_missed() {
        bail!("a target was missed, see above");
    }
    Ok(())
}

/// What of the library is loaded or kept once debug information is gone.
fn size(folder: &program::Folder) -> Result<Row> {
    let stripped = folder.path().join("libhipflex.stripped.so");
    let status = Command::new("strip")
        .arg("-o")
        .args([&stripped, &bench::library()])
        .status()
        .context("cannot run strip (of binutils, which the C compiler needs as well)")?;
    ensure!(status.success(), "strip failed ({status})");
    let read = |path| -> Result<f64> {
        let found = fs::metadata(path).with_context(|| format!("cannot read {path:?}"))?;
        Ok(found.len() as f64)
    };
    let (stripped, built) = (read(stripped.as_path())?, read(&bench::library())?);
    let row = Row::new("size of the library", stripped / 1e6, "MB");
    let note = format!("stripped; {:.1} MB as it is built", built / 1e6);
    Ok(row.at_most(LIBRARY_BYTES / 1e6).note(note))
}

/// Variables for a program under a limit, with ledgers that are nobody else's.
fn under_a_limit(command: &mut Command, folder: &program::Folder, budget: &str) {
    without_settings(command);
    bench::limit_to(command, "4GiB");
    command
        .env("FH_BUDGET", budget)
        .env("FH_SHM_PATH", folder.path().join("ledgers"))
        .env("FH_LOG_PATH", folder.path().join("log"))
        .env("FH_VISIBLE_DEVICES", "0000:03:00.0");
}

/// What the developer has set for programs of his own is not for these.
fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("FH_") || text.starts_with("HIP_") || text == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    hipflex_e2e::environment::without_cargo_libraries(command);
}

/// Where the benchmark keeps what it builds.
fn place() -> std::path::PathBuf {
    paths::target().join("bench")
}
