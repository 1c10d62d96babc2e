//! The libraries that show GPUs to administrators tell the limit and what counts against it, to whoever asks
//! and however their functions were found; and whoever only asks leaves no trace.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    Bench, GIB, MIB, Running, lines, on_each_standin, program, run, shared_library,
    shared_library_with,
};
use hip_standin::Build;

on_each_standin! {
    a_process_with_an_account_shows_what_hip_shows,
    a_forked_child_is_an_onlooker,
}

/// Device 1 of the stand-ins is the GPU of [`Bench`], device 0 another.
const ALL: [&str; 11] = [
    "total:1:0",
    "used:1:0",
    "total:1:1",
    "used:1:1",
    "total:1:2",
    "used:1:2",
    "amd_total:1:0",
    "amd_used:1:0",
    "usage:1",
    "info:1",
    "total:0:0",
];

/// What the libraries say by themselves.
const NATIVE: [&str; 11] = [
    "total:1:0 = 0 68719476736",
    "used:1:0 = 0 1073741824",
    "total:1:1 = 0 268435456",
    "used:1:1 = 0 134217728",
    "total:1:2 = 0 34359738368",
    "used:1:2 = 0 1073741824",
    "amd_total:1:0 = 0 68719476736",
    "amd_used:1:0 = 0 1073741824",
    "usage:1 = 0",
    "info:1 = 0",
    "total:0:0 = 0 68719476736",
];

struct Libraries {
    rocm: PathBuf,
    amd: PathBuf,
}

impl Libraries {
    /// Stand-ins, compiled with these definitions.
    fn with(definitions: &[&str]) -> Self {
        let version = "-Wl,--version-script=amd_smi.map";
        let arguments = [&[version], definitions].concat();
        Self {
            rocm: shared_library_with("rocm_smi64.c", &arguments, &[]),
            amd: shared_library_with("amd_smi.c", &arguments, &[]),
        }
    }

    fn client(&self, way: &str) -> PathBuf {
        if way == "linked" {
            program("smi_client.c", &["-DLINKED"], &[&self.rocm, &self.amd])
        } else {
            program("smi_client.c", &[], &[])
        }
    }

    fn command(&self, bench: &Bench, way: &str, commands: &[&str]) -> Command {
        let mut command = bench.command(self.client(way));
        let directories = [&self.rocm, &self.amd].map(|library| library.parent().unwrap());
        let path = std::env::join_paths(
            directories
                .into_iter()
                .chain([bench.build.directory().as_path()]),
        );
        command
            .env("LD_LIBRARY_PATH", path.unwrap())
            .env("SMI_ROCM", &self.rocm)
            .env("SMI_AMD", &self.amd)
            .arg(way)
            .args(commands);
        command
    }

    /// What a client under this limit prints.
    fn asked(&self, limit: &str, commands: &[&str]) -> Vec<String> {
        let bench = Bench::new(Build::Six);
        let mut command = self.command(&bench, "dlsym", commands);
        lines(command.env("FH_MEMORY_LIMIT", limit))
    }
}

const WAYS: [&str; 6] = ["linked", "dlsym", "dlvsym", "default", "next", "program"];

#[test]
fn every_way_to_find_a_function_leads_to_the_limit() {
    let libraries = Libraries::with(&[]);
    for way in WAYS {
        let bench = Bench::new(Build::Six);
        let mut command = libraries.command(&bench, way, &ALL);
        command.env("FH_MEMORY_LIMIT", "4GiB");
        let expected = [
            "total:1:0 = 0 4294967296",
            "used:1:0 = 0 0",
            // The CPU can reach less than the limit.
            "total:1:1 = 0 268435456",
            "used:1:1 = 0 134217728",
            // Memory of the host.
            "total:1:2 = 0 34359738368",
            "used:1:2 = 0 1073741824",
            "amd_total:1:0 = 0 4294967296",
            "amd_used:1:0 = 0 0",
            "usage:1 = 0 0: 4096 4: 0",
            "info:1 = 0 264: 4096",
            // Not one of this process's GPUs.
            "total:0:0 = 0 68719476736",
        ];
        assert_eq!(run(&mut command), (texts(&expected), vec![]), "{way}");
        assert!(!bench.ledgers().exists(), "{way}: a ledger was made");
    }
}

fn texts(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[test]
fn without_a_limit_nothing_changes() {
    let libraries = Libraries::with(&[]);
    let settings: [&[(&str, &str)]; 4] = [
        &[],
        &[("FH_MEMORY_LIMIT", "unlimited")],
        &[("FH_MEMORY_LIMIT", "4GiB"), ("FH_ENABLE_HOOKS", "false")],
        &[("FH_MEMORY_LIMIT", "banana"), ("FH_FAIL_MODE", "open")],
    ];
    for way in WAYS {
        for variables in settings {
            let bench = Bench::new(Build::Six);
            let mut command = libraries.command(&bench, way, &ALL);
            command.envs(variables.iter().copied());
            assert_eq!(lines(&mut command), NATIVE, "{way} {variables:?}");
            assert_eq!(lines(command.env_remove("LD_PRELOAD")), NATIVE, "{way}");
        }
    }
}

#[test]
fn gpus_are_told_apart_by_address_not_by_index() {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let commands = ["total:0:0", "total:1:0", "amd_total:0:0", "amd_total:1:0"];
    let mut command = libraries.command(&bench, "dlsym", &commands);
    command
        .env("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:83:00.0")
        .env("FH_MEMORY_LIMIT", "0000:03:00.0=1GiB,*=2GiB");
    let expected = [
        "total:0:0 = 0 2147483648",
        "total:1:0 = 0 1073741824",
        "amd_total:0:0 = 0 2147483648",
        "amd_total:1:0 = 0 1073741824",
    ];
    assert_eq!(lines(&mut command), expected);
}

/// As the library of ROCm 6.1 does where it does not find the address.
#[test]
fn an_address_that_one_function_does_not_tell_is_asked_of_another() {
    let libraries = Libraries::with(&["-DZERO_BDF"]);
    let commands = ["amd_total:0:0", "amd_total:1:0"];
    let expected = [
        "amd_total:0:0 = 0 68719476736",
        "amd_total:1:0 = 0 4294967296",
    ];
    assert_eq!(libraries.asked("4GiB", &commands), expected);
}

#[test]
fn a_gpu_whose_address_is_not_told_is_the_only_one_or_has_nothing_free() {
    let libraries = Libraries::with(&["-DNO_BDF"]);
    let commands = ["amd_total:1:0", "amd_used:1:0"];
    let expected = ["amd_total:1:0 = 0 4294967296", "amd_used:1:0 = 0 0"];
    assert_eq!(libraries.asked("4GiB", &commands), expected);
    let bench = Bench::new(Build::Six);
    let mut command = libraries.command(&bench, "dlsym", &commands);
    command
        .env("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:83:00.0")
        .env("FH_MEMORY_LIMIT", "4GiB");
    let native = 64 * GIB;
    let expected = [
        format!("amd_total:1:0 = 0 {native}"),
        format!("amd_used:1:0 = 0 {native}"),
    ];
    assert_eq!(lines(&mut command), expected);
}

#[test]
fn what_others_hold_is_shown_and_the_onlooker_takes_no_place() {
    let libraries = Libraries::with(&[]);
    for way in WAYS {
        let bench = Bench::new(Build::Six);
        let mut holder = bench.client("4GiB", "dlsym", &["malloc:a:3221225472", "wait", "wait"]);
        let mut holder = Running::start(&mut holder);
        assert_eq!(holder.line(), "malloc a = 0");
        let commands = [
            "used:1:0",
            "wait",
            "usage:1",
            "total:1:0",
            "wait",
            "amd_used:1:0",
        ];
        let mut command = libraries.command(&bench, way, &commands);
        // Its own limit is another: of the two the stricter one holds.
        let mut onlooker = Running::start(command.env("FH_MEMORY_LIMIT", "8GiB"));
        assert_eq!(onlooker.line(), "used:1:0 = 0 3221225472", "{way}");
        assert_eq!(bench.snapshot().members.len(), 1, "{way}");
        onlooker.go_on();
        assert_eq!(onlooker.line(), "usage:1 = 0 0: 4096 4: 3072", "{way}");
        assert_eq!(onlooker.line(), "total:1:0 = 0 4294967296", "{way}");
        holder.kill();
        onlooker.go_on();
        assert_eq!(onlooker.line(), "amd_used:1:0 = 0 0", "{way}: of the dead");
        onlooker.finish();
    }
}

fn a_process_with_an_account_shows_what_hip_shows(build: Build) {
    let libraries = Libraries::with(&[]);
    for way in ["linked", "dlsym"] {
        let bench = Bench::new(build);
        let commands = [
            "used:1:0",
            "malloc:1073741824",
            "used:1:0",
            "free_memory",
            "amd_used:1:0",
            "usage:1",
            "malloc:4294967296",
            "used:1:0",
            "free_memory",
            "wait",
        ];
        let mut command = libraries.command(&bench, way, &commands);
        let mut process = Running::start(command.env("FH_MEMORY_LIMIT", "4GiB"));
        let mut expect = |line: &str| assert_eq!(process.line(), line, "{way}");
        expect("used:1:0 = 0 0");
        expect("malloc:1073741824 = 0");
        expect("used:1:0 = 0 1073741824");
        expect("free_memory = 0 used 1073741824 of 4294967296");
        expect("amd_used:1:0 = 0 1073741824");
        // The library says the same, by chance: 1 GiB is in use.
        expect("usage:1 = 0 0: 4096");
        expect("malloc:4294967296 = 2");
        expect("used:1:0 = 0 1073741824");
        expect("free_memory = 0 used 1073741824 of 4294967296");
        assert_eq!(bench.snapshot().members.len(), 1, "{way}");
        process.go_on();
        process.finish();
    }
}

fn a_forked_child_is_an_onlooker(build: Build) {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(build);
    let commands = ["malloc:1073741824", "fork", "used:1:0", "total:1:0", "wait"];
    let mut command = libraries.command(&bench, "dlsym", &commands);
    let mut process = Running::start(command.env("FH_MEMORY_LIMIT", "4GiB"));
    assert_eq!(process.line(), "malloc:1073741824 = 0");
    assert_eq!(process.line(), "used:1:0 = 0 1073741824");
    assert_eq!(process.line(), "total:1:0 = 0 4294967296");
    assert_eq!(bench.snapshot().members.len(), 1);
    process.go_on();
    process.finish();
}

#[test]
fn what_others_use_of_the_board_is_not_shown_as_free() {
    let libraries = Libraries::with(&["-DUSED=(63*GIB)"]);
    let shown = libraries.asked("4GiB", &["total:1:0", "used:1:0", "usage:1"]);
    let expected = [
        "total:1:0 = 0 4294967296",
        "used:1:0 = 0 3221225472",
        "usage:1 = 0 0: 4096 4: 3072",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_limit_above_the_board_shows_the_board() {
    let libraries = Libraries::with(&[]);
    assert_eq!(libraries.asked("128GiB", &ALL), NATIVE);
}

#[test]
fn what_the_cpu_can_reach_is_no_more_than_the_limit() {
    let libraries = Libraries::with(&[]);
    let shown = libraries.asked("128MiB", &["total:1:1", "used:1:1", "info:1"]);
    let expected = [
        "total:1:1 = 0 134217728",
        "used:1:1 = 0 0",
        "info:1 = 0 264: 128",
    ];
    assert_eq!(shown, expected);
    // A total in MiB is rounded down, as the library does it.
    let odd = (5 * MIB / 2).to_string();
    let shown = libraries.asked(&odd, &["total:1:0", "usage:1", "info:1"]);
    let expected = [
        "total:1:0 = 0 2621440",
        "usage:1 = 0 0: 2 4: 0",
        "info:1 = 0 264: 2",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn structures_are_changed_by_the_layout_of_the_library_s_version() {
    for (version, at) in [("23", 8), ("24", 8), ("25", 8), ("26", 264), ("27", 264)] {
        let libraries = Libraries::with(&[&format!("-DVERSION={version}")]);
        let shown = libraries.asked("4GiB", &["info:1", "usage:1"]);
        let expected = [
            format!("info:1 = 0 {at}: 4096"),
            String::from("usage:1 = 0 0: 4096 4: 0"),
        ];
        assert_eq!(shown, expected, "{version}");
    }
}

#[test]
fn a_structure_of_a_version_that_is_not_told_is_left_alone() {
    let libraries = Libraries::with(&["-DVERSION=0"]);
    let bench = Bench::new(Build::Six);
    let mut command = libraries.command(&bench, "dlsym", &["info:1", "info:1", "amd_total:1:0"]);
    let (out, err) = run(command.env("FH_MEMORY_LIMIT", "4GiB"));
    let expected = ["info:1 = 0", "info:1 = 0", "amd_total:1:0 = 0 4294967296"];
    assert_eq!(out, expected);
    assert!(err.len() == 1 && err[0].contains("version"), "{err:?}");
}

#[test]
fn answers_of_calls_that_failed_are_left_alone() {
    let libraries = Libraries::with(&[]);
    for way in WAYS {
        let bench = Bench::new(Build::Six);
        let commands = [&ALL[..], &["total:7:0", "used:7:0", "total:1:9", "null"]].concat();
        let mut command = libraries.command(&bench, way, &commands);
        command
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("SMI_STATUS", "15");
        let shown = lines(&mut command);
        assert!(shown[0].starts_with("total:1:0 = 15 6871947"), "{shown:?}");
        assert_eq!(shown, lines(command.env_remove("LD_PRELOAD")), "{way}");
    }
}

#[test]
fn null_outputs_are_left_to_the_library() {
    let libraries = Libraries::with(&[]);
    for way in WAYS {
        let bench = Bench::new(Build::Six);
        let mut command = libraries.command(&bench, way, &["null", "used:1:0"]);
        command.env("FH_MEMORY_LIMIT", "4GiB");
        let expected = ["null = 1 1 1 1 1 1", "used:1:0 = 0 0"];
        assert_eq!(lines(&mut command), expected, "{way}");
    }
}

/// The library is loaded with RTLD_LOCAL, so that nobody but itself finds its functions; the calls of its own
/// exports come to ours all the same.
#[test]
fn the_library_s_own_calls_stay_its_own() {
    let libraries = Libraries::with(&[]);
    for way in WAYS {
        let bench = Bench::new(Build::Six);
        let mut command = libraries.command(&bench, way, &["inner:1", "amd_total:1:0"]);
        let shown = lines(command.env("FH_MEMORY_LIMIT", "4GiB"));
        let native = 64 * GIB;
        let expected = [
            format!("inner:1 = 0 {native}"),
            String::from("amd_total:1:0 = 0 4294967296"),
        ];
        assert_eq!(shown, expected, "{way}");
    }
}

#[test]
fn each_copy_of_a_library_has_its_own_function() {
    let (one, other) = (
        Libraries::with(&["-DUSED=(62*GIB)"]),
        Libraries::with(&["-DUSED=(63*GIB)"]),
    );
    let go_on = |library: &Path| format!("other:{}", library.display());
    let (to_one, to_other) = (go_on(&one.rocm), go_on(&other.rocm));
    let commands = ["used:1:0", &to_other, "used:1:0", &to_one, "used:1:0"];
    let (two, three) = ("used:1:0 = 0 2147483648", "used:1:0 = 0 3221225472");
    assert_eq!(one.asked("4GiB", &commands), [two, three, two]);
}

#[test]
fn a_wrapper_is_called_once_and_the_limit_is_shown() {
    let libraries = Libraries::with(&[]);
    let wrapper = shared_library("smi_wrapper.c", &[]);
    let (ours, wrapper) = (common::library().display(), wrapper.display());
    for preload in [format!("{ours}:{wrapper}"), format!("{wrapper}:{ours}")] {
        for way in ["linked", "default", "next", "program"] {
            let bench = Bench::new(Build::Six);
            let mut command = libraries.command(&bench, way, &["total:1:0", "used:1:0"]);
            command
                .env("LD_PRELOAD", &preload)
                .env("FH_MEMORY_LIMIT", "4GiB");
            let expected = ["total:1:0 = 0 4294967296", "used:1:0 = 0 0"];
            let (out, err) = run(&mut command);
            assert_eq!(out, expected, "{preload} {way}");
            assert_eq!(err, ["wrapped"], "{preload} {way}");
        }
    }
}

/// Its symbols can be found by the linker alone.
#[test]
fn a_library_with_the_older_table_of_symbols() {
    let libraries = Libraries::with(&["-Wl,--hash-style=sysv"]);
    for way in WAYS {
        let bench = Bench::new(Build::Six);
        let mut command = libraries.command(&bench, way, &["amd_total:1:0", "info:1", "used:1:0"]);
        let expected = [
            "amd_total:1:0 = 0 4294967296",
            "info:1 = 0 264: 4096",
            "used:1:0 = 0 0",
        ];
        let shown = lines(
            command
                .env("FH_MEMORY_LIMIT", "4GiB")
                .env("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:83:00.0"),
        );
        assert_eq!(shown, expected, "{way}");
    }
}

#[test]
fn more_copies_than_are_told_apart_show_the_board_and_that_is_said() {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let copies: Vec<String> = (0..10)
        .map(|copy| {
            let directory = bench.directory.path().join(copy.to_string());
            std::fs::create_dir(&directory).unwrap();
            let path = directory.join("librocm_smi64.so");
            std::fs::copy(&libraries.rocm, &path).unwrap();
            format!("other:{}", path.display())
        })
        .collect();
    let commands: Vec<&str> = copies
        .iter()
        .flat_map(|copy| [copy.as_str(), "total:1:0"])
        .collect();
    let mut command = libraries.command(&bench, "dlsym", &commands);
    let (out, err) = run(command
        .env("FH_MEMORY_LIMIT", "4GiB")
        .env_remove("SMI_ROCM")
        .env_remove("SMI_AMD"));
    let limited = out.iter().filter(|line| line.ends_with(" 4294967296"));
    assert_eq!(limited.count(), 8, "{out:?}");
    assert!(err.len() == 1 && err[0].contains("8 copies"), "{err:?}");
}

#[test]
fn a_library_can_be_closed_and_loaded_again() {
    let libraries = Libraries::with(&[]);
    let commands = ["total:1:0", "again", "total:1:0"].repeat(20);
    let shown = libraries.asked("4GiB", &commands);
    let total = "total:1:0 = 0 4294967296";
    assert_eq!(shown, [total, "again = 0", total].repeat(20));
}

/// An old library without a function. A look-up finds none, as without us. A program that is linked to it would
/// not start, or end at the call.
#[test]
fn a_function_that_the_library_has_not_got() {
    let without = Libraries::with(&["-DWITHOUT_TOTAL"]);
    for way in ["dlsym", "dlvsym", "default", "next", "program"] {
        let bench = Bench::new(Build::Six);
        let mut command = without.command(&bench, way, &["total:1:0", "used:1:0"]);
        command.env("FH_MEMORY_LIMIT", "4GiB").env_remove("SMI_AMD");
        let expected = ["no rsmi_dev_memory_total_get", "used:1:0 = 0 0"];
        assert_eq!(run(&mut command), (texts(&expected), vec![]), "{way}");
    }
    let with = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let mut command = with.command(&bench, "linked", &["total:1:0", "used:1:0"]);
    command.env("FH_MEMORY_LIMIT", "4GiB").env(
        "LD_LIBRARY_PATH",
        directories(&[&without.rocm, &without.amd]),
    );
    let (out, err) = run(&mut command);
    let untouched = u64::from_ne_bytes([0xa5; 8]);
    assert_eq!(out[0], format!("total:1:0 = 2 {untouched}"));
    assert_eq!(out[1], "used:1:0 = 0 0");
    assert!(
        err.len() == 1 && err[0].contains("rsmi_dev_memory_total_get"),
        "{err:?}"
    );
}

fn directories(libraries: &[&Path]) -> std::ffi::OsString {
    let directories = libraries.iter().map(|library| library.parent().unwrap());
    std::env::join_paths(directories).unwrap()
}

/// As hipMemGetInfo: nothing is free.
#[test]
fn a_limit_that_cannot_be_kept_leaves_nothing_free_and_is_said() {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let commands = ["total:1:0", "used:1:0", "usage:1", "info:1"];
    for limit in ["banana", "50%"] {
        let mut command = libraries.command(&bench, "dlsym", &commands);
        let (out, err) = run(command.env("FH_MEMORY_LIMIT", limit));
        let expected = [
            "total:1:0 = 0 68719476736",
            "used:1:0 = 0 68719476736",
            "usage:1 = 0 4: 65536",
            "info:1 = 0",
        ];
        assert_eq!(out, expected, "{limit}");
        assert!(
            err.len() == 1 && err[0].contains("FH_MEMORY_LIMIT"),
            "{err:?}"
        );
    }
    // A ledger that cannot be used.
    let mut holder = bench.client("4GiB", "dlsym", &["malloc:a:1", "wait"]);
    let mut holder = Running::start(&mut holder);
    assert_eq!(holder.line(), "malloc a = 0");
    let ledger = bench.snapshot().path;
    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(&ledger, mode).unwrap();
    };
    mode(0o666);
    let mut command = libraries.command(&bench, "dlsym", &["used:1:0"]);
    let (out, err) = run(command.env("FH_MEMORY_LIMIT", "4GiB"));
    assert_eq!(out, ["used:1:0 = 0 68719476736"]);
    assert!(err.len() == 1 && err[0].contains("mode"), "{err:?}");
    mode(0o600);
    holder.go_on();
    holder.finish();
}

/// The variables are read at every question.
#[test]
fn what_is_said_is_said_once() {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let mut command = libraries.command(&bench, "dlsym", &["total:1:0", "used:1:0", "info:1"]);
    for wrong in ["FH_ENABLE_HOOKS", "FH_FAIL_MODE", "FH_MEMORY_LIMIT"] {
        command.env(wrong, "perhaps");
    }
    let (_, err) = run(&mut command);
    for variable in ["FH_ENABLE_HOOKS", "FH_FAIL_MODE", "FH_MEMORY_LIMIT"] {
        let start = format!("hipflex: {variable}");
        let lines = err.iter().filter(|line| line.starts_with(&start));
        assert_eq!(lines.count(), 1, "{variable}: {err:?}");
    }
    assert_eq!(err.len(), 3, "{err:?}");
}

#[test]
fn a_limit_that_is_set_later_counts_from_then_on() {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let commands = ["total:1:0", "limit:2GiB", "total:1:0"];
    let mut command = libraries.command(&bench, "dlsym", &commands);
    let expected = ["total:1:0 = 0 68719476736", "total:1:0 = 0 2147483648"];
    assert_eq!(lines(&mut command), expected);
}

#[test]
fn in_partitions_that_cannot_be_told_apart_nothing_is_free() {
    let libraries = Libraries::with(&["-DPARTITIONS"]);
    let bench = Bench::new(Build::Six);
    let mut command = libraries.command(&bench, "dlsym", &["total:1:0", "used:1:0"]);
    command
        .env("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:03:00.0/1")
        .env("FH_MEMORY_LIMIT", "4GiB");
    let expected = ["total:1:0 = 0 68719476736", "used:1:0 = 0 68719476736"];
    assert_eq!(lines(&mut command), expected);
}

/// Of a program that has functions of these names for another purpose.
#[test]
fn a_library_of_another_kind_is_left_alone() {
    let libraries = Libraries::with(&[]);
    let bench = Bench::new(Build::Six);
    let other = bench.directory.path().join("libother.so");
    let name = "-Wl,-soname,libother.so";
    let version = "-Wl,--version-script=amd_smi.map";
    let made = shared_library_with("rocm_smi64.c", &[version, name], &[]);
    std::fs::copy(made, &other).unwrap();
    for way in ["dlsym", "default"] {
        let mut command = libraries.command(&bench, way, &["total:1:0"]);
        command
            .env("SMI_ROCM", &other)
            .env_remove("SMI_AMD")
            .env("FH_MEMORY_LIMIT", "4GiB");
        assert_eq!(lines(&mut command), ["total:1:0 = 0 68719476736"], "{way}");
    }
}
