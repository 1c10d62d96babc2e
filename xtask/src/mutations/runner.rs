//! Builds the copy and runs single tests of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::copy::Copy;
use super::list::Test;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// Also by a signal, or because it hung.
    Failed,
}

/// A test that hangs is caught too; it need not be waited for as long as usual.
const SETTINGS: &str =
    "[profile.default]\nslow-timeout = { period = \"90s\", terminate-after = 1 }\n";

/// The generation of HIP, and the build of the stand-in, that stand for the others.
const REPRESENTATIVES: [&str; 2] = ["hip_6_4", "six"];

/// Packages by the folders of their tests.
const PACKAGES: [(&str, &str); 5] = [
    ("hooking/", "hipflex-hooking"),
    ("kfd/", "hipflex-kfd"),
    ("ledger/", "hipflex-ledger"),
    ("enforcer/", "hipflex-enforcer"),
    ("tests/e2e/", "hipflex-e2e"),
];

impl Test {
    fn package(&self) -> Result<&'static str> {
        let found = PACKAGES
            .iter()
            .find(|(folder, _)| self.file.starts_with(folder));
        let (_, package) = found.with_context(|| format!("{self}: of which package?"))?;
        Ok(package)
    }

    /// The binary that it is in: that of its file, or of the package itself.
    fn binary(&self) -> Option<&str> {
        let (_, file) = self.file.split_once("/tests/")?;
        file.strip_suffix(".rs")
    }

    /// What it is called when it is run: in a suite for several runtimes, for one of them.
    fn matches(&self, run: &str) -> bool {
        let parts: Vec<_> = run.split("::").collect();
        let Some((last, before)) = parts.split_last() else {
            return false;
        };
        if self.binary().is_none() {
            return *last == self.name;
        }
        run == self.name || before == [self.name.as_str()] && REPRESENTATIVES.contains(last)
    }

    fn expression(&self) -> String {
        let name = &self.name;
        let Some(binary) = self.binary() else {
            return format!("test(/(^|::){name}$/)");
        };
        let mut names = format!("test(={name})");
        for one in REPRESENTATIVES {
            names.push_str(&format!(" + test(={name}::{one})"));
        }
        format!("binary(={binary}) & ({names})")
    }
}

fn by_package<'t>(tests: &[&'t Test]) -> Result<BTreeMap<&'static str, Vec<&'t Test>>> {
    let mut packages = BTreeMap::<_, Vec<_>>::new();
    for test in tests {
        packages.entry(test.package()?).or_default().push(*test);
    }
    Ok(packages)
}

/// Builds what these tests run: the product, and the tests themselves. The inner error: that did not compile.
pub(crate) fn build(copy: &Copy, tests: &[&Test]) -> Result<Result<(), String>> {
    for (package, tests) in by_package(tests)? {
        let products: &[&[&str]] = match package {
            // Its tests build it themselves, and would fail if that failed.
            "hipflex-enforcer" => &[&["build", "--package", "hipflex-enforcer"]],
            "hipflex-e2e" => &[
                &["build", "--release"],
                &["build", "--release", "--package", "kfd-emulator"],
            ],
            _ => &[],
        };
        let mut commands: Vec<Command> = Vec::new();
        for arguments in products {
            let mut command = copy.cargo();
            command.args(*arguments).arg("--quiet");
            commands.push(command);
        }
        let mut command = nextest(copy, package, &tests)?;
        command.arg("--no-run");
        commands.push(command);
        for mut command in commands {
            let output = output(&mut command)?;
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                return Ok(Err(text));
            }
        }
    }
    Ok(Ok(()))
}

/// Runs these tests, which are built.
pub(crate) fn run<'t>(copy: &Copy, tests: &[&'t Test]) -> Result<Vec<(&'t Test, Outcome)>> {
    let mut all = Vec::new();
    for (package, tests) in by_package(tests)? {
        let expressions: Vec<_> = tests.iter().map(|test| test.expression()).collect();
        let expressions: Vec<_> = expressions.iter().map(|one| format!("({one})")).collect();
        let mut command = nextest(copy, package, &tests)?;
        command
            .args(["--no-fail-fast", "--ignore-default-filter"])
            .args(["--status-level", "all", "--final-status-level", "none"])
            .args(["--failure-output", "final", "--filterset"])
            .arg(expressions.join(" + "));
        let output = output(&mut command)?;
        let text = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<_> = text.lines().filter_map(outcome).collect();
        for test in tests {
            let outcomes = lines.iter().filter(|(name, _)| test.matches(name));
            let outcomes: Vec<_> = outcomes.map(|(_, outcome)| *outcome).collect();
            ensure!(!outcomes.is_empty(), "{test} was not run:\n{text}");
            // The same name may be in two binaries of a package: then the one that failed counts.
            let failed = outcomes.contains(&Outcome::Failed);
            let outcome = if failed {
                Outcome::Failed
            } else {
                Outcome::Passed
            };
            println!("   {outcome:?}: {test}");
            all.push((test, outcome));
        }
    }
    Ok(all)
}

/// What a line of the runner says: `PASS [   0.012s] (1/3) package::binary name`.
fn outcome(line: &str) -> Option<(&str, Outcome)> {
    let (word, rest) = line.trim_start().split_once(" [")?;
    let name = rest.split_once(']')?.1.split_whitespace().last()?;
    let outcome = match word.trim() {
        "PASS" | "LEAK" => Outcome::Passed,
        "FAIL" | "ABORT" | "TIMEOUT" | "FAIL + LEAK" | "LEAK-FAIL" => Outcome::Failed,
        signal if signal.starts_with("SIG") => Outcome::Failed,
        // Started, slow, being ended, left out, the summary.
        _ => return None,
    };
    Some((name, outcome))
}

/// The runner for the binaries of these tests, which are of one package.
fn nextest(copy: &Copy, package: &str, tests: &[&Test]) -> Result<Command> {
    let settings = copy.file("target/mutations.toml");
    fs::write(&settings, SETTINGS)?;
    let mut command = copy.cargo();
    command
        .args(["nextest", "run", "--color", "never", "--package", package])
        .arg("--config-file")
        .arg(settings);
    if package == "hipflex-ledger" {
        // For those that end a process between two steps.
        command.args(["--features", "fault-points"]);
    }
    let binaries: BTreeSet<_> = tests.iter().map(|test| test.binary()).collect();
    for binary in binaries {
        match binary {
            Some(binary) => command.args(["--test", binary]),
            None => command.arg("--lib"),
        };
    }
    Ok(command)
}

fn output(command: &mut Command) -> Result<Output> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    if let Some(code) = output.status.code()
        && code == 96
    {
        bail!(
            "the runner could not be set up: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_runner_are_understood() {
        let line = "        PASS [   0.012s] (1/3) hipflex-ledger::booking a_test";
        assert_eq!(outcome(line), Some(("a_test", Outcome::Passed)));
        for word in ["FAIL", "SIGABRT", "SIGSEGV", "TIMEOUT"] {
            let line = format!("     {word} [   4.5s] hipflex-enforcer::account queries::six");
            assert_eq!(outcome(&line), Some(("queries::six", Outcome::Failed)));
        }
        for other in [
            "        SLOW [> 60.000s] hipflex-ledger::faults alone",
            "     Summary [   0.020s] 1 test run: 1 passed, 5 skipped",
            "    Finished `test` profile",
        ] {
            assert_eq!(outcome(other), None, "{other}");
        }
    }

    #[test]
    fn a_test_is_found_by_its_name() {
        let test = |text: &str| Test::try_from(String::from(text)).unwrap();
        let suite = test("enforcer/tests/account.rs queries");
        assert!(suite.matches("queries::six") && !suite.matches("queries::five"));
        assert!(!suite.matches("other::six"));
        let unit = test("enforcer/src/tally.rs pools");
        assert!(unit.matches("tally::tests::pools") && !unit.matches("tally::tests::pool"));
        assert_eq!(unit.binary(), None);
        assert_eq!(suite.binary(), Some("account"));
        assert!(Test::try_from(String::from("queries")).is_err());
    }
}
