//! `kfd-emulator`: runs a program with an emulated AMD GPU.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::Context;
use clap::{Parser, Subcommand};
use kfd_emulator::Node;
use kfd_emulator::node::{self, Config};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};

/// What installing a second seccomp listener fails with.
const EBUSY: i32 = nix::errno::Errno::EBUSY as i32;

#[derive(Parser)]
#[command(
    version,
    about = "An AMD GPU, as the amdkfd driver shows it, in user space"
)]
struct Program {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Run a program in a private node, and exit with its status
    Node {
        #[command(flatten)]
        config: Config,
        /// The program and its arguments
        #[arg(last = true, required = true, value_name = "CMD")]
        command: Vec<std::ffi::OsString>,
    },
    /// Be the server of a node: started by `node` and by tests, ends with its standard input
    Serve {
        #[command(flatten)]
        config: Config,
    },
}

fn main() -> ExitCode {
    match Program::parse().what {
        What::Serve { config } => ExitCode::from(node::serve(&config) as u8),
        What::Node { config, command } => match run(config, &command) {
            Ok(code) => code,
            Err(error) => {
                eprintln!("kfd-emulator: {error:#}");
                ExitCode::from(2)
            }
        },
    }
}

fn run(config: Config, command: &[std::ffi::OsString]) -> anyhow::Result<ExitCode> {
    let Some((program, arguments)) = command.split_first() else {
        anyhow::bail!("no program to run");
    };
    let node = Node::builder().config(config).start()?;
    let mut command = node.command(program);
    command.args(arguments);
    leave_keyboard_signals_to(&mut command)?;
    let status = match command.status() {
        Ok(status) => exit_code(status),
        Err(error) => {
            eprintln!("kfd-emulator: cannot run {}: {error}", program.display());
            if error.raw_os_error() == Some(EBUSY) {
                eprintln!(
                    "kfd-emulator: there is a seccomp listener already, and a process can have \
                     only one; try --inject=preload"
                );
            }
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            ExitCode::from(if missing { 127 } else { 126 })
        }
    };
    if let Err(error) = node.stop() {
        eprintln!("kfd-emulator: {error:#}");
        // A program that did well must not hide that others are left.
        if status == ExitCode::SUCCESS {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(status)
}

/// Ignores what Ctrl-C and Ctrl-\ at a terminal send while the program runs, as shells do: they go
/// to the program too, which may handle them and go on, and needs its node for that. The program
/// itself starts with what this process was started with.
fn leave_keyboard_signals_to(command: &mut Command) -> anyhow::Result<()> {
    let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: ignoring a signal runs no code of this program.
        let before = unsafe { sigaction(signal, &ignore) }
            .with_context(|| format!("cannot ignore {signal}"))?;
        let restore = move || {
            // SAFETY: the action is one that the kernel returned: this process had no handler.
            unsafe { sigaction(signal, &before) }?;
            Ok(())
        };
        // SAFETY: between fork and exec the closure makes one system call, which is
        // async-signal-safe, on a value that was computed before.
        unsafe { command.pre_exec(restore) };
    }
    Ok(())
}

/// As shells do it: the program's own status, or 128 and the signal that killed it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(code as u8)
}
