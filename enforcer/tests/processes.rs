//! Forks, threads, beginnings and ends of processes.

mod common;

use common::{Bench, GIB, Running, lines, on_each_standin, program, shared_library};
use hip_standin::{Account, Build, Settings};

on_each_standin! {
    a_child_s_end_does_not_touch_its_parent_s_booking,
    a_forked_child_has_a_share_of_its_own_which_ends_with_it,
    a_child_that_frees_its_parent_s_block_gives_nothing_back,
    a_child_forked_before_the_first_call_begins_by_itself,
    a_child_of_a_child_is_a_process_like_any_other,
    a_new_image_begins_at_nothing,
    the_first_calls_of_many_threads_are_all_counted,
    constructors_and_destructors_may_call_hip,
    a_library_may_call_hip_while_another_thread_makes_its_first_call,
    a_thread_may_be_cancelled_inside_of_the_runtime,
    a_pending_cancellation_is_not_acted_on_by_us,
    a_call_that_is_left_by_a_jump_is_over,
    a_call_that_is_left_by_an_exception_is_over,
    a_call_back_out_of_a_call_is_inside_of_it,
    a_block_whose_address_was_given_again_is_not_booked_twice,
    processes_and_threads_that_allocate_and_free_stay_inside_together,
    a_clean_end_releases_the_slot,
}

fn info(free_gib: u64) -> String {
    format!("info = 0 free {} total {}", free_gib * GIB, 4 * GIB)
}

/// Whatever a child does and however it ends, its parent's booking stays.
fn a_child_s_end_does_not_touch_its_parent_s_booking(build: Build) {
    for start in ["fork", "vfork", "spawn"] {
        for end in ["exit", "_exit", "abort", "exec", "kill"] {
            if start == "vfork" && !["_exit", "exec"].contains(&end) {
                continue; // not allowed in a vfork child
            }
            let bench = Bench::new(build);
            let child = format!("child:{start}:{end}:");
            let mut command = bench.client(
                "4GiB",
                "linked",
                &["malloc:a:3221225472", &child, "info", "free:a", "info"],
            );
            let mut out = lines(&mut command);
            out.retain(|line| line != "spawned");
            assert_eq!(
                out,
                [
                    "malloc a = 0",
                    "child ended",
                    &info(1),
                    "free a = 0",
                    &info(4)
                ],
                "{start} {end}"
            );
        }
    }
}

fn a_forked_child_has_a_share_of_its_own_which_ends_with_it(build: Build) {
    for end in ["exit", "_exit", "abort", "exec", "kill"] {
        let bench = Bench::new(build);
        let child = format!(
            "child:fork:{end}:info+malloc:b:2147483648+malloc:c:1073741824+info+free:c+info+malloc:d:536870912"
        );
        let mut command = bench.client(
            "4GiB",
            "linked",
            &["malloc:a:3221225472", &child, "malloc:e:1073741824", "info"],
        );
        let expected = [
            "malloc a = 0",
            &info(1),
            "malloc b = 2 untouched",
            "malloc c = 0",
            &info(0),
            "free c = 0",
            &info(1),
            "malloc d = 0",
            "child ended",
            "malloc e = 0",
            &info(0),
        ];
        assert_eq!(lines(&mut command), expected, "{end}");
    }
}

/// The child's runtime says that it freed the block, the parent still holds it.
fn a_child_that_frees_its_parent_s_block_gives_nothing_back(build: Build) {
    let bench = Bench::new(build);
    let commands = ["malloc:a:3221225472", "child:fork:exit:free:a+info", "info"];
    let mut command = bench.client("4GiB", "linked", &commands);
    let out = lines(Settings::new().rules("hipFree=null").apply(&mut command));
    assert_eq!(
        out,
        [
            "malloc a = 0",
            "free a = 0",
            &info(1),
            "child ended",
            &info(1)
        ]
    );
}

fn a_child_forked_before_the_first_call_begins_by_itself(build: Build) {
    let bench = Bench::new(build);
    let commands = ["child:fork:exit:malloc:a:3221225472+info", "info"];
    let out = lines(&mut bench.client("4GiB", "linked", &commands));
    assert_eq!(out, ["malloc a = 0", &info(1), "child ended", &info(4)]);
}

fn a_child_of_a_child_is_a_process_like_any_other(build: Build) {
    let bench = Bench::new(build);
    let commands = [
        "malloc:a:1073741824",
        "child:fork:exit:malloc:b:1073741824+info+malloc:c:3221225472",
        "info",
    ];
    let out = lines(&mut bench.client("4GiB", "linked", &commands));
    assert_eq!(
        out,
        [
            "malloc a = 0",
            "malloc b = 0",
            &info(2),
            "malloc c = 2 untouched",
            "child ended",
            &info(3)
        ]
    );
}

/// The booking belonged to the old image; the PID is the same.
fn a_new_image_begins_at_nothing(build: Build) {
    let bench = Bench::new(build);
    let out = lines(&mut bench.client(
        "4GiB",
        "linked",
        &["malloc:a:3221225472", "info", "end:self"],
    ));
    assert_eq!(out, ["malloc a = 0", &info(1), &info(4)]);
}

/// Threads that come while the first is still joining the ledger wait for it.
fn the_first_calls_of_many_threads_are_all_counted(build: Build) {
    for _ in 0..10 {
        let bench = Bench::new(build);
        let out = lines(&mut bench.client("4GiB", "linked", &["threads:8:4:268435456", "info"]));
        assert_eq!(out, ["threads: 16 succeeded", &info(0)]);
    }
}

/// A library's constructor runs before ours could, its destructor after.
fn constructors_and_destructors_may_call_hip(build: Build) {
    let library = shared_library("at_load.c", &[&build.path()]);
    let directory = library.parent().unwrap().to_owned();
    let runtime = build.directory();
    let search = format!("-Wl,-rpath-link,{}", runtime.display());
    let user = program("uses_at_load.c", &[&search], &[&library]);
    let command = || {
        let bench = Bench::new(build);
        let mut command = bench.command(&user);
        let libraries = format!("{}:{}", directory.display(), runtime.display());
        command
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("LD_LIBRARY_PATH", libraries);
        (bench, command)
    };
    let begins = [
        "constructor: 0",
        "constructor: 2",
        "main: free 1",
        "main: 2",
    ];
    let (_bench, mut holds) = command();
    let ends = ["destructor: free 0", "destructor: 0", "destructor: 2"];
    assert_eq!(lines(&mut holds), [&begins[..], &ends[..]].concat());
    // Here the slot is released before the destructor runs, which then begins anew.
    let (_bench, mut frees) = command();
    let ends = ["destructor: free 4", "destructor: 0", "destructor: 2"];
    assert_eq!(
        lines(frees.env("FREE_EARLY", "1")),
        [&begins[..], &ends[..]].concat()
    );
}

/// The first calls of two threads, one of them under the dynamic linker's lock.
fn a_library_may_call_hip_while_another_thread_makes_its_first_call(build: Build) {
    let library = shared_library("at_load.c", &[&build.path()]);
    for _ in 0..20 {
        let bench = Bench::new(build);
        let mut command = bench.linked("loads_while_starting.c", &[]);
        let mut out = lines(command.env("FH_MEMORY_LIMIT", "4GiB").arg(&library));
        out.retain(|line| !line.starts_with("destructor"));
        out.sort();
        assert_eq!(out, ["constructor: 0", "constructor: 2", "main: 0"]);
    }
}

fn a_thread_may_be_cancelled_inside_of_the_runtime(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.linked("cancelled.c", &[]);
    command.arg("inside").env("FH_MEMORY_LIMIT", "4GiB");
    let settings = Settings::new().rules("hipMalloc@1=wait:10s");
    let out = lines(settings.apply(&mut command));
    assert_eq!(out, ["cancelled: 1", "hipMalloc: 0"]);
}

/// Our own steps open files, write lines and wait: cancellation points that the program's call has not.
fn a_pending_cancellation_is_not_acted_on_by_us(build: Build) {
    for (how, result) in [("first", 0), ("refused", 2)] {
        let bench = Bench::new(build);
        let mut command = bench.linked("cancelled.c", &[]);
        command
            .arg(how)
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("FH_LOG_LEVEL", "trace");
        let expected = [
            format!("returned: {result}, was enabled: 1"),
            String::from("cancelled: 0"),
            String::from("hipMalloc: 0"),
        ];
        assert_eq!(lines(&mut command), expected, "{how}");
    }
    // The runtime is asked for the current device: that may be a cancellation point as any call of it.
    let bench = Bench::new(build);
    let mut command = bench.linked("cancelled.c", &[]);
    command.arg("first").env("FH_MEMORY_LIMIT", "4GiB");
    let settings = Settings::new().rules("hipGetDevice=wait:1ms");
    let out = lines(settings.apply(&mut command));
    assert_eq!(out, ["cancelled: 1", "hipMalloc: 0"]);
}

/// The program is called back out of every hipMalloc and hipFree.
fn calls_back() -> Settings {
    Settings::new().rules("hipMalloc=call,hipFree=call")
}

/// Neither the mark of the call nor its reservation outlives it.
fn a_call_that_is_left_by_a_jump_is_over(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.linked("left.c", &[]);
    command.arg("jumps").env("FH_MEMORY_LIMIT", "4GiB");
    let out = lines(calls_back().apply(&mut command));
    let expected = [
        "free 4 of 4 GiB",
        "left",
        "8 GiB: 2 2",
        "free 4 of 4 GiB",
        "hipMalloc 0",
        // Whether the block is freed is not known, so it is not, until it is freed again.
        "left",
        "free 3 of 4 GiB",
        "hipFree 0",
        "free 4 of 4 GiB",
    ];
    assert_eq!(out, expected);
}

fn a_call_that_is_left_by_an_exception_is_over(build: Build) {
    if !common::has_cpp() {
        eprintln!("not checked: there is no C++ compiler, c++");
        return;
    }
    let bench = Bench::new(build);
    let mut command = bench.linked("thrown.cpp", &[]);
    command.env("FH_MEMORY_LIMIT", "4GiB");
    let out = lines(calls_back().apply(&mut command));
    let expected = ["caught", "8 GiB: 2", "8 GiB: 2", "free 4 of 4 GiB"];
    assert_eq!(out, expected);
}

/// The outer call is alive: what it calls back belongs to it.
fn a_call_back_out_of_a_call_is_inside_of_it(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.linked("left.c", &[]);
    command.arg("calls").env("FH_MEMORY_LIMIT", "4GiB");
    let out = lines(calls_back().apply(&mut command));
    let expected = [
        "free 4 of 4 GiB",
        "inside: 0",
        "hipMalloc 0",
        "8 GiB: 2 2",
        "free 3 of 4 GiB",
        "inside: 0",
        "hipFree 0",
        "free 4 of 4 GiB",
        "hipFree 1",
        "free 4 of 4 GiB",
    ];
    assert_eq!(out, expected);
}

/// Of two blocks at one address only one can be there, whatever the first one's free is told: if it did not happen, the
/// first one's bytes are given back all the same.
fn a_block_whose_address_was_given_again_is_not_booked_twice(build: Build) {
    for (error, more) in [(0, ""), (1, ",hipFree@1=1-after")] {
        let bench = Bench::new(build);
        let mut command = bench.linked("left.c", &[]);
        command.arg("again").env("FH_MEMORY_LIMIT", "4GiB");
        let settings = Settings::new().rules(&format!("hipFree@1=call-after{more}"));
        let expected = [
            "free 4 of 4 GiB",
            "hipMalloc 0",
            "8 GiB: 2 2",
            "free 3 of 4 GiB",
            "another thread: 0",
            &format!("hipFree {error}"),
            "free 3 of 4 GiB",
            "hipFree 0",
            "free 4 of 4 GiB",
        ];
        assert_eq!(lines(settings.apply(&mut command)), expected);
        let log = std::fs::read_to_string(bench.log()).unwrap_or_default();
        let told = log.contains("1073741824 bytes there were freed");
        assert_eq!(told, error != 0, "{log}");
    }
}

/// The sum never exceeds the limit, and all is given back in the end.
fn processes_and_threads_that_allocate_and_free_stay_inside_together(build: Build) {
    let bench = Bench::new(build);
    // What the stand-in gave to all processes.
    let account = bench.directory.path().join("account");
    let commands = [
        "malloc:z:1",
        "wait",
        "churn:2:1500:268435456",
        "wait",
        "free:z",
    ];
    let mut programs: Vec<Running> = (0..4)
        .map(|_| {
            let mut command = bench.client("1GiB", "linked", &commands);
            Running::start(Settings::new().account(&account).apply(&mut command))
        })
        .collect();
    for program in &mut programs {
        assert_eq!(program.line(), "malloc z = 0");
    }
    // Not before all have their byte: they may be refused while others are at the limit.
    programs.iter_mut().for_each(Running::go_on);
    for program in &mut programs {
        assert_eq!(program.line(), "churn: 0 frees failed");
    }
    let account = Account::open(&account).unwrap();
    assert_eq!(account.used(0), 4);
    let peak = account.peak(0);
    assert!(
        (GIB * 3 / 4..=GIB).contains(&peak),
        "{peak} bytes were held at a time"
    );
    let snapshot = bench.snapshot();
    assert_eq!(snapshot.gpus[0].charged, 4, "one byte each");
    assert_eq!(snapshot.anomalies, 0);
    for mut program in programs {
        program.go_on();
        program.finish();
    }
    assert_eq!(bench.snapshot().members.len(), 0);
}

fn a_clean_end_releases_the_slot(build: Build) {
    let bench = Bench::new(build);
    let mut watcher =
        Running::start(&mut bench.client("4GiB", "linked", &["malloc:a:4096", "wait"]));
    assert_eq!(watcher.line(), "malloc a = 0");
    lines(&mut bench.client("4GiB", "linked", &["malloc:a:1073741824", "free:a"]));
    assert_eq!(
        bench.snapshot().members.len(),
        1,
        "only the watcher is left"
    );
    // What is held until the end is returned by whoever looks next, not before the end.
    lines(&mut bench.client("4GiB", "linked", &["malloc:a:1073741824"]));
    assert_eq!(bench.snapshot().members.len(), 2);
    lines(&mut bench.client("4GiB", "linked", &["malloc:a:4294963200"]));
    watcher.go_on();
    watcher.finish();
}

#[test]
fn a_program_that_never_calls_hip_leaves_no_trace() {
    let bench = Bench::new(Build::Six);
    let mut command = bench.command("/bin/true");
    lines(
        command
            .env("FH_MEMORY_LIMIT", "banana")
            .env("FH_LOG_LEVEL", "trace"),
    );
    assert_eq!(
        std::fs::read_dir(bench.directory.path()).unwrap().count(),
        0
    );
}
