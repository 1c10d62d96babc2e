//! `hipflex run`, the real binary: what it refuses, and what it hands on to the program.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};

use common::{Bench, STUB, link, stderr, stdout};

/// Exit 2, one line on standard error that contains all of `parts`, and no program was started.
#[track_caller]
fn assert_refused(output: &Output, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.starts_with("hipflex: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    assert_eq!(stdout(output), "", "nothing may have been started");
}

#[test]
fn limits_that_are_none_are_refused_by_name() {
    let bench = Bench::with_gpus(1);
    for text in ["banana", "0", "-1", "1Gi x", "1GiX", "99999999999T"] {
        let output = bench.output(&["run", "--memory", text, "--", "echo", "started"]);
        assert_refused(&output, &["--memory", text]);
        let mut from_environment = bench.hipflex(&["run", "--", "echo", "started"]);
        let output = from_environment
            .env("FH_MEMORY_LIMIT", text)
            .output()
            .unwrap();
        assert_refused(&output, &["FH_MEMORY_LIMIT", text]);
    }
    let output = bench.output(&["run", "--", "echo", "started"]);
    assert_refused(&output, &["no limit was given", "--memory SIZE"]);
}

#[test]
fn limits_must_fit_the_machine() {
    let bench = Bench::with_gpus(2);
    let run = |limit| bench.output(&["run", "--memory", limit, "--", "echo", "started"]);
    assert_refused(
        &run("0000:99:00.0=1GiB,*=1GiB"),
        &["0000:99:00.0", "0000:03:00.0"],
    );
    assert_refused(&run("0000:03:00.0=1GiB"), &["0000:04:00.0"]);
    assert_eq!(run("0000:03:00.0=1GiB,*=50%").status.code(), Some(0));
    let output = run("128GiB");
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("above the 64.0 GiB of GPU 0000:03:00.0"));
    let output = run("4");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stderr(&output),
        "hipflex: warning: the limit is 4 B; for gibibytes write 4GiB\n"
    );
}

#[test]
fn compute_units_are_checked_and_handed_on() {
    let bench = Bench::with_gpus(2);
    let run = |range: &str| bench.output(&["run", "--cus", range, "--", "echo", "started"]);
    for (range, parts) in [
        ("banana", &["--cus", "'banana'"][..]),
        ("5-3", &["--cus", "5-3", "ends before it starts"]),
        ("104-200", &["--cus", "0000:03:00.0", "it has 104"]),
        ("0000:99:00.0=0-3,*=0-1", &["0000:99:00.0"]),
        ("0000:03:00.0=0-3", &["0000:04:00.0"]),
    ] {
        assert_refused(&run(range), parts);
    }
    let output = bench
        .hipflex(&["run", "--cus", "0-37", "--", "echo", "started"])
        .env("HSA_CU_MASK", "0:50-60")
        .output()
        .unwrap();
    assert_refused(&output, &["HSA_CU_MASK", "0000:03:00.0"]);
    let output = bench
        .hipflex(&["run", "--", "echo", "started"])
        .env("FH_CU_RANGE", "104")
        .output()
        .unwrap();
    assert_refused(&output, &["FH_CU_RANGE", "it has 104"]);
    let budget = [
        "run", "--cus", "0-37", "--budget", "team", "--", "echo", "started",
    ];
    assert_refused(&bench.output(&budget), &["--budget", "--memory SIZE"]);

    let variables = ["FH_CU_RANGE", "FH_MEMORY_LIMIT", "FH_BUDGET"];
    let show = format!(
        "echo {}",
        variables.map(|name| format!("${{{name}-unset}}")).join(" ")
    );
    let output = bench.output(&["run", "--cus", "0-37,64-999", "--", "sh", "-c", &show]);
    assert_eq!(
        stdout(&output),
        "0-37,64-999 unset unset\n",
        "{}",
        stderr(&output)
    );
    assert_eq!(stderr(&output), "");
    let both = [
        "run", "--cus", "0-37", "--memory", "1GiB", "--budget", "team", "--",
    ];
    let output = bench.output(&[&both[..], &["sh", "-c", &show]].concat());
    assert_eq!(stdout(&output), "0-37 1GiB team\n", "{}", stderr(&output));
}

#[test]
fn names_and_modes_that_are_none_are_refused() {
    let bench = Bench::with_gpus(1);
    for name in ["../x", "", ".hidden", "a b", "-x"] {
        let option = format!("--budget={name}");
        let output = bench.output(&["run", "--memory", "1GiB", &option, "--", "echo", "started"]);
        if name == "-x" {
            assert_eq!(
                output.status.code(),
                Some(0),
                "a dash is a valid letter: {}",
                stderr(&output)
            );
        } else {
            assert_refused(&output, &["--budget", name]);
        }
    }
    let mut command = bench.hipflex(&["run", "--memory", "1GiB", "--", "echo", "started"]);
    assert_refused(
        &command.env("FH_FAIL_MODE", "ajar").output().unwrap(),
        &["FH_FAIL_MODE=ajar"],
    );
    let output = bench.output(&[
        "run",
        "--memory",
        "1GiB",
        "--fail-mode",
        "ajar",
        "--",
        "echo",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("closed, open"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn programs_that_cannot_be_started_end_as_in_a_shell() {
    let bench = Bench::with_gpus(1);
    let run = |program: &str| bench.output(&["run", "--memory", "1GiB", "--", program]);
    let missing = run("no-such-program-anywhere");
    assert_eq!(missing.status.code(), Some(127));
    assert!(stderr(&missing).contains("no program no-such-program-anywhere in PATH"));
    let data = bench.file("data", "not executable");
    let unusable = run(data.to_str().unwrap());
    assert_eq!(unusable.status.code(), Some(126));
    assert!(stderr(&unusable).contains("no execute permission"));
    assert_eq!(run("/").status.code(), Some(126));

    // It looks right, but its interpreter is not there: only the kernel knows.
    let script = bench.file("script", "#!/no/such/interpreter\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let orphan = run(script.to_str().unwrap());
    assert_eq!(orphan.status.code(), Some(127));
    assert!(
        stderr(&orphan).contains("interpreter"),
        "{}",
        stderr(&orphan)
    );
}

#[test]
fn a_script_without_a_first_line_runs_as_in_a_shell() {
    let bench = Bench::with_gpus(1);
    let script = bench.file("script", "echo \"$0 $1\"\n");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let name = script.to_str().unwrap();
    let output = bench.output(&["run", "--memory", "1GiB", "--", name, "argument"]);
    assert_eq!(
        stdout(&output),
        format!("{name} argument\n"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn exit_code_signal_and_process_id_are_the_programs() {
    let bench = Bench::with_gpus(1);
    let run = |script: &str| bench.output(&["run", "--memory", "1GiB", "--", "sh", "-c", script]);
    for code in [0, 1, 2, 7, 126, 255] {
        assert_eq!(run(&format!("exit {code}")).status.code(), Some(code));
    }
    assert_eq!(run("kill -9 $$").status.signal(), Some(9));
    assert_eq!(run("kill -TERM $$").status.signal(), Some(15));
    let mut command = bench.hipflex(&["run", "--memory", "1GiB", "--", "sh", "-c", "echo $$"]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    assert_eq!(
        stdout(&child.wait_with_output().unwrap()),
        format!("{pid}\n")
    );
}

/// The environment that the program sees.
fn environment(command: &mut Command) -> BTreeMap<String, String> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    let variables = text
        .split_terminator('\0')
        .filter_map(|line| line.split_once('='));
    variables
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

const SHOW: [&str; 3] = ["--", "env", "-0"];

#[test]
fn the_program_finds_its_settings_in_the_environment() {
    let bench = Bench::with_gpus(1);
    let library = bench.library().canonicalize().unwrap();
    let arguments = [
        "run",
        "--memory",
        "1.5GiB",
        "--budget",
        "team",
        "--fail-mode",
        "open",
    ];
    let mut command = bench.hipflex(&[&arguments[..], &SHOW].concat());
    let seen = environment(
        command
            .env("KEPT", "a=b\nc")
            .env("FH_MEMORY_LIMIT", "9GiB")
            .env("FH_BUDGET", "other")
            .env("FH_FAIL_MODE", "closed"),
    );
    assert_eq!(seen["FH_MEMORY_LIMIT"], "1.5GiB");
    assert_eq!(seen["FH_BUDGET"], "team");
    assert_eq!(seen["FH_FAIL_MODE"], "open");
    assert_eq!(seen["LD_PRELOAD"], library.to_str().unwrap());
    assert_eq!(seen["KEPT"], "a=b\nc");
    assert_eq!(seen["FH_SHM_PATH"], bench.path("ledgers").to_str().unwrap());
}

#[test]
fn a_budget_of_all_users_is_asked_for_by_name() {
    let bench = Bench::with_gpus(1);
    let budget = ["--memory", "1GiB", "--budget", "team"];
    let run = |arguments: &[&str]| {
        let mut command = bench.hipflex(&[&["run"], arguments, &SHOW].concat());
        environment(&mut command)
    };
    assert_eq!(run(&budget).get("FH_SHM_SHARED"), None);
    let shared = run(&[&budget[..], &["--shared"]].concat());
    assert_eq!(shared["FH_SHM_SHARED"], "1");
    assert!(bench.path("ledgers/shared").is_dir(), "it was tried there");

    let nameless = bench.output(&["run", "--memory", "1GiB", "--shared", "--", "true"]);
    assert_eq!(nameless.status.code(), Some(2));
    assert!(
        stderr(&nameless).contains("--budget <NAME>"),
        "{}",
        stderr(&nameless)
    );
}

#[test]
fn defaults_come_from_the_environment_but_the_budget_is_fresh() {
    let bench = Bench::with_gpus(1);
    let run = || {
        let mut command = bench.hipflex(&[&["run"][..], &SHOW].concat());
        command
            .env("FH_MEMORY_LIMIT", "50%")
            .env("FH_BUDGET", "inherited")
            .env("FH_FAIL_MODE", "open");
        environment(&mut command)
    };
    let (first, second) = (run(), run());
    assert_eq!(first["FH_MEMORY_LIMIT"], "50%");
    assert_eq!(first["FH_FAIL_MODE"], "open");
    assert!(
        first["FH_BUDGET"].starts_with("env-"),
        "{}",
        first["FH_BUDGET"]
    );
    assert_ne!(first["FH_BUDGET"], second["FH_BUDGET"]);

    let mut told = bench.hipflex(&["run", "--memory", "1GiB", "--", "true"]);
    let message = stderr(&told.env("FH_BUDGET", "inherited").output().unwrap());
    assert!(message.contains("--budget inherited"), "{message}");
}

#[test]
fn other_preloads_stay_and_ours_is_there_once() {
    let bench = Bench::with_gpus(1);
    let (ours, other) = (
        bench.library().canonicalize().unwrap(),
        bench.path("other.so"),
    );
    link(&other, "", &[]);
    let (ours, other) = (ours.to_str().unwrap(), other.to_str().unwrap());
    let mut command = bench.hipflex(&[&["run", "--memory", "1GiB"][..], &SHOW].concat());
    let seen = environment(command.env("LD_PRELOAD", format!("{other} {ours}")));
    assert_eq!(seen["LD_PRELOAD"], format!("{ours}:{other}"));
}

#[test]
fn runs_nest() {
    let bench = Bench::with_gpus(1);
    let own = env!("CARGO_BIN_EXE_hipflex");
    let outer = [
        "run", "--memory", "2GiB", "--", own, "run", "--memory", "1GiB",
    ];
    let seen = environment(&mut bench.hipflex(&[&outer[..], &SHOW].concat()));
    assert_eq!(seen["FH_MEMORY_LIMIT"], "1GiB");
    assert!(!seen["LD_PRELOAD"].contains(':'), "{}", seen["LD_PRELOAD"]);
}

#[test]
fn without_a_gpu_only_the_open_mode_starts() {
    let bench = Bench::with_gpus(0);
    let closed = bench.output(&["run", "--memory", "1GiB", "--", "echo", "started"]);
    assert_refused(&closed, &["dev/kfd", "modprobe amdgpu"]);
    let open = bench.output(&[
        "run",
        "--memory",
        "1GiB",
        "--fail-mode",
        "open",
        "--",
        "echo",
        "started",
    ]);
    assert_eq!(
        (open.status.code(), stdout(&open).as_str()),
        (Some(0), "started\n")
    );
    assert!(
        stderr(&open).contains("without a limit"),
        "{}",
        stderr(&open)
    );
}

#[test]
fn a_library_that_cannot_be_used_is_refused() {
    let bench = Bench::with_gpus(1);
    let with = |library: &str| {
        bench.output(&[
            "run", "--memory", "1GiB", "--lib", library, "--", "echo", "started",
        ])
    };
    assert_refused(&with("/no/such/lib.so"), &["/no/such/lib.so", "--lib"]);
    let text = bench.file("text.so", "not a library\n");
    assert_refused(
        &with(text.to_str().unwrap()),
        &["text.so is not an ELF file"],
    );

    // A library of somebody else's, under our name: it would be loaded, and limit nothing.
    fs::create_dir(bench.path("other")).unwrap();
    let other = bench.path("other/libhipflex.so");
    link(&other, "", &[]);
    assert_refused(
        &with(other.to_str().unwrap()),
        &["libhipflex.so is not hipflex's: it has no hipMalloc, no hipFree, no dlsym"],
    );

    // A library whose own needs are not met: only the dynamic linker finds that out.
    let (needed, needy) = (bench.path("libneeded.so"), bench.path("needy.so"));
    link(&needed, "", &[]);
    link(&needy, STUB, &[&needed]);
    fs::remove_file(needed).unwrap();
    assert_refused(
        &with(needy.to_str().unwrap()),
        &["dynamic linker", "needy.so", "libneeded.so"],
    );
}

#[test]
fn a_library_that_may_not_be_read_is_not_said_to_be_missing() {
    let bench = Bench::with_gpus(1);
    let arguments = ["run", "--memory", "1GiB", "--", "echo", "started"];
    let library = bench.library();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o000)).unwrap();
    let output = bench.hipflex_without_privileges(&arguments).output();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).unwrap();
    assert_refused(
        &output.unwrap(),
        &[
            "cannot read the library",
            "libhipflex.so",
            "Permission denied",
        ],
    );

    let locked = bench.path("locked");
    fs::create_dir(&locked).unwrap();
    fs::copy(&library, locked.join("libhipflex.so")).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    let output = bench
        .hipflex_without_privileges(&arguments)
        .env("FH_LIB", locked.join("libhipflex.so"))
        .output();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o755)).unwrap();
    assert_refused(
        &output.unwrap(),
        &[
            "cannot read the library",
            "(from FH_LIB)",
            "Permission denied",
        ],
    );
}

#[test]
fn ledgers_that_cannot_be_used_are_refused() {
    let bench = Bench::with_gpus(1);
    let file = bench.file("file", "");
    let with = |path: &str, mode: &str| {
        let arguments = [
            "run",
            "--memory",
            "1GiB",
            "--fail-mode",
            mode,
            "--budget",
            "team",
            "--",
            "echo",
            "started",
        ];
        bench
            .hipflex(&arguments)
            .env("FH_SHM_PATH", path)
            .output()
            .unwrap()
    };
    let file = file.to_str().unwrap();
    assert_refused(&with(file, "closed"), &["budget team", file]);
    let open = with(file, "open");
    assert_eq!(
        (open.status.code(), stdout(&open).as_str()),
        (Some(0), "started\n")
    );
    assert!(stderr(&open).contains(file), "{}", stderr(&open));
    assert_refused(
        &with("relative/path", "open"),
        &["FH_SHM_PATH=relative/path", "absolute"],
    );

    // A file that is no ledger lies where the budget's should be.
    let budget = hipflex_ledger::BudgetName::new("team").unwrap();
    let path = bench.place().ledger_path(&budget);
    let arguments = [
        "run", "--memory", "1GiB", "--budget", "team", "--", "echo", "started",
    ];
    assert!(bench.output(&arguments).status.success());
    fs::write(&path, "garbage").unwrap();
    assert_refused(&bench.output(&arguments), &[path.to_str().unwrap()]);
}

#[test]
fn nothing_is_left_behind_by_a_program_that_uses_no_gpu() {
    let bench = Bench::with_gpus(1);
    assert!(
        bench
            .output(&["run", "--memory", "1GiB", "--budget", "team", "--", "true"])
            .status
            .success()
    );
    let budget = hipflex_ledger::BudgetName::new("team").unwrap();
    assert!(!bench.place().ledger_path(&budget).exists());
}

#[test]
fn programs_that_no_limit_would_hold_for_start_only_in_the_open_mode() {
    let bench = Bench::with_gpus(1);
    let program = bench.path("static");
    let source = bench.file("static.c", "int main(void) { return 7; }\n");
    let made = Command::new("cc")
        .arg("-static")
        .arg(source)
        .arg("-o")
        .arg(&program)
        .status()
        .unwrap();
    assert!(made.success(), "cc -static: {made}");
    let program = program.to_str().unwrap();
    assert_refused(
        &bench.output(&["run", "--memory", "1GiB", "--", program]),
        &["static is statically linked", "--fail-mode open"],
    );
    let open = ["run", "--memory", "1GiB", "--fail-mode", "open", "--"];
    let output = bench.output(&[&open[..], &[program]].concat());
    assert_eq!(output.status.code(), Some(7));
    let message = stderr(&output);
    assert!(
        message.starts_with("hipflex: warning: ") && message.contains("no limit holds"),
        "{message}"
    );

    let arguments = ["run", "--memory", "1GiB", "--", "echo", "started"];
    let mut off = bench.hipflex(&arguments);
    assert_refused(
        &off.env("FH_ENABLE_HOOKS", "0").output().unwrap(),
        &["FH_ENABLE_HOOKS=0 turns hipflex off", "unset it"],
    );
    let mut off = bench.hipflex(&[&open[..], &["echo", "started"]].concat());
    let output = off.env("FH_ENABLE_HOOKS", "0").output().unwrap();
    assert_eq!(stdout(&output), "started\n");
    assert!(
        stderr(&output).contains("warning: FH_ENABLE_HOOKS=0"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_set_user_id_program_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        // Only root makes one that belongs to another user; the rule itself is a unit test.
        return;
    }
    let bench = Bench::with_gpus(1);
    let program = bench.path("su");
    fs::copy("/bin/echo", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(12345), None).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let arguments = [
        "run",
        "--memory",
        "1GiB",
        "--",
        program.to_str().unwrap(),
        "started",
    ];
    assert_refused(
        &bench.output(&arguments),
        &["is set-user-ID", "--fail-mode open"],
    );
    // A process that has given up on privileges gets none from it, and the preload works.
    let mut command = bench.hipflex(&arguments);
    // SAFETY: prctl(2) is async-signal-safe and this option touches no memory.
    unsafe {
        command.pre_exec(
            || match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            },
        );
    }
    assert_eq!(stdout(&command.output().unwrap()), "started\n");
}

#[test]
fn settings_that_lead_nowhere_are_told() {
    let bench = Bench::with_gpus(1);
    let arguments = ["run", "--memory", "1GiB", "--", "echo", "started"];
    let mut missing = bench.hipflex(&arguments);
    assert_refused(
        &missing
            .env("FH_HIP_LIB_PATH", "/no/hip.so")
            .output()
            .unwrap(),
        &[
            "FH_HIP_LIB_PATH=/no/hip.so does not exist",
            "libamdhip64.so",
        ],
    );
    let mut log = bench.hipflex(&arguments);
    let output = log.env("FH_LOG_PATH", "/no/log").output().unwrap();
    assert_eq!(stdout(&output), "started\n");
    assert_eq!(
        stderr(&output),
        "hipflex: warning: FH_LOG_PATH=/no/log cannot be logged to: there is no directory /no\n"
    );
}

#[test]
fn signals_are_handed_on_as_they_were() {
    let bench = Bench::with_gpus(1);
    let show = [
        "run",
        "--memory",
        "1GiB",
        "--",
        "grep",
        "-E",
        "^Sig(Blk|Ign):",
        "/proc/self/status",
    ];
    let masks = |prepare: fn() -> io::Result<()>| {
        let mut command = bench.hipflex(&show);
        // SAFETY: the closure makes async-signal-safe calls only.
        let output = unsafe { command.pre_exec(prepare) }.output().unwrap();
        let text = stdout(&output);
        let mask = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap()
        };
        (mask("SigBlk"), mask("SigIgn"))
    };
    let bit = |signal: i32| 1_u64 << (signal - 1);
    let (blocked, ignored) = masks(|| Ok(()));
    assert_eq!(
        (blocked & bit(libc::SIGUSR1), ignored & bit(libc::SIGPIPE)),
        (0, 0)
    );
    let (blocked, ignored) = masks(|| {
        // SAFETY: the set is initialised before it is used, and lives through the call.
        unsafe {
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGUSR1);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        }
        Ok(())
    });
    assert_ne!(
        blocked & bit(libc::SIGUSR1),
        0,
        "a blocked signal stays blocked"
    );
    assert_ne!(
        ignored & bit(libc::SIGPIPE),
        0,
        "an ignored SIGPIPE stays ignored"
    );
}

#[test]
fn usage_errors_exit_2_and_help_exits_0() {
    let bench = Bench::with_gpus(1);
    for arguments in [
        &["run"][..],
        &["run", "--nonsense", "--", "true"],
        &["nonsense"],
        &[],
    ] {
        assert_eq!(
            bench.output(arguments).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
    let message = stderr(&bench.output(&["run", "--memroy", "1GiB", "--", "echo", "started"]));
    assert!(
        message.starts_with("hipflex: unexpected argument '--memroy' found\n"),
        "{message}"
    );
    assert!(
        message.contains("'--memory'") && !message.contains("-- --memroy"),
        "{message}"
    );
    for arguments in [
        &["--help"][..],
        &["run", "--help"],
        &["status", "-h"],
        &["--version"],
    ] {
        let output = bench.output(arguments);
        assert_eq!(
            (output.status.code(), stderr(&output).as_str()),
            (Some(0), ""),
            "{arguments:?}"
        );
    }
    let version = stdout(&bench.output(&["--version"]));
    assert_eq!(version, format!("hipflex {}\n", env!("CARGO_PKG_VERSION")));
}
