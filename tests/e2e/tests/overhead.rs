//! What the driver holds beside the bookings: it counts against the limit, and nothing counts twice.

use anyhow::{Result, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;
use hipflex_e2e::status;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

on_each_runtime!(
    overhead_above_the_limit_leaves_nothing,
    what_is_under_way_is_not_overhead,
    free_is_never_more_than_what_the_board_has,
    sizes_as_kubernetes_writes_them,
);

/// A stream's scratch memory takes more than the limit: then there is nothing left, not everything.
fn overhead_above_the_limit_leaves_nothing(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "1MiB")?;
    ensure!(shell.say("hipStreamCreate s")?.starts_with("ok"));
    // It is measured before a request is refused, and from then on it counts.
    ensure!(!shell.malloc("a", 2 * MIB)?, "more than the limit");
    ensure!(!shell.malloc("a", 4096)?, "a page");
    let overhead = bench.overhead()?;
    ensure!(overhead >= MIB, "{overhead} bytes: this shows nothing");
    let info = shell.info()?;
    assert_eq!((info.free, info.total), (0, MIB));
    let told = shell.messages();
    ensure!(told.contains("overhead"), "the reason is not told: {told}");
    Ok(())
}

/// One thread allocates and frees a large block all the time. The driver has given it before it is booked,
/// and that must not be taken for overhead: small blocks beside it fit.
fn what_is_under_way_is_not_overhead(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "1GiB")?;
    ensure!(shell.malloc("first", MIB)?);
    let reply = shell.say(&format!("beside {} 2000 {}", 600 * MIB, 100_000))?;
    assert_eq!(reply, "granted 2000 refused 0", "{}", shell.messages());
    // Blocks of their own take the driver's time, so that this goes on for many looks at what it counts.
    for round in 0..10 {
        let reply = shell.say(&format!("beside {} 100 {}", 600 * MIB, 2 * MIB))?;
        let told = shell.messages();
        assert_eq!(reply, "granted 100 refused 0", "round {round}: {told}");
    }
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(
        (budget.booked, budget.pending, budget.anomalies),
        (MIB, 0, 0)
    );
    Ok(())
}

/// Somebody without a limit has taken most of the board.
fn free_is_never_more_than_what_the_board_has(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.vram(4 * GIB))?;
    let mut shell = bench.limited_shell(Access::Linked, "3GiB")?;
    ensure!(shell.info()?.free > 2 * GIB);
    let mut other = bench.shell(Access::Linked)?;
    ensure!(other.malloc("a", 3 * GIB)?);
    // HIP 5.2 itself does not look at what others have.
    let native = other.info()?.free;
    let info = shell.info()?;
    ensure!(info.free <= native.max(3 * GIB) && info.total == 3 * GIB);
    if bench.runtime.generation() > 502 {
        ensure!(info.free <= GIB, "{info:?}, but the board has 1 GiB");
        // (A block takes whole pieces of 2 MiB.)
        ensure!(
            shell.malloc("a", info.free - 4 * MIB)?,
            "{info:?} can be had"
        );
    }
    Ok(())
}

fn sizes_as_kubernetes_writes_them(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for (limit, bytes) in [
        ("1Gi", GIB),
        ("512Mi", GIB / 2),
        ("1048576Ki", GIB),
        ("0.5Gi", GIB / 2),
    ] {
        let mut shell = bench.limited_shell(Access::Linked, limit)?;
        assert_eq!(shell.info()?.total, bytes, "{limit}");
        ensure!(!shell.malloc("a", bytes + 1)?, "{limit}");
        ensure!(shell.malloc("a", bytes / 2)?, "{limit}");
        assert_eq!(
            shell.messages().lines().count(),
            1,
            "the refusal alone is told"
        );
        shell.kill()?;
    }
    Ok(())
}
