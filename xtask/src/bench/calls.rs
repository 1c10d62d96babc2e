//! Calls through the library and without it: two processes of one program take turns.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use anyhow::{Context, Result, bail};

use super::program::{Program, Runtime};
use super::statistics::summary;
use super::table::{Row, Table};

/// How long one measurement takes, in ns: less than what the kernel gives a thread at a time.
const ROUND: f64 = 500_000.0;

/// Threads that were to work side by side did so for this part of the time, in percent.
const TOGETHER: f64 = 80.0;

/// How often a measurement is repeated until they do.
const TRIES: u32 = 20;

/// What an allocation and its free may cost, in floors.
const PAIR: f64 = 4.0;

/// What `hipMemGetInfo` may cost more than without us, in ns.
const INFO: f64 = 15.0;

/// A process of the program.
struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command) -> Result<Process> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = child.stdout.take().context("no stdout")?;
        Ok(Process {
            child,
            stdin,
            stdout: BufReader::new(stdout),
        })
    }

    /// Nanoseconds for each of `count`, and the part of the time in which all threads worked.
    fn once(&mut self, what: &str, threads: u32, count: f64) -> Result<(f64, f64)> {
        writeln!(self.stdin, "{what} {threads} {count:.0}")?;
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::parse);
        match (words.next(), words.next()) {
            (Some(Ok(ns)), Some(Ok(together))) => Ok((ns, together)),
            _ => bail!("the program answered {line:?} to {what}; what went wrong is said above"),
        }
    }

    /// How many take about as long as a round is to be.
    fn count(&mut self, what: &str, threads: u32) -> Result<f64> {
        // The first call is not like the others.
        self.once(what, threads, 10.0)?;
        let (ns, _) = self.once(what, threads, 1000.0)?;
        Ok((ROUND / ns).clamp(100.0, 1e6))
    }

    /// `None`: the threads never worked side by side.
    fn measure(&mut self, what: &str, threads: u32, count: f64) -> Result<Option<f64>> {
        for _ in 0..TRIES {
            let (ns, together) = self.once(what, threads, count)?;
            if threads == 1 || together >= TOGETHER {
                return Ok(Some(ns));
            }
        }
        Ok(None)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It waits for the next line.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one round gave, in ns.
struct Round {
    floor: f64,
    bare: f64,
    ours: f64,
}

struct Pair {
    bare: Process,
    ours: Process,
}

impl Pair {
    /// `against` is measured beside it, in the process which makes the calls through us.
    fn rounds(&mut self, what: &str, threads: u32, rounds: usize) -> Result<Vec<Round>> {
        let counts = [
            self.ours.count("floor", threads)?,
            self.bare.count(what, threads)?,
            self.ours.count(what, threads)?,
        ];
        let mut found = Vec::new();
        for _ in 0..rounds {
            let floor = self.ours.measure("floor", threads, counts[0])?;
            let bare = self.bare.measure(what, threads, counts[1])?;
            let ours = self.ours.measure(what, threads, counts[2])?;
            if let (Some(floor), Some(bare), Some(ours)) = (floor, bare, ours) {
                found.push(Round { floor, bare, ours });
            }
        }
        Ok(found)
    }
}

/// Allocations and queries on one runtime.
pub(super) fn measure(program: &Program<'_>, rounds: usize, table: &mut Table) -> Result<()> {
    let mut pair = Pair {
        bare: Process::start(program.bare())?,
        ours: Process::start(program.limited())?,
    };
    for threads in [1, 2] {
        let what = match threads {
            1 => format!("alloc + free, {}, 1 thread", program.runtime.name()),
            _ => format!(
                "alloc + free, {}, {threads} threads",
                program.runtime.name()
            ),
        };
        if thread::available_parallelism()?.get() < threads as usize {
            table.skip(format!("{what}: this process may use one processor alone"));
            continue;
        }
        let found = pair.rounds("pair", threads, rounds)?;
        allocations(&what, program.runtime, threads, rounds, &found, table);
    }
    let found = pair.rounds("info", 1, rounds)?;
    let what = format!("hipMemGetInfo, {}: added", program.runtime.name());
    let added = summary(found.iter().map(|round| round.ours - round.bare));
    let bare = summary(found.iter().map(|round| round.bare));
    if let (Some(added), Some(bare)) = (added, bare) {
        let note = format!("bare {:.1} ns", bare.median);
        table.push(Row::of(what, added, "ns").at_most(INFO).note(note));
    }
    Ok(())
}

/// Two rows: all that a pair of calls takes, and what it takes more than without us.
///
/// The stricter is judged where it can be met: on the runtime which costs next to nothing by itself. The stand-in's own calls
/// are many floors, so there only what is added is judged; and with two threads nothing is, as they wait for the stand-in's
/// lock, with us and without.
fn allocations(
    what: &str,
    runtime: Runtime,
    threads: u32,
    rounds: usize,
    found: &[Round],
    table: &mut Table,
) {
    let median = |of: fn(&Round) -> f64| summary(found.iter().map(of));
    let (Some(floor), Some(bare), Some(ours), Some(whole), Some(added)) = (
        median(|round| round.floor),
        median(|round| round.bare),
        median(|round| round.ours),
        median(|round| round.ours / round.floor),
        median(|round| (round.ours - round.bare) / round.floor),
    ) else {
        table.skip(format!("{what}: the threads never ran side by side"));
        return;
    };
    let (floor, bare, ours) = (floor.median, bare.median, ours.median);
    let mut note = format!("ours {ours:.1} ns, bare {bare:.1} ns, floor {floor:.2} ns");
    if found.len() < rounds {
        note += &format!("; {} of {rounds} rounds side by side", found.len());
    }
    let mut whole = Row::of(format!("{what}: ours / floor"), whole, "floors").note(note);
    let mut added = Row::of(format!("{what}: (ours - bare) / floor"), added, "floors");
    match (runtime, threads) {
        (Runtime::Thin, _) => whole = whole.at_most(PAIR),
        (Runtime::StandIn(_), 1) => added = added.at_most(PAIR),
        (Runtime::StandIn(_), _) => added = added.note("the stand-in's own lock is in both"),
    }
    table.push(whole);
    table.push(added);
}
