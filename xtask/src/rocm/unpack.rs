//! Unpacks downloaded packages into a folder, and finds out what has come.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use hipflex_e2e::runtime::Runtime;

use super::apt::Package;

/// Folders in which Debian puts libraries. Before Debian 13, libc lies outside of /usr.
const LIBRARY_DIRS: [&str; 3] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/llvm/lib",
];

/// Unpacks every archive into `folder`, but for the files that these patterns fit.
pub(super) fn all(archives: &[PathBuf], folder: &Path, without: &[&str]) -> Result<()> {
    for archive in archives {
        let mut files = Command::new("dpkg-deb")
            .arg("--fsys-tarfile")
            .arg(archive)
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run dpkg-deb")?;
        let status = Command::new("tar")
            .args(without.iter().map(|out| format!("--exclude={out}")))
            .args(["--extract", "--directory"])
            .arg(folder)
            .stdin(files.stdout.take().context("no stdout")?)
            .status()
            .context("cannot run tar")?;
        if !(status.success() && files.wait()?.success()) {
            bail!("{} could not be unpacked, see above", archive.display());
        }
    }
    Ok(())
}

/// The package of the HIP runtime among these archives, whose names are `NAME_VERSION_ARCHITECTURE.deb`.
pub(super) fn runtime_among(archives: &[PathBuf]) -> Result<Package> {
    let packages = archives.iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let mut parts = name.split('_');
        let (name, version) = (parts.next()?, parts.next()?);
        let number = name.strip_prefix("libamdhip64-")?;
        number.bytes().all(|b| b.is_ascii_digit()).then(|| Package {
            name: name.into(),
            // A colon is written as in a URL.
            version: version.replace("%3a", ":"),
        })
    });
    let packages: Vec<Package> = packages.collect();
    match &packages[..] {
        [package] => Ok(package.clone()),
        _ => bail!("there should be one HIP runtime among the packages: {packages:?}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_is_told_from_its_archive() {
        let archives = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let found = runtime_among(&archives(&[
            "/a/libamdhip64-6_1%3a6.4.3-5_amd64.deb",
            "/a/libamdhip64-dev_6.4.3-5_amd64.deb",
            "/a/libc6_2.43-7_amd64.deb",
        ]));
        let found = found.unwrap();
        assert_eq!(
            (&*found.name, &*found.version),
            ("libamdhip64-6", "1:6.4.3-5")
        );
        assert!(runtime_among(&archives(&["/a/libc6_2.43-7_amd64.deb"])).is_err());
    }
}
