//! The emulated node itself: AMD's runtimes and tools work on it, unmodified and without hipflex.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;

const GIB: u64 = 1 << 30;

on_each_runtime!(
    every_check_passes_on_an_mi210,
    every_check_passes_on_newer_cards,
    eight_cards_are_eight_devices,
    memory_goes_to_another_process,
    processes_share_the_board,
    kill_returns_the_board_s_memory_at_once,
    rocminfo_sees_the_card,
);

/// Runs `hipcheck`; its output, if every check passed.
fn hipcheck(bench: &Bench, checks: &[&str]) -> Result<String> {
    let output = bench
        .program("hipcheck", Access::Linked)?
        .args(checks)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success() && text.contains("bad: 0"),
        "hipcheck {checks:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text)
}

fn every_check_passes_on_an_mi210(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let text = hipcheck(&bench, &[])?;
    // What a runtime says it cannot do on this driver is printed, and known for each.
    let unsupported = text.lines().filter(|l| l.contains("unsupported")).count();
    let expected = match bench.runtime.generation() {
        502 | 507 => 2, // neither virtual memory nor, without DKMS, memory of another process
        604 => 1,       // memory of another process takes an ioctl of the DKMS driver
        _ => 0,
    };
    assert_eq!(unsupported, expected, "{text}");
    Ok(())
}

fn every_check_passes_on_newer_cards(version: &str) -> Result<()> {
    for profile in ["mi300x", "rx7900xtx"] {
        let bench = Bench::with(version, |node| node.profile(profile))?;
        match bench.runtime.generation() {
            // HIP 5.2 does not know these cards: it finds no device, and says so.
            502 => {
                let output = bench.program("hipcheck", Access::Linked)?.output()?;
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                ensure!(
                    text.contains("hipGetDeviceCount)(&devices) -> 100"),
                    "{profile}: {text}"
                );
            }
            // HIP 5.7 has no kernels for pitched copies on gfx942.
            507 if profile == "mi300x" => {
                hipcheck(
                    &bench,
                    &["info", "memory", "copy", "array", "managed", "async"],
                )?;
            }
            _ => {
                hipcheck(&bench, &[])?;
            }
        }
    }
    Ok(())
}

fn eight_cards_are_eight_devices(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.profile("mi300x").gpus(8))?;
    if bench.runtime.generation() == 502 {
        return Ok(()); // It does not know the card, see above.
    }
    let text = hipcheck(&bench, &["info"])?;
    let mut buses: Vec<_> = text
        .lines()
        .filter_map(|l| l.split(" bus=").nth(1))
        .collect();
    assert_eq!(buses.len(), 8, "{text}");
    buses.sort_unstable();
    buses.dedup();
    assert_eq!(buses.len(), 8, "each has an address of its own: {text}");
    assert_eq!(text.matches("multiprocessors=304").count(), 8, "{text}");
    Ok(())
}

fn memory_goes_to_another_process(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.dkms_ipc(true))?;
    let text = hipcheck(&bench, &["ipc"])?;
    ensure!(text.contains("what the child wrote is seen"), "{text}");
    Ok(())
}

fn processes_share_the_board(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.vram(4 * GIB))?;
    let mut one = bench.shell(Access::Linked)?;
    let mut two = bench.shell(Access::Linked)?;
    ensure!(one.malloc("a", 3 * GIB)?);
    ensure!(!two.malloc("b", 2 * GIB)?, "the board has but 4 GiB");
    one.free("a")?;
    ensure!(two.malloc("b", 2 * GIB)?);
    Ok(())
}

fn kill_returns_the_board_s_memory_at_once(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let used = || -> Result<u64> {
        let state = bench.node.control().state()?;
        Ok(state.gpus.first().context("no GPU")?.vram_used)
    };
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let mut shell = bench.shell(Access::Linked)?;
        ensure!(shell.malloc("a", GIB)?);
        ensure!(used()? >= GIB);
        let start = Instant::now();
        shell.kill()?;
        while used()? >= GIB {
            ensure!(start.elapsed() < Duration::from_secs(5), "the memory stays");
            std::thread::sleep(Duration::from_millis(1));
        }
        slowest = slowest.max(start.elapsed());
    }
    println!("the slowest of 5 took {slowest:?}");
    ensure!(slowest < Duration::from_millis(50), "it took {slowest:?}");
    Ok(())
}

fn rocminfo_sees_the_card(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let Some(rocminfo) = bench.runtime.file("usr/bin/rocminfo") else {
        // Experimental has only the runtime.
        ensure!(
            bench.runtime.generation() >= 702,
            "the suite should have rocminfo"
        );
        return Ok(());
    };
    let text = output(foreign(&bench, &rocminfo)?)?;
    ensure!(text.contains("gfx90a"), "{text}");
    ensure!(text.contains("AMD Instinct MI210"), "{text}");
    ensure!(text.contains("Compute Unit:            104"), "{text}");
    Ok(())
}

/// A program of the runtime's own suite, with its own loader.
fn foreign(bench: &Bench, program: &std::path::Path) -> Result<Command> {
    let loader = bench
        .runtime
        .loader
        .as_ref()
        .context("a fetched runtime has its own loader")?;
    let mut command = bench.command(loader);
    command
        .args(["--library-path", &bench.runtime.library_path()])
        .arg(program);
    Ok(command)
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{text}\n{messages}",
        output.status
    );
    Ok(text)
}
