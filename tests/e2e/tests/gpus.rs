//! Several GPUs: each has a limit and an account of its own, whatever number a program knows it by.

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::on_each_runtime;
use hipflex_e2e::program::Access;
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The boards of the node: three MI210 with unlike memory.
const BOARDS: [u64; 3] = [64 * GIB, 16 * GIB, 8 * GIB];
const BDFS: [&str; 3] = ["0000:03:00.0", "0000:26:00.0", "0000:43:00.0"];

on_each_runtime!(
    half_of_each_board,
    each_gpu_has_a_limit_of_its_own,
    a_limit_above_a_board_is_that_board,
    each_gpu_is_charged_with_what_is_on_it,
    memory_is_charged_to_the_gpu_that_it_is_on,
    one_full_gpu_leaves_the_others_alone,
    visible_devices_keep_their_limits,
    processes_with_other_numbers_share_a_gpu,
    forked_workers_have_a_gpu_each,
    eight_gpus,
    too_much_promised_is_said,
);

fn three(version: &str) -> Result<Bench> {
    Bench::with(version, |node| node.vram_of_each(&BOARDS))
}

/// What the board has for programs, natively: a little less than what was asked of the emulator.
fn boards(bench: &Bench) -> Result<Vec<u64>> {
    let mut native = bench.shell(Access::Linked)?;
    (0..BOARDS.len())
        .map(|device| total(&mut native, device))
        .collect()
}

/// `hipDeviceTotalMem`.
fn total(shell: &mut Shell, device: usize) -> Result<u64> {
    let reply = shell.say(&format!("total {device}"))?;
    let total = reply.strip_prefix("total ");
    Ok(total
        .with_context(|| format!("device {device}: {reply}"))?
        .parse()?)
}

/// The sum in `hipGetDeviceProperties`, by the layout of the plain name (see `hipDeviceProp_tR0000`).
fn total_of_properties(shell: &mut Shell, device: usize) -> Result<u64> {
    const AT: usize = 256;
    let hex = shell.say(&format!("properties plain {device}"))?;
    let digits = hex
        .get(2 * AT..2 * AT + 16)
        .with_context(|| format!("no structure: {hex}"))?;
    Ok(u64::from_str_radix(digits, 16)?.swap_bytes())
}

fn choose(shell: &mut Shell, device: usize) -> Result<()> {
    let reply = shell.say(&format!("hipSetDevice {device}"))?;
    ensure!(reply == "ok", "hipSetDevice {device}: {reply}");
    Ok(())
}

fn bdf(shell: &mut Shell, device: usize) -> Result<String> {
    let reply = shell.say(&format!("hipDeviceGetPCIBusId {device}"))?;
    let bus = reply.strip_prefix("ok bus ");
    Ok(bus
        .with_context(|| format!("device {device}: {reply}"))?
        .to_string())
}

fn ok(shell: &mut Shell, command: &str) -> Result<()> {
    let reply = shell.say(command)?;
    ensure!(
        reply.starts_with("ok"),
        "{command}: {reply}: {}",
        shell.messages()
    );
    Ok(())
}

/// Every way to ask says the same of every device.
fn check_totals(bench: &Bench, limit: &str, expected: &[u64]) -> Result<()> {
    let mut shell = bench.limited_shell(Access::Dlopen, limit)?;
    for (device, &bytes) in expected.iter().enumerate() {
        // Also of a device that is not the current one.
        assert_eq!(
            total(&mut shell, device)?,
            bytes,
            "{limit}: hipDeviceTotalMem {device}"
        );
        let told = total_of_properties(&mut shell, device)?;
        assert_eq!(told, bytes, "{limit}: hipGetDeviceProperties {device}");
        choose(&mut shell, device)?;
        let info = shell.info()?;
        assert_eq!(info.total, bytes, "{limit}: hipMemGetInfo on {device}");
        ensure!(
            info.free <= bytes && info.free >= bytes - 16 * MIB,
            "{limit}: {info:?}"
        );
    }
    shell.kill()
}

fn half_of_each_board(version: &str) -> Result<()> {
    let bench = three(version)?;
    check_totals(&bench, "50%", &BOARDS.map(|bytes| bytes / 2))?;
    let mut shell = bench.limited_shell(Access::Linked, "50%")?;
    for (device, board) in BOARDS.iter().enumerate() {
        choose(&mut shell, device)?;
        ensure!(!shell.malloc("much", board / 2 + MIB)?, "device {device}");
        ensure!(
            shell.malloc(&format!("m{device}"), board / 2 - 256 * MIB)?,
            "device {device}"
        );
    }
    let budget = status::of(&bench)?.budget("default")?;
    for (gpu, (bdf, board)) in budget.gpus.iter().zip(BDFS.iter().zip(BOARDS)) {
        assert_eq!((gpu.bdf.as_str(), gpu.limit), (*bdf, Some(board / 2)));
    }
    Ok(())
}

fn each_gpu_has_a_limit_of_its_own(version: &str) -> Result<()> {
    let bench = three(version)?;
    let board = boards(&bench)?;
    for (limit, expected) in [
        (
            "0000:03:00.0=8GiB,0000:26:00.0=4GiB,0000:43:00.0=2GiB",
            [8 * GIB, 4 * GIB, 2 * GIB],
        ),
        ("0000:26:00.0=4GiB,*=1GiB", [GIB, 4 * GIB, GIB]),
        ("*=1GiB,0000:43:00.0=50%", [GIB, GIB, 4 * GIB]),
        (
            "*=unlimited,0000:03:00.0=3GiB",
            [3 * GIB, board[1], board[2]],
        ),
    ] {
        check_totals(&bench, limit, &expected)?;
    }
    Ok(())
}

fn a_limit_above_a_board_is_that_board(version: &str) -> Result<()> {
    let bench = three(version)?;
    let board = boards(&bench)?;
    check_totals(&bench, "12GiB", &[12 * GIB, 12 * GIB, board[2]])?;
    check_totals(&bench, "100GiB", &board)?;
    Ok(())
}

fn each_gpu_is_charged_with_what_is_on_it(version: &str) -> Result<()> {
    let bench = three(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    let booked = || Ok::<_, anyhow::Error>(status::of(&bench)?.budget("default")?.booked());
    for device in [2, 0, 1] {
        choose(&mut shell, device)?;
        ensure!(shell.malloc(&format!("m{device}"), (device as u64 + 1) * 100 * MIB)?);
    }
    assert_eq!(booked()?, [100 * MIB, 200 * MIB, 300 * MIB]);
    // A block is known to be where it is, whichever device is current when it is freed.
    choose(&mut shell, 0)?;
    shell.free("m2")?;
    assert_eq!(booked()?, [100 * MIB, 200 * MIB, 0]);
    choose(&mut shell, 2)?;
    shell.free("m0")?;
    shell.free("m1")?;
    assert_eq!(booked()?, [0, 0, 0]);
    let budget = status::of(&bench)?.budget("default")?;
    let bdfs: Vec<_> = budget
        .process(shell.pid())?
        .gpus
        .iter()
        .map(|g| g.bdf.as_str())
        .collect();
    assert_eq!(bdfs, BDFS);
    Ok(())
}

/// Streams, pools and locations of another device than the current one: the driver tells where the memory
/// really is, and there it is booked.
fn memory_is_charged_to_the_gpu_that_it_is_on(version: &str) -> Result<()> {
    const BYTES: u64 = 512 * MIB;
    let bench = three(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    for device in 0..BOARDS.len() {
        choose(&mut shell, device)?;
        ok(&mut shell, &format!("hipStreamCreate s{device}"))?;
        ok(
            &mut shell,
            &format!("hipDeviceGetDefaultMemPool p{device} {device}"),
        )?;
        ok(&mut shell, &format!("hipMemPoolCreate q{device} {device}"))?;
    }
    let given = || -> Result<Vec<u64>> {
        let state = bench.node.control().state()?;
        Ok(state.gpus.iter().map(|gpu| gpu.vram_used).collect())
    };
    // What just fits on a GPU that is not the current one.
    for make in [
        "hipMallocAsync a 3221225472 s1",
        "hipMallocFromPoolAsync a 3221225472 q1 s1",
    ] {
        choose(&mut shell, 0)?;
        ok(&mut shell, make)?;
        ok(&mut shell, "hipFreeAsync a s1")?;
        ok(&mut shell, "hipStreamSynchronize s1")?;
        for pool in ["p1", "q1"] {
            ok(&mut shell, &format!("hipMemPoolTrimTo {pool} 0"))?;
        }
    }
    let mut seen = 0;
    for (current, other) in [(0, 1), (1, 0), (2, 1)] {
        choose(&mut shell, current)?;
        for (make, free) in [
            (format!("hipMalloc a {BYTES}"), "hipFree a".to_string()),
            (
                format!("hipExtMallocWithFlags a {BYTES} 0"),
                "hipFree a".into(),
            ),
            ("hipMallocPitch a 1048576 512".into(), "hipFree a".into()),
            ("hipMalloc3D a 1048576 64 8".into(), "hipFree a".into()),
            (
                "hipMallocArray a 32 32 32 32 2 8192 4096 0".into(),
                "hipFreeArray a".into(),
            ),
            (
                format!("hipMallocAsync a {BYTES} s{other}"),
                format!("hipFreeAsync a s{other}"),
            ),
            (
                format!("hipMallocAsync a {BYTES} s{current}"),
                format!("hipFreeAsync a s{current}"),
            ),
            // HIP 5.2 takes only streams there.
            (
                format!("hipMallocAsync a {BYTES} 2"),
                "hipFreeAsync a 2".into(),
            ),
            (
                format!("hipMallocFromPoolAsync a {BYTES} p{other} s{current}"),
                format!("hipFreeAsync a s{current}"),
            ),
            (
                format!("hipMallocFromPoolAsync a {BYTES} q{other} s{current}"),
                format!("hipFreeAsync a s{current}"),
            ),
            (
                format!("hipMemCreate a {BYTES} 1 {other}"),
                "hipMemRelease a".into(),
            ),
            (
                format!("hipMemCreate a {BYTES} 1 {current}"),
                "hipMemRelease a".into(),
            ),
            (
                format!("hipMemCreate a {BYTES} 2 {other}"),
                "hipMemRelease a".into(),
            ),
        ] {
            let before = given()?;
            let reply = shell.say(&make)?;
            if !reply.starts_with("ok") {
                ensure!(
                    make.starts_with("hipMemCreate"),
                    "{make}: {reply}: {}",
                    shell.messages()
                );
                continue;
            }
            // Where the driver's figure has grown; a pool may have had it already.
            let grown: Vec<_> = given()?
                .iter()
                .zip(&before)
                .map(|(a, b)| a - b >= BYTES)
                .collect();
            let budget = status::of(&bench)?.budget("default")?;
            let booked: Vec<_> = budget.booked().iter().map(|b| *b == BYTES).collect();
            assert_eq!(
                budget.booked().iter().sum::<u64>(),
                BYTES,
                "{current}: {make}"
            );
            if grown.contains(&true) {
                seen += 1;
                assert_eq!(booked, grown, "device {current} is current: {make}");
            }
            // It is not counted once more, as overhead.
            for account in &budget.gpus {
                let overhead = account.overhead;
                ensure!(overhead < BYTES, "{current}: {make}: overhead {overhead}");
            }
            ok(&mut shell, &free)?;
            // Not every release takes that.
            shell.say("hipStreamSynchronize 2")?;
            // Pools start empty again. What was freed on a stream of another device is there until that has come to it.
            for device in 0..BOARDS.len() {
                ok(&mut shell, &format!("hipStreamSynchronize s{device}"))?;
            }
            for device in 0..BOARDS.len() {
                for pool in ["p", "q"] {
                    ok(&mut shell, &format!("hipMemPoolTrimTo {pool}{device} 0"))?;
                }
            }
            let left = status::of(&bench)?.budget("default")?.booked();
            assert_eq!(left, [0, 0, 0], "{current}: {free} after {make}");
        }
    }
    let expected = if bench.runtime.major() < 6 { 27 } else { 33 };
    ensure!(seen >= expected, "{seen} were looked at");
    Ok(())
}

fn one_full_gpu_leaves_the_others_alone(version: &str) -> Result<()> {
    let bench = three(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "1GiB")?;
    choose(&mut shell, 1)?;
    ensure!(shell.malloc("a", GIB - 16 * MIB)?);
    ensure!(!shell.malloc("b", GIB / 2)?);
    let told = shell.messages();
    ensure!(told.contains(BDFS[1]), "the GPU is named: {told}");
    choose(&mut shell, 0)?;
    ensure!(shell.malloc("b", GIB / 2)?, "the first is another account");
    ensure!(!shell.malloc("c", GIB)?);
    let told = shell.messages();
    ensure!(
        told.contains(BDFS[0]),
        "each GPU's first refusal is told: {told}"
    );
    Ok(())
}

/// The variables with which programs choose devices: the runtime numbers them anew, the limits stay with
/// the boards.
fn visible_devices_keep_their_limits(version: &str) -> Result<()> {
    let bench = three(version)?;
    let limits = [3 * GIB, 2 * GIB, GIB];
    let limit = format!("{}=3GiB,{}=2GiB,{}=1GiB", BDFS[0], BDFS[1], BDFS[2]);
    let uuid = |gpu: usize| -> Result<String> {
        let path = format!("/sys/class/kfd/kfd/topology/nodes/{}/properties", gpu + 1);
        let text = std::fs::read_to_string(bench.node.path(path))?;
        let id = text.lines().find_map(|l| l.strip_prefix("unique_id "));
        Ok(format!(
            "GPU-{:016x}",
            id.context("no unique_id")?.trim().parse::<u64>()?
        ))
    };
    let (rocr, hip) = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES");
    let mut cases = vec![
        (vec![(hip, "2,0".to_string())], vec![2, 0]),
        (vec![(hip, "1".into())], vec![1]),
        (vec![(hip, "1,7,0".into())], vec![1]),
        (vec![(rocr, "1,2".into())], vec![1, 2]),
        (vec![(rocr, "2,1,0".into())], vec![2, 1, 0]),
        (vec![(rocr, "2,0".into()), (hip, "1".into())], vec![0]),
        (vec![(rocr, "1,2".into()), (hip, "1,0".into())], vec![2, 1]),
        (vec![("CUDA_VISIBLE_DEVICES", "2".into())], vec![2]),
        (
            vec![(rocr, format!("{},{}", uuid(2)?, uuid(0)?))],
            vec![2, 0],
        ),
        (vec![(rocr, format!("{},0", uuid(1)?))], vec![1, 0]),
    ];
    if bench.runtime.major() >= 6 {
        cases.push((vec![(hip, uuid(1)?)], vec![1]));
    }
    for (variables, visible) in cases {
        let mut command = bench.limited("hipsh", Access::Linked, &limit)?;
        command.envs(variables.iter().map(|(name, value)| (*name, value)));
        let mut shell = Shell::start(command)?;
        let count = shell.say("hipGetDeviceCount")?;
        assert_eq!(
            count,
            format!("ok count {}", visible.len()),
            "{variables:?}"
        );
        for (device, &gpu) in visible.iter().enumerate() {
            assert_eq!(
                bdf(&mut shell, device)?,
                BDFS[gpu],
                "{variables:?}: {device}"
            );
            assert_eq!(
                total(&mut shell, device)?,
                limits[gpu],
                "{variables:?}: {device}"
            );
            choose(&mut shell, device)?;
            ensure!(
                !shell.malloc("much", limits[gpu] + 1)?,
                "{variables:?}: {device}"
            );
            ensure!(shell.malloc("some", 100 * MIB)?, "{variables:?}: {device}");
            let booked = status::of(&bench)?.budget("default")?.booked();
            let expected: Vec<_> = (0..3)
                .map(|g| if g == gpu { 100 * MIB } else { 0 })
                .collect();
            assert_eq!(booked, expected, "{variables:?}: {device}");
            shell.free("some")?;
        }
        shell.kill()?;
    }
    Ok(())
}

fn processes_with_other_numbers_share_a_gpu(version: &str) -> Result<()> {
    let bench = three(version)?;
    let start = |variable: &str, value: &str| {
        let mut command = bench.limited("hipsh", Access::Linked, "4GiB")?;
        command.env(variable, value);
        Shell::start(command)
    };
    // The third board is device 0 of one and device 1 of the other.
    let mut one = start("HIP_VISIBLE_DEVICES", "2")?;
    let mut two = start("ROCR_VISIBLE_DEVICES", "0,2")?;
    ensure!(one.malloc("a", 3 * GIB)?);
    choose(&mut two, 1)?;
    ensure!(two.info()?.free <= GIB, "{:?}", two.info()?);
    ensure!(
        !two.malloc("a", 2 * GIB)?,
        "the other process has 3 GiB of 4"
    );
    choose(&mut two, 0)?;
    ensure!(two.malloc("a", 2 * GIB)?, "the first board is free");
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(budget.booked(), [2 * GIB, 0, 3 * GIB]);
    Ok(())
}

fn forked_workers_have_a_gpu_each(version: &str) -> Result<()> {
    let bench = three(version)?;
    let mut shell = bench.limited_shell(Access::Linked, "2GiB")?;
    // The parent has not called HIP yet: a child of one that has cannot use it.
    assert_eq!(
        shell.say(&format!("workers 3 {GIB}"))?,
        "granted 3 refused 0"
    );
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(budget.booked(), [GIB, GIB, GIB]);
    assert_eq!(
        budget.processes.len(),
        3,
        "each worker has an account of its own"
    );
    for process in &budget.processes {
        assert_eq!(process.booked_sum(), GIB, "process {}", process.pid);
        ensure!(process.pid != shell.pid(), "the parent has none");
    }
    // Others see what the workers hold.
    let mut witness = bench.limited_shell(Access::Linked, "2GiB")?;
    choose(&mut witness, 2)?;
    ensure!(!witness.malloc("a", GIB + MIB)?);
    assert_eq!(shell.say("dismiss")?, "ok");
    ensure!(
        witness.malloc("a", 2 * GIB - 16 * MIB)?,
        "what they held is back"
    );
    // A second set of workers finds everything free but what the witness holds.
    assert_eq!(
        shell.say(&format!("workers 3 {GIB}"))?,
        "granted 2 refused 1"
    );
    assert_eq!(shell.say("dismiss")?, "ok");
    Ok(())
}

fn eight_gpus(version: &str) -> Result<()> {
    // HIP 5.2 does not know the MI300X.
    let card = if version == "5.2" { "mi210" } else { "mi300x" };
    let bench = Bench::with(version, |node| node.profile(card).gpus(8))?;
    let mut shell = bench.limited_shell(Access::Linked, "4GiB")?;
    let mut bdfs = Vec::new();
    for device in 0..8 {
        choose(&mut shell, device)?;
        bdfs.push(bdf(&mut shell, device)?);
        assert_eq!(total(&mut shell, device)?, 4 * GIB, "device {device}");
        ensure!(
            shell.malloc("a", (device as u64 + 1) * 256 * MIB)?,
            "device {device}"
        );
        ensure!(!shell.malloc("b", 4 * GIB)?, "device {device}");
    }
    let budget = status::of(&bench)?.budget("default")?;
    assert_eq!(budget.gpus.len(), 8);
    for (gpu, (bdf, number)) in budget.gpus.iter().zip(bdfs.iter().zip(1..)) {
        assert_eq!(
            (&gpu.bdf, gpu.booked, gpu.limit),
            (bdf, number * 256 * MIB, Some(4 * GIB))
        );
    }
    let output = bench.hipflex(&["status"]).output()?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    for bdf in &bdfs {
        ensure!(table.contains(bdf.as_str()), "{bdf} is not in:\n{table}");
    }
    // Eight workers, one for each; the big process has taken a part of every board.
    let mut launcher = bench.limited_shell(Access::Linked, "4GiB")?;
    assert_eq!(
        launcher.say(&format!("workers 8 {}", 2 * GIB + 400 * MIB))?,
        "granted 6 refused 2"
    );
    assert_eq!(launcher.say("dismiss")?, "ok");
    Ok(())
}

fn too_much_promised_is_said(version: &str) -> Result<()> {
    let bench = three(version)?;
    let start = |budget: &str, limit: &str| {
        let mut command = bench.program("hipsh", Access::Linked)?;
        limit_to(&mut command, limit);
        command.env("FH_BUDGET", budget);
        let mut shell = Shell::start(command)?;
        ensure!(shell.malloc("a", MIB)?, "{budget}");
        Ok(shell)
    };
    let one = start("one", "6GiB")?;
    let before = status::of(&bench)?;
    ensure!(before.boards.iter().all(|board| !board.overcommitted));
    assert_eq!(before.messages, "", "there is nothing to warn of");
    let two = start("two", "6GiB")?;
    let status = status::of(&bench)?;
    for (board, (bdf, vram)) in status.boards.iter().zip(BDFS.iter().zip(BOARDS)) {
        assert_eq!(board.bdf, *bdf);
        assert_eq!((board.vram, board.limits), (vram, 12 * GIB), "{bdf}");
        assert_eq!(board.overcommitted, vram < 12 * GIB, "{bdf}");
    }
    ensure!(
        status.messages.contains(BDFS[2]) && status.messages.lines().count() == 1,
        "the one board that is promised twice is named: {}",
        status.messages
    );
    drop((one, two));
    Ok(())
}
