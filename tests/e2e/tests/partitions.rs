//! Boards in partitions (MI300X in CPX mode): each partition has a limit and an account of its own, whatever the driver
//! calls it and whatever number a program knows it by.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::bench::{Bench, library};
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::shell::Shell;
use hipflex_e2e::status;
use kfd_emulator::profile::PartitionIds;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Partitions of a board.
const PARTS: usize = 8;
/// What drivers have called them, one after the other.
const IDS: [PartitionIds; 3] = [
    PartitionIds::Function,
    PartitionIds::Location,
    PartitionIds::Unique,
];

/// Makes a test of each function for each runtime that knows the card: not 5.2.
macro_rules! on_each_runtime_with_partitions {
    ($($name:ident),+ $(,)?) => { $(
        mod $name {
            #[test]
            fn hip_5_7() -> anyhow::Result<()> { super::$name("5.7") }
            #[test]
            fn hip_6_4() -> anyhow::Result<()> { super::$name("6.4") }
            #[test]
            fn hip_7_2() -> anyhow::Result<()> { super::$name("7.2") }
        }
    )+ };
}

on_each_runtime_with_partitions!(
    sixty_four_devices_are_charged_each_to_its_own,
    partitions_are_told_apart_with_every_driver,
    visible_devices_keep_their_limits,
    what_is_not_certain_is_refused,
    each_partition_has_a_limit_of_its_own,
    a_share_of_a_partition,
    compute_units_of_partitions,
);

fn boards(version: &str, count: usize, ids: PartitionIds) -> Result<Bench> {
    Bench::with(version, |node| {
        let parts = u32::try_from(PARTS).unwrap_or(0);
        node.profile("mi300x").gpus(count).partitions(parts, ids)
    })
}

fn shell(bench: &Bench, variables: &[(&str, &str)]) -> Result<Shell> {
    let mut command = bench.program("hipsh", Access::Linked)?;
    command
        .env("LD_PRELOAD", library())
        .envs(variables.iter().copied());
    Shell::start(command)
}

fn choose(shell: &mut Shell, device: usize) -> Result<()> {
    let reply = shell.say(&format!("hipSetDevice {device}"))?;
    ensure!(reply == "ok", "hipSetDevice {device}: {reply}");
    Ok(())
}

fn total(shell: &mut Shell, device: usize) -> Result<u64> {
    let reply = shell.say(&format!("total {device}"))?;
    let total = reply.strip_prefix("total ");
    Ok(total
        .with_context(|| format!("device {device}: {reply}"))?
        .parse()?)
}

/// What the driver has given of each GPU, in bytes.
fn given(bench: &Bench) -> Result<Vec<u64>> {
    let state = bench.node.control().state()?;
    Ok(state.gpus.iter().map(|gpu| gpu.vram_used).collect())
}

/// Lets every device allocate, each another size, and looks where the driver gave it and where it is booked. `gpus`:
/// the GPU of each device.
fn check_devices(bench: &Bench, shell: &mut Shell, gpus: &[usize]) -> Result<()> {
    let count = shell.say("hipGetDeviceCount")?;
    assert_eq!(count, format!("ok count {}", gpus.len()));
    let mut expected = vec![0; given(bench)?.len()];
    // Not in the order of the numbers.
    for step in 0..gpus.len() {
        let device = (step * 37 + 5) % gpus.len();
        let gpu = gpus[device];
        let bytes = (64 + 2 * device as u64) * MIB;
        choose(shell, device)?;
        let before = given(bench)?;
        let name = format!("m{device}");
        ensure!(
            shell.malloc(&name, bytes)?,
            "{device}: {}",
            shell.messages()
        );
        let after = given(bench)?;
        let grown = after.iter().zip(&before).position(|(a, b)| a - b >= bytes);
        assert_eq!(grown, Some(gpu), "the driver's view of device {device}");
        expected[gpu] += bytes;
    }
    let budget = status::of(bench)?.budget("default")?;
    assert_eq!(budget.booked(), expected);
    // What is booked is there, so nothing of it is overhead of another.
    for (gpu, account) in budget.gpus.iter().enumerate() {
        ensure!(account.overhead < 64 * MIB, "{gpu}: {}", account.overhead);
    }
    for device in 0..gpus.len() {
        shell.free(&format!("m{device}"))?;
    }
    let booked = status::of(bench)?.budget("default")?.booked();
    assert_eq!(booked.iter().sum::<u64>(), 0);
    assert_eq!(shell.messages(), "");
    Ok(())
}

fn sixty_four_devices_are_charged_each_to_its_own(version: &str) -> Result<()> {
    let bench = boards(version, 8, PartitionIds::Unique)?;
    let mut shell = bench.limited_shell(Access::Linked, "1GiB")?;
    let all: Vec<usize> = (0..64).collect();
    check_devices(&bench, &mut shell, &all)?;
    let budget = status::of(&bench)?.budget("default")?;
    let names: BTreeSet<_> = budget.gpus.iter().map(|gpu| gpu.bdf.as_str()).collect();
    assert_eq!(names.len(), 64, "{names:?}");
    for name in ["0000:0c:00.0", "0000:0c:00.0/7", "0000:df:00.0/3"] {
        ensure!(names.contains(name), "{name}: {names:?}");
    }
    // One that is full leaves its neighbours alone.
    choose(&mut shell, 9)?;
    ensure!(!shell.malloc("much", GIB + MIB)?);
    let told = shell.messages();
    ensure!(told.contains("0000:22:00.0/1"), "{told}");
    ensure!(shell.malloc("most", GIB - 64 * MIB)?);
    ensure!(!shell.malloc("more", 128 * MIB)?);
    choose(&mut shell, 10)?;
    ensure!(shell.malloc("more", 128 * MIB)?);
    Ok(())
}

fn partitions_are_told_apart_with_every_driver(version: &str) -> Result<()> {
    for ids in IDS {
        let bench = boards(version, 2, ids)?;
        let mut shell = bench.limited_shell(Access::Linked, "1GiB")?;
        let all: Vec<usize> = (0..2 * PARTS).collect();
        check_devices(&bench, &mut shell, &all).with_context(|| format!("{ids:?}"))?;
    }
    Ok(())
}

fn visible_devices_keep_their_limits(version: &str) -> Result<()> {
    let (rocr, hip) = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES");
    for ids in IDS {
        let bench = boards(version, 2, ids)?;
        for (variables, gpus) in [
            (&[(hip, "9,0,3")][..], &[9, 0, 3][..]),
            (&[(hip, "7,6,5,4,3,2,1,0")], &[7, 6, 5, 4, 3, 2, 1, 0]),
            (&[("CUDA_VISIBLE_DEVICES", "6,2")], &[6, 2]),
            (&[(rocr, "15,2,1")], &[15, 2, 1]),
            (&[(rocr, "3,12,5,4"), (hip, "3,0")], &[4, 3]),
        ] {
            let mut all = vec![("FH_MEMORY_LIMIT", "1GiB")];
            all.extend(variables);
            let mut shell = shell(&bench, &all)?;
            check_devices(&bench, &mut shell, gpus)
                .with_context(|| format!("{ids:?} {variables:?}"))?;
        }
    }
    Ok(())
}

/// With a driver that gives partitions nothing that HIP tells, their order is all there is; and that is not certain where
/// the program has changed the variables.
fn what_is_not_certain_is_refused(version: &str) -> Result<()> {
    for (ids, is_told) in [
        (PartitionIds::Location, false),
        (PartitionIds::Unique, true),
    ] {
        let bench = boards(version, 2, ids)?;
        for change in [
            "setenv HIP_VISIBLE_DEVICES 3,2",
            "setenv ROCR_VISIBLE_DEVICES 3,2",
        ] {
            let mut shell = bench.limited_shell(Access::Linked, "1GiB")?;
            assert_eq!(shell.say(change)?, "ok");
            if is_told {
                check_devices(&bench, &mut shell, &[3, 2])?;
                continue;
            }
            choose(&mut shell, 1)?;
            ensure!(!shell.malloc("a", MIB)?, "{change}");
            let told = shell.messages();
            ensure!(told.contains("several partitions"), "{change}: {told}");
        }
    }
    Ok(())
}

fn each_partition_has_a_limit_of_its_own(version: &str) -> Result<()> {
    let bench = boards(version, 2, PartitionIds::Unique)?;
    let limit = "0000:0c:00.0/3=4GiB,0000:22:00.0=2GiB,*=1GiB";
    let mut shell = bench.limited_shell(Access::Linked, limit)?;
    for device in 0..2 * PARTS {
        let expected = match device {
            3 => 4 * GIB,
            8 => 2 * GIB,
            _ => GIB,
        };
        assert_eq!(total(&mut shell, device)?, expected, "device {device}");
        choose(&mut shell, device)?;
        assert_eq!(shell.info()?.total, expected, "device {device}");
        ensure!(!shell.malloc("much", expected + MIB)?);
        ensure!(shell.malloc(&format!("m{device}"), expected - 64 * MIB)?);
    }
    let budget = status::of(&bench)?.budget("default")?;
    let third = budget.gpus.iter().find(|gpu| gpu.bdf == "0000:0c:00.0/3");
    assert_eq!(third.context("not shown")?.limit, Some(4 * GIB));
    Ok(())
}

/// A percentage is of what the partition has, also with `hipflex run`.
fn a_share_of_a_partition(version: &str) -> Result<()> {
    let bench = boards(version, 1, PartitionIds::Unique)?;
    let part = bench.node.control().state()?.gpus[5].vram_bytes;
    let hipsh = program::build("hipsh", &bench.runtime, Access::Linked)?;
    let hipsh = hipsh.to_string_lossy().into_owned();
    let command = bench.hipflex(&["run", "--memory", "50%", "--", &hipsh]);
    let mut shell = Shell::start(command)?;
    for device in 0..PARTS {
        assert_eq!(total(&mut shell, device)?, part / 2, "device {device}");
    }
    choose(&mut shell, 5)?;
    ensure!(!shell.malloc("much", part / 2 + MIB)?);
    ensure!(shell.malloc("m", part / 2 - 256 * MIB)?);
    let budgets = status::of(&bench)?.budgets;
    let booked = budgets.first().context("no budget")?.booked();
    assert_eq!(booked[5], part / 2 - 256 * MIB, "{booked:?}");
    Ok(())
}

/// The numbers of ROCr are those of partitions, and each queue has the mask of its own.
fn compute_units_of_partitions(version: &str) -> Result<()> {
    /// `KFD_IOC_QUEUE_TYPE_COMPUTE_AQL`
    const COMPUTE: u32 = 2;
    for ids in [PartitionIds::Location, PartitionIds::Unique] {
        let bench = boards(version, 2, ids)?;
        let range = "0000:0c:00.0/1=0-3,0000:0c:00.0/6=8-15,0000:22:00.0/2=0-36,*=all";
        let cus = |gpu: usize| match gpu {
            1 => 0..4_u32,
            6 => 8..16,
            10 => 0..37,
            _ => 0..38,
        };
        for (variables, gpus) in [
            (&[][..], &[0, 1, 10][..]),
            (&[("ROCR_VISIBLE_DEVICES", "10,6")], &[10, 6]),
            (&[("HIP_VISIBLE_DEVICES", "6,1")], &[6, 1]),
        ] {
            let mut all = vec![("FH_CU_RANGE", range)];
            all.extend(variables);
            let mut shell = shell(&bench, &all)?;
            for (device, gpu) in gpus.iter().enumerate() {
                let device = if variables.is_empty() { *gpu } else { device };
                // hipDeviceAttributeMultiprocessorCount
                let told = shell.say(&format!("attribute 63 {device}"))?;
                let range = cus(*gpu);
                assert_eq!(
                    told,
                    format!("value {}", range.len()),
                    "{ids:?} {variables:?}"
                );
                choose(&mut shell, device)?;
                let made = shell.say(&format!("hipStreamCreate s{device}"))?;
                ensure!(made.starts_with("ok"), "{made}");
                let name = format!("q{device}");
                ensure!(shell.malloc(&name, 4 * MIB)?);
                shell.say(&format!("hipMemsetAsync {name} 0 4096 s{device}"))?;
                shell.say(&format!("hipStreamSynchronize s{device}"))?;
                let mut mask = vec![0_u32; range.end.div_ceil(32) as usize];
                for cu in range {
                    mask[(cu / 32) as usize] |= 1 << (cu % 32);
                }
                let state = bench.node.control().state()?;
                let gpu_id = state.gpus[*gpu].gpu_id;
                let process = state.process(shell.pid()).context("no such process")?;
                let queues = process.queues.iter();
                let masks: BTreeSet<_> = queues
                    .filter(|queue| queue.kind == COMPUTE && queue.gpu_id == gpu_id)
                    .map(|queue| queue.cu_mask.clone())
                    .collect();
                assert_eq!(masks, BTreeSet::from([mask]), "{ids:?} {variables:?} {gpu}");
            }
            assert_eq!(shell.messages(), "", "{ids:?} {variables:?}");
        }
    }
    Ok(())
}
