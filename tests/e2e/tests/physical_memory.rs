//! Physical memory that is created, mapped, released and unmapped, as llama.cpp and PyTorch do it: what is booked is
//! what the node has given.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

on_each_runtime!(
    ten_gibibytes_that_are_released_while_mapped_do_not_fit_into_one,
    the_books_are_what_the_node_has_given,
    a_second_process_gets_what_is_unmapped,
);

/// A program under a limit whose runtime has taken what it needs for itself. `None`: it has no such memory.
fn prepared(bench: &Bench, limit: &str) -> Result<Option<Shell>> {
    let mut shell = bench.limited_shell(Access::Linked, limit)?;
    let reply = shell.say("hipMemCreate first 2097152 1 0")?;
    if !reply.starts_with("ok") && bench.runtime.major() < 6 {
        return Ok(None);
    }
    for command in [
        "hipMemAddressReserve place 2097152",
        "hipMemMap place 0 2097152 first",
        "hipMemUnmap place 0 2097152",
        "hipMemRelease first",
        "hipMemAddressReserve r 17179869184",
    ] {
        ok(&mut shell, command)?;
    }
    Ok(Some(shell))
}

fn ok(shell: &mut Shell, command: &str) -> Result<()> {
    let reply = shell.say(command)?;
    ensure!(reply.starts_with("ok"), "{command}: {reply}");
    Ok(())
}

fn given(bench: &Bench) -> Result<u64> {
    let state = bench.node.control().state()?;
    Ok(state.gpus.first().context("no GPU")?.vram_used)
}

fn booked(bench: &Bench, shell: &Shell) -> Result<u64> {
    let budget = status::of(bench)?.budget("default")?;
    Ok(budget.process(shell.pid())?.booked)
}

fn ten_gibibytes_that_are_released_while_mapped_do_not_fit_into_one(version: &str) -> Result<()> {
    const BLOCK: u64 = 128 * MIB;
    let bench = Bench::start(version)?;
    let Some(mut shell) = prepared(&bench, "1GiB")? else {
        return Ok(());
    };
    let mut granted = 0;
    for block in 0..10 * GIB / BLOCK {
        let reply = shell.say(&format!("hipMemCreate h {BLOCK} 1 0"))?;
        if reply.starts_with("error 2") {
            continue;
        }
        ensure!(reply.starts_with("ok"), "{reply}: {}", shell.messages());
        ok(
            &mut shell,
            &format!("hipMemMap r {} {BLOCK} h", granted * BLOCK),
        )?;
        ok(&mut shell, "hipMemRelease h")?;
        granted += 1;
        ensure!(given(&bench)? <= GIB, "{block}: {} bytes", given(&bench)?);
    }
    // What the runtime has for itself takes the rest.
    ensure!((4..=7).contains(&granted), "{granted} were granted");
    assert_eq!(booked(&bench, &shell)?, granted * BLOCK);
    for block in 0..granted {
        ok(
            &mut shell,
            &format!("hipMemUnmap r {} {BLOCK}", block * BLOCK),
        )?;
        assert_eq!(booked(&bench, &shell)?, (granted - block - 1) * BLOCK);
    }
    ensure!(shell.malloc("m", granted * BLOCK)?, "it is there again");
    Ok(())
}

/// Each step with what it leaves, in blocks of 16 MiB.
fn the_books_are_what_the_node_has_given(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let Some(mut shell) = prepared(&bench, "4GiB")? else {
        return Ok(());
    };
    let several = bench.runtime.major() >= 7;
    let before = given(&bench)?;
    let create = |name| (format!("hipMemCreate {name} 16777216 1 0"), "ok");
    let map = |at: u64, name| (format!("hipMemMap r {} 16777216 {name}", at << 24), "ok");
    let release = |name| (format!("hipMemRelease {name}"), "ok");
    let unmap = |at: u64, blocks: u64, reply| {
        (
            format!("hipMemUnmap r {} {}", at << 24, blocks << 24),
            reply,
        )
    };
    let not_one = if several { "error 1" } else { "ok" };
    for ((command, reply), blocks) in [
        // Two mappings, and more releases than there are holds.
        (create("a"), 1),
        (map(0, "a"), 1),
        (map(1, "a"), 1),
        (release("a"), 1),
        (release("a"), 1),
        (release("a"), 1),
        (unmap(0, 1, "ok"), 1),
        (unmap(1, 1, "ok"), 0),
        // A retained handle holds nothing; a released one can be mapped.
        (create("a"), 1),
        (map(0, "a"), 1),
        (("hipMemRetainAllocationHandle b r".into(), "ok"), 1),
        (release("a"), 1),
        (map(1, "b"), 1),
        (unmap(0, 1, "ok"), 1),
        (unmap(1, 1, "ok"), 0),
        // Mapped twice in a row, released at last.
        (create("a"), 1),
        (map(0, "a"), 1),
        (unmap(0, 1, "ok"), 1),
        (map(0, "a"), 1),
        (unmap(0, 1, "ok"), 1),
        (release("a"), 0),
        // Ranges that are not one mapping.
        (create("a"), 1),
        (create("b"), 2),
        (map(0, "a"), 2),
        (map(1, "b"), 2),
        (release("a"), 2),
        (release("b"), 2),
        (unmap(0, 3, not_one), 2),
        (unmap(0, 2, "ok"), if several { 0 } else { 2 }),
        (unmap(0, 1, not_one), if several { 0 } else { 1 }),
        (unmap(1, 1, not_one), 0),
        // The memory of an old handle lives on while its value is given again, or not.
        (create("a"), 1),
        (map(0, "a"), 1),
        (release("a"), 1),
        (create("b"), 2),
        (release("b"), 1),
        (unmap(0, 1, "ok"), 0),
        (create("c"), 1),
        (release("c"), 0),
    ] {
        let said = shell.say(&command)?;
        ensure!(said == reply, "{command}: {said}");
        assert_eq!(given(&bench)? - before, blocks << 24, "{command}");
        assert_eq!(booked(&bench, &shell)?, blocks << 24, "{command}");
    }
    Ok(())
}

fn a_second_process_gets_what_is_unmapped(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let Some(mut first) = prepared(&bench, "2GiB")? else {
        return Ok(());
    };
    let mut second = bench.limited_shell(Access::Linked, "2GiB")?;
    ok(&mut first, "hipMemCreate a 1073741824 1 0")?;
    ok(&mut first, "hipMemMap r 0 1073741824 a")?;
    ok(&mut first, "hipMemRelease a")?;
    ensure!(!second.malloc("m", GIB)?, "it is still mapped");
    ok(&mut first, "hipMemUnmap r 0 1073741824")?;
    ensure!(second.malloc("m", GIB)?, "{}", second.messages());
    Ok(())
}
