//! What cannot be understood or used: said once, and closed unless the user wants otherwise.

mod common;

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{
    BOARD, Bench, GIB, MIB, Running, lines, on_each_standin, properties, properties_of, run,
};
use hip_standin::{Build, Settings};

on_each_standin! {
    a_limit_that_is_not_understood,
    a_limit_for_gpus_that_leaves_one_out_or_names_another,
    a_budget_or_a_list_of_gpus_that_is_not_understood,
    a_ledger_that_cannot_be_used,
    a_word_that_is_neither_yes_nor_no_is_told,
    a_fail_mode_that_is_not_understood_is_closed,
    without_a_gpu_the_error_is_the_native_one,
    without_a_limit_nothing_is_done,
    a_range_of_compute_units_is_said_not_to_be_kept,
    the_first_refusal_is_explained,
    a_full_stderr_stops_nothing,
    a_limit_on_file_sizes_stops_nothing,
    a_trouble_that_passes_is_over_when_it_has_passed,
    a_limit_that_is_not_understood_stays_so,
    the_log_says_what_it_is_asked_to_and_nothing_by_default,
}

const COMMANDS: [&str; 3] = ["malloc:a:1048576", "info", "malloc:a:1048576"];

/// Runs the client closed and open, and checks that the user is told, with `words` in the text.
fn is_refused_or_let_run(command: impl Fn() -> Command, words: &[&str]) {
    let (out, err) = run(&mut command());
    assert_eq!(
        out,
        [
            "malloc a = 2 untouched",
            &format!("info = 0 free 0 total {BOARD}"),
            "malloc a = 2 untouched"
        ],
        "{err:?}"
    );
    assert_eq!(err.len(), 1, "{err:?}");
    for word in words.iter().chain(&["hipflex: ", "FH_FAIL_MODE=open"]) {
        assert!(err[0].contains(word), "{word} is missing: {err:?}");
    }
    let (out, err) = run(command().env("FH_FAIL_MODE", "open"));
    let free = BOARD - MIB;
    assert_eq!(
        out,
        [
            "malloc a = 0",
            &format!("info = 0 free {free} total {BOARD}"),
            "malloc a = 0"
        ]
    );
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(
        err[0].contains("WITHOUT a limit") && err[0].contains(words[0]),
        "{err:?}"
    );
}

fn a_limit_that_is_not_understood(build: Build) {
    for limit in [
        "banana",
        "0",
        "-1",
        "1Gi x",
        "1GiX",
        "99999999999T",
        "",
        "0%",
        "1GiB,2GiB",
    ] {
        let bench = Bench::new(build);
        is_refused_or_let_run(
            || bench.client(limit, "linked", &COMMANDS),
            &["FH_MEMORY_LIMIT"],
        );
        assert!(!bench.ledgers().exists());
    }
}

fn a_limit_for_gpus_that_leaves_one_out_or_names_another(build: Build) {
    for limit in ["0000:83:00.0=4GiB", "0000:83:00.0=4GiB,*=1GiB", "50%"] {
        let bench = Bench::new(build);
        is_refused_or_let_run(
            || bench.client(limit, "linked", &COMMANDS),
            &["FH_MEMORY_LIMIT", "0000:"],
        );
    }
}

fn a_budget_or_a_list_of_gpus_that_is_not_understood(build: Build) {
    let bench = Bench::new(build);
    let with = |name: &str, value: &str| {
        let mut command = bench.client("4GiB", "linked", &COMMANDS);
        command.env(name, value);
        command
    };
    is_refused_or_let_run(|| with("FH_BUDGET", "../x"), &["FH_BUDGET"]);
    is_refused_or_let_run(
        || with("FH_VISIBLE_DEVICES", "banana"),
        &["FH_VISIBLE_DEVICES"],
    );
    is_refused_or_let_run(
        || with("FH_VISIBLE_DEVICES", "0000:03:00.0,0000:03:00.0"),
        &["GPU"],
    );
}

/// Makes a directory of ledgers useless.
type Spoil<'a> = &'a dyn Fn(&Path);

/// Puts something else in the place of the directory of ledgers, of a user's, or of a ledger.
fn a_ledger_that_cannot_be_used(build: Build) {
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    let spoil: [(&str, Spoil<'_>); 6] = [
        ("shm", &|shm| fs::write(shm, "a file").unwrap()),
        ("shm", &|shm| {
            fs::create_dir(shm.with_file_name("real")).unwrap();
            symlink("real", shm).unwrap();
        }),
        ("shm", &|shm| {
            let ours = shm.join(user.to_string());
            fs::create_dir_all(&ours).unwrap();
            fs::set_permissions(shm, fs::Permissions::from_mode(0o1777)).unwrap();
            fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).unwrap();
        }),
        ("shm", &|shm| {
            let ours = shm.join(user.to_string());
            fs::create_dir_all(&ours).unwrap();
            fs::set_permissions(shm, fs::Permissions::from_mode(0o1777)).unwrap();
            // Another user's directory; root can make one, others have none to make.
            if std::os::unix::fs::chown(&ours, Some(user + 1), None).is_err() {
                fs::set_permissions(&ours, fs::Permissions::from_mode(0o000)).unwrap();
            }
        }),
        ("default", &|shm| {
            let ours = shm.join(user.to_string());
            fs::create_dir_all(&ours).unwrap();
            fs::set_permissions(shm, fs::Permissions::from_mode(0o1777)).unwrap();
            fs::set_permissions(&ours, fs::Permissions::from_mode(0o700)).unwrap();
            fs::write(ours.join("default"), "not a ledger").unwrap();
            fs::set_permissions(ours.join("default"), fs::Permissions::from_mode(0o600)).unwrap();
        }),
        ("default", &|shm| {
            let ours = shm.join(user.to_string());
            fs::create_dir_all(ours.join("default")).unwrap();
            fs::set_permissions(shm, fs::Permissions::from_mode(0o1777)).unwrap();
            fs::set_permissions(&ours, fs::Permissions::from_mode(0o700)).unwrap();
        }),
    ];
    for (n, (named, spoil)) in spoil.iter().enumerate() {
        let bench = Bench::new(build);
        spoil(&bench.ledgers());
        eprintln!("spoilt in way {n}");
        is_refused_or_let_run(|| bench.client("4GiB", "linked", &COMMANDS), &[named]);
    }
}

/// A mistyped word is told; the library does what it does without it.
fn a_word_that_is_neither_yes_nor_no_is_told(build: Build) {
    for variable in ["FH_ENABLE_HOOKS", "FH_ENABLE_LOG"] {
        let bench = Bench::new(build);
        let mut command = bench.client("4GiB", "linked", &["malloc:a:4096", "info"]);
        let (out, err) = run(command.env(variable, "flase"));
        let free = 4 * GIB - 4096;
        assert_eq!(out[1], format!("info = 0 free {free} total {}", 4 * GIB));
        assert_eq!(err.len(), 1, "{err:?}");
        assert!(
            err[0].contains(variable) && err[0].contains("flase"),
            "{err:?}"
        );
    }
    let bench = Bench::new(build);
    let command = || {
        let mut command = bench.client("4GiB", "linked", &COMMANDS);
        command.env("FH_SHM_SHARED", "flase");
        command
    };
    is_refused_or_let_run(command, &["FH_SHM_SHARED"]);
}

fn a_fail_mode_that_is_not_understood_is_closed(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client("banana", "linked", &["malloc:a:4096"]);
    let (out, err) = run(command.env("FH_FAIL_MODE", "banana"));
    assert_eq!(out, ["malloc a = 2 untouched"]);
    assert_eq!(err.len(), 2, "{err:?}");
    assert!(
        err[0].contains("FH_FAIL_MODE") && err[0].contains("banana"),
        "{err:?}"
    );
}

/// The program gets the runtime's own reason.
fn without_a_gpu_the_error_is_the_native_one(build: Build) {
    if Path::new("/sys/class/kfd/kfd/topology/nodes").exists() {
        eprintln!("not checked: this machine has the driver");
        return;
    }
    let bench = Bench::new(build);
    let mut command = bench.client(
        "4GiB",
        "linked",
        &["malloc:a:4096", "info", "malloc:a:4096", "last"],
    );
    command.env_remove("FH_VISIBLE_DEVICES");
    Settings::new().devices("0").apply(&mut command);
    let (out, err) = run(&mut command);
    assert_eq!(
        out,
        [
            "malloc a = 100 untouched",
            "info = 100 free 7 total 7",
            "malloc a = 100 untouched",
            "last = 100"
        ]
    );
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(err[0].contains("amdgpu"), "{err:?}");
}

fn without_a_limit_nothing_is_done(build: Build) {
    let inert = |name: &str, value: Option<&str>| {
        let bench = Bench::new(build);
        let mut commands = vec!["malloc:a:1048576", "info", "total"];
        commands.extend(properties_of(build));
        let mut command = bench.client("banana", "linked", &commands);
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
        let (out, err) = run(&mut command);
        let mut expected = vec![
            String::from("malloc a = 0"),
            format!("info = 0 free {} total {BOARD}", BOARD - MIB),
            format!("total = 0 {BOARD}"),
        ];
        expected.extend(
            properties_of(build)
                .iter()
                .map(|question| properties(build, question, BOARD)),
        );
        assert_eq!(out, expected);
        assert_eq!(err, [""; 0]);
        assert_eq!(fs::read_dir(bench.directory.path()).unwrap().count(), 0);
    };
    inert("FH_MEMORY_LIMIT", None);
    for no in ["false", "0", "off", "no"] {
        inert("FH_ENABLE_HOOKS", Some(no));
    }
}

fn a_range_of_compute_units_is_said_not_to_be_kept(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &["malloc:a:4096", "malloc:b:4096"]);
    let (_, err) = run(command.env("FH_CU_RANGE", "0-37"));
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(err[0].contains("FH_CU_RANGE"), "{err:?}");
}

fn the_first_refusal_is_explained(build: Build) {
    let bench = Bench::new(build);
    let mut command = bench.client(
        "4GiB",
        "linked",
        &[
            "malloc:a:3221225472",
            "malloc:b:2147483648",
            "malloc:b:2147483648",
            "malloc:b:3221225472",
        ],
    );
    let (_, err) = run(command.env("FH_BUDGET", "mine"));
    assert_eq!(err.len(), 1, "{err:?}");
    for word in [
        "hipMalloc",
        "0000:03:00.0",
        "2.0 GiB",
        "limit 4.0 GiB",
        "3.0 GiB",
        "'mine'",
    ] {
        assert!(err[0].contains(word), "{word} is missing: {err:?}");
    }
}

/// A pipe that nobody reads is full; the program neither waits when it is refused nor when it ends.
fn a_full_stderr_stops_nothing(build: Build) {
    let bench = Bench::new(build);
    let (reader, mut writer) = io::pipe().unwrap();
    // SAFETY: plain fcntl on a descriptor of ours.
    let size = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    writer
        .write_all(&vec![b'x'; usize::try_from(size).unwrap()])
        .unwrap();
    for (limit, result) in [
        ("4GiB", "malloc a = 2 untouched"),
        ("banana", "malloc a = 2 untouched"),
    ] {
        let started = Instant::now();
        let mut command = bench.client(limit, "linked", &["malloc:a:5368709120"]);
        assert_eq!(lines_with_stderr(&mut command, &writer), [result]);
        assert!(started.elapsed() < Duration::from_secs(20));
    }
    drop(reader);
    // And now it has no reader: a write of ours must not raise SIGPIPE.
    let mut command = bench.client("4GiB", "linked", &["malloc:a:5368709120"]);
    assert_eq!(
        lines_with_stderr(&mut command, &writer),
        ["malloc a = 2 untouched"]
    );
}

/// A limit on the size of files (`ulimit -f`): what writes beyond it gets SIGXFSZ, which ends a process.
fn a_limit_on_file_sizes_stops_nothing(build: Build) {
    const LARGEST: u64 = 6 * MIB;
    // Lines to a stderr and a log that may not grow; and a ledger that cannot be made.
    for (largest, result) in [(LARGEST, "malloc a = 0"), (4096, "malloc a = 2 untouched")] {
        let bench = Bench::new(build);
        let stderr = bench.directory.path().join("stderr");
        for file in [&stderr, &bench.log()] {
            fs::File::create(file).unwrap().set_len(largest).unwrap();
        }
        let commands = ["malloc:a:4096", "malloc:b:5368709120"];
        let mut command = bench.client("4GiB", "linked", &commands);
        command
            .env("FH_LOG_LEVEL", "trace")
            .stderr(fs::File::options().append(true).open(&stderr).unwrap());
        // SAFETY: setrlimit may be called between fork and exec; the limits outlive the call.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit {
                    rlim_cur: largest,
                    rlim_max: largest,
                };
                match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", output.status);
        assert_eq!(common::both(&output).0, [result, "malloc b = 2 untouched"]);
        assert_eq!(fs::metadata(&stderr).unwrap().len(), largest);
    }
}

/// What stood in the way is mended while the program runs.
fn a_trouble_that_passes_is_over_when_it_has_passed(build: Build) {
    let bench = Bench::new(build);
    fs::write(bench.ledgers(), "a file").unwrap();
    let one = "malloc:a:1048576";
    let commands = [
        one,
        "wait",
        one,
        one,
        "wait",
        one,
        "wait",
        one,
        "wait",
        "info",
        "malloc:b:5368709120",
    ];
    let errors = bench.directory.path().join("stderr");
    let mut command = bench.client("4GiB", "linked", &commands);
    let mut program = Running::start(command.stderr(fs::File::create(&errors).unwrap()));
    let told = |number: usize, word: &str| {
        let text = fs::read_to_string(&errors).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), number, "{text}");
        assert!(lines[number - 1].contains(word), "{text}");
    };
    let pause = || std::thread::sleep(Duration::from_millis(1_100));
    let refused = "malloc a = 2 untouched";
    assert_eq!(program.line(), refused);
    told(1, "Until that is mended");
    // It is tried again, and nothing new is to be said.
    pause();
    program.go_on();
    assert_eq!([program.line(), program.line()], [refused; 2]);
    told(1, "Until that is mended");
    // Another reason.
    fs::remove_file(bench.ledgers()).unwrap();
    // SAFETY: no preconditions.
    let ours = bench.ledgers().join(unsafe { libc::geteuid() }.to_string());
    fs::create_dir_all(&ours).unwrap();
    fs::set_permissions(&ours, fs::Permissions::from_mode(0o777)).unwrap();
    pause();
    program.go_on();
    assert_eq!(program.line(), refused);
    told(2, "Until that is mended");
    fs::remove_dir_all(bench.ledgers()).unwrap();
    pause();
    program.go_on();
    assert_eq!(program.line(), "malloc a = 0");
    told(3, "can be kept now");
    program.go_on();
    let free = 4 * GIB - MIB;
    assert_eq!(
        program.line(),
        format!("info = 0 free {free} total {}", 4 * GIB)
    );
    assert_eq!(program.line(), "malloc b = 2 untouched");
    program.finish();
}

/// What the program was asked to do does not change, so it is not tried again, and the line says so.
fn a_limit_that_is_not_understood_stays_so(build: Build) {
    let bench = Bench::new(build);
    let (_, err) = run(&mut bench.client("banana", "linked", &["malloc:a:1048576"]));
    assert!(err[0].contains("restart the program"), "{err:?}");
}

fn lines_with_stderr(command: &mut Command, stderr: &io::PipeWriter) -> Vec<String> {
    let mut child = command
        .stderr(stderr.try_clone().unwrap())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    common::both(&output).0
}

fn the_log_says_what_it_is_asked_to_and_nothing_by_default(build: Build) {
    let quiet = Bench::new(build);
    lines(&mut quiet.client("4GiB", "linked", &["malloc:a:1048576", "free:a"]));
    assert!(!quiet.log().exists());

    let bench = Bench::new(build);
    let mut command = bench.client("4GiB", "linked", &["malloc:a:1048576", "free:a"]);
    lines(command.env("FH_LOG_LEVEL", "debug"));
    let log = fs::read_to_string(bench.log()).unwrap();
    assert!(
        log.contains("booked 1048576 bytes") && log.contains("freed 1048576 bytes"),
        "{log}"
    );

    let off = Bench::new(build);
    let mut command = off.client("4GiB", "linked", &["malloc:a:1048576"]);
    lines(
        command
            .env("FH_LOG_LEVEL", "trace")
            .env("FH_ENABLE_LOG", "off"),
    );
    assert!(!off.log().exists());

    let (_, err) = run(command
        .env("FH_LOG_LEVEL", "loud")
        .env_remove("FH_ENABLE_LOG"));
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(
        err[0].contains("FH_LOG_LEVEL") && err[0].contains("loud"),
        "{err:?}"
    );

    let (_, err) = run(command
        .env("FH_LOG_LEVEL", "debug")
        .env("FH_LOG_PATH", "stderr"));
    assert!(
        err.iter().any(|line| line.contains("booked 1048576 bytes")),
        "{err:?}"
    );
    let (_, err) = run(command.env("FH_LOG_PATH", "/proc/nowhere"));
    assert_eq!(err.len(), 1, "{err:?}");
    assert!(
        err[0].contains("/proc/nowhere") && err[0].contains("FH_LOG_PATH"),
        "{err:?}"
    );
    assert_eq!(GIB, 1024 * MIB);
}
