//! Many threads of many processes allocate and free at random: the limit is never exceeded, and
//! at the end the ledger says exactly what is held.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;
use hipflex_e2e::status;

const GIB: u64 = 1 << 30;
const PROCESSES: u64 = 8;
const THREADS: &str = "4";
const LARGEST: u64 = 300 << 20;

on_each_runtime!(the_sum_stays_inside_the_limit);

/// How long they go on: `HIPFLEX_CHURN_SECONDS`, else 30 seconds.
fn seconds() -> String {
    std::env::var("HIPFLEX_CHURN_SECONDS").unwrap_or_else(|_| "30".into())
}

struct Worker {
    child: Child,
    stdout: BufReader<ChildStdout>,
    held: u64,
    granted: u64,
    refused: u64,
}

fn the_sum_stays_inside_the_limit(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let folder = tempfile::tempdir()?;
    let counts = folder.path().join("counts");
    fs::write(&counts, [0; 16])?;
    let mut workers = Vec::new();
    for seed in 0..PROCESSES {
        let access = if seed % 2 == 0 {
            Access::Linked
        } else {
            Access::Dlopen
        };
        let mut child = bench
            .limited("churn", access, "4GiB")?
            .arg(&counts)
            .args([THREADS, &seconds(), &LARGEST.to_string(), &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        workers.push(Worker {
            child,
            stdout,
            held: 0,
            granted: 0,
            refused: 0,
        });
    }
    for worker in &mut workers {
        let mut line = String::new();
        worker.stdout.read_line(&mut line)?;
        let words: Vec<_> = line.split_whitespace().collect();
        let [
            "held",
            held,
            "granted",
            granted,
            "refused",
            refused,
            "failed",
            failed,
        ] = words[..]
        else {
            anyhow::bail!(
                "churn ended without a word: {:?}: {line:?}",
                worker.child.wait()?
            );
        };
        assert_eq!(failed, "0", "nothing fails but for want of memory");
        worker.held = held.parse()?;
        worker.granted = granted.parse()?;
        worker.refused = refused.parse()?;
    }
    let granted: u64 = workers.iter().map(|w| w.granted).sum();
    let refused: u64 = workers.iter().map(|w| w.refused).sum();
    let counted = fs::read(&counts)?;
    let [held, most] = [0, 8].map(|at| number(&counted, at));
    println!(
        "{granted} granted, {refused} refused, at most {most} bytes held of {}",
        4 * GIB
    );
    ensure!(
        most <= 4 * GIB,
        "{most} bytes were held under a limit of 4 GiB"
    );
    ensure!(
        most > 3 * GIB && refused > 100,
        "the limit was hardly reached: this shows nothing"
    );

    // All stand still: the ledger must agree with each of them.
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(
        budget.booked, held,
        "the ledger's sum against the programs' own"
    );
    assert_eq!(budget.pending, 0, "nothing is under way");
    assert_eq!(budget.anomalies, 0, "no booking had to be mended");
    for worker in &workers {
        let booked = budget.process(worker.child.id())?.booked;
        assert_eq!(booked, worker.held, "process {}", worker.child.id());
    }

    // The death of one returns its share and nothing else.
    let mut victim = workers.pop().context("no worker")?;
    victim.child.kill()?;
    victim.child.wait()?;
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(budget.booked, held - victim.held, "after the death of one");

    for mut worker in workers {
        drop(worker.child.stdin.take());
        ensure!(worker.child.wait()?.success());
    }
    ensure!(
        status::of(&bench)?.budgets.is_empty(),
        "nobody is left, and neither is the ledger"
    );
    Ok(())
}

fn number(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8]
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}
