//! Unpacks downloaded packages into a folder, and finds out what has come.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use hipflex_e2e::runtime::Runtime;

use super::apt::Package;

/// Folders in which Debian puts libraries. Before Debian 13, libc lies outside of /usr.
const LIBRARY_DIRS: [&str; 3] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/llvm/lib",
];

/// Unpacks every archive into `folder`.
pub(super) fn all(archives: &[PathBuf], folder: &Path) -> Result<()> {
    for archive in archives {
        let status = Command::new("dpkg-deb")
            .arg("--extract")
            .args([archive.as_path(), folder])
            .status()
            .context("cannot run dpkg-deb")?;
        if !status.success() {
            bail!("dpkg-deb could not unpack {}", archive.display());
        }
    }
    Ok(())
}

/// What lies in `folder` now. The paths in it are relative to the folder.
pub(super) fn describe(folder: &Path, suite: &str, package: &Package) -> Result<Runtime> {
    let library_dirs: Vec<_> = LIBRARY_DIRS
        .iter()
        .map(PathBuf::from)
        .filter(|d| folder.join(d).is_dir())
        .collect();
    let soname = package.name.replace("libamdhip64-", "libamdhip64.so.");
    if !library_dirs
        .iter()
        .any(|d| folder.join(d).join(&soname).exists())
    {
        bail!("{} was unpacked, but brought no {soname}", package.name);
    }
    let loader = library_dirs.iter().map(|d| d.join("ld-linux-x86-64.so.2"));
    let loader = loader.into_iter().find(|p| folder.join(p).exists());
    let loader = loader.context("the packages brought no dynamic loader (libc6)")?;
    // Debian's version: epoch, upstream version, `+` or `~` for repackaging, `-` and a revision.
    let upstream = package.version.rsplit(':').next().unwrap_or_default();
    let version = upstream.split(['-', '+', '~']).next().unwrap_or_default();
    Ok(Runtime {
        version: version.into(),
        suite: suite.into(),
        package: format!("{} {}", package.name, package.version),
        root: PathBuf::new(),
        library: soname,
        loader: Some(loader),
        library_dirs,
    })
}
