//! `cargo xtask coverage`: which functions of HIP that may allocate or free are hooked, and what becomes of the
//! others.
//!
//! Made from three sources: the table of hooks in the enforcer, the lists of what the real libraries export, and the
//! reasons in [`REASONS`]. The page cannot fall behind them: `--check`, which is part of `cargo xtask check`, fails
//! when it has, or when a runtime has such a function that none of them knows.

mod hooks;
mod page;
mod reasons;

use std::fs;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use hipflex_e2e::exports::{self, Export};
use hipflex_e2e::{paths, runtime};

use reasons::Reasons;

const PAGE: &str = "docs/hook-coverage.md";
const REASONS: &str = "tests/hook-coverage.toml";
const TABLE: &str = "enforcer/src/hook_table.rs";

#[derive(Args)]
pub(crate) struct Arguments {
    /// Change nothing: fail if the page or a reason is out of date
    #[arg(long)]
    check: bool,
    /// Make the lists of exports anew from the fetched runtimes first
    #[arg(long, conflicts_with = "check")]
    exports: bool,
}

/// One release and what it exports.
struct Release {
    name: String,
    exports: Vec<Export>,
}

impl Release {
    fn has(&self, function: &str) -> bool {
        self.exports.iter().any(|export| export.name == function)
    }
}

pub(crate) fn coverage(arguments: &Arguments) -> Result<()> {
    if arguments.exports {
        return make_lists().and_then(|()| write_page());
    }
    if arguments.check {
        check()
    } else {
        write_page()
    }
}

/// The page and the lists are what they would be if they were made now.
pub(crate) fn check() -> Result<()> {
    let page = make_page()?;
    let path = paths::workspace().join(PAGE);
    let kept = fs::read_to_string(&path).with_context(|| format!("cannot read {PAGE}"))?;
    ensure!(
        kept == page,
        "{PAGE} is out of date: `cargo xtask coverage` makes it anew"
    );
    for (release, real) in fetched()? {
        // A release without a list is one that nobody has looked at.
        let listed = exports::listed(&release)
            .with_context(|| format!("HIP {release}: `cargo xtask coverage --exports`"))?;
        ensure!(
            listed == real,
            "the list of HIP {release} is not what its library exports: `cargo xtask coverage --exports`"
        );
    }
    Ok(())
}

fn write_page() -> Result<()> {
    let page = make_page()?;
    fs::write(paths::workspace().join(PAGE), page).with_context(|| format!("cannot write {PAGE}"))
}

fn make_page() -> Result<String> {
    let releases = exports::releases()?.into_iter().map(|name| {
        let exports = exports::listed(&name)?;
        Ok(Release { name, exports })
    });
    let releases: Vec<Release> = releases.collect::<Result<_>>()?;
    let read = |path: &str| {
        fs::read_to_string(paths::workspace().join(path))
            .with_context(|| format!("cannot read {path}"))
    };
    let hooks = hooks::read(&read(TABLE)?)?;
    let reasons = Reasons::parse(&read(REASONS)?).with_context(|| format!("in {REASONS}"))?;
    let faults = reasons.faults(&releases, &hooks);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(page::make(&releases, &hooks, &reasons))
}

/// What the libraries of the fetched runtimes export.
fn fetched() -> Result<Vec<(String, Vec<Export>)>> {
    let fetched = runtime::fetched()?.into_iter().map(|runtime| {
        let library = runtime.file_of_library();
        let library = library.with_context(|| format!("{} has no library", runtime.version))?;
        Ok((runtime.version, exports::of_library(&library)?))
    });
    fetched.collect()
}

fn make_lists() -> Result<()> {
    let fetched = fetched()?;
    ensure!(
        !fetched.is_empty(),
        "no runtime is there: `cargo xtask rocm` fetches them"
    );
    for (release, real) in fetched {
        let path = exports::list_of(&release);
        fs::write(&path, exports::as_text(&release, &real))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
