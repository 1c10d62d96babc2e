//! Programs of a runtime's own suite, such as AMD's tools, with that suite's loader and libraries.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bench::Bench;

/// A program that is compiled.
///
/// # Errors
/// The runtime has no loader of its own.
pub fn foreign(bench: &Bench, program: PathBuf) -> Result<Command> {
    let loader = bench
        .runtime
        .loader
        .as_ref()
        .context("a fetched runtime has its own loader")?;
    let mut command = bench.command(loader);
    command
        .args(["--library-path", &bench.runtime.library_path()])
        .arg(program);
    Ok(command)
}

/// A script that starts the interpreter with its loader. Python starts itself again for helpers
/// of its own, and would start the loader alone.
fn wrapper(bench: &Bench, interpreter: &Path, folder: &Path) -> Result<PathBuf> {
    let loader = bench
        .runtime
        .loader
        .as_ref()
        .context("a fetched runtime has its own loader")?;
    let script = folder.join("python3");
    let text = format!(
        "#!/bin/sh\nexec '{}' --argv0 \"$0\" --library-path '{}' '{}' \"$@\"\n",
        loader.display(),
        bench.runtime.library_path(),
        interpreter.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, Permissions::from_mode(0o755))?;
    Ok(script)
}

/// A program in Python, by the suite's own interpreter. `folder` is for files that it needs.
///
/// # Errors
/// The suite has no Python.
pub fn python(bench: &Bench, script: &Path, folder: &Path) -> Result<Command> {
    let root = &bench.runtime.root;
    let mut interpreters: Vec<PathBuf> = std::fs::read_dir(root.join("usr/bin"))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            let name = path
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default();
            name.strip_prefix("python3.")
                .is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
        })
        .collect();
    interpreters.sort();
    let interpreter = interpreters
        .pop()
        .context("the suite's tools need its Python")?;
    let modules = [
        "usr/share/amd_smi",
        "usr/lib/python3/dist-packages",
        "usr/libexec/amdsmi_cli",
    ];
    let modules = std::env::join_paths(modules.iter().map(|m| root.join(m)))?;
    let mut command = bench.command(wrapper(bench, &interpreter, folder)?);
    command
        .arg(script)
        .env("PYTHONHOME", root.join("usr"))
        .env("PYTHONPATH", modules)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// What a command printed.
///
/// # Errors
/// It does not start, or does not end with success.
pub fn output(mut command: Command) -> Result<Vec<u8>> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}
