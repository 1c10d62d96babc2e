//! Several processes in one budget: what they hold together stays inside it, and the end of a
//! process, of whatever kind, gives back exactly what it held.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::shell::Shell;

const GIB: u64 = 1 << 30;

on_each_runtime!(
    a_second_process_sees_what_the_first_holds,
    kill_returns_exactly_the_dead_process_share,
    a_zombie_holds_nothing,
    ends_of_children_change_nothing,
    exec_starts_at_zero,
    a_clean_exit_gives_back,
    another_pid_namespace_shares_and_is_never_robbed,
    a_restarted_container_has_its_share_again,
    others_go_on_at_once_whenever_a_process_is_killed,
    the_stricter_limit_holds,
    budgets_are_apart,
);

fn a_second_process_sees_what_the_first_holds(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut linked = bench.limited_shell(Access::Linked, "4GiB")?;
    let mut opened = bench.limited_shell(Access::Dlopen, "4GiB")?;
    ensure!(linked.malloc("a", 3 * GIB)?);
    let info = opened.info()?;
    assert_eq!((info.free, info.total), (GIB - bench.overhead()?, 4 * GIB));
    ensure!(!opened.malloc("b", 2 * GIB)?);
    let told = opened.messages();
    ensure!(
        told.contains("3.0 GiB"),
        "the refusal does not say what others hold: {told}"
    );
    linked.free("a")?;
    ensure!(opened.malloc("b", 2 * GIB)?);
    assert_eq!(linked.info()?.free, 2 * GIB - bench.overhead()?);
    Ok(())
}

fn kill_returns_exactly_the_dead_process_share(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let idle = bench.idle_overhead();
    // What the witness can have is 4 GiB.
    let limit = (4 * GIB + idle).to_string();
    let mut victim = bench.limited_shell(Access::Linked, &limit)?;
    let mut witness = bench.limited_shell(Access::Linked, &limit)?;
    ensure!(victim.malloc("a", 2 * GIB)?);
    ensure!(victim.malloc("b", 12_345)?);
    ensure!(witness.malloc("c", GIB)?);
    ensure!(
        !witness.malloc("d", 3 * GIB)?,
        "there is 1 GiB left, less 12,345 bytes"
    );
    victim.kill()?;
    ensure!(
        witness.malloc("d", 3 * GIB)?,
        "all that the victim held is back"
    );
    assert_eq!(witness.info()?.free, 0);
    witness.free("d")?;
    // A query alone must see it, too.
    let mut victim = bench.limited_shell(Access::Linked, &limit)?;
    ensure!(victim.malloc("a", 2 * GIB)?);
    assert_eq!(witness.info()?.free, GIB + idle - bench.overhead()?);
    victim.kill()?;
    eventually(
        || Ok(witness.info()?.free == 3 * GIB + idle - bench.overhead()?),
        "a query sees what came back",
    )
}

fn a_zombie_holds_nothing(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut victim = bench.limited_shell(Access::Linked, "4GiB")?;
    let mut witness = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(victim.malloc("a", 3 * GIB)?);
    let status = Command::new("kill")
        .args(["-9", &victim.pid().to_string()])
        .status()?;
    ensure!(status.success());
    // Nobody waits for the victim until the end of this function: it is a zombie.
    eventually(
        || witness.malloc("b", 3 * GIB),
        "the zombie's share is granted to another",
    )
}

fn ends_of_children_change_nothing(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut parent = bench.limited_shell(Access::Linked, "4GiB")?;
    let mut witness = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(parent.malloc("a", 3 * GIB)?);
    for how in ["exit", "_exit", "abort", "exec", "vfork", "spawn"] {
        let status = parent.say(&format!("child {how}"))?;
        ensure!(status.starts_with("status "), "{how}: {status}");
        for shell in [&mut parent, &mut witness] {
            let free = shell.info()?.free;
            assert_eq!(free, GIB - bench.overhead()?, "after a child's {how}");
        }
        ensure!(!witness.malloc("b", 2 * GIB)?, "after a child's {how}");
    }
    parent.free("a")?;
    assert_eq!(witness.info()?.free, 4 * GIB - bench.overhead()?);
    Ok(())
}

fn exec_starts_at_zero(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    let mut witness = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(shell.malloc("a", 3 * GIB)?);
    assert_eq!(shell.say("exec")?, "ready");
    eventually(
        || Ok(witness.info()?.free == 4 * GIB - bench.overhead()?),
        "the old image's booking is gone",
    )?;
    ensure!(shell.malloc("b", 2 * GIB)?, "the new image starts at zero");
    assert_eq!(witness.info()?.free, 2 * GIB - bench.overhead()?);
    Ok(())
}

fn a_clean_exit_gives_back(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut witness = bench.limited_shell(Access::Linked, "4GiB")?;
    for how in ["quit", "_exit", "abort"] {
        let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
        ensure!(shell.malloc("a", 3 * GIB)?);
        let status = shell.end(how)?;
        assert_eq!(status.success(), how != "abort", "{how}: {status}");
        let is_back = || Ok(witness.info()?.free == 4 * GIB - bench.overhead()?);
        eventually(is_back, how)?;
    }
    Ok(())
}

fn another_pid_namespace_shares_and_is_never_robbed(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut outside = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(outside.malloc("a", GIB)?);
    let program = program::build("hipsh", &bench.runtime, Access::Linked)?;
    let mut command = bench.command("/usr/bin/unshare");
    command
        .args(["--pid", "--fork", "--kill-child"])
        .arg(program);
    limit_to(&mut command, "4GiB");
    let mut inside = Shell::start(command)?;
    ensure!(inside.malloc("b", GIB)?);
    assert_eq!(
        inside.say("pid")?,
        "pid 1",
        "it is in a PID namespace of its own"
    );
    // Both are refused now, and look for dead processes before they are.
    ensure!(!outside.malloc("c", 3 * GIB)?);
    ensure!(!inside.malloc("c", 3 * GIB)?);
    assert_eq!(outside.info()?.free, 2 * GIB - bench.overhead()?);
    assert_eq!(inside.info()?.free, 2 * GIB - bench.overhead()?);
    drop(inside);
    eventually(
        || Ok(outside.info()?.free == 3 * GIB - bench.overhead()?),
        "the namespace's share is back",
    )
}

/// The first process of a container always has PID 1 there.
fn a_restarted_container_has_its_share_again(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut witness = bench.limited_shell(Access::Linked, "4GiB")?;
    let program = program::build("hipsh", &bench.runtime, Access::Linked)?;
    for round in 0..3 {
        let mut command = bench.command("/usr/bin/unshare");
        command
            .args(["--pid", "--fork", "--kill-child"])
            .arg(&program);
        limit_to(&mut command, "4GiB");
        let mut inside = Shell::start(command)?;
        assert_eq!(inside.say("pid")?, "pid 1");
        eventually(
            || inside.malloc("a", 3 * GIB),
            &format!("container {round}"),
        )?;
        ensure!(!witness.malloc("b", 2 * GIB)?, "container {round}");
        // With the container's own end, as a runtime of containers ends it.
        inside.kill()?;
    }
    eventually(|| witness.malloc("b", 3 * GIB), "what the last one held")
}

/// Nothing that a dead process could hold stands in the way: not at the first call, not in between.
fn others_go_on_at_once_whenever_a_process_is_killed(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut witness = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(witness.malloc("a", GIB)?);
    for round in 0..8u64 {
        let mut victim = bench.limited_shell(Access::Linked, "4GiB")?;
        victim.tell(&format!("beside {GIB} 100000 4096"))?;
        // It joins, or allocates, or frees: killed at another moment in each round.
        std::thread::sleep(Duration::from_millis(round * 17));
        victim.kill()?;
        witness.free("a")?;
        ensure!(witness.malloc("a", GIB)?, "round {round}");
        let mut next = bench.limited_shell(Access::Linked, "4GiB")?;
        eventually(|| next.malloc("b", 2 * GIB), "a newcomer")?;
    }
    Ok(())
}

fn the_stricter_limit_holds(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut wide = bench.limited_shell(Access::Linked, "4GiB")?;
    ensure!(wide.malloc("a", GIB)?);
    for (limit, holds) in [("2GiB", 2 * GIB), ("8GiB", 4 * GIB)] {
        let mut other = bench.limited_shell(Access::Linked, limit)?;
        let info = other.info()?;
        let free = holds - GIB - 2 * bench.idle_overhead();
        assert_eq!((info.free, info.total), (free, holds), "{limit}");
        let told = other.messages();
        ensure!(
            told.contains("FH_BUDGET"),
            "{limit}: the way out is not told: {told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
    }
    assert_eq!(wide.info()?.total, 4 * GIB, "the first keeps its limit");
    Ok(())
}

fn budgets_are_apart(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let start = |budget: &str| {
        let mut command = bench.limited("hipsh", Access::Linked, "4GiB")?;
        command.env("FH_BUDGET", budget);
        Shell::start(command)
    };
    let (mut one, mut two) = (start("one")?, start("two")?);
    let all = 4 * GIB - bench.idle_overhead();
    ensure!(one.malloc("a", all)?);
    assert_eq!(two.info()?.free, all);
    ensure!(two.malloc("a", all)?);
    Ok(())
}

/// Tries until it holds. What waits for the end of a process may take the kernel a moment; a
/// second is far more than that.
fn eventually(mut holds: impl FnMut() -> Result<bool>, what: &str) -> Result<()> {
    let start = Instant::now();
    while !holds()? {
        ensure!(
            start.elapsed() < Duration::from_secs(1),
            "not within a second: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
