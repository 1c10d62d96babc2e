//! `cargo xtask bench`: it runs, and says something of everything that it is to measure. What it measures is no matter
//! of a test, but for what does not depend on the machine.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use hipflex_e2e::paths;

/// A line of its table: what, how much, whether that is as it should be.
fn row<'a>(table: &'a str, what: &str) -> Result<(f64, &'a str)> {
    let line = table.lines().find(|line| line.starts_with(what));
    let line = line.with_context(|| format!("nothing of {what:?} in:\n{table}"))?;
    let mut words = line[what.len()..].split_whitespace();
    let value = words.next().context(line.to_string())?.parse();
    let verdict = words.find(|word| ["met", "MISSED", "-"].contains(word));
    Ok((
        value.with_context(|| line.to_string())?,
        verdict.with_context(|| line.to_string())?,
    ))
}

#[test]
fn the_benchmark_measures_everything_that_has_a_target() -> Result<()> {
    let output = Command::new("cargo")
        .args(["xtask", "bench", "--quick"])
        .current_dir(paths::workspace())
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let table = String::from_utf8(output.stdout)?;
    for runtime in ["thin", "6", "5"] {
        for threads in ["1 thread", "2 threads"] {
            if table.contains(&format!("SKIPPED: alloc + free, {runtime}, {threads}")) {
                continue;
            }
            let what = format!("alloc + free, {runtime}, {threads}:");
            let (whole, _) = row(&table, &format!("{what} ours / floor"))?;
            let (added, _) = row(&table, &format!("{what} (ours - bare) / floor"))?;
            ensure!(whole > 0.0 && added < whole, "{table}");
            // One thread has nobody to wait for.
            ensure!(threads != "1 thread" || added > 0.0, "{table}");
        }
        row(&table, &format!("hipMemGetInfo, {runtime}: added"))?;
    }
    row(&table, "/bin/true: added")?;
    for nothing in ["files opened", "threads", "lines or logs written"] {
        let found = row(&table, &format!("/bin/true: {nothing}"))?;
        ensure!(found == (0.0, "met"), "{table}");
    }
    let (megabytes, verdict) = row(&table, "size of the library")?;
    ensure!(megabytes > 0.1 && verdict == "met", "{table}");
    Ok(())
}
