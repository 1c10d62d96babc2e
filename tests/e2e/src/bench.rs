//! A place to run HIP programs in: an emulated node with one of AMD's runtimes, and hipflex.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use kfd_emulator::Node;
use kfd_emulator::node::Builder;

use crate::environment;
use crate::paths;
use crate::program::{self, Access};
use crate::runtime::{self, Runtime};
use crate::shell::Shell;
use crate::status;

/// An emulated node and the runtime that its programs use.
pub struct Bench {
    /// The runtime.
    pub runtime: Runtime,
    /// The node.
    pub node: Node,
}

impl Bench {
    /// A node with one MI210 and the runtime whose version begins with `version`.
    ///
    /// # Errors
    /// The runtime was not fetched, or the node does not start.
    pub fn start(version: &str) -> Result<Bench> {
        Bench::with(version, |node| node)
    }

    /// The same with a node of one's own choice.
    ///
    /// # Errors
    /// The runtime was not fetched, or the node does not start.
    pub fn with(version: &str, choose: impl FnOnce(Builder) -> Builder) -> Result<Bench> {
        Bench::on(runtime::find(version)?, choose)
    }

    /// The same with this runtime.
    ///
    /// # Errors
    /// The node does not start.
    pub fn on(runtime: Runtime, choose: impl FnOnce(Builder) -> Builder) -> Result<Bench> {
        let node = Node::builder().binary(paths::release().join("kfd-emulator"));
        let node = choose(node)
            .start()
            .context("the emulated node does not start")?;
        Ok(Bench { runtime, node })
    }

    /// What a program that has done nothing yet holds of each GPU, in bytes: HIP 5.2 takes a buffer for
    /// itself when it starts, later ones take theirs when there is work. It is charged as overhead.
    pub fn idle_overhead(&self) -> u64 {
        if self.runtime.version.starts_with("5.2") {
            2 << 20
        } else {
            0
        }
    }

    /// What is charged to the default budget beside its bookings, in bytes: runtimes take memory of their
    /// own for queues and the like.
    ///
    /// # Errors
    /// `hipflex status` fails, or there is no such budget.
    pub fn overhead(&self) -> Result<u64> {
        Ok(status::of(self)?.budget("default")?.overhead)
    }

    /// A command that will run in the node, without hipflex.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = self.node.command(program.as_ref());
        environment::without_cargo_libraries(&mut command);
        command
    }

    /// One of the programs of `tests/programs`, to run in the node without hipflex.
    ///
    /// # Errors
    /// It does not compile.
    pub fn program(&self, name: &str, access: Access) -> Result<Command> {
        Ok(self.command(program::build(name, &self.runtime, access)?))
    }

    /// The same under a limit.
    ///
    /// # Errors
    /// It does not compile.
    pub fn limited(&self, name: &str, access: Access, limit: &str) -> Result<Command> {
        let mut command = self.program(name, access)?;
        limit_to(&mut command, limit);
        Ok(command)
    }

    /// A `hipsh` without hipflex.
    ///
    /// # Errors
    /// It does not compile or start.
    pub fn shell(&self, access: Access) -> Result<Shell> {
        Shell::start(self.program("hipsh", access)?)
    }

    /// A `hipsh` under a limit.
    ///
    /// # Errors
    /// It does not compile or start.
    pub fn limited_shell(&self, access: Access, limit: &str) -> Result<Shell> {
        Shell::start(self.limited("hipsh", access, limit)?)
    }

    /// `hipflex` with these arguments, to run in the node.
    pub fn hipflex(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(paths::release().join("hipflex"));
        command.args(arguments);
        command
    }
}

/// The library under test.
pub fn library() -> PathBuf {
    paths::release().join("libhipflex.so")
}

/// Puts a command under a limit, as a user would: two variables.
pub fn limit_to(command: &mut Command, limit: &str) {
    command
        .env("LD_PRELOAD", library())
        .env("FH_MEMORY_LIMIT", limit);
}
