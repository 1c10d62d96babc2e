//! Every function that allocates or frees: what is booked, refused and given back, and that programs
//! are told what the runtime tells them without hipflex.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::pair::Pair;
use hipflex_e2e::program::Access;
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;
use kfd_emulator::control::FailAllocs;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A stream and the pool of the device: what the commands below name `s` and `p`.
const PREPARE: [&str; 2] = ["hipStreamCreate s", "hipDeviceGetDefaultMemPool p 0"];

on_each_runtime!(
    each_books_what_it_gives,
    each_is_refused_beyond_the_limit,
    rows_are_counted_as_wide_as_the_runtime_makes_them,
    what_just_fits_is_granted,
    a_native_failure_gives_everything_back,
    size_zero_and_missing_arguments_are_the_runtime_s_own,
    sizes_that_overflow_are_refused,
    each_free_frees_what_others_allocated,
    a_free_that_fails_keeps_the_booking,
    what_other_functions_free_is_given_back,
    a_pool_s_cache_is_not_held_against_the_program,
    what_a_pool_keeps_is_charged,
    captured_allocations_work_as_before,
    what_a_graph_takes_is_charged_to_the_next_request,
    a_second_process_is_refused_what_the_first_holds,
);

/// How the bytes of a block follow from its request.
#[derive(Clone, Copy)]
enum Bytes {
    /// These.
    Are(u64),
    /// As many rows, each as wide as the runtime says.
    Rows(u64),
}
use Bytes::{Are, Rows};

/// A way to allocate `a`, a way to free it, and what is right to book.
struct Case {
    make: &'static str,
    free: &'static str,
    bytes: Bytes,
}

const fn case(make: &'static str, free: &'static str, bytes: Bytes) -> Case {
    Case { make, free, bytes }
}

const CASES: [Case; 35] = [
    case("hipMalloc a 5242881", "hipFree a", Are(5_242_881)),
    case("hipMalloc a 1", "hipFree a", Are(1)),
    case(
        "hipExtMallocWithFlags a 5242881 0",
        "hipFree a",
        Are(5_242_881),
    ),
    // Signal memory is the host's.
    case("hipExtMallocWithFlags a 8 2", "hipFree a", Are(0)),
    case("hipMallocManaged a 5242881 1", "hipFree a", Are(5_242_881)),
    case("hipMallocManaged a 5242881 2", "hipFree a", Are(5_242_881)),
    case(
        "hipMallocAsync a 5242881 s",
        "hipFreeAsync a s",
        Are(5_242_881),
    ),
    case(
        "hipMallocFromPoolAsync a 5242881 p s",
        "hipFreeAsync a s",
        Are(5_242_881),
    ),
    case(
        "hipMemCreate a 8388608 1 0",
        "hipMemRelease a",
        Are(8 * MIB),
    ),
    case("hipMallocPitch a 1000 50", "hipFree a", Rows(50)),
    case("hipMallocPitch a 5000000 3", "hipFree a", Rows(3)),
    case("hipMemAllocPitch a 1000 50 4", "hipFree a", Rows(50)),
    case("hipMemAllocPitch a 5000000 3 16", "hipFree a", Rows(3)),
    case("hipMalloc3D a 1000 50 4", "hipFree a", Rows(200)),
    case("hipMalloc3D a 5000000 3 2", "hipFree a", Rows(6)),
    case(
        "hipMallocArray a 32 0 0 0 2 2048 1024 0",
        "hipFreeArray a",
        Are(8 * MIB),
    ),
    case(
        "hipMallocArray a 8 8 8 8 1 2048 1024 0",
        "hipFreeArray a",
        Are(8 * MIB),
    ),
    case(
        "hipMallocArray a 32 32 32 32 2 100 30 0",
        "hipFreeArray a",
        Are(16 * 3000),
    ),
    case(
        "hipMallocArray a 8 0 0 0 1 1001 0 0",
        "hipFreeArray a",
        Are(1001),
    ),
    case(
        "hipMallocArray a 16 16 0 0 0 1001 0 0",
        "hipArrayDestroy a",
        Are(4004),
    ),
    case(
        "hipMalloc3DArray a 32 0 0 0 2 256 256 64 0",
        "hipFreeArray a",
        Are(16 * MIB),
    ),
    case(
        "hipMalloc3DArray a 16 0 0 0 0 256 256 0 0",
        "hipArrayDestroy a",
        Are(MIB / 8),
    ),
    case(
        "hipMalloc3DArray a 8 8 0 0 0 256 0 0 0",
        "hipFreeArray a",
        Are(512),
    ),
    case(
        "hipArrayCreate a 1 2 1000 100",
        "hipArrayDestroy a",
        Are(200_000),
    ),
    case(
        "hipArrayCreate a 2 2 1000 100",
        "hipArrayDestroy a",
        Are(400_000),
    ),
    case(
        "hipArrayCreate a 3 4 1000 100",
        "hipArrayDestroy a",
        Are(1_600_000),
    ),
    case(
        "hipArrayCreate a 8 1 1000 100",
        "hipFreeArray a",
        Are(100_000),
    ),
    case(
        "hipArrayCreate a 9 1 1000 0",
        "hipArrayDestroy a",
        Are(2000),
    ),
    case(
        "hipArrayCreate a 10 1 1000 100",
        "hipArrayDestroy a",
        Are(400_000),
    ),
    case(
        "hipArrayCreate a 16 4 1000 100",
        "hipArrayDestroy a",
        Are(800_000),
    ),
    case(
        "hipArrayCreate a 32 4 1000 100",
        "hipArrayDestroy a",
        Are(1_600_000),
    ),
    case(
        "hipArray3DCreate a 32 1 256 256 64 0",
        "hipArrayDestroy a",
        Are(16 * MIB),
    ),
    case(
        "hipArray3DCreate a 9 2 256 0 0 0",
        "hipFreeArray a",
        Are(1024),
    ),
    // No runtime makes mipmaps here: they must say so, and nothing is booked.
    case(
        "hipMallocMipmappedArray a 32 0 0 0 2 1024 512 0 3 0",
        "hipFreeMipmappedArray a",
        Are(0),
    ),
    case(
        "hipMipmappedArrayCreate a 32 1 1024 512 0 0 3",
        "hipMipmappedArrayDestroy a",
        Are(0),
    ),
];

/// Whether a runtime can do that at all, on an MI210.
fn works(bench: &Bench, command: &str) -> bool {
    match function(command) {
        "hipMallocMipmappedArray" | "hipMipmappedArrayCreate" => false,
        "hipMemCreate" => bench.runtime.major() >= 6,
        _ => true,
    }
}

fn function(command: &str) -> &str {
    command.split(' ').next().unwrap_or_default()
}

/// What is booked for the process, when nothing is under way and nothing had to be mended.
fn booked(bench: &Bench, shell: &Shell) -> Result<u64> {
    let budget = status::of(bench)?.budget("default")?;
    assert_eq!(budget.pending, 0, "nothing is under way");
    assert_eq!(budget.anomalies, 0, "no booking had to be mended");
    Ok(budget.process(shell.pid())?.booked)
}

fn pitch(reply: &str) -> Result<u64> {
    let pitch = reply.strip_prefix("ok pitch ");
    Ok(pitch
        .with_context(|| format!("no pitch: {reply}"))?
        .parse()?)
}

/// The VRAM in use on the first board, by the driver.
fn given(bench: &Bench) -> Result<u64> {
    let state = bench.node.control().state()?;
    Ok(state.gpus.first().context("no GPU")?.vram_used)
}

fn each_books_what_it_gives(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut pair = Pair::start(&bench, "4GiB", &PREPARE)?;
    let mut granted = 0;
    for case in &CASES {
        let reply = pair.same(case.make)?;
        assert_eq!(
            reply.starts_with("ok"),
            works(&bench, case.make),
            "{}: {reply}",
            case.make
        );
        if !reply.starts_with("ok") {
            assert_eq!(booked(&bench, &pair.limited)?, 0, "{}: {reply}", case.make);
            continue;
        }
        let expected = match case.bytes {
            Are(bytes) => bytes,
            Rows(rows) => rows * pitch(&reply)?,
        };
        granted += u64::from(expected > 0);
        assert_eq!(
            booked(&bench, &pair.limited)?,
            expected,
            "{}: {reply}",
            case.make
        );
        let free = pair.same(case.free)?;
        assert_eq!(free, "ok", "{} after {}", case.free, case.make);
        assert_eq!(
            booked(&bench, &pair.limited)?,
            0,
            "{} after {}",
            case.free,
            case.make
        );
    }
    // One call of the program is one allocation, however the runtime does it.
    let budget = status::of(&bench)?.budget("default")?;
    let process = budget.process(pair.limited.pid())?;
    assert_eq!((process.allocations, process.frees), (granted, granted));
    Ok(())
}

/// Requests of 1 GiB each.
const LARGE: [&str; 13] = [
    "hipMalloc a 1073741824",
    "hipExtMallocWithFlags a 1073741824 0",
    "hipMallocManaged a 1073741824 1",
    "hipMallocAsync a 1073741824 s",
    "hipMallocFromPoolAsync a 1073741824 p s",
    "hipMemCreate a 1073741824 1 0",
    "hipMallocPitch a 1048576 1024",
    "hipMemAllocPitch a 1048576 1024 4",
    "hipMalloc3D a 1048576 32 32",
    "hipMallocArray a 32 32 32 32 2 8192 8192 0",
    "hipMalloc3DArray a 32 32 0 0 2 512 512 512 0",
    "hipArrayCreate a 32 4 8192 8192",
    "hipArray3DCreate a 32 2 512 512 512 0",
];

/// A limit under which a prepared program can have that many bytes: runtimes hold some themselves.
fn limit_for(bench: &Bench, bytes: u64) -> Result<String> {
    let mut shell = prepared(bench, "4GiB")?;
    let held = 4 * GIB - shell.info()?.free;
    shell.kill()?;
    Ok((bytes + held).to_string())
}

fn each_is_refused_beyond_the_limit(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = prepared(&bench, "1GiB")?;
    ensure!(shell.say("hipMalloc small 1000")? == "ok");
    let (before, mut refused) = (given(&bench)?, 0);
    for command in LARGE.iter().filter(|c| works(&bench, c)) {
        // Nothing behind it: all outputs are as before the call.
        assert_eq!(shell.say(command)?, "error 2", "{command}");
        refused += 1;
        assert_eq!(booked(&bench, &shell)?, 1000, "{command}");
        assert_eq!(
            given(&bench)?,
            before,
            "{command}: nothing was given either"
        );
        assert_eq!(shell.say("last-error")?, "last-error 2", "{command}");
    }
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(budget.process(shell.pid())?.refusals, refused);
    let told = shell.messages();
    assert_eq!(
        told.matches("hipflex: ").count(),
        1,
        "the first is told, at once: {told}"
    );
    Ok(())
}

fn rows_are_counted_as_wide_as_the_runtime_makes_them(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    // Three rows of 5,000,000 bytes fit; the runtime makes them 5,000,192 wide, which does not.
    let mut shell = prepared(&bench, &limit_for(&bench, 15_000_100)?)?;
    let before = given(&bench)?;
    for command in [
        "hipMallocPitch a 5000000 3",
        "hipMemAllocPitch a 5000000 3 4",
        "hipMalloc3D a 5000000 3 1",
    ] {
        let reply = shell.say(command)?;
        ensure!(reply.starts_with("error 2"), "{command}: {reply}");
        ensure!(
            !reply.contains("written") || reply.contains("pitch-written"),
            "{command}: {reply}"
        );
        assert_eq!(booked(&bench, &shell)?, 0, "{command}");
        // (HIP 5.2 makes its queues in the first hipFree.)
        ensure!(
            given(&bench)? - before < MIB,
            "{command}: what was given went back"
        );
    }
    shell.kill()?;
    let mut shell = prepared(&bench, &limit_for(&bench, 15_000_576)?)?;
    assert_eq!(shell.say("hipMallocPitch a 5000000 3")?, "ok pitch 5000192");
    assert_eq!(shell.info()?.free, 0);
    Ok(())
}

fn what_just_fits_is_granted(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let limit = limit_for(&bench, 8 * MIB)?;
    for (command, free) in [
        ("hipExtMallocWithFlags a 8388608 0", "hipFree a"),
        ("hipMallocManaged a 8388608 1", "hipFree a"),
        ("hipMallocAsync a 8388608 s", "hipFreeAsync a s"),
        ("hipMallocFromPoolAsync a 8388608 p s", "hipFreeAsync a s"),
        ("hipMemCreate a 8388608 1 0", "hipMemRelease a"),
        ("hipMallocPitch a 1048576 8", "hipFree a"),
        ("hipMemAllocPitch a 1048576 8 4", "hipFree a"),
        ("hipMalloc3D a 1048576 2 4", "hipFree a"),
        ("hipMallocArray a 32 0 0 0 2 2048 1024 0", "hipFreeArray a"),
        (
            "hipMalloc3DArray a 32 0 0 0 2 256 256 32 0",
            "hipFreeArray a",
        ),
        ("hipArrayCreate a 32 1 2048 1024", "hipArrayDestroy a"),
        ("hipArray3DCreate a 32 1 256 256 32 0", "hipArrayDestroy a"),
    ] {
        if !works(&bench, command) {
            continue;
        }
        let mut shell = prepared(&bench, &limit)?;
        let reply = shell.say(command)?;
        ensure!(
            reply.starts_with("ok"),
            "{command}: {reply}: {}",
            shell.messages()
        );
        assert_eq!(shell.info()?.free, 0, "{command}");
        ensure!(!shell.malloc("more", 1)?, "nothing is left after {command}");
        assert_eq!(shell.say(free)?, "ok", "{command}");
    }
    Ok(())
}

fn a_native_failure_gives_everything_back(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut pair = Pair::start(&bench, "4GiB", &PREPARE)?;
    let mut failed = 0;
    for command in LARGE {
        let mut replies = Vec::new();
        for shell in [&mut pair.native, &mut pair.limited] {
            // ROCr asks twice. What it has another way for succeeds: arrays in host memory, pools.
            bench
                .node
                .control()
                .fail_allocs(FailAllocs::nth_vram(1).times(2))?;
            replies.push(shell.say(command)?);
            bench.node.control().fail_allocs(FailAllocs::nth_vram(0))?;
        }
        assert_eq!(
            replies[0], replies[1],
            "{command}: without and with hipflex"
        );
        // HIP 5 says success with NULL where a pool cannot grow.
        if replies[1].starts_with("error") || replies[1] == "ok null" {
            failed += 1;
            assert_eq!(booked(&bench, &pair.limited)?, 0, "{command}");
        } else {
            ensure!(
                booked(&bench, &pair.limited)? >= 100 * MIB,
                "{command}: {}",
                replies[1]
            );
            let free = if command.contains("Array") {
                "hipFreeArray a"
            } else {
                "hipFree a"
            };
            assert_eq!(pair.same(free)?, "ok");
            assert_eq!(booked(&bench, &pair.limited)?, 0, "{command}, {free}");
        }
    }
    ensure!(failed >= 5, "{failed} calls failed: this shows little");
    Ok(())
}

/// Calls that ask for nothing, or leave out what a function needs.
const EMPTY: [&str; 49] = [
    "hipMalloc a 0",
    "hipExtMallocWithFlags a 0 0",
    "hipMallocManaged a 0 1",
    "hipMallocAsync a 0 s",
    "hipMallocFromPoolAsync a 0 p s",
    "hipMemCreate a 0 1 0",
    "hipMallocPitch a 0 10",
    "hipMallocPitch a 10 0",
    "hipMemAllocPitch a 0 10 4",
    "hipMemAllocPitch a 10 0 4",
    "hipMalloc3D a 0 10 10",
    "hipMalloc3D a 10 0 10",
    "hipMalloc3D a 10 10 0",
    "hipMallocArray a 32 0 0 0 2 0 0 0",
    "hipMallocArray a 32 0 0 0 2 0 10 0",
    "hipMalloc3DArray a 32 0 0 0 2 0 0 0 0",
    "hipMalloc3DArray a 32 0 0 0 2 10 0 10 0",
    "hipArrayCreate a 32 1 0 0",
    "hipArray3DCreate a 32 1 10 0 10 0",
    "hipMalloc null 4096",
    "hipExtMallocWithFlags null 4096 0",
    "hipMallocManaged null 4096 1",
    "hipMallocAsync null 4096 s",
    "hipMallocFromPoolAsync null 4096 p s",
    "hipMallocFromPoolAsync a 4096 null s",
    "hipMemCreate null 4096 1 0",
    "hipMemCreate a 4096 null 0",
    "hipMallocPitch null 10 10",
    "hipMallocPitch no-pitch 10 10",
    "hipMemAllocPitch null 10 10 4",
    "hipMemAllocPitch no-pitch 10 10 4",
    "hipMalloc3D null 10 10 10",
    "hipMallocArray null 32 0 0 0 2 10 10 0",
    "hipMallocArray a null 0 0 0 0 10 10 0",
    "hipMalloc3DArray null 32 0 0 0 2 10 10 10 0",
    "hipMalloc3DArray a null 0 0 0 0 10 10 0 0",
    "hipArrayCreate null 32 1 10 10",
    "hipArrayCreate a null 1 10 10",
    "hipArray3DCreate null 32 1 10 10 10 0",
    "hipArray3DCreate a null 1 10 10 10 0",
    "hipMallocMipmappedArray null 32 0 0 0 2 8 8 0 1 0",
    "hipMallocMipmappedArray a null 0 0 0 0 8 8 0 1 0",
    "hipMipmappedArrayCreate null 32 1 8 8 0 0 1",
    "hipMipmappedArrayCreate a null 1 8 8 0 0 1",
    "hipFree null",
    "hipFreeAsync null s",
    "hipMemRelease null",
    "hipFreeArray null",
    "hipFreeMipmappedArray null",
];

/// Requests that a runtime itself takes for wrong.
const WRONG: [&str; 13] = [
    "hipExtMallocWithFlags a 4096 99",
    "hipMallocManaged a 4096 0",
    "hipMemCreate a 1000 1 0",
    "hipMemCreate a 4096 0 0",
    "hipMemCreate a 4096 1 5",
    "hipMallocArray a 8 8 8 0 1 64 64 0",
    "hipMallocArray a 64 0 0 0 1 64 64 0",
    "hipMallocArray a 0 0 0 0 0 64 64 0",
    "hipMallocArray a 32 0 0 0 2 100000 10 0",
    "hipArrayCreate a 4 1 64 64",
    "hipArrayCreate a 0 1 64 64",
    "hipArrayCreate a 32 3 64 64",
    "hipFree 4660",
];

fn size_zero_and_missing_arguments_are_the_runtime_s_own(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    // Smaller than what some of the wrong requests would be: the runtime's word comes before a refusal.
    let prepare = [&PREPARE[..], &["hipMalloc small 1000"]].concat();
    let mut pair = Pair::start(&bench, "1GiB", &prepare)?;
    for command in EMPTY.iter().chain(&WRONG) {
        let reply = pair.same(command)?;
        // HIP 5.2 crashes at some of them by itself: then there is nobody to ask.
        if reply != "crash" {
            assert_eq!(booked(&bench, &pair.limited)?, 1000, "{command}: {reply}");
            pair.same("last-error")?;
        }
    }
    Ok(())
}

fn sizes_that_overflow_are_refused(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for limit in ["4GiB", "unlimited"] {
        let mut shell = prepared(&bench, limit)?;
        for size in [
            "0x3fffffffffffffff",
            "0x4000000000000000",
            "0x7fffffffffffffff",
            "0x8000000000000000",
            "max",
        ] {
            for command in [
                format!("hipMalloc a {size}"),
                format!("hipExtMallocWithFlags a {size} 0"),
                format!("hipMallocManaged a {size} 1"),
                format!("hipMemCreate a {size} 1 0"),
                format!("hipMallocAsync a {size} s"),
                format!("hipMallocFromPoolAsync a {size} p s"),
                format!("hipMallocPitch a {size} 1"),
                format!("hipMallocPitch a 1 {size}"),
                format!("hipMallocPitch a {size} {size}"),
                format!("hipMemAllocPitch a {size} 1 4"),
                format!("hipMalloc3D a {size} 1 1"),
                format!("hipMalloc3D a 1 1 {size}"),
                format!("hipMalloc3D a {size} {size} {size}"),
                format!("hipMallocArray a 32 0 0 0 2 {size} 1 0"),
                format!("hipMalloc3DArray a 32 0 0 0 2 1 1 {size} 0"),
                format!("hipArrayCreate a 32 4 {size} {size}"),
                format!("hipArray3DCreate a 32 4 {size} 1 1 0"),
            ] {
                // By itself HIP 5.2 does not survive an asynchronous request beyond the board.
                if limit == "unlimited"
                    && bench.runtime.generation() == 502
                    && command.contains("Async")
                {
                    continue;
                }
                let reply = shell.say(&command)?;
                // HIP 5.7 says success with NULL where a pool cannot grow.
                let granted_nothing = limit == "unlimited" && reply == "ok null";
                ensure!(
                    reply.starts_with("error ") || granted_nothing,
                    "{limit}: {command}: {reply}"
                );
            }
        }
        // Products that wrap to something small: the runtimes themselves grant these.
        for command in [
            "hipMallocPitch a 0x100000000 0x100000001",
            "hipMemAllocPitch a 0x100000000 0x100000001 4",
            "hipMalloc3D a 0x100000000 0x100000001 1",
            "hipMallocPitch a 0x8000000000000001 2",
            "hipMalloc3D a 0x100000 0x400000 0x400001",
        ] {
            let reply = shell.say(command)?;
            ensure!(reply.starts_with("error "), "{limit}: {command}: {reply}");
        }
        assert_eq!(booked(&bench, &shell)?, 0, "{limit}");
        ensure!(
            shell.malloc("after", GIB)?,
            "{limit}: the account is as before"
        );
        // The next one must not join this one's ledger with another limit.
        shell.kill()?;
    }
    Ok(())
}

fn each_free_frees_what_others_allocated(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut pair = Pair::start(&bench, "4GiB", &PREPARE)?;
    for (make, free) in [
        ("hipMalloc a 5242880", "hipFreeAsync a s"),
        ("hipExtMallocWithFlags a 5242880 0", "hipFreeAsync a s"),
        ("hipMallocPitch a 1048576 5", "hipFreeAsync a s"),
        ("hipMalloc3D a 1048576 5 1", "hipFreeAsync a s"),
        ("hipMallocManaged a 5242880 1", "hipFreeAsync a s"),
        ("hipMallocAsync a 5242880 s", "hipFree a"),
        ("hipMallocFromPoolAsync a 5242880 p s", "hipFree a"),
        (
            "hipMallocArray a 32 0 0 0 2 1024 1280 0",
            "hipArrayDestroy a",
        ),
        (
            "hipMalloc3DArray a 32 0 0 0 2 1024 1280 0 0",
            "hipArrayDestroy a",
        ),
        ("hipArrayCreate a 32 1 1024 1280", "hipFreeArray a"),
        ("hipArray3DCreate a 32 1 1024 1280 0 0", "hipFreeArray a"),
    ] {
        // HIP 5.2 never comes back from hipFreeAsync of managed memory.
        if bench.runtime.generation() == 502 && make.contains("Managed") {
            continue;
        }
        let reply = pair.same(make)?;
        ensure!(reply.starts_with("ok"), "{make}: {reply}");
        assert_eq!(booked(&bench, &pair.limited)?, 5 * MIB, "{make}");
        assert_eq!(pair.same(free)?, "ok", "{free} after {make}");
        assert_eq!(booked(&bench, &pair.limited)?, 0, "{free} after {make}");
    }
    Ok(())
}

fn a_free_that_fails_keeps_the_booking(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut pair = Pair::start(&bench, "4GiB", &PREPARE)?;
    assert_eq!(pair.same("hipMalloc a 5242880")?, "ok");
    assert_eq!(pair.same("hipMallocArray b 32 0 0 0 2 1024 1280 0")?, "ok");
    // A pointer is no array, and no handle. (HIP 5.2 does not look before it leaps.)
    if bench.runtime.generation() > 502 {
        for free in ["hipFree b", "hipMemRelease a", "hipFreeMipmappedArray null"] {
            let reply = pair.same(free)?;
            if reply.starts_with("error") {
                assert_eq!(booked(&bench, &pair.limited)?, 10 * MIB, "{free}: {reply}");
            }
        }
    }
    assert_eq!(pair.same("hipFree a")?, "ok");
    assert_eq!(pair.same("hipFree a")?, "error 1", "a second time");
    assert_eq!(
        booked(&bench, &pair.limited)?,
        5 * MIB,
        "the array is still there"
    );
    assert_eq!(pair.same("hipFreeArray b")?, "ok");
    assert_eq!(booked(&bench, &pair.limited)?, 0);
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(budget.process(pair.limited.pid())?.frees, 2);
    Ok(())
}

/// `hipHostFree` frees what `hipMalloc` gave, and so does `hipDeviceReset`: but in 5.2, which only forgets.
fn what_other_functions_free_is_given_back(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut pair = Pair::start(&bench, "1GiB", &PREPARE)?;
    let forgets = bench.runtime.generation() == 502;
    let mut kept = 0;
    for _ in 0..3 {
        for name in ["a", "b"] {
            assert_eq!(pair.same(&format!("hipMalloc {name} {}", 64 * MIB))?, "ok");
        }
        assert_eq!(pair.same("hipMallocArray y 32 0 0 0 2 1024 1024 0")?, "ok");
        assert_eq!(booked(&bench, &pair.limited)?, kept + 132 * MIB);
        assert_eq!(pair.same("hipHostFree a")?, "ok");
        assert_eq!(booked(&bench, &pair.limited)?, kept + 68 * MIB);
        let before = given(&bench)?;
        assert_eq!(pair.same("hipDeviceReset")?, "ok");
        if forgets {
            kept += 64 * MIB;
            // Some that the runtime has for itself may go.
            ensure!(before - given(&bench)? < 64 * MIB);
        } else {
            // Of both processes.
            ensure!(before - given(&bench)? >= 128 * MIB);
        }
        assert_eq!(booked(&bench, &pair.limited)?, kept + 4 * MIB);
        assert_eq!(pair.same("hipFreeArray y")?, "ok");
        assert_eq!(booked(&bench, &pair.limited)?, kept);
        // Its queues may have gone as well.
        for command in PREPARE {
            pair.same(command)?;
        }
    }
    Ok(())
}

/// One of the device, and one that the program has made for itself.
fn a_pool_s_cache_is_not_held_against_the_program(version: &str) -> Result<()> {
    for make in [
        "hipMallocAsync a 300000000 s",
        "hipMallocFromPoolAsync a 300000000 q s",
    ] {
        a_cache_is_not_held_against_the_program(version, make)?;
    }
    Ok(())
}

fn a_cache_is_not_held_against_the_program(version: &str, make: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = prepared(&bench, "512MiB")?;
    assert_eq!(shell.say("hipMemPoolCreate q 0")?, "ok");
    // Pools keep what is freed, for ever.
    for pool in ["p", "q"] {
        let keep = format!("hipMemPoolSetAttribute {pool} 4 max");
        assert_eq!(shell.say(&keep)?, "ok");
    }
    for round in 0..3 {
        // Time for another look at the driver.
        std::thread::sleep(std::time::Duration::from_millis(150));
        let reply = shell.say(make)?;
        assert_eq!(reply, "ok", "round {round}: {}", shell.messages());
        assert_eq!(booked(&bench, &shell)?, 300_000_000, "round {round}");
        assert_eq!(shell.say("hipFreeAsync a s")?, "ok");
        assert_eq!(shell.say("hipStreamSynchronize s")?, "ok");
        assert_eq!(booked(&bench, &shell)?, 0, "round {round}");
    }
    let pool = if make.contains(" q ") { "q" } else { "p" };
    let kept = shell.say(&format!("hipMemPoolGetAttribute {pool} 5"))?;
    let kept: u64 = kept
        .strip_prefix("ok value ")
        .context("no value")?
        .parse()?;
    ensure!(kept > 0, "nothing is kept: this shows nothing");
    Ok(())
}

/// As long as it does, nobody else gets that; then everybody can.
fn what_a_pool_keeps_is_charged(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = prepared(&bench, "4GiB")?;
    let mut second = prepared(&bench, "4GiB")?;
    assert_eq!(shell.say("hipMemPoolCreate q 0")?, "ok");
    for (pool, make) in [
        ("p", "hipMallocAsync a 3221225472 s"),
        ("q", "hipMallocFromPoolAsync a 3221225472 q s"),
    ] {
        assert_eq!(
            shell.say(&format!("hipMemPoolSetAttribute {pool} 4 max"))?,
            "ok"
        );
        for command in [make, "hipFreeAsync a s", "hipStreamSynchronize s"] {
            assert_eq!(shell.say(command)?, "ok", "{command}");
        }
        let kept = given(&bench)?;
        if kept < 3 * GIB && bench.runtime.major() >= 7 {
            continue; // it keeps small blocks only
        }
        ensure!(kept >= 3 * GIB, "{pool} keeps nothing: this shows nothing");
        for other in [&mut shell, &mut second] {
            ensure!(!other.malloc("b", 3 * GIB)?, "{pool}");
            ensure!(other.info()?.free <= GIB, "{pool}");
        }
        ensure!(
            given(&bench)? <= 4 * GIB + 512 * MIB,
            "{pool}: {}",
            given(&bench)?
        );
        // It is used again, trimmed or not.
        for command in [make, "hipFreeAsync a s", "hipStreamSynchronize s"] {
            assert_eq!(shell.say(command)?, "ok", "{pool}: {command}");
        }
        assert_eq!(shell.say(&format!("hipMemPoolTrimTo {pool} 0"))?, "ok");
        ensure!(
            second.malloc("b", 3 * GIB)?,
            "{pool}: {}",
            second.messages()
        );
        second.free("b")?;
    }
    Ok(())
}

/// A graph that allocates and frees, made from a stream: the same commands have the same answers.
fn captured_allocations_work_as_before(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut pair = Pair::start(&bench, "4GiB", &PREPARE)?;
    for command in [
        "hipStreamIsCapturing s",
        "hipStreamBeginCapture s 0",
        "hipMallocAsync a 5242880 s",
        "hipStreamIsCapturing s",
        "hipFreeAsync a s",
        "hipStreamEndCapture g s",
        "hipGraphInstantiate e g",
        "hipGraphLaunch e s",
        "hipStreamSynchronize s",
        "hipGraphLaunch e s",
        "hipStreamSynchronize s",
        "hipGraphExecDestroy e",
        "hipGraphDestroy g",
        "last-error",
        // What a capture does not allow fails as without hipflex, and nothing is booked for it.
        "hipStreamBeginCapture s 0",
        "hipMalloc b 5242880",
        "hipStreamIsCapturing s",
        "hipStreamEndCapture g s",
        "last-error",
        "hipMalloc b 5242880",
        "hipFree b",
    ] {
        pair.same(command)?;
    }
    // HIP 5.7 keeps the memory of a recorded allocation until this; the others have given it back.
    pair.same("hipFree a")?;
    assert_eq!(booked(&bench, &pair.limited)?, 0);
    Ok(())
}

/// A graph takes its memory when it is launched (in 5.x, when it is recorded). It is not asked for then, and so not
/// refused; the next request is.
fn what_a_graph_takes_is_charged_to_the_next_request(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = prepared(&bench, "1GiB")?;
    ensure!(shell.malloc("first", 2 * MIB)?);
    for command in [
        "hipStreamBeginCapture s 0",
        "hipMallocAsync a 629145600 s",
        "hipStreamEndCapture g s",
        "hipGraphInstantiate e g",
        "hipGraphLaunch e s",
    ] {
        assert_eq!(shell.say(command)?, "ok", "{command}");
    }
    ensure!(given(&bench)? >= 600 * MIB);
    ensure!(!shell.malloc("b", 430 * MIB)?, "600 and 430 MiB");
    ensure!(shell.info()?.free < 424 * MIB);
    Ok(())
}

fn a_second_process_is_refused_what_the_first_holds(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut first = prepared(&bench, "2GiB")?;
    let mut second = prepared(&bench, "2GiB")?;
    for command in LARGE.iter().filter(|c| works(&bench, c)) {
        let reply = first.say(command)?;
        ensure!(reply.starts_with("ok"), "{command}: {reply}");
        let held = booked(&bench, &first)?;
        let free = second.info()?.free;
        ensure!(free <= 2 * GIB - held, "{command}: {free}");
        assert_eq!(second.say(command)?, "error 2", "{command}");
        let free = match function(command) {
            "hipMemCreate" => "hipMemRelease a",
            array if array.contains("Array") => "hipFreeArray a",
            pool if pool.ends_with("Async") => "hipFreeAsync a s",
            _ => "hipFree a",
        };
        assert_eq!(first.say(free)?, "ok", "{command}");
        // A pool has it until the stream has come that far, or longer.
        assert_eq!(first.say("hipStreamSynchronize s")?, "ok");
        assert_eq!(first.say("hipMemPoolTrimTo p 0")?, "ok");
        ensure!(second.info()?.free > GIB, "{command}");
    }
    Ok(())
}

/// A program under a limit that has `s` and `p`.
fn prepared(bench: &Bench, limit: &str) -> Result<Shell> {
    let mut shell = bench.limited_shell(Access::Linked, limit)?;
    for command in PREPARE {
        let reply = shell.say(command)?;
        ensure!(reply.starts_with("ok"), "{command}: {reply}");
    }
    Ok(shell)
}
