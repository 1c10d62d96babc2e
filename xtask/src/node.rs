//! `cargo xtask node -- CMD`: runs a command on the emulated node.

use anyhow::{Context, Result, bail};
use clap::Args;
use hipflex_e2e::{environment, paths};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{cargo, machine, rocm};

#[derive(Args)]
pub(crate) struct Arguments {
    /// The GPU: mi210, mi300x (eight of them unless --gpus says otherwise), rx7900xtx or mi100
    #[arg(long, value_name = "PROFILE", default_value = "mi210")]
    gpu: String,
    /// How many of them
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    /// VRAM of each, such as 8GiB; `64GiB,16GiB` makes two of different sizes
    #[arg(long, value_name = "SIZE")]
    vram: Option<String>,
    /// How descriptors come into the command's processes: by a seccomp listener, or by a preload,
    /// which leaves the one listener that a process may have to others
    #[arg(long, value_name = "HOW", default_value = "seccomp")]
    inject: String,
    /// Run the command with this generation of HIP (such as 6.4), fetched by `cargo xtask rocm`:
    /// it finds the runtime's libraries, and the tools that came with it by their names
    #[arg(long, value_name = "VERSION")]
    hip: Option<String>,
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
    let words = match &arguments.hip {
        Some(version) => on_runtime(version, &arguments.command)?,
        None => arguments.command.iter().map(OsString::from).collect(),
    };
    cargo::run(&["build", "--quiet", "--release", "--package", "kfd-emulator"])?;
    let emulator = paths::release().join("kfd-emulator");
    let mut command = Command::new(&emulator);
    environment::without_cargo_libraries(&mut command);
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
    let error = command.arg("--").args(words).exec();
    Err(error).with_context(|| format!("cannot run {}", emulator.display()))
}

/// The command by way of the runtime's own loader, since its libraries need its own libc.
fn on_runtime(version: &str, command: &[String]) -> Result<Vec<OsString>> {
    let fetched = rocm::fetch(version)?;
    let runtime = fetched.runtimes.last().context("no runtime was fetched")?;
    let (name, rest) = command.split_first().context("no command was given")?;
    let program = find(name, &runtime.root.join("usr/bin"))?;
    let mut start = [0; 4];
    let is_elf = File::open(&program)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok_and(|()| start == *b"\x7fELF");
    if !is_elf {
        bail!(
            "{} is no ELF program: the runtime's loader can start only those. A script can be run \
             without --hip, and start its programs by {}",
            program.display(),
            runtime.root.display()
        );
    }
    let loader = runtime
        .loader
        .as_ref()
        .context("the runtime has no loader")?;
    let mut words: Vec<OsString> = vec![
        loader.into(),
        "--library-path".into(),
        runtime.library_path().into(),
        program.into(),
    ];
    words.extend(rest.iter().map(OsString::from));
    Ok(words)
}

/// A path as it is; a name among the runtime's own programs, then on the PATH.
fn find(name: &str, own: &Path) -> Result<PathBuf> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(own.to_path_buf())
        .chain(std::env::split_paths(&path))
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("there is no {name} in {} or on the PATH", own.display()))
}
