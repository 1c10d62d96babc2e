//! What a process that never touches HIP does with the library preloaded that it does not do without: it is traced,
//! system call by system call.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr;

use anyhow::{Context, Result, bail, ensure};
use hipflex_e2e::bench;

use super::program::Folder;
use super::start::{PROGRAM, with, without};
use super::table::{Row, Table};

/// What a process did.
#[derive(Debug, Default)]
struct Trace {
    /// How often each file was opened, whether or not it was there.
    opened: BTreeMap<String, usize>,
    /// Threads and processes started.
    started: usize,
    /// System calls that write something.
    written: usize,
    /// All system calls.
    calls: usize,
}

/// Three rows that must be 0.
pub(super) fn compare(folder: &Folder, table: &mut Table) -> Result<()> {
    let library = bench::library();
    let before = trace(&mut without(PROGRAM))?;
    let after = trace(&mut with(folder, &library))?;
    ensure!(
        before.opened.keys().any(|file| file.contains("libc.so")),
        "the trace of {PROGRAM} does not show what it must have opened: {before:?}"
    );
    // The dynamic linker opens the library itself: that is how it gets in.
    let library = library.display().to_string();
    ensure!(
        after.opened.get(&library) == Some(&1),
        "the linker did not open {library}: {:?}",
        after.opened
    );
    let more: Vec<&str> = after
        .opened
        .iter()
        .filter(|(file, times)| **file != library && before.opened.get(*file) != Some(times))
        .map(|(file, _)| file.as_str())
        .collect();
    let row = |what: &str, value: usize| {
        Row::new(format!("{PROGRAM}: {what}"), value as f64, "more").at_most(0.0)
    };
    table.push(row("files opened", more.len()).note(more.join(", ")));
    table.push(row("threads", after.started.saturating_sub(before.started)));
    let written = after.written.saturating_sub(before.written);
    table.push(row("lines or logs written", written));
    let calls = after.calls.saturating_sub(before.calls) as f64;
    let note = "most are the dynamic linker's, for any library";
    table.push(Row::new(format!("{PROGRAM}: system calls"), calls, "more").note(note));
    Ok(())
}

/// Runs a program to its end, stopping it at each system call.
fn trace(command: &mut Command) -> Result<Trace> {
    let traced = || {
        // SAFETY: PTRACE_TRACEME takes no pointer; the others are not looked at.
        let result = unsafe {
            libc::ptrace(
                libc::PTRACE_TRACEME,
                0,
                ptr::null_mut::<libc::c_void>(),
                ptr::null_mut::<libc::c_void>(),
            )
        };
        if result < 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes one system call, and allocates nothing.
    unsafe { command.pre_exec(traced) };
    let child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot trace {PROGRAM}"))?;
    let pid = libc::pid_t::try_from(child.id()).context("no such PID")?;
    let outcome = follow(pid);
    if outcome.is_err() {
        // SAFETY: no pointer; the child was not waited for yet, so the PID is still its own.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    outcome
}

fn follow(pid: libc::pid_t) -> Result<Trace> {
    let mut found = Trace::default();
    ensure!(
        libc::WIFSTOPPED(wait(pid)?),
        "{PROGRAM} did not stop when it began"
    );
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
    ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize)?;
    let memory = File::open(format!("/proc/{pid}/mem")).context("cannot read its memory")?;
    let mut signal = 0;
    loop {
        ptrace(libc::PTRACE_SYSCALL, pid, 0, signal)?;
        let status = wait(pid)?;
        if libc::WIFEXITED(status) {
            ensure!(
                libc::WEXITSTATUS(status) == 0,
                "{PROGRAM} failed while it was traced"
            );
            return Ok(found);
        }
        ensure!(
            libc::WIFSTOPPED(status),
            "{PROGRAM} died while it was traced"
        );
        if libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80 {
            // A signal of its own goes on to it.
            signal = libc::WSTOPSIG(status) as usize;
            continue;
        }
        signal = 0;
        if let Some((number, arguments)) = entered(pid)? {
            found.calls += 1;
            match number {
                libc::SYS_open | libc::SYS_creat => found.open(&memory, arguments[0])?,
                libc::SYS_openat | libc::SYS_openat2 => found.open(&memory, arguments[1])?,
                libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
                    found.started += 1;
                }
                libc::SYS_write | libc::SYS_writev | libc::SYS_pwrite64 | libc::SYS_sendto => {
                    found.written += 1;
                }
                _ => {}
            }
        }
    }
}

impl Trace {
    /// Notes the file whose name lies at this address of the process.
    fn open(&mut self, memory: &File, address: u64) -> Result<()> {
        let mut text = [0; libc::PATH_MAX as usize];
        let length = memory
            .read_at(&mut text, address)
            .context("cannot read a file's name")?;
        let text = text[..length].split(|byte| *byte == 0).next();
        let name = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        *self.opened.entry(name).or_default() += 1;
        Ok(())
    }
}

/// The system call that the process has stopped before; `None`: it has stopped behind one.
fn entered(pid: libc::pid_t) -> Result<Option<(libc::c_long, [u64; 6])>> {
    // SAFETY: the structure consists of numbers, for which all zero is a value.
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    let size = size_of_val(&info);
    // SAFETY: the request writes at most `size` bytes to `info`, which has that many.
    let written = unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO,
            pid,
            size,
            ptr::from_mut(&mut info),
        )
    };
    if written < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot ask for the system call");
    }
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: the kernel says that it is an entry, and all of it are numbers.
    let entry = unsafe { info.u.entry };
    Ok(Some((entry.nr.try_into()?, entry.args)))
}

fn ptrace(request: libc::c_uint, pid: libc::pid_t, address: usize, data: usize) -> Result<()> {
    // SAFETY: the requests made here take numbers, no pointers.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    if result < 0 {
        bail!("ptrace: {}", std::io::Error::last_os_error());
    }
    Ok(())
}

fn wait(pid: libc::pid_t) -> Result<libc::c_int> {
    let mut status = 0;
    // SAFETY: `status` is a number that lives through the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    if waited < 0 {
        bail!("waitpid: {}", std::io::Error::last_os_error());
    }
    Ok(status)
}
