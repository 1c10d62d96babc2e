//! The environment: as inherited, and as the started program will see it.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use hipflex_kfd::Root;
use hipflex_ledger::yes_or_no;

/// The limit: a size, a percentage, `unlimited`, or sizes per GPU.
pub(crate) const MEMORY_LIMIT: &str = "FH_MEMORY_LIMIT";
/// The compute units that may be used.
pub(crate) const CU_RANGE: &str = "FH_CU_RANGE";
/// The name of the budget that a process joins.
pub(crate) const BUDGET: &str = "FH_BUDGET";
/// `closed` or `open`: what happens when the limit cannot be enforced.
pub(crate) const FAIL_MODE: &str = "FH_FAIL_MODE";
/// `false` (and `0`, `off`, `no`) makes the library do nothing.
pub(crate) const ENABLE_HOOKS: &str = "FH_ENABLE_HOOKS";
/// The HIP runtime to use in place of the one that the program loads.
pub(crate) const HIP_LIB_PATH: &str = "FH_HIP_LIB_PATH";
pub(crate) const HOOK_ENGINE: &str = "FH_HOOK_ENGINE";
/// `false` (and `0`, `off`, `no`): the library logs nothing.
pub(crate) const ENABLE_LOG: &str = "FH_ENABLE_LOG";
/// Where the library logs to: `stderr`, a file or a directory.
pub(crate) const LOG_PATH: &str = "FH_LOG_PATH";
/// The directory of the ledgers.
pub(crate) const SHM_PATH: &str = "FH_SHM_PATH";
/// `1`: the budget is the one of all users.
pub(crate) const SHM_SHARED: &str = "FH_SHM_SHARED";
/// Where libhipflex.so is, for this program only.
pub(crate) const LIB: &str = "FH_LIB";
/// The dynamic linker's list of libraries to load first.
pub(crate) const PRELOAD: &str = "LD_PRELOAD";
/// For tests: the directory that holds the `sys` and `dev` to look at instead of `/`.
pub(crate) const SYSFS_ROOT: &str = "HIPFLEX_SYSFS_ROOT";

/// A set of variables, in the order they were inherited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment(Vec<(OsString, OsString)>);

impl Environment {
    /// This process's own environment.
    pub(crate) fn inherited() -> Self {
        Self(std::env::vars_os().collect())
    }

    /// The value of a variable; one that is set to nothing counts as not set.
    pub(crate) fn get(&self, name: &str) -> Option<&OsStr> {
        self.raw(name).filter(|value| !value.is_empty())
    }

    /// The value of a variable; one that is set to nothing has nothing as its value.
    pub(crate) fn raw(&self, name: &str) -> Option<&OsStr> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        Some(value)
    }

    /// Whether a variable is set to one of the words for "no".
    pub(crate) fn says_no(&self, name: &str) -> bool {
        self.get(name).and_then(yes_or_no) == Some(false)
    }

    /// Sets a variable, in place of any value it had.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.0.retain(|(key, _)| key != name);
        self.0.push((name.into(), value.into()));
    }

    /// The variables as name and value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Where the driver's files are looked for.
    pub(crate) fn root(&self) -> Root {
        self.get(SYSFS_ROOT)
            .map_or_else(Root::system, |root| Root::at(PathBuf::from(root)))
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Environment {
    fn from(variables: [(&str, &str); N]) -> Self {
        Self(
            variables
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_set_once() {
        let mut environment = Environment::from([("A", "1"), ("B", "2")]);
        environment.set("A", "3");
        environment.set("C", "4");
        let all: Vec<_> = environment.iter().collect();
        assert_eq!(all.len(), 3);
        assert_eq!(environment.get("A"), Some(OsStr::new("3")));
    }

    #[test]
    fn set_to_nothing_is_not_set() {
        assert_eq!(Environment::from([(LIB, "")]).get(LIB), None);
    }
}
