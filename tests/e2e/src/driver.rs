//! A running `hook-driver`: a program whose functions are hooked while it calls them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::environment;
use crate::runtime::Runtime;
use crate::shell::Shell;

/// A running `hook-driver`. Dropping it kills it.
pub struct Driver {
    shell: Shell,
}

/// What was counted of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// Calls of the program.
    pub calls: u64,
    /// Those that the hook saw.
    pub hooked: u64,
    /// Those that returned something else than before.
    pub wrong: u64,
    /// What each returns.
    pub result: u32,
}

/// What became of hooking one function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is hooked: how far from its own entry the hooked one is (it may be a jump), and how far behind that the
    /// jump to the hook is.
    Hooked {
        /// 0 but for a function that only jumps to another.
        entry: isize,
        /// The length of what is kept.
        jump: usize,
    },
    /// Why not.
    Refused(String),
}

impl Driver {
    /// Starts it on a library of the host.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(driver: &Path, library: &str, functions: &[&str]) -> Result<Driver> {
        Driver::run(Command::new(driver), library, functions)
    }

    /// Starts it on a copy of a runtime's library, with that runtime's libc.
    ///
    /// # Errors
    /// It does not start.
    pub fn start_on(
        driver: &Path,
        runtime: &Runtime,
        library: &Path,
        functions: &[&str],
    ) -> Result<Driver> {
        let command = match &runtime.loader {
            Some(loader) => {
                let mut command = Command::new(loader);
                command
                    .args(["--library-path", &runtime.library_path()])
                    .arg(driver);
                command
            }
            None => {
                let mut command = Command::new(driver);
                command.env("LD_LIBRARY_PATH", runtime.library_path());
                command
            }
        };
        let library = library.to_str().context("a path that is not UTF-8")?;
        Driver::run(command, library, functions)
    }

    fn run(mut command: Command, library: &str, functions: &[&str]) -> Result<Driver> {
        command.arg(library).args(functions);
        environment::without_cargo_libraries(&mut command);
        let shell = Shell::start(command)?;
        Ok(Driver { shell })
    }

    /// Tells it a command and returns the lines of the answer.
    fn ask(&mut self, command: &str) -> Result<Vec<String>> {
        self.shell.tell(command)?;
        let mut lines = Vec::new();
        loop {
            match self.shell.reply(command)? {
                line if line.is_empty() => return Ok(lines),
                line => lines.push(line),
            }
        }
    }

    /// Where each function begins in the library's file.
    ///
    /// # Errors
    /// It ended.
    pub fn places(&mut self) -> Result<BTreeMap<String, u64>> {
        let lines = self.ask("places")?;
        let place = |line: &String| {
            let (name, offset) = line.split_once(' ').context(line.clone())?;
            Ok((name.to_string(), offset.parse()?))
        };
        lines.iter().map(place).collect()
    }

    /// Hooks all functions. The second is how long that took, in words.
    ///
    /// # Errors
    /// It ended, or nothing could be hooked.
    pub fn hook(&mut self) -> Result<(BTreeMap<String, Outcome>, String)> {
        self.begin("hook")?;
        self.hooked()
    }

    /// Tells it a command whose end is not waited for.
    ///
    /// # Errors
    /// It ended.
    pub fn begin(&mut self, command: &str) -> Result<()> {
        self.shell.tell(command)
    }

    /// Waits for the end of `hook`.
    ///
    /// # Errors
    /// It ended, or nothing could be hooked.
    pub fn hooked(&mut self) -> Result<(BTreeMap<String, Outcome>, String)> {
        let mut outcomes = BTreeMap::new();
        let mut took = String::new();
        loop {
            let line = self.shell.reply("hook")?;
            let words: Vec<_> = line.split(' ').collect();
            let (name, outcome) = match words[..] {
                [""] => return Ok((outcomes, took)),
                [name, "at", entry, jump] => {
                    let (entry, jump) = (entry.parse()?, jump.parse()?);
                    (name, Outcome::Hooked { entry, jump })
                }
                ["staged", ..] => {
                    took = line;
                    continue;
                }
                _ => {
                    let (name, why) = line.split_once(" refused: ").context(line.clone())?;
                    (name, Outcome::Refused(why.to_string()))
                }
            };
            outcomes.insert(name.to_string(), outcome);
        }
    }

    /// Calls each function so many times, from two threads.
    ///
    /// # Errors
    /// It ended.
    pub fn call(&mut self, times: u64) -> Result<()> {
        self.ask(&format!("call {times}")).map(drop)
    }

    /// Lets two threads call these functions.
    ///
    /// # Errors
    /// It ended.
    pub fn spin(&mut self, functions: &[&str]) -> Result<()> {
        self.ask(&format!("spin {}", functions.join(" "))).map(drop)
    }

    /// Ends that.
    ///
    /// # Errors
    /// It ended.
    pub fn rest(&mut self) -> Result<()> {
        self.ask("rest").map(drop)
    }

    /// What was counted since the start.
    ///
    /// # Errors
    /// It ended.
    pub fn totals(&mut self) -> Result<BTreeMap<String, Total>> {
        let mut totals = BTreeMap::new();
        for line in self.ask("totals")? {
            let words: Vec<_> = line.split(' ').collect();
            let [name, calls, hooked, wrong, result] = words[..] else {
                bail!("not understood: {line}");
            };
            let total = Total {
                calls: calls.parse()?,
                hooked: hooked.parse()?,
                wrong: wrong.parse()?,
                result: result.parse()?,
            };
            totals.insert(name.to_string(), total);
        }
        Ok(totals)
    }
}
