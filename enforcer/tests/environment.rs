//! The variables count as they were when the program started.

mod common;

use std::fs;
use std::process::Command;

use common::{Bench, GIB, on_each_standin, run};
use hip_standin::Build;
use hipflex_ledger::{Ledger, Place};

on_each_standin! {
    a_limit_does_not_end_with_the_variable,
    a_variable_that_was_not_set_may_be_set_before_the_first_call,
    a_program_that_this_one_starts_inherits_what_it_would_without_us,
    values_that_cannot_be_kept_are_an_error_where_the_account_depends_on_them,
}

/// A program that was started with a limit of 4 GiB and then does this.
fn cleans(bench: &Bench, steps: &[&str]) -> Command {
    let mut command = bench.linked("cleans.c", &[]);
    command.env("FH_MEMORY_LIMIT", "4GiB").args(steps);
    command
}

fn prints(command: &mut Command) -> Vec<String> {
    let (out, err) = run(command);
    // The one line is about the refusal.
    assert!(err.len() <= 1, "{err:?}");
    out
}

const REFUSED: [&str; 2] = ["malloc 5368709120 = 2", "malloc 1073741824 = 0"];
const GRANTED: [&str; 2] = ["malloc 5368709120 = 0", "malloc 1073741824 = 0"];
const TRIES: [&str; 2] = ["malloc:5368709120", "malloc:1073741824"];

fn a_limit_does_not_end_with_the_variable(build: Build) {
    let ways: [&[&str]; 7] = [
        &["unset:FH_MEMORY_LIMIT"],
        &["clear"],
        &["overwrite"],
        &["set:FH_MEMORY_LIMIT:8GiB"],
        &["clear", "fork"],
        &["malloc:1", "clear", "fork"],
        // What the programs of this directory need is gone as well: the account is where it was.
        &[
            "unset:FH_SHM_PATH",
            "set:FH_BUDGET:../x",
            "unset:FH_VISIBLE_DEVICES",
        ],
    ];
    for way in ways {
        let bench = Bench::new(build);
        let mut command = cleans(&bench, &[way, &TRIES[..]].concat());
        let out = prints(command.env("FH_BUDGET", "mine"));
        assert_eq!(out[out.len() - 2..], REFUSED, "{way:?}");
        let ledgers = Ledger::list(&Place::new(bench.ledgers(), false)).unwrap();
        assert_eq!(ledgers.len(), 1, "{way:?}");
        assert!(ledgers[0].path.ends_with("mine"), "{ledgers:?}");
    }
}

fn a_variable_that_was_not_set_may_be_set_before_the_first_call(build: Build) {
    let bench = Bench::new(build);
    let limit = "set:FH_MEMORY_LIMIT:4GiB";
    let mut command = cleans(&bench, &[&[limit], &TRIES[..]].concat());
    assert_eq!(prints(command.env_remove("FH_MEMORY_LIMIT")), REFUSED);

    let bench = Bench::new(build);
    let mut command = cleans(&bench, &[&["set:FH_BUDGET:late"], &TRIES[..]].concat());
    assert_eq!(prints(&mut command), REFUSED);
    assert_eq!(bench.snapshot().budget, "late");
}

fn a_program_that_this_one_starts_inherits_what_it_would_without_us(build: Build) {
    let bench = Bench::new(build);
    let after = |step| [&[step, "exec"], &TRIES[..]].concat();
    assert_eq!(
        prints(&mut cleans(&bench, &after("unset:FH_MEMORY_LIMIT"))),
        GRANTED
    );
    assert_eq!(
        prints(&mut cleans(&bench, &after("set:FH_MEMORY_LIMIT:8GiB"))),
        GRANTED
    );
    assert_eq!(
        prints(&mut cleans(&bench, &after("set:FH_BUDGET:other"))),
        REFUSED
    );
}

fn values_that_cannot_be_kept_are_an_error_where_the_account_depends_on_them(build: Build) {
    let long = "x".repeat(20_000);
    for name in ["FH_MEMORY_LIMIT", "FH_BUDGET", "FH_SHM_PATH"] {
        let bench = Bench::new(build);
        let unset = format!("unset:{name}");
        let mut command = cleans(&bench, &[&unset, "malloc:4096"]);
        let (out, err) = run(command.env(name, &long));
        assert_eq!(out, ["malloc 4096 = 2"], "{name}");
        assert_eq!(err.len(), 1, "{err:?}");
        assert!(err[0].contains(name) && err[0].contains("16384"), "{err:?}");
    }
    let bench = Bench::new(build);
    let mut command = cleans(&bench, &TRIES);
    let (out, _) = run(command.env("FH_LOG_LEVEL", "off").env("FH_LOG_PATH", &long));
    assert_eq!(out, REFUSED);
    assert_eq!(fs::read_dir(bench.ledgers()).unwrap().count(), 1);
    assert_eq!(5 * GIB, 5_368_709_120);
}
