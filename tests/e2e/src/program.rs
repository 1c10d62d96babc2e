//! Builds the C programs of `tests/programs` for a runtime. They know nothing of hipflex.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::paths;
use crate::runtime::{self, Runtime};

/// How a program comes to HIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is linked with libamdhip64, as hipcc does it.
    Linked,
    /// It opens the library at run time and looks every function up.
    Dlopen,
    /// It is a library (its `main` is `plugin_main`), linked with libamdhip64, for `plugin_host` to open.
    Plugin,
}

impl Access {
    /// Those of programs.
    pub const ALL: [Access; 2] = [Access::Linked, Access::Dlopen];

    fn suffix(self) -> &'static str {
        match self {
            Access::Linked => "linked",
            Access::Dlopen => "dlopen",
            Access::Plugin => "plugin.so",
        }
    }
}

/// Builds `tests/programs/NAME.c` against `runtime` and returns the program's path. A program
/// that is newer than its sources is not built again.
///
/// The program carries the runtime's own dynamic loader and library folders, so it runs by
/// itself: no wrapper and no `LD_LIBRARY_PATH`, which children built for the host's libc could
/// not survive.
///
/// # Errors
/// No C compiler, or the compiler's own message.
pub fn build(name: &str, runtime: &Runtime, access: Access) -> Result<PathBuf> {
    let sources = paths::workspace().join("tests/programs");
    let source = sources.join(format!("{name}.c"));
    let folder = paths::programs().join(&runtime.suite);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let program = folder.join(format!("{name}-{}", access.suffix()));
    if is_newer(&program, &sources, &runtime.root.join(runtime::DESCRIPTION))? {
        return Ok(program);
    }
    // Tests run side by side: build under a name of our own and move it into place.
    let partial = folder.join(format!(
        ".{name}-{}.{}",
        access.suffix(),
        std::process::id()
    ));
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-std=gnu11",
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
            "-o",
        ])
        .arg(&partial)
        .arg(&source)
        .arg(format!("-DHIP_LIBRARY=\"{}\"", runtime.library))
        .arg("-Wl,--allow-shlib-undefined,--disable-new-dtags")
        .arg(format!("-Wl,-rpath,{}", runtime.library_path()));
    for dir in &runtime.library_dirs {
        compiler.arg(format!("-L{}", dir.display()));
    }
    match access {
        Access::Plugin => {
            compiler
                .args([
                    "-shared",
                    "-fPIC",
                    "-Dmain=plugin_main",
                    "-Wl,--no-as-needed",
                ])
                .arg(format!("-l:{}", runtime.library));
        }
        Access::Linked => {
            // Its functions are weak references, which alone do not count as a need.
            compiler
                .arg("-Wl,--no-as-needed")
                .arg(format!("-l:{}", runtime.library));
        }
        Access::Dlopen => {
            compiler.args(["-DHIP_DLOPEN", "-ldl"]);
        }
    }
    if let Some(loader) = &runtime.loader
        && access != Access::Plugin
    {
        compiler.arg(format!("-Wl,--dynamic-linker={}", loader.display()));
        compiler.arg("-Wl,--no-as-needed");
        for library in opened_later(runtime, loader)? {
            compiler.arg(format!("-l:{library}"));
        }
    }
    let output = compiler
        .output()
        .context("cannot run cc: a C compiler is needed (gcc)")?;
    if !output.status.success() {
        bail!(
            "cc failed on {}:\n{}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    fs::rename(&partial, &program)
        .with_context(|| format!("cannot move {} into place", program.display()))?;
    Ok(program)
}

/// ROCm 6 and 7 open libamd_comgr by name at run time, and libraries with a search path of their
/// own do not look into the program's. So the program itself asks for all that will be opened.
fn opened_later(runtime: &Runtime, loader: &Path) -> Result<Vec<String>> {
    let comgr = runtime.library_dirs.iter().find_map(|dir| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .ok()?
            .filter_map(|e| e.ok()?.file_name().into_string().ok())
            .filter(|n| {
                n.strip_prefix("libamd_comgr.so.")
                    .is_some_and(|v| !v.contains('.'))
            })
            .collect();
        names.sort();
        names.pop().map(|name| dir.join(name))
    });
    let comgr = comgr.with_context(|| format!("{} has no libamd_comgr", runtime.root.display()))?;
    let output = Command::new(loader)
        .args(["--library-path", &runtime.library_path(), "--list"])
        .arg(&comgr)
        .output()
        .with_context(|| format!("cannot run {}", loader.display()))?;
    if !output.status.success() {
        bail!(
            "cannot list what {} needs: {}",
            comgr.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let listing = String::from_utf8_lossy(&output.stdout);
    let needed = listing
        .lines()
        .filter_map(|l| l.trim().split_once(" => ").map(|(n, _)| n));
    let mut libraries: Vec<String> = needed
        .filter(|n| !n.starts_with("ld-linux") && !n.starts_with("libc.so"))
        .map(str::to_string)
        .collect();
    libraries.extend(
        comgr
            .file_name()
            .and_then(|n| n.to_str())
            .map(str::to_string),
    );
    Ok(libraries)
}

/// Is `program` newer than every file in `sources`, and than the runtime which it was built for?
fn is_newer(program: &Path, sources: &Path, description: &Path) -> Result<bool> {
    let modified = |path: &Path| fs::metadata(path).and_then(|m| m.modified());
    let Ok(built) = modified(program) else {
        return Ok(false);
    };
    if modified(description).is_ok_and(|fetched| fetched >= built) {
        return Ok(false);
    }
    for entry in fs::read_dir(sources)? {
        if entry?.metadata()?.modified()? >= built {
            return Ok(false);
        }
    }
    Ok(true)
}
