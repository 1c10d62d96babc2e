//! The licences of all crates that are built, against those which go with Apache-2.0.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::cargo::cargo;

/// Licences whose terms a distribution under Apache-2.0 can fulfil by naming them.
const ACCEPTED: [&str; 11] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

/// Asks cargo for every package of the lock file and looks at its licence.
pub(super) fn check() -> Result<()> {
    let output = cargo()
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot read cargo's metadata")?;
    let refused: Vec<String> = metadata
        .packages
        .iter()
        .filter(|p| !p.license.as_deref().is_some_and(is_accepted))
        .map(|p| {
            let licence = p.license.as_deref().unwrap_or("no licence given");
            format!("  {} {}: {licence}", p.name, p.version)
        })
        .collect();
    if !refused.is_empty() {
        bail!("these licences are not accepted:\n{}", refused.join("\n"));
    }
    println!(
        "{} packages, all with accepted licences",
        metadata.packages.len()
    );
    Ok(())
}

/// Whether one choice which the expression offers is made of accepted licences only. Exceptions
/// (`WITH`) only ever permit more.
fn is_accepted(expression: &str) -> bool {
    let accepted = |asked: &LicenseReq| {
        asked
            .license
            .id()
            .is_some_and(|licence| ACCEPTED.contains(&licence.name))
    };
    Expression::parse_mode(expression, ParseMode::LAX)
        .is_ok_and(|expression| expression.evaluate(accepted))
}

#[cfg(test)]
mod tests {
    use super::is_accepted;

    #[test]
    fn one_accepted_choice_is_enough() {
        for expression in [
            "MIT OR Apache-2.0",
            "MIT/Apache-2.0",
            "GPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_accepted(expression), "{expression}");
        }
    }

    #[test]
    fn every_part_of_the_choice_must_be_accepted() {
        for expression in [
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT OR Apache-2.0) AND GPL-3.0-only",
            "LicenseRef-secret",
            "",
        ] {
            assert!(!is_accepted(expression), "{expression}");
        }
    }
}
