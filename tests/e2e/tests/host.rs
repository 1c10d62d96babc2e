//! What the programs and their other libraries must not notice: that processes died here before, that they
//! bring an allocator of their own, that nobody reads what is said when they end.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::{self, Bench};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::paths;
use hipflex_e2e::program::Access;
use hipflex_e2e::shell::Shell;
use hipflex_ledger::{BudgetName, GpuSpec, Identity, Ledger, Limit, MAX_MEMBERS, Member, Place};

const GIB: u64 = 1 << 30;

on_each_runtime!(
    dead_slots_keep_no_newcomer_out,
    an_allocator_of_the_program_s_own_goes_on_working,
    a_program_ends_though_nobody_reads_its_stderr,
);

fn dead_slots_keep_no_newcomer_out(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let folder = tempfile::tempdir()?;
    let start = || {
        let mut command = bench.limited("hipsh", Access::Linked, "4GiB")?;
        command.env("FH_SHM_PATH", folder.path());
        Shell::start(command)
    };
    // One that lives, so that the ledger stays the same.
    let mut first = start()?;
    ensure!(first.malloc("a", GIB)?);
    take_all_slots_and_die(&Place::new(folder.path(), false))?;
    let mut newcomer = start()?;
    ensure!(newcomer.malloc("b", GIB)?, "{}", newcomer.messages());
    assert_eq!(newcomer.messages(), "");
    Ok(())
}

/// Claims all slots that are left, in a process that is then killed.
fn take_all_slots_and_die(place: &Place) -> Result<()> {
    let budget = BudgetName::new("default")?;
    let snapshot = Ledger::open(&place.ledger_path(&budget))?.snapshot();
    let gpus: Vec<_> = snapshot
        .gpus
        .iter()
        .map(|gpu| GpuSpec {
            key: gpu.key,
            limit: Limit::Bytes(4 * GIB),
            board_bytes: 0,
        })
        .collect();
    let identity = Identity {
        comm: b"dead".to_vec(),
        library_version: String::new(),
    };
    // SAFETY: the child calls code of this test alone, which takes no lock that another thread may have
    // (this is the only one that does anything), and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "cannot fork: {}", io::Error::last_os_error());
    if child == 0 {
        for _ in 1..MAX_MEMBERS {
            if Member::join(place, &budget, &gpus, &identity).is_err() {
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(1) };
            }
        }
        // SAFETY: as above; it stays a member until the kernel has ended it.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: the child of above and a place for its status.
    ensure!(unsafe { libc::waitpid(child, &raw mut status, 0) } == child);
    ensure!(libc::WIFSIGNALED(status), "it could not join: {status:#x}");
    Ok(())
}

fn an_allocator_of_the_program_s_own_goes_on_working(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let folder = tempfile::tempdir()?;
    let allocator = folder.path().join("allocator.so");
    // It replaces malloc and looks the next one up, as jemalloc and tcmalloc do.
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&allocator)
        .arg(paths::workspace().join("enforcer/tests/programs/allocator.c"))
        .status()?;
    ensure!(built.success(), "the allocator does not compile");
    let (ours, other) = (bench::library(), allocator);
    let (ours, other) = (ours.display(), other.display());
    for preload in [format!("{ours}:{other}"), format!("{other}:{ours}")] {
        for access in Access::ALL {
            let mut command = bench.limited("hipsh", access, "4GiB")?;
            command.env("LD_PRELOAD", &preload);
            let mut shell = Shell::start(command)?;
            ensure!(!shell.malloc("a", 5 * GIB)?, "{preload} {access:?}");
            ensure!(shell.malloc("b", GIB)?, "{preload} {access:?}");
            shell.free("b")?;
            ensure!(shell.end("quit")?.success(), "{preload} {access:?}");
        }
    }
    Ok(())
}

fn a_program_ends_though_nobody_reads_its_stderr(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for how in ["quit", "_exit"] {
        let (_reader, stderr) = io::pipe()?;
        fill(&stderr)?;
        let mut program = bench
            .limited("hipsh", Access::Linked, "4GiB")?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()?;
        let begun = Instant::now();
        // A refusal has something to say, and what is held at the end is not given back first.
        let mut stdin = program.stdin.take().context("no stdin")?;
        write!(stdin, "malloc a {}\nmalloc b {GIB}\n{how}\n", 5 * GIB)?;
        let mut said = String::new();
        let mut stdout = program.stdout.take().context("no stdout")?;
        stdout.read_to_string(&mut said)?;
        ensure!(program.wait()?.success(), "{how}: {said}");
        ensure!(said.starts_with("ready\nerror 2\nok"), "{how}: {said}");
        let took = begun.elapsed();
        ensure!(took < Duration::from_secs(30), "{how}: it took {took:?}");
    }
    Ok(())
}

/// Fills a pipe, so that whoever writes to it waits.
fn fill(mut pipe: &io::PipeWriter) -> Result<()> {
    let set = |flags: libc::c_int| {
        // SAFETY: fcntl with F_SETFL has no pointer arguments; the descriptor is open.
        unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, flags) }
    };
    ensure!(set(libc::O_NONBLOCK) == 0);
    let full = loop {
        if let Err(error) = pipe.write_all(&[0; 4096]) {
            break error;
        }
    };
    ensure!(full.kind() == io::ErrorKind::WouldBlock, "{full}");
    ensure!(set(0) == 0);
    Ok(())
}
