//! Look-ups by name: hooked names lead to the hooks however they are found, and every other question is
//! answered as if the library were not there.

mod common;

use common::{
    Bench, GIB, Running, lines, on_each_standin, program, properties, run, shared_library,
};
use hip_standin::Build;

on_each_standin! {
    every_way_to_find_a_function_leads_to_the_hooks,
    every_other_question_is_answered_as_without_us,
    a_function_that_the_runtime_has_not_got,
    another_dlsym_override_goes_on_working_in_either_order,
    of_two_copies_of_the_library_one_counts,
    a_host_allocator_that_looks_up_the_next_works_in_either_order,
    a_wrapper_is_called_and_its_calls_are_counted_once,
    a_wrapper_that_would_find_nothing_is_not_called,
    the_stack_can_be_walked_through_a_look_up,
    an_unrelated_library_with_a_function_of_that_name_is_left_alone,
    a_plugin_with_the_runtime_among_its_own_libraries_is_counted,
    the_library_can_be_loaded_late,
    the_runtime_can_be_named_and_a_missing_one_is_said,
}

/// Every way in must be counted; the limit tells, since the stand-in knows none.
fn every_way_to_find_a_function_leads_to_the_hooks(build: Build) {
    for way in ["linked", "dlsym", "dlvsym", "default", "next", "program"] {
        let bench = Bench::new(build);
        let mut command = bench.client(
            "4GiB",
            way,
            &[
                "malloc:a:3221225472",
                "malloc:b:3221225472",
                "info",
                "total",
                "props",
            ],
        );
        let expected = [
            String::from("malloc a = 0"),
            String::from("malloc b = 2 untouched"),
            format!("info = 0 free {} total {}", GIB, 4 * GIB),
            format!("total = 0 {}", 4 * GIB),
            properties(build, "props", 4 * GIB),
        ];
        assert_eq!(lines(&mut command), expected, "{way}");
    }
}

#[test]
fn its_version_can_be_read() {
    let version = program("version.c", &[], &[]);
    let bench = Bench::new(Build::Six);
    let mut command = bench.command(version);
    assert_eq!(lines(&mut command), [env!("CARGO_PKG_VERSION")]);
    assert_eq!(lines(command.env_remove("LD_PRELOAD")), ["not loaded"]);
}

/// Prints the same with and without the library: names, versions, handles and errors.
fn every_other_question_is_answered_as_without_us(build: Build) {
    let questions = program("questions.c", &[], &[]);
    let linked = program("questions.c", &["-DLINKED"], &[&build.path()]);
    let bench = Bench::new(build);
    for program in [questions, linked] {
        let mut with = bench.command(&program);
        with.env("FH_MEMORY_LIMIT", "4GiB");
        let (answers, _) = run(&mut with);
        let expected = lines(with.env_remove("LD_PRELOAD"));
        assert!(expected.len() > 20);
        assert_eq!(answers, expected, "{}", program.display());
    }
}

/// A weak reference to a function that came later: ours is there, the runtime's is not.
fn a_function_that_the_runtime_has_not_got(build: Build) {
    if build.generation() >= 6 {
        return;
    }
    let bench = Bench::new(build);
    let (out, err) = run(&mut bench.client("4GiB", "linked", &["props0600"]));
    let nothing = u64::from_ne_bytes([0xa5; 8]);
    let start = format!("props0600 = 3 total {nothing}, ");
    assert!(out[0].starts_with(&start), "{out:?}");
    assert!(out[0].ends_with(", 0 bytes around"), "{out:?}");
    assert!(
        err.len() == 1 && err[0].contains("hipGetDevicePropertiesR0600"),
        "{err:?}"
    );
    for way in ["dlsym", "dlvsym", "default", "next", "program"] {
        let mut command = bench.client("4GiB", way, &["props0600"]);
        let output = command.output().unwrap();
        assert_eq!(
            common::both(&output).0,
            ["no hipGetDevicePropertiesR0600"],
            "{way}"
        );
    }
}

/// A library that overrides `dlsym` itself and looks further with RTLD_NEXT, before and behind ours.
/// An image may preload one, and whoever starts the program another.
fn of_two_copies_of_the_library_one_counts(build: Build) {
    for way in ["linked", "dlsym"] {
        let bench = Bench::new(build);
        let copy = bench.directory.path().join("libhipflex.so");
        std::fs::copy(common::library(), &copy).unwrap();
        let preload = format!("{}:{}", common::library().display(), copy.display());
        let commands = ["malloc:a:1073741824", "wait", "free:a", "wait"];
        let mut command = bench.client("4GiB", way, &commands);
        let mut program = Running::start(command.env("LD_PRELOAD", preload));
        for (line, booked) in [("malloc a = 0", GIB), ("free a = 0", 0)] {
            assert_eq!(program.line(), line, "{way}");
            let snapshot = bench.snapshot();
            let live = snapshot.members.iter().map(|m| m.cells[0].figures.live);
            assert_eq!(live.collect::<Vec<_>>(), [booked], "{way}");
            program.go_on();
        }
        program.finish();
    }
}

fn another_dlsym_override_goes_on_working_in_either_order(build: Build) {
    let other = shared_library("other_override.c", &[]);
    for ours_first in [true, false] {
        let bench = Bench::new(build);
        let (ours, other) = (common::library().to_str().unwrap(), other.to_str().unwrap());
        let preload = if ours_first {
            format!("{ours}:{other}")
        } else {
            format!("{other}:{ours}")
        };
        let mut command = bench.client(
            "4GiB",
            "dlsym",
            &["malloc:a:5368709120", "malloc:b:1073741824"],
        );
        let (out, err) = run(command.env("LD_PRELOAD", preload));
        assert_eq!(
            out,
            ["malloc a = 2 untouched", "malloc b = 0"],
            "ours first: {ours_first}"
        );
        // Its answer for the name that it replaces: hipSetDevice, which the client looks up.
        assert!(
            err.iter().any(|line| line == "other: hipSetDevice"),
            "{err:?}"
        );
    }
}

fn a_host_allocator_that_looks_up_the_next_works_in_either_order(build: Build) {
    let allocator = shared_library("allocator.c", &[]);
    let (ours, allocator) = (
        common::library().to_str().unwrap(),
        allocator.to_str().unwrap(),
    );
    for preload in [format!("{ours}:{allocator}"), format!("{allocator}:{ours}")] {
        for way in ["linked", "dlsym"] {
            let bench = Bench::new(build);
            let mut command = bench.client(
                "4GiB",
                way,
                &["malloc:a:5368709120", "malloc:b:1073741824", "free:b"],
            );
            let out = lines(command.env("LD_PRELOAD", &preload));
            assert_eq!(
                out,
                ["malloc a = 2 untouched", "malloc b = 0", "free b = 0"],
                "{preload}"
            );
        }
    }
}

/// A preload that wraps hipMalloc, before us and behind us. It finds the next one with RTLD_NEXT, or the one in
/// the runtime, which is ours again.
fn a_wrapper_is_called_and_its_calls_are_counted_once(build: Build) {
    let wrapper = shared_library("wrapper.c", &[]);
    let (ours, wrapper) = (
        common::library().to_str().unwrap(),
        wrapper.to_str().unwrap(),
    );
    for ours_first in [true, false] {
        for by_handle in [true, false] {
            let bench = Bench::new(build);
            let preload = if ours_first {
                format!("{ours}:{wrapper}")
            } else {
                format!("{wrapper}:{ours}")
            };
            let mut command = bench.client(
                "4GiB",
                "linked",
                &[
                    "malloc:a:5368709120",
                    "malloc:b:1073741824",
                    "info",
                    "free:b",
                    "info",
                ],
            );
            command.env("LD_PRELOAD", preload);
            if by_handle {
                command.env("WRAPPER_BY_HANDLE", "1");
            }
            let (out, err) = run(&mut command);
            let case = format!("ours first: {ours_first}, by handle: {by_handle}");
            let expected = [
                String::from("malloc a = 2 untouched"),
                String::from("malloc b = 0"),
                format!("info = 0 free {} total {}", 3 * GIB, 4 * GIB),
                String::from("free b = 0"),
                format!("info = 0 free {} total {}", 4 * GIB, 4 * GIB),
            ];
            assert_eq!(out, expected, "{case}");
            let wrapped = err.iter().filter(|line| *line == "wrapper: hipMalloc");
            // The hook is below the export: a wrapper sees every call, as without us.
            assert_eq!(wrapped.count(), 2, "{case}");
            let (out, _) = run(command.env_remove("FH_MEMORY_LIMIT"));
            assert_eq!(out[..2], ["malloc a = 0", "malloc b = 0"], "{case}");
        }
    }
}

/// A wrapper finds nothing behind it when the runtime is not where the linker looks for it: then calls go
/// to the runtime, as they do without us.
fn a_wrapper_that_would_find_nothing_is_not_called(build: Build) {
    let wrapper = shared_library("wrapper.c", &[]);
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "dlsym", &["malloc:b:1073741824"]);
    let preload = format!("{}:{}", common::library().display(), wrapper.display());
    let (out, err) = run(command.env("LD_PRELOAD", preload));
    assert_eq!(out, ["malloc b = 0"]);
    assert_eq!(err, [""; 0]);
}

/// A look-up may load a runtime, whose constructors may walk the stack (or throw).
fn the_stack_can_be_walked_through_a_look_up(build: Build) {
    let walker = shared_library("walker.c", &[]);
    let program = program("asks_for_hip.c", &[], &[]);
    for way in ["dlsym", "dlvsym"] {
        let bench = Bench::new(build);
        let mut command = bench.command(&program);
        let (out, _) = run(command.arg(way).env("FH_HIP_LIB_PATH", &walker));
        assert_eq!(out, ["constructor: sees the program", "found: 1"], "{way}");
    }
}

/// A library that is no HIP runtime and exports `hipMalloc` is left alone.
fn an_unrelated_library_with_a_function_of_that_name_is_left_alone(build: Build) {
    let unrelated = shared_library("unrelated.c", &[]);
    let bench = Bench::new(build);
    let linked = program("uses_unrelated.c", &["-DLINKED"], &[&unrelated]);
    let loads = program("uses_unrelated.c", &[], &[]);
    for program in [linked, loads] {
        let mut command = bench.command(&program);
        command.env("FH_MEMORY_LIMIT", "1GiB").arg(&unrelated);
        let directory = unrelated.parent().unwrap().display();
        command.env(
            "LD_LIBRARY_PATH",
            format!("{directory}:{}", build.directory().display()),
        );
        let (out, err) = run(&mut command);
        assert_eq!(out, ["unrelated hipMalloc of 2147483648 = 42"]);
        assert_eq!(err, [""; 0]);
    }
    assert!(!bench.ledgers().exists());
}

/// A library loaded with RTLD_LOCAL, whose own dependencies include the runtime: it is linked to it, or
/// asks with RTLD_DEFAULT, which in its case finds the runtime.
fn a_plugin_with_the_runtime_among_its_own_libraries_is_counted(build: Build) {
    let plugin = shared_library("plugin.c", &[&build.path()]);
    let bench = Bench::new(build);
    let host = program("host.c", &[], &[]);
    let mut command = bench.command(host);
    let out = lines(command.env("FH_MEMORY_LIMIT", "4GiB").arg(plugin));
    assert_eq!(
        out,
        [
            "host sees hipMalloc: no",
            "linked 2",
            "RTLD_DEFAULT 2",
            "linked 0"
        ]
    );
}

/// RTLD_NEXT and RTLD_DEFAULT depend on who asks; the client's own `malloc` symbols stay right.
fn the_library_can_be_loaded_late(build: Build) {
    let bench = Bench::new(build);
    let host = program("late.c", &[], &[]);
    let mut command = bench.command(host);
    let out = lines(
        command
            .env_remove("LD_PRELOAD")
            .env("FH_MEMORY_LIMIT", "4GiB")
            .arg(common::library()),
    );
    // What a program has found stays callable.
    let round = ["loaded", "unloaded", "hipMalloc = 2", "hipMalloc = 0"];
    assert_eq!(out, [round, round].concat());
}

/// `FH_HIP_LIB_PATH`, and what is said when there is no runtime at all.
fn the_runtime_can_be_named_and_a_missing_one_is_said(build: Build) {
    let bench = Bench::new(build);
    let weak = program("weak.c", &[], &[]);
    let mut named = bench.command(&weak);
    named
        .env_remove("LD_LIBRARY_PATH")
        .env("FH_MEMORY_LIMIT", "4GiB");
    let (out, _) = run(named.env("FH_HIP_LIB_PATH", build.path()));
    assert_eq!(out, ["hipMalloc = 0", "hipMalloc = 0"]);

    let mut missing = bench.command(&weak);
    missing
        .env_remove("LD_LIBRARY_PATH")
        .env("FH_MEMORY_LIMIT", "4GiB");
    let (out, err) = run(&mut missing);
    assert_eq!(out, ["hipMalloc = 3", "hipMalloc = 3"]);
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(
        err[0].contains("no HIP runtime") && err[0].contains("FH_HIP_LIB_PATH"),
        "{err:?}"
    );

    let (out, err) = run(missing.env("FH_HIP_LIB_PATH", "/nowhere/libamdhip64.so"));
    assert_eq!(out, ["hipMalloc = 3", "hipMalloc = 3"]);
    assert!(
        err.len() == 1 && err[0].contains("/nowhere/libamdhip64.so"),
        "{err:?}"
    );
}
