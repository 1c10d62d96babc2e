//! Where the system lets nobody change code: every call by name is counted, and the user is told if it was asked for.
//! And without `/proc`, where there is no account either.

mod common;

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Bench, GIB, Running, on_each_standin, run};
use hip_standin::Build;
use hipflex_ledger::HookEngine;

on_each_standin! {
    where_code_cannot_be_changed_calls_by_name_are_counted,
    without_proc_allocations_are_refused_and_it_is_said,
}

/// What a program may not do.
#[derive(Clone, Copy, Debug)]
enum Forbidden {
    /// Make new executable memory out of what was written to.
    NewCode,
    /// Write to code by `/proc/self/mem`.
    Writes,
    /// Look into `/proc`.
    Proc,
}

/// Whether it can be forbidden here; says so if not.
fn can_be(forbidden: Forbidden) -> bool {
    use std::io::Write;
    let mut command = Command::new("true");
    forbid(&mut command, forbidden);
    let tried = command.status();
    let can = tried.as_ref().is_ok_and(|status| status.success());
    if !can {
        let line = format!("SKIPPED a process without {forbidden:?}: {tried:?}\n");
        let _ = io::stderr().write_all(line.as_bytes());
    }
    can
}

/// Forbids it to the program of this command.
fn forbid(command: &mut Command, forbidden: Forbidden) {
    let forbid = match forbidden {
        Forbidden::NewCode => refuse_new_code,
        Forbidden::Writes => refuse_writes,
        Forbidden::Proc => hide_proc,
    };
    // SAFETY: system calls alone, in the child.
    unsafe { command.pre_exec(forbid) };
}

fn succeeded(result: i32) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `PR_SET_MDWE` and `PR_MDWE_REFUSE_EXEC_GAIN`, `linux/prctl.h`, Linux 6.3.
fn refuse_new_code() -> io::Result<()> {
    // SAFETY: no pointers.
    succeeded(unsafe { libc::prctl(65, 1, 0, 0, 0) })
}

/// Lets every `pwrite64` fail with EIO, as the kernel does where it may not write.
fn refuse_writes() -> io::Result<()> {
    // `struct seccomp_data`, `linux/seccomp.h`: it begins with the number of the call.
    let step = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_pwrite64 as u32,
        ),
        step(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EIO as u32,
        ),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the filter outlives the calls.
    unsafe {
        succeeded(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
        let mode = libc::SECCOMP_MODE_FILTER;
        succeeded(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program))
    }
}

/// Puts an empty file system over `/proc`, for this process alone.
fn hide_proc() -> io::Result<()> {
    let none = core::ptr::null();
    // SAFETY: C strings, and no other pointers.
    unsafe {
        succeeded(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        succeeded(libc::mount(none, c"/".as_ptr(), none, private, none.cast()))?;
        let (kind, place) = (c"tmpfs".as_ptr(), c"/proc".as_ptr());
        succeeded(libc::mount(kind, place, kind, 0, none.cast()))
    }
}

fn where_code_cannot_be_changed_calls_by_name_are_counted(build: Build) {
    let commands = [
        "malloc:a:3221225472",
        "malloc:b:3221225472",
        "free:a",
        "malloc:c:1073741824",
        "wait",
    ];
    for forbidden in [Forbidden::NewCode, Forbidden::Writes] {
        if !can_be(forbidden) {
            continue;
        }
        for engine in ["auto", "table", "detour"] {
            for way in ["linked", "dlsym", "dlvsym"] {
                let case = format!("without {forbidden:?}, {engine}, {way}");
                let bench = Bench::new(build);
                let command = |commands| {
                    let mut command = bench.client("4GiB", way, commands);
                    command.env("FH_HOOK_ENGINE", engine);
                    forbid(&mut command, forbidden);
                    command
                };
                let mut program = Running::start(&mut command(&commands));
                let results: Vec<_> = (0..4).map(|_| program.line()).collect();
                let expected = [
                    "malloc a = 0",
                    "malloc b = 2 untouched",
                    "free a = 0",
                    "malloc c = 0",
                ];
                assert_eq!(results, expected, "{case}");
                let snapshot = bench.snapshot();
                let [member] = &snapshot.members[..] else {
                    panic!("{case}: {snapshot:?}")
                };
                let counts = (member.allocations, member.frees, member.refusals);
                assert_eq!(counts, (2, 1, 1), "{case}");
                assert_eq!(member.cells[0].figures.live, GIB, "{case}");
                // hipMalloc is the first of the table.
                let table = build.has_table() && engine != "detour";
                let expected = if table {
                    HookEngine::Table
                } else {
                    HookEngine::ExportOnly
                };
                assert_eq!(member.engines[0], expected, "{case}");
                assert!(!member.engines.contains(&HookEngine::Detour), "{case}");
                program.go_on();
                program.finish();

                let (_, told) = run(&mut command(&["malloc:a:1048576"]));
                let cannot = engine == "detour" || engine == "table" && !table;
                assert_eq!(told.len(), usize::from(cannot), "{case}: {told:?}");
                let reason = match (engine, forbidden) {
                    ("table", _) => "ROCm 6",
                    (_, Forbidden::NewCode) => "the engine 'detour'",
                    _ => "/proc/self/mem",
                };
                for line in &told {
                    assert!(line.contains("FH_HOOK_ENGINE="), "{case}: {line}");
                    assert!(line.contains(reason), "{case}: {line}");
                }
            }
        }
    }
}

/// The ledger needs to know which processes live.
fn without_proc_allocations_are_refused_and_it_is_said(build: Build) {
    if !can_be(Forbidden::Proc) {
        return;
    }
    for way in ["linked", "dlsym"] {
        let bench = Bench::new(build);
        let mut command = bench.client("4GiB", way, &["malloc:a:1048576", "free_null"]);
        forbid(&mut command, Forbidden::Proc);
        let (out, told) = run(&mut command);
        assert_eq!(out, ["malloc a = 2 untouched", "free null = 0"], "{told:?}");
        assert!(
            told.len() == 1 && told[0].contains("boot ID"),
            "{way}: {told:?}"
        );
        let (out, told) = run(command.env("FH_FAIL_MODE", "open"));
        assert_eq!(out, ["malloc a = 0", "free null = 0"]);
        assert!(
            told.len() == 1 && told[0].contains("WITHOUT a limit"),
            "{way}: {told:?}"
        );
    }
}
