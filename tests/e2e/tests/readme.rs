//! The README: every command in it is run, and what it shows is what is shown.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use hipflex_e2e::bench::Bench;
use hipflex_e2e::paths;
use hipflex_e2e::program::{self, Access};
use hipflex_e2e::runtime;

/// The commands of the README: the lines after `$ ` in its console blocks.
fn commands(readme: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in readme.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            found.push(command.to_string());
        }
    }
    found
}

#[test]
fn every_command_runs() -> Result<()> {
    let root = paths::workspace();
    let commands = commands(&fs::read_to_string(root.join("README.md"))?);
    ensure!(commands.len() >= 5, "the README has commands: {commands:?}");
    let newest = runtime::fetched()?
        .pop()
        .context("no runtime was fetched")?;
    let bench = Bench::start(&newest.version)?;
    // A folder as the reader's: the sources, and a HIP program of his own.
    let folder = tempfile::tempdir()?;
    symlink(paths::target(), folder.path().join("target"))?;
    let train = program::build("hipsh", &bench.runtime, Access::Linked)?;
    symlink(train, folder.path().join("train"))?;
    for command in commands {
        let mut shell = match command.as_str() {
            // These prepare a machine by themselves. The first runs this test; .ci/run runs it.
            "cargo xtask test" => {
                let ci = fs::read_to_string(root.join(".ci/run"))?;
                ensure!(ci.lines().any(|l| l == command), "nothing runs {command}");
                continue;
            }
            "cargo xtask demo" | "cargo build --release" => {
                let mut shell = Command::new("/bin/sh");
                shell.current_dir(&root);
                shell
            }
            _ => {
                let mut shell = bench.command("/bin/sh");
                shell.current_dir(folder.path());
                shell
            }
        };
        // The program reads its commands from stdin: none, so it starts and ends.
        let output = shell
            .args(["-c", &command])
            .stdin(std::process::Stdio::null())
            .output()?;
        if !output.status.success() {
            bail!(
                "`{command}`: {}\n{}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
    Ok(())
}

#[test]
fn every_variable_and_page_exists() -> Result<()> {
    let root = paths::workspace();
    let readme = fs::read_to_string(root.join("README.md"))?;
    let capture = readme
        .split("<!-- capture: demo -->")
        .nth(1)
        .context("no capture")?;
    let capture = capture.split("## ").next().unwrap_or_default();
    ensure!(
        capture.lines().count() > 20,
        "the capture of the demo is empty"
    );
    ensure!(
        capture.contains("Every step did what it says."),
        "{capture}"
    );
    let mut links = 0;
    for link in readme.split("](").skip(1) {
        let target = link.split(')').next().unwrap_or_default();
        if let Some(anchor) = target.strip_prefix('#') {
            let heading = format!("## {}", anchor.replace('-', " "));
            ensure!(
                readme.to_lowercase().contains(&heading),
                "no heading for #{anchor}"
            );
            continue;
        }
        ensure!(
            root.join(target).exists(),
            "the README leads to {target}, which is not there"
        );
        links += 1;
    }
    ensure!(links > 0, "the README has links");
    // The library knows each variable that the README names.
    let library = fs::read(paths::release().join("libhipflex.so"))?;
    let mut variables = 0;
    for row in readme.lines().filter(|l| l.starts_with("| `FH_")) {
        let names = row.split('|').nth(1).unwrap_or_default().split(',');
        for name in names.map(|n| n.trim().trim_matches('`')) {
            let known = library.windows(name.len()).any(|w| w == name.as_bytes());
            ensure!(known, "the library does not know {name}");
            variables += 1;
        }
    }
    ensure!(variables > 5, "the README has a table of variables");
    Ok(())
}
