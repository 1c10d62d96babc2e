//! The page of what must never happen: everything that it names is there.

use std::fs;

use anyhow::{Context, Result, ensure};
use hipflex_e2e::paths;

const PAGE: &str = "docs/known-failures.md";

/// The texts between backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Looks every name of a cell up in the file that was named before it; how many there were.
fn check(row: &str, cell: &str) -> Result<usize> {
    let (mut file, mut text, mut found) = ("", String::new(), 0);
    for name in quoted(cell) {
        if name.contains('/') {
            text = fs::read_to_string(paths::workspace().join(name))
                .with_context(|| format!("{PAGE} names {name}: {row}"))?;
            file = name;
            continue;
        }
        ensure!(!file.is_empty(), "{name} is in no file: {row}");
        ensure!(
            text.contains(&format!("fn {name}(")) || text.contains(&format!("fn {name}<")),
            "{PAGE} names {name}, which is not in {file}"
        );
        // A suite for several runtimes has a list of its tests: one that is not in it never runs.
        let is_run = text.contains(&format!("    {name},\n"))
            || text.contains(&format!("({name})"))
            || text.contains(&format!("#[test]\nfn {name}("))
            || text.contains(&format!("#[test]\n    fn {name}("));
        ensure!(
            is_run || !file.contains("/tests/"),
            "{name} of {file} is not run"
        );
        found += 1;
    }
    Ok(found)
}

#[test]
fn every_test_and_every_function_is_there() -> Result<()> {
    let page = fs::read_to_string(paths::workspace().join(PAGE))?;
    let rows: Vec<_> = page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| what |"))
        .collect();
    ensure!(rows.len() >= 20, "{} rows: is that the page?", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").collect();
        ensure!(cells.len() == 3, "{} cells: {row}", cells.len());
        ensure!(check(row, cells[1])? > 0, "nothing prevents it: {row}");
        ensure!(check(row, cells[2])? > 0, "no test holds it: {row}");
    }
    Ok(())
}
