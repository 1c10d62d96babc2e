//! `cargo xtask capture`: makes the captured texts in the documentation anew.
//!
//! A capture stands behind a marker, `<!-- capture: NAME -->`, in a fenced block.

use std::fs;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use hipflex_e2e::paths;

use crate::cargo::cargo;

/// Runs the demo and puts what it shows into the README.
pub(crate) fn capture() -> Result<()> {
    let output = cargo()
        .args(["xtask", "demo"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run the demo")?;
    ensure!(
        output.status.success(),
        "the demo failed ({})",
        output.status
    );
    let shown = String::from_utf8(output.stdout).context("the demo does not show text")?;
    // What comes before the first empty line tells of building and fetching.
    let (_, shown) = shown.split_once("\n\n").context("the demo shows nothing")?;
    let readme = paths::workspace().join("README.md");
    let text =
        fs::read_to_string(&readme).with_context(|| format!("cannot read {}", readme.display()))?;
    let text = replace(&text, "demo", shown.trim_end())?;
    fs::write(&readme, text).with_context(|| format!("cannot write {}", readme.display()))?;
    println!("{} has a new capture", readme.display());
    Ok(())
}

/// `document` with `capture` in the fenced block behind the marker of this name.
fn replace(document: &str, name: &str, capture: &str) -> Result<String> {
    let marker = format!("<!-- capture: {name} -->\n```text\n");
    let Some((before, rest)) = document.split_once(&marker) else {
        bail!("there is no {}", marker.trim_end());
    };
    // The end of the block: a fence at the beginning of a line, the first one if it is empty.
    let after = match rest.strip_prefix("```\n") {
        Some(after) => after,
        None => {
            rest.split_once("\n```\n")
                .context("the block of the capture has no end")?
                .1
        }
    };
    Ok(format!("{before}{marker}{capture}\n```\n{after}"))
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn a_capture_is_replaced_and_the_rest_is_kept() {
        let document = "a\n<!-- capture: x -->\n```text\nold\n```\nb\n";
        let new = replace(document, "x", "new\nlines").unwrap();
        assert_eq!(new, "a\n<!-- capture: x -->\n```text\nnew\nlines\n```\nb\n");
        assert_eq!(replace(&new, "x", "old").unwrap(), document);
    }

    #[test]
    fn an_empty_capture_is_filled() {
        let document = "<!-- capture: x -->\n```text\n```\n";
        let new = replace(document, "x", "new").unwrap();
        assert_eq!(new, "<!-- capture: x -->\n```text\nnew\n```\n");
    }

    #[test]
    fn a_missing_marker_is_said() {
        assert!(replace("text", "x", "new").is_err());
    }
}
