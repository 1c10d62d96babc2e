//! What is booked, refused and shown, on a stand-in runtime.

mod common;

use std::time::Duration;

use common::{BOARD, Bench, GIB, Running, lines, on_each_standin, properties, properties_of, run};
use hip_standin::{Build, Settings};

on_each_standin! {
    what_is_freed_can_be_had_again,
    a_native_failure_gives_everything_back,
    a_failed_free_changes_nothing,
    a_free_by_an_address_inside_gives_the_block_back,
    what_takes_nothing_is_left_to_the_runtime,
    a_refusal_is_the_last_error_as_a_native_one_would_be,
    enormous_requests_are_refused_and_change_nothing,
    a_call_inside_of_a_call_counts_once,
    queries_change_only_what_was_asked_for,
    properties_keep_everything_but_the_total,
    attributes_tell_the_limit_and_what_the_runtime_says,
    a_limit_above_the_board_shows_the_board,
    free_is_never_more_than_what_the_board_has,
    unlimited_books_and_refuses_nothing,
    processes_share_a_budget_and_a_killed_one_s_share_comes_back,
    a_process_killed_inside_of_the_native_call_leaves_nothing,
    another_limit_in_a_budget_in_use_is_said_and_the_stricter_holds,
    each_gpu_has_its_own_account_found_by_its_address,
    nothing_is_had_on_a_gpu_that_is_not_known,
    a_question_for_the_total_looks_at_nobody_else,
}

/// `info` of a GPU with a limit of 4 GiB.
fn info(free_gib: u64) -> String {
    format!("info = 0 free {} total {}", free_gib * GIB, 4 * GIB)
}

const THREE_GIB: &str = "malloc:a:3221225472";

fn what_is_freed_can_be_had_again(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client(
        "4GiB",
        "linked",
        &[
            "info",
            THREE_GIB,
            "info",
            "malloc:b:3221225472",
            "free:a",
            "info",
            "malloc:b:4294967296",
            "info",
            "free:b",
            "info",
        ],
    );
    let expected = [
        &info(4),
        "malloc a = 0",
        &info(1),
        "malloc b = 2 untouched",
        "free a = 0",
        &info(4),
        "malloc b = 0",
        &info(0),
        "free b = 0",
        &info(4),
    ];
    assert_eq!(lines(&mut command), expected);
}

fn a_native_failure_gives_everything_back(build: Build) {
    for (rule, result) in [
        ("hipMalloc@1=2", "malloc a = 2 untouched"),
        ("hipMalloc@1=999", "malloc a = 999 untouched"),
        ("hipMalloc@1=null", "malloc a = 0 null"),
    ] {
        let bench = Bench::new(build);
        let mut command = bench.client("4GiB", "linked", &[THREE_GIB, "info"]);
        let settings = Settings::new().rules(rule).vram(1000 * GIB);
        let out = lines(settings.apply(&mut command));
        assert_eq!(out, [result, &info(4)], "{rule}");
    }
}

fn a_failed_free_changes_nothing(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client(
        "4GiB",
        "linked",
        &[
            THREE_GIB, "free:a", "info", "free:a", "info", "free:a", "info",
        ],
    );
    let out = lines(Settings::new().rules("hipFree@1=1").apply(&mut command));
    assert_eq!(
        out,
        [
            "malloc a = 0",
            "free a = 1",
            &info(1),
            "free a = 0",
            &info(4),
            "free a = 1",
            &info(4)
        ]
    );
}

/// The real runtimes free a whole block by any address inside of it.
fn a_free_by_an_address_inside_gives_the_block_back(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &[THREE_GIB, "free_inside:a", "info"]);
    assert_eq!(
        lines(&mut command),
        ["malloc a = 0", "free inside a = 0", &info(4)]
    );
}

fn what_takes_nothing_is_left_to_the_runtime(build: Build) {
    let bench = Bench::new(build);
    let commands = [
        "malloc:z:0",
        "malloc_nowhere:4096",
        "malloc_nowhere:99999999999999",
        "free_null",
        "free_bogus",
        "total_nowhere",
        "info",
    ];
    let with = lines(&mut bench.client("4GiB", "linked", &commands));
    let mut without = bench.client("4GiB", "linked", &commands[..6]);
    let expected = lines(without.env_remove("LD_PRELOAD"));
    assert_eq!(with[..6], expected);
    assert_eq!(with[6], info(4));
}

fn a_refusal_is_the_last_error_as_a_native_one_would_be(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &["malloc:a:5368709120", "last", "last"]);
    assert_eq!(
        lines(&mut command),
        ["malloc a = 2 untouched", "last = 2", "last = 0"]
    );
}

/// Sums near 2^63 and 2^64 wrapped in other limiters.
fn enormous_requests_are_refused_and_change_nothing(build: Build) {
    for size in [
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "4611686018427387905",
    ] {
        let bench = Bench::new(build);
        let mut command = bench.client(
            "unlimited",
            "linked",
            &[
                &format!("malloc:a:{size}"),
                &format!("malloc:b:{size}"),
                "info",
            ],
        );
        let expected = [
            "malloc a = 2 untouched",
            "malloc b = 2 untouched",
            &format!("info = 0 free {BOARD} total {BOARD}"),
        ];
        // The runtime would grant them.
        let settings = Settings::new().rules("hipMalloc=null");
        assert_eq!(lines(settings.apply(&mut command)), expected, "{size}");
    }
}

fn a_call_inside_of_a_call_counts_once(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &[THREE_GIB, "info", "free:a", "info"]);
    let out = lines(Settings::new().set("NESTED", "1").apply(&mut command));
    assert_eq!(out, ["malloc a = 0", &info(1), "free a = 0", &info(4)]);
}

fn queries_change_only_what_was_asked_for(build: Build) {
    let bench = Bench::new(build);
    let commands = [THREE_GIB, "info:free", "info:total", "info:none", "total"];
    let total = 4 * GIB;
    let expected = [
        String::from("malloc a = 0"),
        format!("info = 0 free {GIB} total 7"),
        format!("info = 0 free 7 total {total}"),
        String::from("info = 0 free 7 total 7"),
        format!("total = 0 {total}"),
    ];
    assert_eq!(
        lines(&mut bench.client("4GiB", "linked", &commands)),
        expected
    );
}

/// In each layout that the runtime has: they differ between releases, and one release may have two.
fn properties_keep_everything_but_the_total(build: Build) {
    let bench = Bench::new(build);
    let questions = properties_of(build);
    let expected: Vec<String> = questions
        .iter()
        .map(|question| properties(build, question, 4 * GIB))
        .collect();
    assert_eq!(
        lines(&mut bench.client("4GiB", "linked", questions)),
        expected
    );
}

/// The total is an int, of which a larger board gets the largest; 5.x has no such attribute.
fn attributes_tell_the_limit_and_what_the_runtime_says(build: Build) {
    let bench = Bench::new(build);
    let ask = |limit: &str| {
        let commands = [
            "attribute:84",
            "attribute:63",
            "attribute:87",
            "attribute:63:nowhere",
        ];
        lines(&mut bench.client(
            limit,
            "linked",
            &[&commands[..], &["attribute:5000"]].concat(),
        ))
    };
    let rest = [
        "attribute = 0 104",
        "attribute = 0 64",
        "attribute = 1 7",
        "attribute = 1 7",
    ];
    let total = |answer: &str| match build.generation() {
        5 => String::from("attribute = 1 7"),
        _ => format!("attribute = 0 {answer}"),
    };
    for (limit, answer) in [("4GiB", "2147483647"), ("1GiB", "1073741824")] {
        let told = ask(limit);
        assert_eq!(told[0], total(answer), "{limit}");
        assert_eq!(told[1..], rest, "{limit}");
    }
}

fn a_limit_above_the_board_shows_the_board(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client(
        "128GiB",
        "linked",
        &["info", "total", "malloc:a:68719476736", "info"],
    );
    let expected = [
        format!("info = 0 free {BOARD} total {BOARD}"),
        format!("total = 0 {BOARD}"),
        String::from("malloc a = 0"),
        format!("info = 0 free 0 total {BOARD}"),
    ];
    assert_eq!(lines(&mut command), expected);
}

/// Other programs, without a limit, may hold what the limit would allow.
fn free_is_never_more_than_what_the_board_has(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &["info"]);
    let out = lines(Settings::new().vram(3 * GIB).apply(&mut command));
    assert_eq!(
        out,
        [format!("info = 0 free {} total {}", 3 * GIB, 3 * GIB)]
    );
}

fn unlimited_books_and_refuses_nothing(build: Build) {
    let bench = Bench::new(build);
    let mut first =
        Running::start(&mut bench.client("unlimited", "linked", &["malloc:a:34359738368", "wait"]));
    assert_eq!(first.line(), "malloc a = 0");
    let charged: Vec<u64> = bench
        .snapshot()
        .gpus
        .iter()
        .map(|gpu| gpu.charged)
        .collect();
    assert_eq!(charged, [32 * GIB]);
    first.go_on();
    first.finish();
}

fn processes_share_a_budget_and_a_killed_one_s_share_comes_back(build: Build) {
    let bench = Bench::new(build);
    let mut first = Running::start(&mut bench.client("4GiB", "linked", &[THREE_GIB, "wait"]));
    assert_eq!(first.line(), "malloc a = 0");
    let commands = [
        "info",
        "malloc:a:2147483648",
        "wait",
        "info",
        "wait",
        "malloc:a:2147483648",
    ];
    let mut second = Running::start(&mut bench.client("4GiB", "linked", &commands));
    assert_eq!(second.line(), info(1));
    assert_eq!(second.line(), "malloc a = 2 untouched");
    first.kill();
    // A query looks for dead neighbours at most every 100 ms.
    std::thread::sleep(Duration::from_millis(150));
    second.go_on();
    assert_eq!(second.line(), info(4));
    second.go_on();
    assert_eq!(second.line(), "malloc a = 0");
    second.finish();
}

fn a_process_killed_inside_of_the_native_call_leaves_nothing(build: Build) {
    let bench = Bench::new(build);
    // As long as somebody lives, the ledger stays: nothing is given back by beginning a new one.
    let mut other = Running::start(&mut bench.client("4GiB", "linked", &["malloc:a:4096", "wait"]));
    assert_eq!(other.line(), "malloc a = 0");
    for rule in ["hipMalloc@1=kill", "hipMalloc@1=kill-after"] {
        let mut killed = bench.client("4GiB", "linked", &[THREE_GIB]);
        let settings = Settings::new().rules(rule);
        assert!(!settings.apply(&mut killed).status().unwrap().success());
        let mut command = bench.client("4GiB", "linked", &["malloc:a:4294963200"]);
        assert_eq!(lines(&mut command), ["malloc a = 0"], "{rule}");
    }
    other.go_on();
    other.finish();
}

fn another_limit_in_a_budget_in_use_is_said_and_the_stricter_holds(build: Build) {
    let bench = Bench::new(build);
    let mut first =
        Running::start(&mut bench.client("4GiB", "linked", &["malloc:a:1073741824", "wait"]));
    assert_eq!(first.line(), "malloc a = 0");
    let (out, err) = run(&mut bench.client("8GiB", "linked", &["info"]));
    assert_eq!(out, [info(3)]);
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(
        err[0].contains("4.0 GiB") && err[0].contains("8.0 GiB") && err[0].contains("FH_BUDGET"),
        "{err:?}"
    );
    let (out, _) = run(bench
        .client("8GiB", "linked", &["info"])
        .env("FH_BUDGET", "another"));
    assert_eq!(
        out,
        [format!("info = 0 free {} total {}", 8 * GIB, 8 * GIB)]
    );
    first.go_on();
    first.finish();
}

/// HIP's numbers follow HIP's own order, the account goes by address.
fn each_gpu_has_its_own_account_found_by_its_address(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client(
        "0000:03:00.0=1GiB,0000:83:00.0=2GiB",
        "linked",
        &[
            "info",
            "malloc:a:2147483648",
            "device:1",
            "info",
            "malloc:b:2147483648",
            "malloc:c:1073741824",
            "device:0",
            "free:c",
            "info",
            "free:a",
            "info",
        ],
    );
    command.env("FH_VISIBLE_DEVICES", "0000:03:00.0,amd-gpu-0000:83:00.0");
    let order = "0000:83:00.0,0000:03:00.0";
    Settings::new().devices(order).apply(&mut command);
    let at = |free: u64, total: u64| format!("info = 0 free {} total {}", free * GIB, total * GIB);
    let expected = [
        &at(2, 2),
        "malloc a = 0",
        "device = 0",
        &at(1, 1),
        "malloc b = 2 untouched",
        "malloc c = 0",
        "device = 0",
        "free c = 0",
        &at(0, 2),
        "free a = 0",
        &at(2, 2),
    ];
    assert_eq!(lines(&mut command), expected);
}

/// A device of HIP that is none of the GPUs, or that may be one of several.
fn nothing_is_had_on_a_gpu_that_is_not_known(build: Build) {
    let ambiguous = "0000:c3:00.0,0000:c3:00.0/1";
    for (listed, words) in [
        ("0000:03:00.0", ["0000:c3:00.0", "FH_VISIBLE_DEVICES lists"]),
        (ambiguous, ["0000:c3:00.0", "partitions"]),
    ] {
        let bench = Bench::new(build);
        let mut command = bench.client(
            "4GiB",
            "linked",
            &["malloc:a:4096", "info", "total", "malloc:a:4096"],
        );
        command.env("FH_VISIBLE_DEVICES", listed);
        Settings::new().devices("0000:c3:00.0").apply(&mut command);
        let (out, err) = run(&mut command);
        let expected = [
            "malloc a = 2 untouched",
            &format!("info = 0 free 0 total {BOARD}"),
            &format!("total = 0 {BOARD}"),
            "malloc a = 2 untouched",
        ];
        assert_eq!(out, expected);
        assert_eq!(err.len(), 1, "{err:?}");
        for word in words.into_iter().chain(["refused", "FH_FAIL_MODE=open"]) {
            assert!(err[0].contains(word), "{word} is missing: {err:?}");
        }
        let (out, err) = run(command.env("FH_FAIL_MODE", "open"));
        let expected = [
            "malloc a = 0",
            &format!("info = 0 free {} total {BOARD}", BOARD - 4096),
            &format!("total = 0 {BOARD}"),
            "malloc a = 0",
        ];
        assert_eq!(out, expected);
        assert_eq!(err.len(), 1, "{err:?}");
        for word in words.into_iter().chain(["NOT limited"]) {
            assert!(err[0].contains(word), "{word} is missing: {err:?}");
        }
    }
}

/// The total is the limit: nobody has to be summed up or looked for.
fn a_question_for_the_total_looks_at_nobody_else(build: Build) {
    let bench = Bench::new(build);
    let mut first = Running::start(&mut bench.client("4GiB", "linked", &[THREE_GIB, "wait"]));
    assert_eq!(first.line(), "malloc a = 0");
    let mut second = Running::start(&mut bench.client(
        "4GiB",
        "linked",
        &["wait", "total", "wait", "info", "wait"],
    ));
    // Joins, then waits.
    second.go_on();
    assert_eq!(second.line(), format!("total = 0 {}", 4 * GIB));
    first.kill();
    let members = || bench.snapshot().members.len();
    assert_eq!(members(), 2);
    second.go_on();
    assert_eq!(second.line(), info(4));
    assert_eq!(members(), 1);
    second.go_on();
    second.finish();
}
