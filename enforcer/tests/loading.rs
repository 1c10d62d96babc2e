//! Programs that take functions of libc for themselves before anything else runs: sanitizers, allocators,
//! profilers. A look-up that has nothing to do with HIP must not call any of those.

mod common;

use std::fmt::Write;
use std::fs;
use std::process::Command;

use common::{Bench, MIB, lines, on_each_standin, program, run};
use hip_standin::Build;

on_each_standin! {
    a_program_with_thread_sanitizer_runs_and_is_limited,
    a_first_call_needs_little_stack,
}

/// The functions that the library imports, but for those that only the compiler's start-up files look for.
fn imports() -> Vec<String> {
    let output = Command::new("readelf")
        .args(["--dyn-syms", "--wide"])
        .arg(common::library())
        .output()
        .expect("readelf comes with the C compiler's binutils");
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    let columns = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    columns
        .filter(|columns| columns.get(6) == Some(&"UND"))
        .filter(|columns| columns.get(3) == Some(&"FUNC"))
        .filter_map(|columns| columns.get(7)?.split('@').next().map(String::from))
        .filter(|name| name != "__cxa_finalize")
        .collect()
}

/// The interposer's first look-ups happen while it can forward nothing: any call would jump to address 0.
#[test]
fn a_look_up_calls_nothing_that_others_interpose() {
    let mut names = String::from("-DNAMES=");
    let imports = imports();
    for expected in ["strlen", "memcpy", "malloc", "dl_iterate_phdr"] {
        assert!(imports.iter().any(|name| name == expected), "{imports:?}");
    }
    for name in &imports {
        write!(names, "X({name}) ").unwrap();
    }
    let interposer = program("interposer.c", &["-shared", "-fPIC", &names], &[]);
    let look_ups = program("plain_look_ups.c", &["-rdynamic"], &[&interposer]);
    let bench = Bench::new(Build::Six);
    let mut command = bench.command(look_ups);
    let expected = format!("{} functions", imports.len());
    assert_eq!(lines(&mut command), [expected]);
}

/// Whether the C compiler makes programs with this sanitizer that run here.
fn has_sanitizer(option: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    let (source, made) = (
        directory.path().join("empty.c"),
        directory.path().join("empty"),
    );
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let compiled = Command::new("cc")
        .arg(option)
        .arg("-o")
        .args([&made, &source])
        .output()
        .expect("a C compiler, cc, is needed to build the test programs");
    compiled.status.success() && Command::new(made).output().unwrap().status.success()
}

fn a_program_with_thread_sanitizer_runs_and_is_limited(build: Build) {
    // Its runtime looks functions up before it can stand in for any.
    let option = "-fsanitize=thread";
    if !has_sanitizer(option) {
        eprintln!("not checked: no program made with {option} runs here");
        return;
    }
    let client = common::client(Some(build), &[option]);
    let bench = Bench::new(build);
    let run = |limit: &str| {
        let mut command = bench.command(&client);
        command.env("FH_MEMORY_LIMIT", limit).args([
            "linked",
            "malloc:a:5368709120",
            "threads:4:8:1048576",
            "info",
        ]);
        lines(&mut command)
    };
    let (limit, free) = (4096 * MIB, 4064 * MIB);
    assert_eq!(
        run("4GiB"),
        [
            String::from("malloc a = 2 untouched"),
            String::from("threads: 32 succeeded"),
            format!("info = 0 free {free} total {limit}"),
        ]
    );
}

/// How many bytes of its stack a thread uses for these calls, beyond what the runtime does.
fn stack_used(build: Build, limit: &str, calls: &[&str]) -> usize {
    let bench = Bench::new(build);
    let mut command = bench.linked("small_stack.c", &[]);
    command.env("FH_MEMORY_LIMIT", limit).args(calls);
    let mut used = |preloaded: bool| -> usize {
        if !preloaded {
            command.env_remove("LD_PRELOAD");
        }
        let (out, _) = run(&mut command);
        let line = out.last().unwrap();
        line.strip_prefix("used ").expect(line).parse().unwrap()
    };
    used(true) - used(false)
}

/// Threads may have 16 KiB (`PTHREAD_STACK_MIN`) for everything. Setting the process up is what needs most.
fn a_first_call_needs_little_stack(build: Build) {
    // The compiler spends freely when it does not optimise.
    let enough = if cfg!(debug_assertions) { 96 } else { 12 } * 1024;
    for (limit, calls) in [
        ("4GiB", &["malloc:4096", "free", "info"][..]),
        ("4GiB", &["malloc:5368709120"]),
        ("banana", &["malloc:4096"]),
    ] {
        let used = stack_used(build, limit, calls);
        eprintln!("{limit} {calls:?}: {used} bytes of stack");
        assert!(used <= enough, "{limit} {calls:?}: {used} bytes of stack");
    }
}
