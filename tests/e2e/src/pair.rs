//! The same commands for two `hipsh`: one without hipflex, one under a limit.

use anyhow::{Result, ensure};

use crate::bench::Bench;
use crate::program::Access;
use crate::shell::Shell;

/// Two processes that are told the same.
pub struct Pair<'a> {
    bench: &'a Bench,
    limit: String,
    prepare: Vec<String>,
    /// The one that knows nothing of hipflex.
    pub native: Shell,
    /// The one under the limit.
    pub limited: Shell,
}

impl<'a> Pair<'a> {
    /// Starts both, and tells both the commands of `prepare`, which must succeed.
    ///
    /// # Errors
    /// `hipsh` does not compile or start, or a command fails.
    pub fn start(bench: &'a Bench, limit: &str, prepare: &[&str]) -> Result<Pair<'a>> {
        let mut pair = Pair {
            native: bench.shell(Access::Linked)?,
            limited: bench.limited_shell(Access::Linked, limit)?,
            bench,
            limit: limit.into(),
            prepare: prepare.iter().map(|c| (*c).to_string()).collect(),
        };
        pair.prepare()?;
        Ok(pair)
    }

    fn prepare(&mut self) -> Result<()> {
        for command in &self.prepare {
            for shell in [&mut self.native, &mut self.limited] {
                let reply = shell.say(command)?;
                ensure!(reply.starts_with("ok"), "{command}: {reply}");
            }
        }
        Ok(())
    }

    /// What both answer. A runtime that crashes by itself gives `crash`, and both start anew.
    ///
    /// # Errors
    /// They cannot be started again.
    pub fn ask(&mut self, command: &str) -> Result<(String, String)> {
        let native = self.native.say(command);
        let limited = self.limited.say(command);
        if native.is_err() || limited.is_err() {
            self.native = self.bench.shell(Access::Linked)?;
            self.limited = self.bench.limited_shell(Access::Linked, &self.limit)?;
            self.prepare()?;
        }
        let outcome = |reply: Result<String>| reply.unwrap_or_else(|_| "crash".into());
        Ok((outcome(native), outcome(limited)))
    }

    /// What both answer, which must be the same.
    ///
    /// # Errors
    /// It is not.
    pub fn same(&mut self, command: &str) -> Result<String> {
        let (native, limited) = self.ask(command)?;
        ensure!(
            native == limited,
            "{command}: {native:?} without hipflex, {limited:?} with it"
        );
        Ok(limited)
    }
}
