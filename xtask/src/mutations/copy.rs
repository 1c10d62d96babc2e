//! The copy of the tree that is mutated.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::paths;

use super::list::Edit;
use crate::cargo::cargo;

/// Where it lies, with a `target` of its own.
pub(crate) struct Copy {
    root: PathBuf,
}

impl Copy {
    /// Makes it, or brings it up to date: what has not changed stays as it is, so that it is not built again.
    pub(crate) fn make() -> Result<Self> {
        let root = paths::target().join("mutations/tree");
        let files = files()?;
        for file in &files {
            let text = fs::read(paths::workspace().join(file))?;
            let to = root.join(file);
            if fs::read(&to).ok().as_ref() != Some(&text) {
                fs::create_dir_all(to.parent().context("a file lies in a folder")?)?;
                // Its time is now: one from before the last build would not be built.
                fs::write(&to, text)?;
            }
        }
        remove_others(&root, &root, &files)?;
        fs::create_dir_all(root.join("target"))?;
        let runtimes = root.join("target/rocm");
        if paths::rocm().exists() && !runtimes.exists() {
            symlink(paths::rocm(), runtimes)?;
        }
        Ok(Self { root })
    }

    /// Makes changes, until the result is dropped.
    pub(crate) fn apply(&self, edits: &[Edit]) -> Result<Applied> {
        let mut applied = Applied(Vec::new());
        for edit in edits {
            let path = self.root.join(&edit.file);
            let before = fs::read_to_string(&path)?;
            let after = edit.applied(&before)?;
            applied.0.push((path.clone(), before));
            fs::write(path, after)?;
        }
        Ok(applied)
    }

    /// A file of the copy.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A cargo that builds the copy, and nothing but the copy.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = cargo();
        command
            .current_dir(&self.root)
            .env_remove("CARGO_TARGET_DIR")
            // Else the tests would look at another library.
            .env_remove("HIPFLEX_LIB");
        command
    }
}

/// Changes that were made, with the texts before, in this order.
pub(crate) struct Applied(Vec<(PathBuf, String)>);

impl Drop for Applied {
    fn drop(&mut self) {
        while let Some((path, text)) = self.0.pop() {
            // What is not restored here is when the copy is made the next time.
            let _ = fs::write(path, text);
        }
    }
}

/// The files of this tree, also those that are not committed yet.
fn files() -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(paths::workspace())
        .output()
        .context("cannot run git, which knows the files of the tree")?;
    ensure!(
        output.status.success(),
        "`git ls-files` failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = output.stdout.split(|byte| *byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let paths_of = names.map(|name| PathBuf::from(std::ffi::OsStr::from_bytes(name)));
    // One that was removed may still be listed.
    Ok(paths_of
        .filter(|path| paths::workspace().join(path).is_file())
        .collect())
}

/// Removes what an earlier tree had.
fn remove_others(root: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path == root.join("target") {
            continue;
        }
        if path.is_dir() {
            remove_others(root, &path, files)?;
        } else if !files.contains(path.strip_prefix(root)?) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}
