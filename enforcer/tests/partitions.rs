//! Boards in partitions, which HIP may or may not tell apart, on a stand-in runtime.

mod common;

use std::fmt::Write;
use std::process::Command;

use common::{Bench, MIB, Running, on_each_standin, run};
use hip_standin::{Build, Settings};

on_each_standin! {
    sixty_four_partitions_are_charged_each_to_its_own,
    visible_devices_are_charged_to_what_they_are,
    without_uuids_the_order_counts_if_it_is_certain,
    functions_tell_partitions_apart,
    another_s_uuid_is_believed,
}

/// Eight boards of eight partitions: as `FH_VISIBLE_DEVICES` and the stand-in have them.
struct Machine {
    listed: String,
    devices: String,
    names: Vec<String>,
}

/// `uuids`: whether each partition has one of its own, or that of the board.
fn machine(uuids: bool) -> Machine {
    let (mut listed, mut devices) = (String::new(), String::new());
    let mut names = Vec::new();
    for board in 0..8_u64 {
        let bus = 0xc1 + board;
        let first = 0x5c0d_93a1_7be2_4600 + 16 * board;
        let step = u64::from(uuids);
        let mark = if uuids { '+' } else { '@' };
        write!(
            devices,
            ",0000:{bus:02x}:00.0*8=24GiB{mark}GPU-{first:016x}"
        )
        .unwrap();
        for partition in 0..8 {
            let uuid = first + step * partition;
            let name = match partition {
                0 => format!("0000:{bus:02x}:00.0"),
                _ => format!("0000:{bus:02x}:00.0/{partition}"),
            };
            write!(listed, ",{name}=GPU-{uuid:016x}").unwrap();
            names.push(name);
        }
    }
    Machine {
        listed: listed.split_off(1),
        devices: devices.split_off(1),
        names,
    }
}

/// The commands by which each device allocates another size, not in the order of their numbers.
fn commands(devices: usize) -> Vec<String> {
    let each = (0..devices).map(|step| (step * 37 + 5) % devices);
    let commands = each.flat_map(|device| {
        let bytes = (device as u64 + 1) * MIB;
        [
            format!("device:{device}"),
            format!("malloc:a{device}:{bytes}"),
        ]
    });
    commands.collect()
}

fn client(
    bench: &Bench,
    machine: &Machine,
    variables: &[(&str, &str)],
    commands: &[String],
) -> Command {
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let mut command = bench.client("1GiB", "linked", &commands);
    command
        .env("FH_VISIBLE_DEVICES", &machine.listed)
        .envs(variables.iter().copied());
    Settings::new()
        .devices(&machine.devices)
        .apply(&mut command);
    command
}

/// Checks that what each device allocates is charged to its GPU, of which `gpus` has the number.
fn check(build: Build, machine: &Machine, variables: &[(&str, &str)], gpus: &[usize]) {
    let bench = Bench::new(build);
    let mut commands = commands(gpus.len());
    commands.push(String::from("wait"));
    let mut program = Running::start(&mut client(&bench, machine, variables, &commands));
    for _ in 0..gpus.len() {
        assert_eq!(program.line(), "device = 0");
        let line = program.line();
        assert!(line.ends_with(" = 0"), "{build}: {variables:?}: {line}");
    }
    let mut charged: Vec<_> = bench.snapshot().gpus;
    charged.retain(|gpu| gpu.charged > 0);
    charged.sort_by_key(|gpu| gpu.charged);
    let charged: Vec<_> = charged
        .iter()
        .map(|gpu| (gpu.key.to_string(), gpu.charged / MIB))
        .collect();
    let expected: Vec<_> = gpus
        .iter()
        .zip(1..)
        .map(|(gpu, mib)| (machine.names[*gpu].clone(), mib))
        .collect();
    assert_eq!(charged, expected, "{build}: {variables:?}");
    program.go_on();
    program.finish();
}

/// Checks that the first device gets nothing, and that the user is told why.
fn check_refused(build: Build, machine: &Machine, variables: &[(&str, &str)]) {
    let bench = Bench::new(build);
    let commands = [String::from("malloc:a:4096"), String::from("malloc:b:4096")];
    let (out, err) = run(&mut client(&bench, machine, variables, &commands));
    assert_eq!(
        out,
        ["malloc a = 2 untouched", "malloc b = 2 untouched"],
        "{build}: {variables:?}"
    );
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(err[0].contains("several partitions"), "{err:?}");
}

const ROCR: &str = "ROCR_VISIBLE_DEVICES";
const HIP: &str = "HIP_VISIBLE_DEVICES";

fn sixty_four_partitions_are_charged_each_to_its_own(build: Build) {
    let all: Vec<usize> = (0..64).collect();
    for uuids in [true, false] {
        check(build, &machine(uuids), &[], &all);
    }
}

fn visible_devices_are_charged_to_what_they_are(build: Build) {
    for uuids in [true, false] {
        for (variables, gpus) in [
            (&[(HIP, "63,0,9,8,17,1")][..], &[63, 0, 9, 8, 17, 1][..]),
            (&[("CUDA_VISIBLE_DEVICES", "7,6")], &[7, 6]),
            (&[(ROCR, "10,3,2,60")], &[10, 3, 2, 60]),
            (&[(ROCR, "10,3,2,60"), (HIP, "2,1,3")], &[2, 3, 60]),
        ] {
            check(build, &machine(uuids), variables, gpus);
        }
    }
}

/// The runtime shows other devices than the driver and the variables make one expect.
fn without_uuids_the_order_counts_if_it_is_certain(build: Build) {
    let all = machine(false);
    let boards: Vec<&str> = all.devices.split(',').collect();
    let known: Vec<&str> = all.listed.split(',').collect();
    for (listed, devices) in [
        // It shows fewer, more, and others.
        (known.join(","), boards[..7].join(",")),
        (known[..56].join(","), boards.join(",")),
        (
            known.join(","),
            [&boards[1..], &boards[..1]].concat().join(","),
        ),
    ] {
        let other = Machine {
            listed,
            devices,
            names: Vec::new(),
        };
        check_refused(build, &other, &[]);
    }
    // What the runtime makes of a list with a mistake is its own matter.
    for list in ["3,2,2", "3,2,99", "3,x", "3, 2"] {
        check_refused(build, &all, &[(HIP, list)]);
    }
    check_refused(
        build,
        &all,
        &[(HIP, "3,2"), ("CUDA_VISIBLE_DEVICES", "2,3")],
    );
    for list in ["3,2,2", "3,2,99"] {
        check(build, &machine(true), &[(HIP, list)], &[3, 2]);
    }
}

/// As drivers of 2023 have it; HIP 5 does not tell functions.
fn functions_tell_partitions_apart(build: Build) {
    let names: Vec<String> = (0..8).map(|n| format!("0000:c1:00.{n}")).collect();
    let machine = Machine {
        listed: names.join(","),
        devices: names.join(","),
        names,
    };
    check(build, &machine, &[], &[0, 1, 2, 3, 4, 5, 6, 7]);
    check(build, &machine, &[(HIP, "5,1")], &[5, 1]);
    let mistake = &[(HIP, "5,1,1")];
    if build.generation() == 5 {
        check_refused(build, &machine, mistake);
    } else {
        check(build, &machine, mistake, &[5, 1]);
    }
}

/// A UUID that none of the partitions has is not overruled by their order.
fn another_s_uuid_is_believed(build: Build) {
    let (known, other) = (machine(true), machine(false));
    let mixed = Machine {
        listed: known.listed.replace("4600", "46ff"),
        devices: other.devices,
        names: known.names,
    };
    check_refused(build, &mixed, &[]);
}
