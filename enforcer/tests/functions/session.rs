//! The client taken through its commands one by one, with a look at both accounts after each: the ledger, and
//! what the stand-in gave.

use std::ffi::OsString;
use std::process::Command;

use hip_standin::{Account, Build, Kind, Settings};
use hipflex_ledger::MemberSnapshot;

use crate::common::{Bench, Running, lines};

/// What is set for a client.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) build: Build,
    pub(crate) limit: String,
    pub(crate) settings: Settings,
    /// Further variables.
    pub(crate) variables: Vec<(&'static str, OsString)>,
}

impl Setup {
    pub(crate) fn new(build: Build) -> Self {
        Self {
            build,
            limit: String::from("4GiB"),
            settings: Settings::new(),
            variables: Vec::new(),
        }
    }

    pub(crate) fn limit(mut self, limit: impl ToString) -> Self {
        self.limit = limit.to_string();
        self
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.settings = self.settings.set(name, value);
        self
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    fn command(&self, bench: &Bench, commands: &[String]) -> Command {
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        let mut command = bench.client(&self.limit, "linked", &commands);
        self.settings.apply(&mut command);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// What the client prints without the library.
    pub(crate) fn native(&self, commands: &[impl AsRef<str>]) -> Vec<String> {
        let bench = Bench::new(self.build);
        let commands: Vec<String> = commands.iter().map(|text| text.as_ref().into()).collect();
        lines(self.command(&bench, &commands).env_remove("LD_PRELOAD"))
    }

    /// Starts the client with the library. Each command has to print one line.
    pub(crate) fn start(&self, commands: &[impl AsRef<str>]) -> Session {
        let bench = Bench::new(self.build);
        let mut all = Vec::new();
        for text in commands {
            all.extend([text.as_ref().to_owned(), String::from("wait")]);
        }
        let account = bench.directory.path().join("account");
        let mut command = self.command(&bench, &all);
        Settings::new().account(&account).apply(&mut command);
        let running = Running::start(&mut command);
        Session {
            bench,
            running,
            begun: false,
        }
    }
}

/// A client on its way.
pub(crate) struct Session {
    bench: Bench,
    running: Running,
    begun: bool,
}

impl Session {
    /// Lets the client do its next command, and answers what it printed.
    pub(crate) fn step(&mut self) -> String {
        if self.begun {
            self.running.go_on();
        }
        self.begun = true;
        let line = self.running.line();
        assert!(!line.contains("OVERRUN"), "{line}");
        line
    }

    /// Several of them.
    pub(crate) fn steps(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.step()).collect()
    }

    pub(crate) fn finish(mut self) {
        if self.begun {
            self.running.go_on();
        }
        self.running.finish();
    }

    /// The client's part of the ledger. `None`: it has not joined yet, as nothing had to be counted.
    pub(crate) fn member(&self) -> Option<MemberSnapshot> {
        if !self.bench.ledgers().exists() {
            return None;
        }
        let mut members = self.bench.snapshot().members;
        assert!(members.len() <= 1, "{members:?}");
        members.pop()
    }

    /// Bytes booked on a GPU. Nothing may be under way, nor may anything have been found wrong.
    pub(crate) fn booked(&self, gpu: usize) -> u64 {
        let Some(member) = self.member() else {
            return 0;
        };
        let figures = member.cells[gpu].figures;
        assert_eq!((figures.pending, member.anomalies), (0, 0));
        figures.live
    }

    /// Those of them that the driver's counter does not show.
    pub(crate) fn unseen(&self, gpu: usize) -> u64 {
        self.member()
            .map_or(0, |member| member.cells[gpu].figures.live_unseen)
    }

    /// Bytes that the program has freed and a pool keeps.
    pub(crate) fn kept(&self, gpu: usize) -> u64 {
        self.member()
            .map_or(0, |member| member.cells[gpu].figures.kept)
    }

    /// Allocations, frees and refusals so far.
    pub(crate) fn counts(&self) -> (u64, u64, u64) {
        self.member().map_or((0, 0, 0), |member| {
            (member.allocations, member.frees, member.refusals)
        })
    }

    /// Bytes that the stand-in gave of a device, managed memory included.
    pub(crate) fn given(&self, device: usize) -> u64 {
        let account = Account::open(&self.bench.directory.path().join("account")).unwrap();
        account
            .processes()
            .map(|process| process.live(device) + process.held(device, Kind::Managed))
            .sum()
    }

    /// Bytes of host memory that it gave.
    pub(crate) fn given_of_host(&self) -> u64 {
        let account = Account::open(&self.bench.directory.path().join("account")).unwrap();
        account
            .processes()
            .map(|process| process.held(0, Kind::Host))
            .sum()
    }
}
