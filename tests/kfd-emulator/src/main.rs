//! `kfd-emulator`: runs a program with an emulated AMD GPU.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use clap::{Parser, Subcommand};
use kfd_emulator::Node;
use kfd_emulator::node::{self, Config};

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
    let status = match node.command(program).args(arguments).status() {
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

/// As shells do it: the program's own status, or 128 and the signal that killed it.
fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or(status.signal().map(|signal| 128 + signal))
        .unwrap_or(1);
    ExitCode::from(code as u8)
}
