//! `cargo xtask node -- CMD`: runs a command on the emulated node.

use anyhow::{Context, Result, bail};
use clap::Args;
use hipflex_e2e::paths;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::{cargo, machine};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The GPU: mi210, mi300x (eight of them unless --gpus says otherwise) or rx7900xtx
    #[arg(long, value_name = "PROFILE", default_value = "mi210")]
    gpu: String,
    /// How many of them
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    /// VRAM of each, such as 8GiB
    #[arg(long, value_name = "SIZE")]
    vram: Option<String>,
    /// How descriptors come into the command's processes: by a seccomp listener, or by a preload,
    /// which leaves the one listener that a process may have to others
    #[arg(long, value_name = "HOW", default_value = "seccomp")]
    inject: String,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

/// Becomes the emulator, which runs the command and ends with its status.
pub(crate) fn node(arguments: &Arguments) -> Result<()> {
    let missing = machine::missing_for_node();
    if !missing.is_empty() {
        bail!("the emulated node needs {}", missing.join("; "));
    }
    cargo::run(&["build", "--quiet", "--release", "--package", "kfd-emulator"])?;
    let emulator = paths::release().join("kfd-emulator");
    let mut command = Command::new(&emulator);
    command.args([
        "node",
        "--gpu",
        &arguments.gpu,
        "--inject",
        &arguments.inject,
    ]);
    if let Some(gpus) = arguments.gpus {
        command.args(["--gpus", &gpus.to_string()]);
    }
    if let Some(vram) = &arguments.vram {
        command.args(["--vram", vram]);
    }
    let error = command.arg("--").args(&arguments.command).exec();
    Err(error).with_context(|| format!("cannot run {}", emulator.display()))
}
