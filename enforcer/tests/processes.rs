//! Forks, threads, beginnings and ends of processes.

mod common;

use common::{Bench, GIB, Running, client, lines, program, shared_library};

fn info(free_gib: u64) -> String {
    format!("info = 0 free {} total {}", free_gib * GIB, 4 * GIB)
}

/// Whatever a child does and however it ends, its parent's booking stays.
#[test]
fn a_child_s_end_does_not_touch_its_parent_s_booking() {
    for start in ["fork", "vfork", "spawn"] {
        for end in ["exit", "_exit", "abort", "exec", "kill"] {
            if start == "vfork" && !["_exit", "exec"].contains(&end) {
                continue; // not allowed in a vfork child
            }
            let bench = Bench::new();
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

#[test]
fn a_forked_child_has_a_share_of_its_own_which_ends_with_it() {
    for end in ["exit", "_exit", "abort", "exec", "kill"] {
        let bench = Bench::new();
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

/// The child's runtime forgets the block, the parent still holds it.
#[test]
fn a_child_that_frees_its_parent_s_block_gives_nothing_back() {
    let bench = Bench::new();
    let commands = ["malloc:a:3221225472", "child:fork:exit:free:a+info", "info"];
    let out = lines(&mut bench.client("4GiB", "linked", &commands));
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

#[test]
fn a_child_forked_before_the_first_call_begins_by_itself() {
    let bench = Bench::new();
    let commands = ["child:fork:exit:malloc:a:3221225472+info", "info"];
    let out = lines(&mut bench.client("4GiB", "linked", &commands));
    assert_eq!(out, ["malloc a = 0", &info(1), "child ended", &info(4)]);
}

#[test]
fn a_child_of_a_child_is_a_process_like_any_other() {
    let bench = Bench::new();
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
#[test]
fn a_new_image_begins_at_nothing() {
    let bench = Bench::new();
    let out = lines(&mut bench.client(
        "4GiB",
        "linked",
        &["malloc:a:3221225472", "info", "end:self"],
    ));
    assert_eq!(out, ["malloc a = 0", &info(1), &info(4)]);
}

/// Threads that come while the first is still joining the ledger wait for it.
#[test]
fn the_first_calls_of_many_threads_are_all_counted() {
    for _ in 0..10 {
        let bench = Bench::new();
        let out = lines(&mut bench.client("4GiB", "linked", &["threads:8:4:268435456", "info"]));
        assert_eq!(out, ["threads: 16 succeeded", &info(0)]);
    }
}

/// A library's constructor runs before ours could, its destructor after.
#[test]
fn constructors_and_destructors_may_call_hip() {
    let library = shared_library("at_load.c", true);
    let directory = library.parent().unwrap().to_owned();
    let runtime = common::runtime();
    let search = format!("-Wl,-rpath-link,{}", runtime.display());
    let user = program("uses_at_load.c", &[&search], &[&library]);
    let command = || {
        let bench = Bench::new();
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
#[test]
fn a_library_may_call_hip_while_another_thread_makes_its_first_call() {
    let library = shared_library("at_load.c", true);
    let program = program(
        "loads_while_starting.c",
        &[],
        &[&common::runtime().join("libamdhip64.so.6")],
    );
    for _ in 0..20 {
        let bench = Bench::new();
        let mut command = bench.command(&program);
        let mut out = lines(command.env("FH_MEMORY_LIMIT", "4GiB").arg(&library));
        out.retain(|line| !line.starts_with("destructor"));
        out.sort();
        assert_eq!(out, ["constructor: 0", "constructor: 2", "main: 0"]);
    }
}

fn on_stand_in(source: &str, arguments: &[&str]) -> std::path::PathBuf {
    program(
        source,
        arguments,
        &[&common::runtime().join("libamdhip64.so.6")],
    )
}

#[test]
fn a_thread_may_be_cancelled_inside_of_the_runtime() {
    let bench = Bench::new();
    let mut command = bench.command(on_stand_in("cancelled.c", &[]));
    let out = lines(
        command
            .arg("inside")
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("FAKE_SLEEP_MALLOC", "1"),
    );
    assert_eq!(out, ["cancelled: 1", "hipMalloc: 0"]);
}

/// Our own steps open files, write lines and wait: cancellation points that the program's call has not.
#[test]
fn a_pending_cancellation_is_not_acted_on_by_us() {
    for (how, result) in [("first", 0), ("refused", 2)] {
        let bench = Bench::new();
        let mut command = bench.command(on_stand_in("cancelled.c", &[]));
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
    let bench = Bench::new();
    let mut command = bench.command(on_stand_in("cancelled.c", &[]));
    command
        .arg("first")
        .env("FH_MEMORY_LIMIT", "4GiB")
        .env("FAKE_CANCEL_POINT", "1");
    assert_eq!(lines(&mut command), ["cancelled: 1", "hipMalloc: 0"]);
}

/// Neither the mark of the call nor its reservation outlives it.
#[test]
fn a_call_that_is_left_by_a_jump_is_over() {
    let bench = Bench::new();
    let mut command = bench.command(on_stand_in("left.c", &["-rdynamic"]));
    let out = lines(command.arg("jumps").env("FH_MEMORY_LIMIT", "4GiB"));
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

#[test]
fn a_call_that_is_left_by_an_exception_is_over() {
    if !common::has_cpp() {
        eprintln!("not checked: there is no C++ compiler, c++");
        return;
    }
    let bench = Bench::new();
    let mut command = bench.command(on_stand_in("thrown.cpp", &["-rdynamic"]));
    let out = lines(command.env("FH_MEMORY_LIMIT", "4GiB"));
    let expected = ["caught", "8 GiB: 2", "8 GiB: 2", "free 4 of 4 GiB"];
    assert_eq!(out, expected);
}

/// The outer call is alive: what it calls back belongs to it.
#[test]
fn a_call_back_out_of_a_call_is_inside_of_it() {
    let bench = Bench::new();
    let mut command = bench.command(on_stand_in("left.c", &["-rdynamic"]));
    let out = lines(command.arg("calls").env("FH_MEMORY_LIMIT", "4GiB"));
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

/// Of two blocks at one address only one can be there: the other's bytes are given back.
#[test]
fn a_block_whose_address_was_given_again_is_not_booked_twice() {
    let bench = Bench::new();
    let mut command = bench.command(on_stand_in("left.c", &["-rdynamic"]));
    let out = lines(
        command
            .arg("again")
            .env("FH_MEMORY_LIMIT", "4GiB")
            .env("FAKE_SAME_ADDRESS", "1")
            .env("FAKE_FAIL_FREE", "1"),
    );
    let expected = [
        "free 4 of 4 GiB",
        "hipMalloc 0",
        "8 GiB: 2 2",
        "free 3 of 4 GiB",
        "another thread: 0",
        "hipFree 1",
        "free 3 of 4 GiB",
        "hipFree 0",
        "free 4 of 4 GiB",
    ];
    assert_eq!(out, expected);
    let log = std::fs::read_to_string(bench.log()).unwrap();
    assert!(log.contains("1073741824 bytes there were freed"), "{log}");
}

/// The sum never exceeds the limit, and all is given back in the end.
#[test]
fn processes_and_threads_that_allocate_and_free_stay_inside_together() {
    let bench = Bench::new();
    // The stand-in's own account of all processes: bytes held, and the most that was held at a time.
    let account = bench.directory.path().join("account");
    std::fs::write(&account, [0; 16]).unwrap();
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
            Running::start(command.env("FAKE_SHARED", &account))
        })
        .collect();
    for program in &mut programs {
        assert_eq!(program.line(), "malloc z = 0");
        program.go_on();
    }
    for program in &mut programs {
        assert_eq!(program.line(), "churn: 0 frees failed");
    }
    let numbers = std::fs::read(&account).unwrap();
    let [held, peak] = [0, 8].map(|at| u64::from_le_bytes(numbers[at..at + 8].try_into().unwrap()));
    assert_eq!(held, 4);
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

#[test]
fn a_clean_end_releases_the_slot() {
    let bench = Bench::new();
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
    let bench = Bench::new();
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
    assert!(client(true).exists());
}
