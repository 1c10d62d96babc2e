//! The licences of all crates that are built, against those which go with Apache-2.0.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cargo::cargo;

/// Licences whose terms a distribution under Apache-2.0 can fulfil by naming them.
const ACCEPTED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
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

/// Whether one choice which the expression offers is made of accepted licences only.
fn is_accepted(expression: &str) -> bool {
    // `/` is the old way to write OR. AND binds tighter than OR, and crates use parentheses only
    // around one of the two, where taking them away asks for no less than the expression does.
    let plain = expression.replace(['(', ')'], " ").replace('/', " OR ");
    plain.split(" OR ").any(|choice| {
        choice
            .split(" AND ")
            .all(|licence| ACCEPTED.contains(&licence.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::is_accepted;

    #[test]
    fn one_accepted_choice_is_enough() {
        assert!(is_accepted("MIT OR Apache-2.0"));
        assert!(is_accepted("MIT/Apache-2.0"));
        assert!(is_accepted("GPL-3.0-only OR MIT"));
        assert!(is_accepted("(MIT OR Apache-2.0) AND Unicode-3.0"));
    }

    #[test]
    fn every_part_of_the_choice_must_be_accepted() {
        assert!(!is_accepted("GPL-3.0-only"));
        assert!(!is_accepted("MIT AND GPL-3.0-only"));
        assert!(!is_accepted(""));
    }
}
