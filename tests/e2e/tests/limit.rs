//! One program under a limit: what it is told, what it gets, what it is refused.

use anyhow::{Result, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;
use hipflex_e2e::shell::Shell;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

on_each_runtime!(
    reports_the_limit,
    refuses_what_exceeds_it,
    grants_what_it_says_is_free,
    properties_differ_in_the_total_alone,
    null_outputs_are_left_to_the_runtime,
    a_limit_above_the_board_reports_the_board,
    unlimited_never_refuses,
    a_native_failure_gives_everything_back,
    huge_sizes_are_refused_and_change_nothing,
    threads_at_the_first_call_are_all_counted,
    without_a_limit_nothing_is_touched,
    the_runtime_works_as_before,
);

fn reports_the_limit(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for access in Access::ALL {
        let mut shell = bench.limited_shell(access, "4GiB")?;
        let info = shell.info()?;
        let free = 4 * GIB - bench.idle_overhead();
        assert_eq!((info.free, info.total), (free, 4 * GIB), "{access:?}");
        assert_eq!(
            shell.say("total 0")?,
            format!("total {}", 4 * GIB),
            "{access:?}"
        );
        assert_eq!(shell.messages(), "", "nothing is worth a message");
    }
    Ok(())
}

fn refuses_what_exceeds_it(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for access in Access::ALL {
        let mut shell = bench.limited_shell(access, "4GiB")?;
        ensure!(shell.malloc("a", 3 * GIB)?, "3 GiB fit");
        assert_eq!(shell.info()?.free, GIB - bench.overhead()?);
        ensure!(!shell.malloc("b", 2 * GIB)?, "2 GiB more do not fit");
        let told = shell.messages();
        for part in ["2.0 GiB", "4.0 GiB", "3.0 GiB", "default"] {
            ensure!(
                told.contains(part),
                "the refusal does not say {part}: {told}"
            );
        }
        assert_eq!(
            told.lines().count(),
            1,
            "a refusal is told in one line: {told}"
        );
        assert_eq!(
            shell.info()?.free,
            GIB - bench.overhead()?,
            "a refusal changes nothing"
        );
        shell.free("a")?;
        assert_eq!(shell.info()?.free, 4 * GIB - bench.overhead()?);
        ensure!(shell.malloc("b", 2 * GIB)?, "now 2 GiB fit");
    }
    Ok(())
}

fn grants_what_it_says_is_free(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "1000000001")?;
    ensure!(shell.malloc("some", 123_456_789)?);
    let free = shell.info()?.free;
    assert_eq!(free, 1_000_000_001 - 123_456_789 - bench.overhead()?);
    ensure!(
        !shell.malloc("more", free + 1)?,
        "a byte more than what is free"
    );
    ensure!(shell.malloc("rest", free)?, "exactly what is free");
    assert_eq!(shell.info()?.free, 0);
    ensure!(!shell.malloc("byte", 1)?, "nothing is left");
    Ok(())
}

fn properties_differ_in_the_total_alone(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    // By look-up: a generation that has not got a layout must not seem to have it under a limit.
    let mut native = bench.shell(Access::Dlopen)?;
    let mut again = bench.shell(Access::Dlopen)?;
    let mut limited = bench.limited_shell(Access::Dlopen, "4GiB")?;
    let board = native.info()?.total;
    let mut seen = 0;
    for which in ["plain", "R0600", "R0000"] {
        let ask = format!("properties {which} 0");
        let (before, after) = (native.say(&ask)?, limited.say(&ask)?);
        assert_eq!(before == "absent", after == "absent", "{which}");
        if before == "absent" {
            continue;
        }
        seen += 1;
        let (before, after) = (words(&before)?, words(&after)?);
        // Some words are addresses, which differ from process to process.
        let addresses = words(&again.say(&ask)?)?;
        let differing: Vec<usize> = (0..before.len())
            .filter(|i| before[*i] == addresses[*i] && before[*i] != after[*i])
            .collect();
        assert_eq!(differing.len(), 1, "{which}: words {differing:?} differ");
        let total = differing[0];
        assert_eq!(before[total], board, "{which}: word {total} is the total");
        assert_eq!(after[total], 4 * GIB, "{which}: word {total} is the limit");
    }
    ensure!(seen > 0, "no runtime is without hipGetDeviceProperties");
    Ok(())
}

fn null_outputs_are_left_to_the_runtime(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for which in ["free", "total", "both"] {
        // HIP 5.2 crashes here by itself; what it does is what must happen.
        let native = outcome(bench.shell(Access::Linked)?, which);
        let limited = outcome(bench.limited_shell(Access::Linked, "4GiB")?, which);
        assert_eq!(native, limited, "hipMemGetInfo with {which} NULL");
    }
    return Ok(());

    fn outcome(mut shell: Shell, which: &str) -> String {
        match shell.say(&format!("info-null {which}")) {
            Ok(reply) => reply,
            Err(_) => "crash".into(),
        }
    }
}

fn a_limit_above_the_board_reports_the_board(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let native = bench.shell(Access::Linked)?.info()?;
    let limited = bench.limited_shell(Access::Linked, "128GiB")?.info()?;
    assert_eq!(limited.total, native.total);
    ensure!(limited.free <= native.free);
    Ok(())
}

fn unlimited_never_refuses(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let native = bench.shell(Access::Linked)?.info()?;
    let mut shell = bench.limited_shell(Access::Linked, "unlimited")?;
    assert_eq!(shell.info()?.total, native.total);
    ensure!(shell.malloc("a", 60 * GIB)?);
    ensure!(
        !shell.malloc("b", 60 * GIB)?,
        "what the board has not got, the runtime refuses"
    );
    // The runtime may say something itself.
    let told = shell.messages();
    ensure!(
        !told.contains("hipflex"),
        "that was no refusal of ours: {told}"
    );
    Ok(())
}

fn a_native_failure_gives_everything_back(version: &str) -> Result<()> {
    let bench = Bench::with(version, |node| node.vram(2 * GIB))?;
    let mut shell = bench.limited_shell(Access::Linked, "64GiB")?;
    let before = shell.info()?.free;
    ensure!(!shell.malloc("a", 8 * GIB)?, "the board has but 2 GiB");
    assert_eq!(shell.info()?.free, before, "nothing stays booked");
    ensure!(shell.malloc("b", GIB)?);
    Ok(())
}

fn huge_sizes_are_refused_and_change_nothing(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    let before = shell.info()?.free;
    for bytes in [1 << 62, (1 << 63) - 1, 1 << 63, u64::MAX - 4095, u64::MAX] {
        ensure!(!shell.malloc("huge", bytes)?, "{bytes} bytes");
        assert_eq!(
            shell.say(&format!("racers 8 {bytes}"))?,
            "granted 0 refused 8"
        );
    }
    assert_eq!(shell.info()?.free, before);
    Ok(())
}

fn threads_at_the_first_call_are_all_counted(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for access in Access::ALL {
        let mut shell = bench.limited_shell(access, "4GiB")?;
        // Six blocks of 600 MiB fit into 4 GiB, a seventh does not.
        let reply = shell.say(&format!("racers 16 {}", 600 * MIB))?;
        assert_eq!(reply, "granted 6 refused 10", "{access:?}");
        let free = shell.info()?.free;
        let granted = 6 * 600 * MIB;
        assert_eq!(free, 4 * GIB - granted - bench.overhead()?, "{access:?}");
    }
    Ok(())
}

fn without_a_limit_nothing_is_touched(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    let native = bench.shell(Access::Linked)?.info()?;
    let mut command = bench.program("hipsh", Access::Linked)?;
    limit_to(&mut command, "");
    command.env_remove("FH_MEMORY_LIMIT");
    let mut shell = Shell::start(command)?;
    assert_eq!(shell.info()?, native);
    ensure!(shell.malloc("a", 8 * GIB)?);
    assert_eq!(shell.messages(), "");
    let listing = bench.command("/bin/ls").arg("/dev/shm").output()?;
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    ensure!(!listing.contains("hipflex"), "files were left: {listing}");
    Ok(())
}

/// Every check of `hipcheck` gives under a limit what it gives without.
fn the_runtime_works_as_before(version: &str) -> Result<()> {
    let bench = Bench::start(version)?;
    for access in Access::ALL {
        let checks = ["copy", "pitch", "array", "managed", "async", "vmm", "ipc"];
        let native = bench.program("hipcheck", access)?.args(checks).output()?;
        let limited = bench
            .limited("hipcheck", access, "4GiB")?
            .args(checks)
            .output()?;
        assert_eq!(
            String::from_utf8_lossy(&limited.stdout),
            String::from_utf8_lossy(&native.stdout),
            "{access:?}: {}",
            String::from_utf8_lossy(&limited.stderr)
        );
        ensure!(
            limited.status.success(),
            "{}",
            String::from_utf8_lossy(&limited.stdout)
        );
    }
    Ok(())
}

/// A structure in hex as 64-bit words.
fn words(hex: &str) -> Result<Vec<u64>> {
    ensure!(
        hex.len() > 2000 && hex.len().is_multiple_of(16),
        "not a structure: {hex}"
    );
    let word = |digits: &[u8]| -> Result<u64> {
        Ok(u64::from_str_radix(std::str::from_utf8(digits)?, 16)?.swap_bytes())
    };
    hex.as_bytes().chunks(16).map(word).collect()
}
