//! Every way to a function of the runtime, with every engine: each call is counted exactly once, and what is within the
//! limit comes out as without us.

mod common;

use std::process::Command;

use common::{Bench, GIB, Running, client_plugin, lines, on_each_standin, program};
use hip_standin::Build;
use hipflex_ledger::HookEngine;

on_each_standin! {
    each_call_is_counted_once,
    what_is_within_the_limit_is_as_without_us,
    an_engine_that_cannot_be_had_is_told_and_the_exports_count,
    two_copies_of_the_runtime_share_one_account,
    a_runtime_that_is_closed_and_opened_again_is_counted,
    a_library_that_is_only_called_like_a_runtime_hides_none,
    a_limit_that_is_set_before_the_first_call_holds_below_the_exports,
    a_caller_in_the_place_of_another_reaches_its_own_runtime,
    threads_that_are_calling_meanwhile_are_counted_from_then_on,
}

const ENGINES: [&str; 4] = ["auto", "table", "detour", "none"];
const WAYS: [&str; 8] = [
    "linked",
    "dlsym",
    "dlvsym",
    "default",
    "deepbind",
    "raw",
    "plugin",
    "deep_plugin",
];

/// Whether calls by this way come to a hook. By the names of functions alone not all do.
fn comes_to_a_hook(build: Build, engine: &str, way: &str) -> bool {
    let below = match engine {
        "auto" | "detour" => true,
        "table" => build.has_table(),
        _ => false,
    };
    // Addresses that we never see.
    below || !matches!(way, "raw" | "deep_plugin")
}

fn command(bench: &Bench, way: &str, commands: &[&str]) -> Command {
    let plugin = |mode: &str| {
        let mut command = bench.command(program("client_host.c", &[], &[]));
        command
            .env("FH_MEMORY_LIMIT", "4GiB")
            .arg(client_plugin(bench.build))
            .arg(mode)
            .arg("linked")
            .args(commands);
        command
    };
    match way {
        "plugin" => plugin("plain"),
        "deep_plugin" => plugin("deep"),
        way => bench.client("4GiB", way, commands),
    }
}

fn each_call_is_counted_once(build: Build) {
    let commands = [
        "malloc:a:3221225472",
        "malloc:b:3221225472",
        "pitch:p:1000:1000",
        "array:r:32.0.0.0:100:100",
        "free:a",
        "malloc:c:1073741824",
        "info",
        "wait",
    ];
    for engine in ENGINES {
        for way in WAYS {
            let bench = Bench::new(build);
            let mut program =
                Running::start(command(&bench, way, &commands).env("FH_HOOK_ENGINE", engine));
            let results: Vec<String> = (0..7).map(|_| program.line()).collect();
            let case = format!("{engine}, {way}: {results:?}");
            let hooked = comes_to_a_hook(build, engine, way);
            assert_eq!(results[0], "malloc a = 0", "{case}");
            assert_eq!(results[1] == "malloc b = 2 untouched", hooked, "{case}");
            assert_eq!(results[1] == "malloc b = 0", !hooked, "{case}");
            if hooked {
                assert!(
                    results[6].ends_with(&format!("total {}", 4 * GIB)),
                    "{case}"
                );
                let snapshot = bench.snapshot();
                let [member] = &snapshot.members[..] else {
                    panic!("{case}: {snapshot:?}")
                };
                let counts = (member.allocations, member.frees, member.refusals);
                assert_eq!(counts, (4, 1, 1), "{case}");
                let pitch = 1024 * 1000;
                let live = GIB + pitch + 4 * 100 * 100;
                assert_eq!(member.cells[0].figures.live, live, "{case}");
            }
            program.go_on();
            program.finish();
        }
    }
}

fn what_is_within_the_limit_is_as_without_us(build: Build) {
    let commands = [
        "malloc:a:1048576",
        "ext:b:1048576:0",
        "managed:c:1048576:1",
        "pitch:d:1000:100",
        "mem_pitch:e:1000:100:4",
        "malloc3d:f:100:10:10",
        "array:g:32.32.0.0:100:100",
        "array3d:h:32.0.0.0:10:10:10",
        "array_create:i:0x20.4:100:100",
        "array3d_create:j:0x20.4:10:10:10",
        "mipmapped:k:32.0.0.0:64:64:0:4",
        "free:a",
        "free:b",
        "free:c",
        "free:d",
        "free:e",
        "free_array:g",
        "array_destroy:i",
        "free_mipmapped:k",
        "free_bogus",
        "last",
        "malloc_nowhere:100",
        "last",
        "info:none",
        "total_nowhere",
    ];
    for engine in ENGINES {
        for way in WAYS {
            let bench = Bench::new(build);
            let mut with = command(&bench, way, &commands);
            with.env("FH_HOOK_ENGINE", engine);
            let hooked = lines(&mut with);
            let without = lines(with.env_remove("LD_PRELOAD"));
            assert_eq!(hooked, without, "{engine}, {way}");
            assert!(hooked.len() >= commands.len() - 2);
        }
    }
}

fn an_engine_that_cannot_be_had_is_told_and_the_exports_count(build: Build) {
    let cases = [
        ("table", build.has_table(), "ROCm 6"),
        ("gum", cfg!(feature = "gum"), "no engine 'gum'"),
    ];
    for (engine, can_be_had, why) in cases {
        let bench = Bench::new(build);
        let mut command = bench.client("4GiB", "linked", &["malloc:a:5368709120"]);
        let (out, err) = common::run(command.env("FH_HOOK_ENGINE", engine));
        assert_eq!(out, ["malloc a = 2 untouched"]);
        let told = err.iter().filter(|line| line.contains("FH_HOOK_ENGINE"));
        let told: Vec<_> = told.collect();
        assert_eq!(told.len(), usize::from(!can_be_had), "{engine}: {err:?}");
        assert!(told.iter().all(|line| line.contains(why)), "{told:?}");
    }
    // What cannot be understood stops allocations, as any setting.
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &["malloc:a:1048576"]);
    let (out, err) = common::run(command.env("FH_HOOK_ENGINE", "banana"));
    assert_eq!(out, ["malloc a = 2 untouched"]);
    assert!(
        err.len() == 1 && err[0].contains("FH_HOOK_ENGINE=\"banana\" is none of"),
        "{err:?}"
    );
}

/// A copy that is found in a way of its own, as by a framework that brings one: see `two_runtimes.c`.
fn two_copies_of_the_runtime_share_one_account(build: Build) {
    let other = match build {
        // Of another name: of two with the same name the linker loads one.
        Build::Six | Build::SixRegistering => Build::Five,
        Build::Five => Build::Seven,
        _ => Build::Six,
    };
    for engine in ENGINES {
        let bench = Bench::new(build);
        let host = program("two_runtimes.c", &[], &[]);
        let plugins = [common::plugin_of(build), common::plugin_of(other)];
        let mut command = bench.command(host);
        command
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("FH_HOOK_ENGINE", engine)
            .env("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:83:00.0")
            .env("HIP_STANDIN_DEVICES", "0000:03:00.0,0000:83:00.0")
            .args(&plugins)
            .args([build.path(), other.path()]);
        let out = lines(&mut command);
        let expected = [
            // Each in its own runtime, on the device that is current there.
            "first: device 0, 3 GiB = 0",
            "second: device 0, 3 GiB = 2",
            "second: device 1, 3 GiB = 0",
            "first: device 0, 3 GiB = 2",
            "first by handle: 3 GiB = 2",
            "second by handle: 3 GiB = 2",
            "second by handle: 1 GiB = 0",
            "second: device 0, reset = 0",
            "second: device 0, 3 GiB = 2",
        ];
        assert_eq!(out, expected, "{engine}");
    }
}

fn a_runtime_that_is_closed_and_opened_again_is_counted(build: Build) {
    for engine in ENGINES {
        let bench = Bench::new(build);
        let mut command = bench.command(program("reopens.c", &[], &[]));
        command
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("FH_HOOK_ENGINE", engine)
            .arg(build.path());
        let round = ["5 GiB = 2", "1 GiB = 0", "free = 0"];
        assert_eq!(
            lines(&mut command),
            [round, round, round].concat(),
            "{engine}"
        );
    }
}

/// As tools are called that trace HIP.
fn a_library_that_is_only_called_like_a_runtime_hides_none(build: Build) {
    let bench = Bench::new(build);
    let tracer = bench.directory.path().join("libamdhip64_tracer.so");
    std::fs::copy(common::shared_library("tracer.c", &[]), &tracer).unwrap();
    let mut command = command(&bench, "deep_plugin", &["malloc:a:5368709120"]);
    let preload = format!("{}:{}", common::library().display(), tracer.display());
    assert_eq!(
        lines(command.env("LD_PRELOAD", preload)),
        ["malloc a = 2 untouched"]
    );
}

fn a_limit_that_is_set_before_the_first_call_holds_below_the_exports(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.command(program("late_limit.c", &[], &[]));
    command.arg(build.path()).arg(common::plugin_of(build));
    let expected = ["by name: 5 GiB = 2", "deep: 5 GiB = 2", "deep: 1 GiB = 0"];
    assert_eq!(lines(&mut command), expected);
}

/// A library that was closed called one runtime; what is loaded in its place calls another.
fn a_caller_in_the_place_of_another_reaches_its_own_runtime(build: Build) {
    let other = match build {
        Build::Six | Build::SixRegistering => Build::Five,
        _ => Build::Six,
    };
    for engine in ["auto", "none"] {
        let bench = Bench::new(build);
        let mut command = bench.command(program("in_the_place_of_another.c", &[], &[]));
        command
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("FH_HOOK_ENGINE", engine)
            .env("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:83:00.0")
            .env("HIP_STANDIN_DEVICES", "0000:03:00.0,0000:83:00.0")
            .args([build.path(), other.path()])
            .args([common::plugin_of(build), common::plugin_of(other)]);
        let out = lines(&mut command);
        // Device 1 is current in the second runtime alone, and has room.
        assert_eq!(
            out[..2],
            ["first: 3 GiB = 0", "second: 3 GiB = 0"],
            "{engine}: {out:?}"
        );
    }
}

/// A profiler takes the table from the runtime's registration and puts wrappers into slots: at once, before us, or when
/// the program says so, after us. See `profiler.c`.
#[test]
fn a_profiler_in_the_dispatch_table_sees_what_the_program_gets() {
    for engine in ENGINES {
        for when in ["before", "after"] {
            let bench = Bench::new(Build::SixRegistering);
            let mut command = profiled(&bench, engine, when);
            let case = format!("{engine}, {when}");
            let mut running = Running::start(&mut command);
            let results: Vec<_> = (0..6).map(|_| running.line()).collect();
            let mut expected = vec!["3 GiB = 0", "3 GiB = 2", "free = 0"];
            // By an address that nobody was asked for.
            if engine == "none" {
                expected.extend(["5 GiB = 0", "1 GiB = 0"]);
            } else {
                expected.extend(["5 GiB = 2", "1 GiB = 0"]);
            }
            let seen = if engine == "none" {
                "profiler: 4 of hipMalloc, 1 refused, 1 of hipFree"
            } else {
                "profiler: 4 of hipMalloc, 2 refused, 1 of hipFree"
            };
            expected.push(seen);
            assert_eq!(results, expected, "{case}");
            let snapshot = bench.snapshot();
            let [member] = &snapshot.members[..] else {
                panic!("{case}: {snapshot:?}")
            };
            let counts = (member.allocations, member.frees, member.refusals);
            let counted = if engine == "none" {
                (1, 1, 1)
            } else {
                (2, 1, 2)
            };
            assert_eq!(counts, counted, "{case}");
            running.go_on();
            running.finish();
        }
    }
}

/// The program of `profiled.c`, with its profiler.
fn profiled(bench: &Bench, engine: &str, when: &str) -> Command {
    let profiler = common::shared_library("profiler.c", &[]);
    let mut command = bench.command(program(
        "profiled.c",
        &[],
        &[&profiler, &bench.build.path()],
    ));
    let profilers = profiler.parent().unwrap().display();
    let libraries = format!("{}:{profilers}", bench.build.directory().display());
    command
        .env("LD_LIBRARY_PATH", libraries)
        .env("FH_MEMORY_LIMIT", "4GiB")
        .env("FH_HOOK_ENGINE", engine)
        .arg(when)
        .arg(bench.build.soname());
    command
}

/// What the runtime has registered is looked at before a slot is written: see `profiler.c`.
#[test]
fn what_cannot_be_a_dispatch_table_is_left_alone() {
    let bench = Bench::new(Build::SixRegistering);
    let (out, err) = common::run(&mut profiled(&bench, "table", "size"));
    assert_eq!(out[..3], ["3 GiB = 0", "3 GiB = 2", "free = 0"]);
    let told: Vec<_> = err
        .iter()
        .filter(|line| line.contains("FH_HOOK_ENGINE"))
        .collect();
    assert!(
        told.len() == 1 && told[0].contains("its dispatch table cannot have 24 bytes"),
        "{err:?}"
    );
    for engine in ["table", "auto"] {
        let bench = Bench::new(Build::SixRegistering);
        let mut running = Running::start(&mut profiled(&bench, engine, "slot"));
        let results: Vec<_> = (0..6).map(|_| running.line()).collect();
        let expected = [
            "3 GiB = 0",
            "3 GiB = 2",
            "free = 0",
            "5 GiB = 2",
            "1 GiB = 0",
        ];
        assert_eq!(results[..5], expected, "{engine}");
        let engines = bench.snapshot().members[0].engines.clone();
        // hipMalloc, and hipMallocPitch.
        let pitch = match engine {
            "auto" => HookEngine::Detour,
            _ => HookEngine::ExportOnly,
        };
        assert_eq!(
            (engines[0], engines[3]),
            (HookEngine::Table, pitch),
            "{engine}"
        );
        running.go_on();
        running.finish();
    }
}

/// Hooks come about under threads that call the functions by their addresses: see `under_way.c`.
fn threads_that_are_calling_meanwhile_are_counted_from_then_on(build: Build) {
    const ROUNDS: usize = 15;
    /// What three threads do two hundred times: two blocks each.
    const CALLS: u64 = 3 * 200 * 2;
    for engine in ["auto", "detour"] {
        for round in 0..ROUNDS {
            let bench = Bench::new(build);
            let mut command = bench.linked("under_way.c", &[]);
            command
                .env("FH_MEMORY_LIMIT", "4GiB")
                .env("FH_HOOK_ENGINE", engine)
                .arg(build.soname());
            let mut program = Running::start(&mut command);
            let case = format!("{engine}, round {round}");
            let mut figures = || {
                assert_eq!(program.line(), "first call = 0, wrong 0", "{case}");
                let snapshot = bench.snapshot();
                let [member] = &snapshot.members[..] else {
                    panic!("{case}: {snapshot:?}")
                };
                // What was allocated before and freed afterwards is not counted at all.
                assert_eq!(member.cells[0].figures.live, GIB, "{case}");
                assert_eq!(member.refusals, 0, "{case}");
                program.go_on();
                (member.allocations, member.frees)
            };
            let before = figures();
            let after = figures();
            let made = (after.0 - before.0, after.1 - before.1);
            assert_eq!(made, (CALLS, CALLS), "{case}");
            assert_eq!(program.line(), "a block beyond the limit = 2", "{case}");
            program.finish();
        }
    }
}
