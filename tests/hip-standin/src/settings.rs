//! What the stand-in is to be like, as environment variables of a program.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Settings for a program that will load the stand-in. The README of the crate explains each.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    variables: Vec<(String, OsString)>,
}

impl Settings {
    /// One device of 64 GiB, and no faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Any setting by its name without `HIP_STANDIN_`. A later one replaces an earlier one.
    pub fn set(mut self, name: &str, value: impl Into<OsString>) -> Self {
        let name = format!("HIP_STANDIN_{name}");
        self.variables.retain(|(known, _)| *known != name);
        self.variables.push((name, value.into()));
        self
    }

    /// The machine's devices: a number, or addresses with sizes (`0000:03:00.0=8GiB,0000:83:00.0*8+GPU-5c0d93a17be24600`).
    pub fn devices(self, list: &str) -> Self {
        self.set("DEVICES", list)
    }

    /// VRAM in bytes of each device that has no size of its own.
    pub fn vram(self, bytes: u64) -> Self {
        self.set("VRAM", bytes.to_string())
    }

    /// Faults and delays: `hipMalloc@3=2,hipFree=wait:1ms`.
    pub fn rules(self, rules: &str) -> Self {
        self.set("RULES", rules)
    }

    /// The file of the account that all processes share; made if it is not there.
    pub fn account(self, path: &Path) -> Self {
        self.set("ACCOUNT", path)
    }

    /// The variables, to be set in some other way.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &OsString)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.as_str(), value))
    }

    /// Puts them into the environment of `command`.
    pub fn apply<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.envs(self.variables())
    }
}
