//! Several processes on one machine: the account that they share, and what becomes of the dead.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hip_standin::{Account, AccountError, Build, Kind, Settings};

const GIB: u64 = 1 << 30;

fn client(build: Build, settings: &Settings, steps: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hip-standin-client"));
    command
        .arg(build.path())
        .args(steps)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    settings.apply(&mut command);
    command
}

fn output(build: Build, settings: &Settings, steps: &[&str]) -> Vec<String> {
    let output = client(build, settings, steps).output().unwrap();
    assert!(output.status.success(), "{build} {steps:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(String::from)
        .collect()
}

/// A client that stands at a `wait`.
struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn finish(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

fn shared(directory: &Path) -> (Settings, std::path::PathBuf) {
    let path = directory.join("account");
    (Settings::new().vram(8 * GIB).account(&path), path)
}

#[test]
fn processes_share_the_boards_memory() {
    for build in Build::ALL {
        let directory = tempfile::tempdir().unwrap();
        let (settings, path) = shared(directory.path());
        let mut first = Running::start(&mut client(
            build,
            &settings,
            &["malloc:5368709120", "wait", "free", "wait"],
        ));
        assert_eq!(first.line(), "0");
        assert_eq!(
            output(
                build,
                &settings,
                &["malloc:3221225473", "malloc:3221225472", "free"]
            ),
            ["2", "0", "0"]
        );
        let account = Account::open(&path).unwrap();
        assert_eq!((account.devices(), account.vram(0)), (1, 8 * GIB));
        assert_eq!(
            (account.used(0), account.peak(0), account.refused()),
            (5 * GIB, 8 * GIB, 1)
        );
        assert_eq!(
            (
                account.calls("hipMalloc"),
                account.errors("hipMalloc"),
                account.calls("hipFree")
            ),
            (3, 1, 1)
        );
        let processes: Vec<_> = account.processes().collect();
        assert_eq!(processes.len(), 2);
        assert_eq!(
            (processes[0].id(), processes[0].is_alive()),
            (first.child.id(), true)
        );
        assert_eq!((processes[1].is_alive(), processes[1].live(0)), (false, 0));
        assert_eq!(processes[0].held(0, Kind::Linear), 5 * GIB);
        first.go_on();
        assert_eq!((first.line().as_str(), account.used(0)), ("0", 0));
        first.go_on();
        first.finish();
    }
}

#[test]
fn the_dead_hold_nothing() {
    for build in [Build::Five, Build::Six, Build::Seven] {
        let directory = tempfile::tempdir().unwrap();
        let (settings, path) = shared(directory.path());
        let mut first = Running::start(&mut client(
            build,
            &settings,
            &["malloc:8589934592", "wait"],
        ));
        assert_eq!(first.line(), "0");
        let account = Account::open(&path).unwrap();
        assert_eq!(account.used(0), 8 * GIB);
        first.kill();
        assert_eq!((account.used(0), account.peak(0)), (0, 8 * GIB));
        assert_eq!(output(build, &settings, &["malloc:8589934592"]), ["0"]);
        assert_eq!(account.peak(0), 8 * GIB);
        let left: Vec<_> = account.processes().map(|process| process.live(0)).collect();
        assert_eq!(
            left,
            [8 * GIB, 8 * GIB],
            "what each held at its end can still be read"
        );
    }
}

#[test]
fn an_exec_gives_everything_back() {
    let directory = tempfile::tempdir().unwrap();
    let (settings, path) = shared(directory.path());
    let steps = ["malloc:5368709120", "exec", "malloc:5368709120", "wait"];
    let mut process = Running::start(&mut client(Build::Six, &settings, &steps));
    assert_eq!(
        (process.line().as_str(), process.line().as_str()),
        ("0", "0")
    );
    let account = Account::open(&path).unwrap();
    assert_eq!(
        (
            account.used(0),
            account.peak(0),
            account.processes().count()
        ),
        (5 * GIB, 5 * GIB, 2)
    );
    process.go_on();
    process.finish();
}

#[test]
fn a_forked_child_begins_with_nothing() {
    for build in [Build::Five, Build::Six, Build::Seven] {
        let directory = tempfile::tempdir().unwrap();
        let (settings, path) = shared(directory.path());
        let steps = [
            "malloc:1073741824",
            "fork",
            "free",
            "malloc:2147483648",
            "wait",
        ];
        let mut process = Running::start(&mut client(build, &settings, &steps));
        // The parent's pointer is none of the child's.
        assert_eq!(
            [process.line(), process.line(), process.line()],
            ["0", "1", "0"],
            "{build}"
        );
        let account = Account::open(&path).unwrap();
        assert_eq!((account.used(0), account.bad_frees()), (3 * GIB, 1));
        let held: Vec<_> = account
            .processes()
            .map(|process| (process.live(0), process.calls("hipMalloc")))
            .collect();
        assert_eq!(held, [(GIB, 1), (2 * GIB, 1)]);
        process.go_on();
        process.finish();
    }
}

#[test]
fn a_rule_kills_before_or_after_the_work() {
    for (rule, held) in [
        ("hipMalloc@2=kill", GIB),
        ("hipMalloc@2=kill-after", 2 * GIB),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let (settings, path) = shared(directory.path());
        let steps = ["malloc:1073741824", "malloc:1073741824", "free"];
        let status = client(Build::Six, &settings.rules(rule), &steps)
            .output()
            .unwrap()
            .status;
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(9),
            "{rule}"
        );
        let account = Account::open(&path).unwrap();
        assert_eq!(
            account
                .processes()
                .map(|process| process.live(0))
                .sum::<u64>(),
            held,
            "{rule}"
        );
        assert_eq!(
            (
                account.calls("hipMalloc"),
                account.calls("hipFree"),
                account.used(0)
            ),
            (2, 0, 0)
        );
    }
}

/// Many at once, each killed at a random moment by a rule: the peak never passes the board.
#[test]
fn a_board_is_never_given_out_twice() {
    let directory = tempfile::tempdir().unwrap();
    let (settings, path) = shared(directory.path());
    thread::scope(|scope| {
        for worker in 0..6 {
            let settings = &settings;
            scope.spawn(move || {
                for round in 0..8 {
                    let rules = format!("hipMalloc@{}=kill-after", 1 + (worker + round) % 5);
                    let steps = [
                        "malloc:1610612736",
                        "malloc:1073741825",
                        "free",
                        "malloc:2147483648",
                        "malloc:5",
                        "malloc:7",
                    ];
                    client(Build::Six, &settings.clone().rules(&rules), &steps)
                        .output()
                        .unwrap();
                }
            });
        }
    });
    let account = Account::open(&path).unwrap();
    assert_eq!((account.processes().count(), account.used(0)), (48, 0));
    assert!(
        account.peak(0) <= 8 * GIB && account.peak(0) >= 3 * GIB / 2,
        "{}",
        account.peak(0)
    );
}

#[test]
fn an_account_that_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("account");
    assert!(matches!(Account::open(&path), Err(AccountError::Io { .. })));
    std::fs::write(&path, "something else").unwrap();
    assert!(matches!(
        Account::open(&path),
        Err(AccountError::Foreign(_))
    ));
    let settings = Settings::new().account(&path);
    assert!(
        !client(Build::Six, &settings, &["malloc:1"])
            .output()
            .unwrap()
            .status
            .success()
    );
}

/// Sleeping in a rule ends with the process, like any other call.
#[test]
fn a_sleeping_call_can_be_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (settings, path) = shared(directory.path());
    let mut child = client(
        Build::Five,
        &settings.rules("hipMalloc=wait:100s"),
        &["malloc:1"],
    )
    .spawn()
    .unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let begun = || Account::open(&path).is_ok_and(|account| account.calls("hipMalloc") == 1);
    while !begun() {
        assert!(Instant::now() < end, "the call did not begin");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(Account::open(&path).unwrap().used(0), 0);
}
