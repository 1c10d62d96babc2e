//! `hipflex status`, the real binary, on ledgers that live and dead processes have joined.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{Bench, stderr, stdout};
use hipflex_ledger::{BudgetName, GpuKey, GpuSpec, Identity, Limit, Member, Place};
use serde_json::Value;

const GIB: u64 = 1 << 30;
const GPU: GpuKey = GpuKey(0x0300);

/// The variable that makes a copy of this test program join a budget: `ROOT|BUDGET|LIMIT|BYTES`.
const HOLD: &str = "HIPFLEX_TEST_HOLD";

fn join(place: &Place, budget: &str, limit: Limit, comm: &str) -> Member {
    let gpus = [GpuSpec {
        key: GPU,
        limit,
        board_bytes: 64 * GIB,
    }];
    let identity = Identity {
        comm: comm.into(),
        library_version: String::from("1.2.3"),
    };
    Member::join(place, &BudgetName::new(budget).unwrap(), &gpus, &identity)
        .unwrap()
        .member
}

fn book(member: &Member, bytes: u64) {
    let reservation = member.reserve(0, bytes).unwrap();
    member.commit(reservation, bytes);
}

/// Also the part of a [`Holder`]: with an order in the environment, this process holds GPU memory
/// until it is killed.
#[test]
fn a_process_that_leaves_holds_nothing() {
    if let Ok(order) = std::env::var(HOLD) {
        return hold(&order);
    }
    let bench = Bench::with_gpus(1);
    let member = join(&bench.place(), "team", Limit::Bytes(GIB), "leaver");
    book(&member, GIB);
    assert!(member.leave().is_err(), "it holds something");
    member.release(0, GIB);
    member.leave().unwrap();
    let message = stderr(&bench.output(&["status"]));
    assert_eq!(
        message,
        "hipflex: Budget team: tidied away, as no process uses it any more\n"
    );
}

fn hold(order: &str) {
    let mut words = order.split('|');
    let mut word = || words.next().unwrap();
    let place = Place::new(word(), false);
    let (budget, limit, bytes) = (word(), word().parse().unwrap(), word().parse().unwrap());
    let member = join(&place, budget, Limit::Bytes(limit), "holder");
    book(&member, bytes);
    // The test harness keeps standard output for itself.
    std::io::stderr().write_all(b"holding\n").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Another process that holds something; it ends with its value.
struct Holder(Child);

impl Holder {
    fn start(bench: &Bench, budget: &str, limit: u64, bytes: u64) -> Self {
        let command = Command::new(std::env::current_exe().unwrap());
        Self::start_by(command, bench, budget, limit, bytes)
    }

    /// One of another user than root.
    fn start_without_privileges(bench: &Bench, budget: &str, limit: u64, bytes: u64) -> Self {
        let own = std::env::current_exe().unwrap();
        let command = bench.command_without_privileges(&own);
        Self::start_by(command, bench, budget, limit, bytes)
    }

    fn start_by(mut command: Command, bench: &Bench, budget: &str, limit: u64, bytes: u64) -> Self {
        let mut child = command
            .args([
                "--exact",
                "a_process_that_leaves_holds_nothing",
                "--nocapture",
            ])
            .env(
                HOLD,
                format!(
                    "{}|{budget}|{limit}|{bytes}",
                    bench.path("ledgers").display()
                ),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "holding\n");
        Self(child)
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have been killed already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn json(bench: &Bench, arguments: &[&str]) -> (Value, i32) {
    let output = bench.output(&[&["status", "--json"][..], arguments].concat());
    let value = serde_json::from_slice(&output.stdout).unwrap();
    (value, output.status.code().unwrap())
}

#[test]
fn no_ledgers_is_no_error() {
    let bench = Bench::with_gpus(1);
    fs::create_dir(bench.path("ledgers")).unwrap();
    let output = bench.output(&["status"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stdout(&output).starts_with(nothing("")),
        "{}",
        stdout(&output)
    );
    assert_eq!(stderr(&output), "");
    let (document, code) = json(&bench, &[]);
    assert_eq!(
        (code, document["budgets"].as_array().unwrap().len()),
        (0, 0)
    );
}

/// How the view begins when there is no budget, for the user who runs this test.
fn nothing(of_name: &str) -> &'static str {
    let root = nix::unistd::geteuid().is_root();
    match (root, of_name) {
        (true, "") => "No budget is in use.",
        (true, _) => "No budget three is in use.",
        (false, "") => "You have no budget in use (those of other users are shown to root).",
        (false, _) => "You have no budget three (those of other users are shown to root).",
    }
}

#[test]
fn a_directory_that_is_missing_is_told_and_not_made() {
    let bench = Bench::with_gpus(1);
    let with = |path: &str| {
        bench
            .hipflex(&["status"])
            .env("FH_SHM_PATH", path)
            .output()
            .unwrap()
    };
    let (ledgers, below) = (bench.path("ledgers"), bench.path("ledgers/x"));
    let output = with(ledgers.to_str().unwrap());
    assert_eq!(
        output.status.code(),
        Some(0),
        "nothing has been started yet"
    );
    assert_eq!(
        stderr(&output),
        format!(
            "hipflex: there is no directory {} (FH_SHM_PATH): no program has been started with it yet\n",
            ledgers.display()
        )
    );
    let output = with(below.to_str().unwrap());
    assert_eq!(
        stderr(&output),
        format!(
            "hipflex: there is no directory {} (FH_SHM_PATH), nor the {} that it should be in\n",
            below.display(),
            ledgers.display()
        )
    );
    assert!(!ledgers.exists(), "looking makes nothing");

    let relative = with("relative/path");
    assert_eq!(relative.status.code(), Some(2));
    assert!(
        stderr(&relative).starts_with("hipflex: FH_SHM_PATH=relative/path is not an absolute path"),
        "{}",
        stderr(&relative)
    );
}

#[test]
fn gpus_are_listed_with_their_addresses_and_what_is_used() {
    let bench = Bench::with_gpus(2);
    fs::create_dir(bench.path("ledgers")).unwrap();
    let rows = |arguments: &[&str]| -> Vec<String> {
        let text = stdout(&bench.output(arguments));
        let mut lines = text.lines().map(str::to_owned);
        let heading = lines.by_ref().find(|line| line == "GPUs of this machine:");
        heading.map(|_| lines.collect()).unwrap_or_default()
    };
    bench.file(
        "machine/sys/bus/pci/devices/0000:03:00.0/product_name",
        "AMD Instinct MI210\n",
    );
    bench.file(
        "machine/sys/bus/pci/devices/0000:03:00.0/mem_info_vram_used",
        "1073741824\n",
    );
    let without_budgets = rows(&["status"]);
    assert_eq!(
        without_budgets,
        [
            "  GPU           NAME                    VRAM     USED",
            "  0000:03:00.0  AMD Instinct MI210  64.0 GiB  1.0 GiB",
            "  0000:04:00.0  AMD GPU             64.0 GiB        –",
        ]
    );
    let _member = join(&bench.place(), "team", Limit::Bytes(GIB), "me");
    assert_eq!(rows(&["status"]), without_budgets, "and below budgets");
    assert_eq!(
        rows(&["status", "--budget", "team"]),
        Vec::<String>::new(),
        "only the budget was asked for"
    );
    let (document, _) = json(&bench, &[]);
    let boards = document["boards"].as_array().unwrap();
    assert_eq!(boards.len(), 2);
    assert_eq!(boards[0]["limits_bytes"], GIB);
    assert_eq!(boards[1]["limits_bytes"], 0);
    assert_eq!(boards[1]["overcommitted"], false);
}

#[test]
fn a_live_process_is_shown_with_its_figures() {
    let bench = Bench::with_gpus(1);
    let member = join(&bench.place(), "team", Limit::Bytes(4 * GIB), "训练\n任务");
    book(&member, 5 * GIB / 2);
    member.release(0, GIB / 2);
    let denial = member.reserve(0, 3 * GIB).unwrap_err();
    member.record_refusal(0, &denial, "hipMalloc");

    let output = bench.output(&["status"]);
    let text = stdout(&output);
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(0), "")
    );
    let pid = std::process::id().to_string();
    for part in [
        "Budget team: 1 process",
        "0000:03:00.0",
        "4.0 GiB",
        "2.0 GiB",
        "2.5 GiB",
        &pid,
        "训练",
        "last refused: 3.0 GiB by hipMalloc, ",
        "limit 4.0 GiB: held here 2.0 GiB, by others 0 B, free 2.0 GiB",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }

    let (document, code) = json(&bench, &[]);
    assert_eq!(code, 0);
    let budget = &document["budgets"][0];
    assert_eq!(budget["name"], "team");
    assert_eq!(budget["gpus"][0]["bdf"], "0000:03:00.0");
    assert_eq!(budget["gpus"][0]["limit_bytes"], 4 * GIB);
    assert_eq!(budget["gpus"][0]["booked_bytes"], 2 * GIB);
    assert_eq!(budget["gpus"][0]["free_bytes"], 2 * GIB);
    let process = &budget["processes"][0];
    assert_eq!(process["pid"], std::process::id());
    assert_eq!(process["alive"], true);
    assert_eq!(process["library_version"], "1.2.3");
    assert_eq!(
        (
            &process["allocations"],
            &process["frees"],
            &process["refusals"]
        ),
        (&1.into(), &1.into(), &1.into())
    );
    assert_eq!(process["gpus"][0]["peak_bytes"], 5 * GIB / 2);
    let refusal = &process["last_refusal"];
    assert_eq!(refusal["bytes"], 3 * GIB);
    assert_eq!(refusal["reason"], "over-limit");
    assert_eq!(refusal["limit_bytes"], 4 * GIB);
    assert_eq!(refusal["held_bytes"], 2 * GIB);
    assert_eq!(refusal["others_bytes"], 0);
    assert_eq!(refusal["available_bytes"], 2 * GIB);
    // Not measured is not 0, and 0 that was measured is.
    assert!(budget["gpus"][0]["overhead_bytes"].is_null());
    assert!(process["gpus"][0]["overhead_bytes"].is_null());
    member.set_overhead(0, 0);
    let (document, _) = json(&bench, &[]);
    let budget = &document["budgets"][0];
    assert_eq!(budget["gpus"][0]["overhead_bytes"], 0);
    assert_eq!(budget["processes"][0]["gpus"][0]["overhead_bytes"], 0);
    assert_eq!(process["last_refusal"]["api"], "hipMalloc");
}

#[test]
fn what_a_killed_process_held_is_returned_and_told() {
    let bench = Bench::with_gpus(1);
    let member = join(&bench.place(), "team", Limit::Bytes(4 * GIB), "me");
    book(&member, GIB);
    let mut holder = Holder::start(&bench, "team", 4 * GIB, 2 * GIB);
    let (document, _) = json(&bench, &[]);
    assert_eq!(document["budgets"][0]["gpus"][0]["booked_bytes"], 3 * GIB);
    assert_eq!(
        document["budgets"][0]["processes"]
            .as_array()
            .unwrap()
            .len(),
        2
    );

    holder.kill();
    let output = bench.output(&["status", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        stderr(&output),
        "hipflex: Budget team: 2.0 GiB of 1 ended process given back\n"
    );
    assert_eq!(document["budgets"][0]["returned"]["bytes"], 2 * GIB);
    assert_eq!(document["budgets"][0]["gpus"][0]["booked_bytes"], GIB);
    assert_eq!(
        document["budgets"][0]["processes"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        stderr(&bench.output(&["status"])),
        "",
        "it is returned once"
    );
}

#[test]
fn a_ledger_that_nobody_uses_is_removed() {
    let bench = Bench::with_gpus(1);
    let mut holder = Holder::start(&bench, "alone", 4 * GIB, GIB);
    holder.kill();
    let output = bench.output(&["status"]);
    assert_eq!(
        stderr(&output),
        "hipflex: Budget alone: tidied away, as no process uses it any more (1.0 GiB of 1 ended process given back)\n"
    );
    assert!(stdout(&output).starts_with(nothing("")));
    assert!(
        !bench
            .place()
            .ledger_path(&BudgetName::new("alone").unwrap())
            .exists()
    );
}

#[test]
fn run_removes_what_earlier_runs_left() {
    let bench = Bench::with_gpus(1);
    let mut holder = Holder::start(&bench, "left", 4 * GIB, GIB);
    let path = bench.place().ledger_path(&BudgetName::new("left").unwrap());
    assert!(
        bench
            .output(&["run", "--memory", "1GiB", "--", "true"])
            .status
            .success()
    );
    assert!(path.exists(), "it is in use");
    holder.kill();
    assert!(
        bench
            .output(&["run", "--memory", "1GiB", "--", "true"])
            .status
            .success()
    );
    assert!(!path.exists());
}

#[test]
fn run_leaves_it_to_the_library_to_tell_that_a_stricter_limit_holds() {
    let bench = Bench::with_gpus(1);
    let _holder = Holder::start(&bench, "team", GIB, 4096);
    let output = bench.output(&["run", "--memory", "2GiB", "--budget", "team", "--", "true"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "");
}

#[test]
fn run_tells_of_a_budget_of_the_same_name_of_another_user() {
    let bench = Bench::with_gpus(1);
    let arguments = ["run", "--memory", "2GiB", "--budget", "team"];
    let run = |more: &[&str]| {
        let output = bench.output(&[&arguments[..], more, &["--", "true"]].concat());
        assert_eq!(output.status.code(), Some(0));
        stderr(&output)
    };
    assert_eq!(run(&[]), "");
    if nix::unistd::geteuid().is_root() {
        let holder = Holder::start_without_privileges(&bench, "team", GIB, 4096);
        for (more, part) in [
            (&[][..], "start the programs of both with --shared"),
            (&["--shared"], "start those programs with --shared, too"),
        ] {
            let message = run(more);
            assert!(
                message.starts_with("hipflex: warning: there are two budgets team")
                    && message.contains(part),
                "{message}"
            );
        }
        drop(holder);
    }
    let _own = Holder::start(&bench, "team", GIB, 4096);
    assert_eq!(run(&[]), "");
    assert!(run(&["--shared"]).contains("this run joins the one for all users, and yours is"));
}

#[test]
fn a_file_that_is_no_ledger_is_told_and_the_others_are_shown() {
    let bench = Bench::with_gpus(1);
    let _member = join(&bench.place(), "good", Limit::Unlimited, "me");
    let bad = bench.place().ledger_path(&BudgetName::new("bad").unwrap());
    fs::write(&bad, "garbage").unwrap();
    let output = bench.output(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stdout(&output).contains("Budget good: 1 process"),
        "{}",
        stdout(&output)
    );
    assert!(
        stderr(&output).contains(bad.to_str().unwrap()),
        "{}",
        stderr(&output)
    );
    let (document, code) = json(&bench, &[]);
    assert_eq!(code, 1);
    assert_eq!(document["unusable"][0]["path"], bad.to_str().unwrap());
    assert_eq!(document["budgets"][0]["name"], "good");
    assert!(document["budgets"][0]["gpus"][0]["limit_bytes"].is_null());
    assert!(bad.exists(), "what is not ours is not removed");
}

#[test]
fn only_the_named_budget_is_shown() {
    let bench = Bench::with_gpus(1);
    let _one = join(&bench.place(), "one", Limit::Bytes(GIB), "me");
    let _two = join(&bench.place(), "two", Limit::Bytes(GIB), "me");
    let text = stdout(&bench.output(&["status", "--budget", "two"]));
    assert!(
        text.contains("Budget two") && !text.contains("Budget one"),
        "{text}"
    );
    let none = bench.output(&["status", "--budget", "three"]);
    assert_eq!(none.status.code(), Some(0));
    assert!(stdout(&none).starts_with(nothing("three")));
    let bad = bench.output(&["status", "--budget", "../x"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(
        stderr(&bad).starts_with("hipflex: --budget: '../x' is not a budget name; use "),
        "{}",
        stderr(&bad)
    );
}

#[test]
fn a_user_is_told_that_there_may_be_budgets_of_others() {
    let bench = Bench::with_gpus(1);
    let mut command = bench.hipflex_without_privileges(&["status", "--budget", "many"]);
    let output = command.env("FH_SHM_PATH", "").output().unwrap();
    let text = stdout(&output);
    assert!(
        text.starts_with("You have no budget many (those of other users are shown to root)."),
        "{text} {}",
        stderr(&output)
    );
}

#[test]
fn limits_that_add_up_to_more_than_the_board_are_told() {
    let bench = Bench::with_gpus(1);
    let _one = join(&bench.place(), "one", Limit::Bytes(40 * GIB), "me");
    assert_eq!(stderr(&bench.output(&["status"])), "");
    let _two = join(&bench.place(), "two", Limit::Bytes(30 * GIB), "me");
    let message = stderr(&bench.output(&["status"]));
    assert!(
        message.contains("0000:03:00.0")
            && message.contains("70.0 GiB")
            && message.contains("64.0 GiB"),
        "{message}"
    );
    assert_eq!(json(&bench, &[]).0["boards"][0]["overcommitted"], true);
}

#[test]
fn a_reader_that_goes_away_is_no_panic() {
    let bench = Bench::with_gpus(1);
    let _member = join(&bench.place(), "team", Limit::Bytes(GIB), "me");
    for ignore_sigpipe in [false, true] {
        let mut command = bench.hipflex(&["status", "--json"]);
        if ignore_sigpipe {
            // SAFETY: signal(2) is async-signal-safe.
            unsafe {
                std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                    libc::signal(libc::SIGPIPE, libc::SIG_IGN);
                    Ok(())
                });
            }
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let reader: ChildStdout = child.stdout.take().unwrap();
        drop(reader);
        let output = child.wait_with_output().unwrap();
        assert_eq!(stderr(&output), "");
        let ended_by_signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        assert!(
            output.status.success() || ended_by_signal == Some(libc::SIGPIPE),
            "{}",
            output.status
        );
    }
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let bench = Bench::with_gpus(1);
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = bench.hipflex(&["status"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("cannot write"),
        "{}",
        stderr(&output)
    );
}
