//! `cargo xtask prove --mutations`: every test of docs/known-failures.md fails when the mechanism that it holds is
//! removed.
//!
//! What is removed, and which tests must notice, is listed in tests/mutations.toml. It happens in a copy of the tree
//! below `target/mutations`, which is kept, so that only what a mutation touches is built anew.

mod copy;
mod list;
mod runner;

use anyhow::{Context, Result, bail, ensure};

use copy::Copy;
use list::{Mutation, Test};
use runner::Outcome;

/// What became of a mutation.
enum Verdict {
    /// All tests that should fail did.
    Caught,
    /// These did not.
    Survived(Vec<String>),
    /// It does not compile, so that nothing was shown.
    Broken(String),
}

/// Applies the mutations of these names, or all, one after the other.
pub(crate) fn prove(names: &[String]) -> Result<()> {
    let all = list::read()?.mutations;
    for name in names {
        let known = all.iter().any(|mutation| mutation.name == *name);
        ensure!(known, "there is no mutation '{name}' in {}", list::FILE);
    }
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|mutation| names.is_empty() || names.contains(&mutation.name))
        .collect();
    let copy = Copy::make()?;
    println!("== without a mutation");
    without(&copy, &chosen)?;
    let mut verdicts = Vec::new();
    for mutation in &chosen {
        println!("== {}", mutation.name);
        let verdict = with(&copy, mutation)?;
        println!("{}", describe(&verdict));
        verdicts.push((mutation, verdict));
    }
    print(&verdicts);
    let bad = verdicts
        .iter()
        .filter(|(_, verdict)| !matches!(verdict, Verdict::Caught))
        .count();
    ensure!(
        bad == 0,
        "{bad} of {} mutations were not caught",
        verdicts.len()
    );
    Ok(())
}

/// The tests pass as long as nothing is removed: else their failing shows nothing.
fn without(copy: &Copy, mutations: &[Mutation]) -> Result<()> {
    let mut tests: Vec<&Test> = mutations.iter().flat_map(|one| &one.caught_by).collect();
    tests.sort();
    tests.dedup();
    if let Err(error) = runner::build(copy, &tests)? {
        bail!("the tree itself does not build: {error}");
    }
    let passed = runner::run(copy, &tests)?;
    let failed: Vec<_> = passed
        .iter()
        .filter(|(_, outcome)| *outcome == Outcome::Failed)
        .map(|(test, _)| test.to_string())
        .collect();
    ensure!(
        failed.is_empty(),
        "these fail without any mutation: {}",
        failed.join(", ")
    );
    Ok(())
}

fn with(copy: &Copy, mutation: &Mutation) -> Result<Verdict> {
    let tests: Vec<&Test> = mutation.caught_by.iter().collect();
    let _applied = copy
        .apply(&mutation.edits)
        .with_context(|| format!("mutation '{}'", mutation.name))?;
    if let Err(error) = runner::build(copy, &tests)? {
        return Ok(Verdict::Broken(error));
    }
    let passed: Vec<_> = runner::run(copy, &tests)?
        .into_iter()
        .filter(|(_, outcome)| *outcome == Outcome::Passed)
        .map(|(test, _)| test.to_string())
        .collect();
    Ok(if passed.is_empty() {
        Verdict::Caught
    } else {
        Verdict::Survived(passed)
    })
}

fn describe(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Caught => "caught".into(),
        Verdict::Survived(tests) => format!("SURVIVED: {} passed", tests.join(", ")),
        Verdict::Broken(error) => format!("BROKEN: it does not build\n{error}"),
    }
}

fn print(verdicts: &[(&Mutation, Verdict)]) {
    println!("\n| what | mutation | caught by |\n|---|---|---|");
    for (mutation, verdict) in verdicts {
        let by = match verdict {
            Verdict::Caught => {
                let tests: Vec<_> = mutation.caught_by.iter().map(Test::to_string).collect();
                tests.join("; ")
            }
            Verdict::Survived(tests) => format!("**not** by {}", tests.join("; ")),
            Verdict::Broken(_) => "**does not build**".into(),
        };
        let lines = mutation.lines.join("; ");
        println!("| {lines} | {} | {by} |", mutation.name);
    }
    println!();
}
