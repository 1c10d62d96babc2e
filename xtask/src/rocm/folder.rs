//! A folder with packages of a Debian suite and all that they need, among it a HIP runtime.

use std::fs::{self, File};
use std::path::PathBuf;

use anyhow::{Context, Result};
use hipflex_e2e::runtime::{self, Runtime};

use super::apt::{Apt, Package};
use super::unpack;

/// What is to be fetched, and where to.
pub(super) struct Download<'a> {
    /// It gets its name when it is complete.
    pub(super) folder: PathBuf,
    /// The last is preferred; the others fill in what it does not have.
    pub(super) suites: &'a [&'a str],
    /// Files that are not unpacked, as patterns.
    pub(super) without: &'a [&'a str],
}

impl Download<'_> {
    /// Fetches what `choose` picks, unless another did so meanwhile.
    pub(super) fn fetch(&self, choose: impl Fn(&Apt) -> Result<Vec<Package>>) -> Result<Runtime> {
        let name = self.folder.file_name().context("a folder without a name")?;
        let name = name.to_string_lossy();
        let parent = self.folder.parent().context("a folder at the root")?;
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
        // Two at a time would do the same work twice, and get into each other's way.
        let lock =
            File::create(parent.join(format!(".{name}.lock"))).context("cannot make a lock")?;
        lock.lock()
            .context("cannot wait for another fetch to end")?;
        if let Some(there) = runtime::at(&self.folder)? {
            return Ok(there);
        }
        let partial = parent.join(format!(".{name}.partial"));
        if partial.exists() {
            fs::remove_dir_all(&partial)
                .with_context(|| format!("cannot clear an unfinished {}", partial.display()))?;
        }
        let suite = self.suites.last().copied().unwrap_or_default();
        let apt = Apt::new(&partial.join(".apt"), self.suites)?;
        apt.update()?;
        let archives = apt.download(&choose(&apt)?)?;
        let package = unpack::runtime_among(&archives)?;
        unpack::all(&archives, &partial, self.without)?;
        apt.remove()?;
        let found = unpack::describe(&partial, suite, &package)?;
        let description = partial.join(runtime::DESCRIPTION);
        fs::write(&description, serde_json::to_string_pretty(&found)?)
            .with_context(|| format!("cannot write {}", description.display()))?;
        fs::rename(&partial, &self.folder)
            .with_context(|| format!("cannot move {} into place", self.folder.display()))?;
        runtime::at(&self.folder)?.context("it was fetched, and is not there")
    }
}
