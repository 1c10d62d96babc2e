//! The program that makes the calls, and the runtimes that it makes them to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use hip_standin::Build;
use hipflex_e2e::paths;

use super::{place, under_a_limit, without_settings};

/// A runtime without a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runtime {
    /// Of the benchmark's own: its calls cost next to nothing, so what is left is ours.
    Thin,
    /// A build of the stand-in. It keeps an account under a lock of its own.
    StandIn(Build),
}

impl Runtime {
    /// What is measured: next to nothing, the shape of ROCm 6 and that of ROCm 5.
    pub(super) const ALL: [Runtime; 3] = [
        Runtime::Thin,
        Runtime::StandIn(Build::Six),
        Runtime::StandIn(Build::Five),
    ];

    /// A short name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Runtime::Thin => "thin",
            Runtime::StandIn(build) => build.name(),
        }
    }
}

/// Where the programs, the ledgers and the log of one run are. It goes away with this value.
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Result<Folder> {
        let folder = place().join(std::process::id().to_string());
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(Folder(folder))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The program, linked to this runtime as hipcc would link it.
    pub(super) fn build(&self, runtime: Runtime) -> Result<Program<'_>> {
        let (libraries, soname) = match runtime {
            Runtime::StandIn(build) => (build.directory(), build.soname()),
            Runtime::Thin => {
                let soname = String::from("libamdhip64.so.6");
                let made = self.0.join(&soname);
                let options = ["-fPIC", "-shared", "-ftls-model=initial-exec"];
                let name = format!("-Wl,-soname,{soname}");
                compile("thin.c", &made, &[&options[..], &[&name]].concat())?;
                (self.0.clone(), soname)
            }
        };
        let file = self.0.join(format!("calls-{}", runtime.name()));
        let (path, library) = (format!("-L{}", libraries.display()), format!("-l:{soname}"));
        let rpath = format!("-Wl,-rpath,{}", libraries.display());
        compile("calls.c", &file, &["-pthread", &path, &library, &rpath])?;
        Ok(Program {
            folder: self,
            runtime,
            file,
        })
    }

    /// A library that does nothing at all, to see what preloading costs by itself.
    pub(super) fn empty_library(&self) -> Result<PathBuf> {
        let made = self.0.join("libempty.so");
        compile("empty.c", &made, &["-fPIC", "-shared"])?;
        Ok(made)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Whatever stays is below `target`.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The program, built for a runtime.
pub(super) struct Program<'a> {
    folder: &'a Folder,
    pub(super) runtime: Runtime,
    file: PathBuf,
}

impl Program<'_> {
    /// To run it without hipflex.
    pub(super) fn bare(&self) -> Command {
        let mut command = Command::new(&self.file);
        without_settings(&mut command);
        command
    }

    /// To run it under a limit, in a ledger of its own.
    pub(super) fn limited(&self) -> Command {
        let mut command = Command::new(&self.file);
        under_a_limit(&mut command, self.folder, self.runtime.name());
        command
    }
}

/// Compiles a source that lies beside this file.
fn compile(source: &str, made: &Path, options: &[&str]) -> Result<()> {
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([
            made,
            &paths::workspace().join("xtask/src/bench").join(source),
        ])
        .args(options)
        .output()
        .context("cannot run cc: a C compiler is needed (gcc)")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("cc failed on {source}:\n{said}");
    }
    Ok(())
}
