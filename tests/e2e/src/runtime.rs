//! The ROCm runtimes that were fetched: which there are, and how a program runs on one.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::paths;

/// The file in each runtime's folder that describes it. It is written last: a folder without it
/// is an unfinished download.
pub const DESCRIPTION: &str = "runtime.json";

/// Where distributions and AMD's own packages install ROCm's libraries.
const SYSTEM_DIRS: [&str; 4] = [
    "/opt/rocm/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/local/lib",
];

/// One ROCm runtime, unpacked with all the libraries it needs, its own libc included.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Runtime {
    /// The version of HIP, such as `6.4.3`.
    pub version: String,
    /// The Debian suite it came from, such as `sid`.
    pub suite: String,
    /// The package and its full version, such as `libamdhip64-6 6.4.3-4`.
    pub package: String,
    /// The folder that it is unpacked in.
    pub root: PathBuf,
    /// The HIP library's file name, such as `libamdhip64.so.6`.
    pub library: String,
    /// The dynamic loader which belongs to this runtime's libc; `None` for the runtime that is
    /// installed on the machine itself.
    pub loader: Option<PathBuf>,
    /// Folders with libraries, in the order in which they are searched.
    pub library_dirs: Vec<PathBuf>,
}

impl Runtime {
    /// The runtime which is installed on this machine, for programs on a real GPU.
    ///
    /// # Errors
    /// There is none; the message names the places that were looked at.
    pub fn of_system() -> Result<Runtime> {
        let dirs: Vec<PathBuf> = SYSTEM_DIRS
            .iter()
            .map(PathBuf::from)
            .filter(|d| d.is_dir())
            .collect();
        for library in ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"] {
            if let Some(dir) = dirs.iter().find(|d| d.join(library).exists()) {
                let real = fs::canonicalize(dir.join(library))?;
                let version = real
                    .to_string_lossy()
                    .rsplit(".so.")
                    .next()
                    .map(str::to_string);
                return Ok(Runtime {
                    version: version.unwrap_or_default(),
                    suite: "system".into(),
                    package: real.display().to_string(),
                    root: PathBuf::from("/"),
                    library: library.into(),
                    loader: None,
                    library_dirs: vec![dir.clone()],
                });
            }
        }
        bail!(
            "no libamdhip64.so.5, .6 or .7 in {}: install ROCm's HIP runtime",
            SYSTEM_DIRS.join(", ")
        )
    }

    /// Completes the paths of a description, which are relative to its folder.
    fn place(&mut self, folder: &Path) {
        self.root = folder.to_path_buf();
        self.loader = self.loader.take().map(|loader| folder.join(loader));
        for dir in &mut self.library_dirs {
            *dir = folder.join(&*dir);
        }
    }

    /// The first number of the version: 5, 6, 7.
    pub fn major(&self) -> u32 {
        self.version
            .split('.')
            .next()
            .and_then(|n| n.parse().ok())
            .unwrap_or(0)
    }

    /// Major and minor as one number, such as 604 for 6.4.3.
    pub fn generation(&self) -> u32 {
        let mut numbers = self
            .version
            .split('.')
            .map(|n| n.parse::<u32>().unwrap_or(0));
        numbers.next().unwrap_or(0) * 100 + numbers.next().unwrap_or(0)
    }

    /// The folders joined with `:`, as the dynamic loader wants them.
    pub fn library_path(&self) -> String {
        let dirs: Vec<_> = self
            .library_dirs
            .iter()
            .map(|d| d.display().to_string())
            .collect();
        dirs.join(":")
    }

    /// The HIP library itself.
    pub fn file_of_library(&self) -> Option<PathBuf> {
        let mut files = self.library_dirs.iter().map(|dir| dir.join(&self.library));
        files.find(|file| file.exists())
    }

    /// This runtime with a copy of its HIP library in `folder`, and with programs that are built there: so that
    /// what is done to the library's file concerns no other program.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn with_copy_in(&self, folder: &Path) -> Result<Runtime> {
        let original = self.file_of_library().context("no HIP library")?;
        let copy = folder.join(&self.library);
        fs::copy(&original, &copy)
            .with_context(|| format!("cannot copy {} to {}", original.display(), copy.display()))?;
        let mut copied = self.clone();
        // A path that is absolute: programs are built there, and not beside those of the suite.
        copied.suite = folder.join("programs").display().to_string();
        copied.library_dirs.insert(0, folder.to_path_buf());
        Ok(copied)
    }

    /// A file of this runtime by its usual path, such as `usr/bin/rocminfo`, if it was fetched.
    pub fn file(&self, path: &str) -> Option<PathBuf> {
        Some(self.root.join(path)).filter(|p| p.exists())
    }
}

/// The runtime in this folder, if there is a complete one.
///
/// # Errors
/// A description that cannot be read or understood.
pub fn at(folder: &Path) -> Result<Option<Runtime>> {
    let description = folder.join(DESCRIPTION);
    if !description.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&description)
        .with_context(|| format!("cannot read {}", description.display()))?;
    let mut runtime: Runtime = serde_json::from_str(&text).with_context(|| {
        format!(
            "{} is damaged: remove its folder and fetch again",
            description.display()
        )
    })?;
    runtime.place(folder);
    Ok(Some(runtime))
}

/// All runtimes fetched so far, oldest first.
///
/// # Errors
/// A description that cannot be read or understood.
pub fn fetched() -> Result<Vec<Runtime>> {
    let dir = paths::rocm();
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir(&dir) else {
        return Ok(found);
    };
    for entry in entries {
        found.extend(at(&entry?.path())?);
    }
    found.sort_by_key(|r| (r.generation(), r.version.clone()));
    Ok(found)
}

/// The fetched runtime whose version begins with `version`.
///
/// # Errors
/// None does; the message names those that are there.
pub fn find(version: &str) -> Result<Runtime> {
    let all = fetched()?;
    let known: Vec<_> = all.iter().map(|r| r.version.clone()).collect();
    match all.into_iter().find(|r| r.version.starts_with(version)) {
        Some(runtime) => Ok(runtime),
        None => bail!(
            "no ROCm runtime {version} has been fetched (there are: {}); \
             `cargo xtask rocm {version}` fetches it",
            if known.is_empty() {
                "none".into()
            } else {
                known.join(", ")
            }
        ),
    }
}
