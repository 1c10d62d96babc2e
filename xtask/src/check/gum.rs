//! Lints of the hook engine GUM, which is an option of the build.

use std::path::Path;

use anyhow::{Context, Result, bail};
use hipflex_e2e::paths;

use crate::cargo::cargo;
use crate::machine;

/// Checks the code for it, without its development kit: that has to be downloaded, which a build must not do. For
/// its documentation the crate brings a header of its own, and makes its bindings from that one if `DOCS_RS` is set.
/// What is checked so cannot be linked, so it is built in a folder apart.
pub(super) fn check() -> Result<()> {
    if !has_libclang()
        && let Err(error) = machine::install(&["libclang-dev"])
    {
        println!("SKIPPED lints of the engine GUM: needs libclang ({error:#})");
        return Ok(());
    }
    let status = cargo()
        .args(["clippy", "--quiet", "--package", "hipflex-hooking"])
        .args(["--features", "gum", "--target-dir"])
        .arg(paths::target().join("gum-check"))
        .args(["--", "-D", "warnings"])
        .env("DOCS_RS", "1")
        .status()
        .context("cannot run cargo clippy")?;
    if !status.success() {
        bail!("the engine GUM has lints, see above");
    }
    Ok(())
}

/// Whether there is a libclang where the makers of bindings look for it.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() || machine::is_on_path("llvm-config") {
        return true;
    }
    let is_one = |name: &str| name.starts_with("libclang.so") || name.starts_with("libclang-1");
    let holds_one = |dir: &Path| {
        let entries = dir.read_dir().into_iter().flatten();
        entries
            .flatten()
            .any(|e| e.file_name().to_str().is_some_and(is_one))
    };
    let versions = Path::new("/usr/lib").read_dir().into_iter().flatten();
    let mut versions = versions.flatten().filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(|name| name.starts_with("llvm"))
    });
    versions.any(|entry| holds_one(&entry.path().join("lib")))
        || ["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu"]
            .iter()
            .any(|dir| holds_one(Path::new(dir)))
}
