//! `cargo xtask rocm`: AMD's own HIP runtimes out of Debian's packages, unpacked below `target`.
//!
//! Nothing is installed on the machine: apt is given folders of its own for its lists and its
//! state, packages are only unpacked, and each runtime brings the libc that it was built for. So
//! four generations of ROCm lie side by side, and none of them touches the host.

mod apt;
mod folder;
pub(crate) mod llama;
mod unpack;

use anyhow::{Context, Result, bail};
use hipflex_e2e::paths;
use hipflex_e2e::runtime::{self, Runtime};

use apt::Apt;
use folder::Download;

/// Where Debian keeps the generations of HIP. A package is found by its name's pattern in a
/// suite, so a suite may move on to a newer runtime and still be found here; `expected` only
/// tells which suite to look in first for a version.
struct Source {
    suites: &'static [&'static str],
    expected: &'static str,
}

const SOURCES: [Source; 4] = [
    Source {
        suites: &["bookworm"],
        expected: "5.2",
    },
    Source {
        suites: &["trixie"],
        expected: "5.7",
    },
    Source {
        suites: &["sid"],
        expected: "6.4",
    },
    Source {
        suites: &["sid", "experimental"],
        expected: "7.2",
    },
];

/// Programs that are fetched along with a runtime where its suite has them.
const TOOLS: [&str; 3] = ["rocminfo", "rocm-smi", "amd-smi"];

/// What came of the fetching.
pub(crate) struct Fetched {
    /// What is there now, oldest first.
    pub(crate) runtimes: Vec<Runtime>,
    /// What is not there, with the reason.
    pub(crate) skipped: Vec<String>,
}

/// Fetches the runtime whose version begins with `wanted`, or all (`all`). What is there already
/// is not fetched again.
pub(crate) fn fetch(wanted: &str) -> Result<Fetched> {
    let mut skipped = Vec::new();
    for source in &SOURCES {
        let is_wanted = wanted == "all"
            || source.expected.starts_with(wanted)
            || wanted.starts_with(source.expected);
        if !is_wanted || have(source)? {
            continue;
        }
        if let Err(why) = fetch_from(source) {
            let why = format!(
                "HIP {} of Debian {}: {why:#}",
                source.expected,
                suite(source)
            );
            eprintln!("SKIPPED: {why}");
            skipped.push(why);
        }
    }
    let mut runtimes = runtime::fetched()?;
    if wanted != "all" {
        runtimes.retain(|r| r.version.starts_with(wanted));
        if runtimes.is_empty() {
            let known: Vec<_> = SOURCES.iter().map(|s| s.expected).collect();
            bail!(
                "no HIP runtime {wanted}: known generations are {}{}",
                known.join(", "),
                skipped.iter().map(|s| format!("; {s}")).collect::<String>()
            );
        }
    }
    Ok(Fetched { runtimes, skipped })
}

fn suite(source: &Source) -> &'static str {
    source.suites.last().copied().unwrap_or_default()
}

fn have(source: &Source) -> Result<bool> {
    Ok(runtime::fetched()?.iter().any(|r| r.suite == suite(source)))
}

fn fetch_from(source: &Source) -> Result<()> {
    let suite = suite(source);
    println!("fetching the HIP runtime of Debian {suite} ...");
    let download = Download {
        folder: paths::rocm().join(suite),
        suites: source.suites,
        without: &[],
    };
    let found = download.fetch(|apt: &Apt| {
        let package = apt
            .newest_named("libamdhip64-", |rest| {
                rest.bytes().all(|b| b.is_ascii_digit())
            })?
            .context("no package libamdhip64-N there any more")?;
        let mut packages = vec![package];
        for tool in TOOLS {
            packages.extend(apt.newest_named(tool, str::is_empty)?);
        }
        Ok(packages)
    })?;
    println!(
        "HIP {} ({}) is in {}",
        found.version,
        found.package,
        download.folder.display()
    );
    Ok(())
}
