//! Where ledgers lie: `$FH_SHM_PATH/UID/BUDGET`, or `$FH_SHM_PATH/shared/BUDGET` for all users.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::size::shown;
use crate::words::yes_or_no;

/// The directory that holds the ledgers unless `FH_SHM_PATH` names another.
pub const DEFAULT_ROOT: &str = "/dev/shm/hipflex";

/// The budget that processes join unless `FH_BUDGET` names another.
pub const DEFAULT_BUDGET: &str = "default";

/// The directory beside the UID directories that holds the ledgers which all users may join.
pub(crate) const SHARED_DIRECTORY: &str = "shared";

/// The longest budget name, in bytes.
pub const BUDGET_NAME_MAX: usize = 64;

/// Which directory of ledgers is meant: a root, and in it this user's or the one of all users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    root: PathBuf,
    shared: bool,
}

impl Place {
    /// Ledgers below `root`; with `shared` those that every user of the machine may join.
    pub fn new(root: impl Into<PathBuf>, shared: bool) -> Self {
        Self {
            root: root.into(),
            shared,
        }
    }

    /// The place that the environment names: `FH_SHM_PATH` (unset or empty: [`DEFAULT_ROOT`]) and
    /// `FH_SHM_SHARED` (a word of [`yes_or_no`]; unset or empty: not shared).
    ///
    /// # Errors
    /// [`PlaceVariableError`]: a value that is not understood would put the process into another
    /// account than was meant.
    pub fn from_env() -> Result<Self, PlaceVariableError> {
        let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
        Self::of_variables(set("FH_SHM_PATH"), set("FH_SHM_SHARED"))
    }

    /// The place that these values of `FH_SHM_PATH` and `FH_SHM_SHARED` name; `None` for one that is unset
    /// or empty.
    ///
    /// # Errors
    /// As for [`Place::from_env`].
    pub fn of_variables(
        path: Option<OsString>,
        shared: Option<OsString>,
    ) -> Result<Self, PlaceVariableError> {
        let root = path.map_or_else(|| PathBuf::from(DEFAULT_ROOT), PathBuf::from);
        if !root.is_absolute() {
            let path = shown(&root.to_string_lossy());
            return Err(PlaceVariableError::Relative(path));
        }
        let shared = shared.map_or(Ok(false), |word| {
            yes_or_no(&word)
                .ok_or_else(|| PlaceVariableError::Shared(shown(&word.to_string_lossy())))
        })?;
        Ok(Self::new(root, shared))
    }

    /// The directory above the ones of the users.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether the ledgers of this place are for all users.
    #[must_use]
    pub fn shared(&self) -> bool {
        self.shared
    }

    /// The name of the directory below the root that holds this user's (or the shared) ledgers.
    pub(crate) fn directory_name(&self, uid: u32) -> String {
        if self.shared {
            SHARED_DIRECTORY.to_owned()
        } else {
            uid.to_string()
        }
    }

    /// Where the ledger of a budget lies for the calling user. Nothing is created or checked.
    #[must_use]
    pub fn ledger_path(&self, budget: &BudgetName) -> PathBuf {
        self.root
            .join(self.directory_name(crate::process::effective_uid()))
            .join(&budget.0)
    }
}

/// A variable that names a [`Place`] and cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceVariableError {
    /// The program could change its working directory, and its children have others.
    #[error(
        "FH_SHM_PATH={0} is not an absolute path, so that each process would have another directory: \
         write it from the root, such as {DEFAULT_ROOT}"
    )]
    Relative(String),
    /// Neither yes nor no.
    #[error(
        "FH_SHM_SHARED={0} is neither yes (1, true, on, yes) nor no (0, false, off, no), so that \
         whose account is meant cannot be known"
    )]
    Shared(String),
}

/// The name of a budget: 1 to 64 of `A-Z a-z 0-9 . _ -`, not starting with a dot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BudgetName(String);

/// A text that is no [`BudgetName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a budget name (FH_BUDGET): use 1 to {BUDGET_NAME_MAX} of A-Z a-z 0-9 . _ - and no \
     dot at the start"
)]
pub struct BudgetNameError(String);

impl BudgetName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`BudgetNameError`] repeats the name and says what is allowed.
    pub fn new(name: &str) -> Result<Self, BudgetNameError> {
        let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        if name.is_empty()
            || name.len() > BUDGET_NAME_MAX
            || name.starts_with('.')
            || !name.bytes().all(valid)
        {
            return Err(BudgetNameError(shown(name)));
        }
        Ok(Self(name.to_owned()))
    }

    /// The budget that the environment names: `FH_BUDGET`, or [`DEFAULT_BUDGET`] when that is unset
    /// or empty.
    ///
    /// # Errors
    /// [`BudgetNameError`] when it is set to something that is no name.
    pub fn from_env() -> Result<Self, BudgetNameError> {
        let name = std::env::var_os("FH_BUDGET").filter(|name| !name.is_empty());
        name.map_or_else(
            || Self::new(DEFAULT_BUDGET),
            |name| Self::new(&name.to_string_lossy()),
        )
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BudgetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_their_directory() {
        for good in ["default", "a", "team-1.train_2", "-", "1000"] {
            assert!(BudgetName::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in [
            "", ".", "..", ".lock", "a/b", "../x", "a b", "a\0", "\u{e4}", "a\n", &long,
        ] {
            assert!(BudgetName::new(bad).is_err(), "{bad:?}");
        }
        assert!(BudgetName::new(&"x".repeat(64)).is_ok());
    }

    #[test]
    fn variables_that_cannot_be_understood_are_errors() {
        let place = |path: &str, shared: &str| {
            let set = |value: &str| Some(OsString::from(value)).filter(|value| !value.is_empty());
            Place::of_variables(set(path), set(shared))
        };
        assert_eq!(place("", ""), Ok(Place::new(DEFAULT_ROOT, false)));
        assert_eq!(place("/r", "1"), Ok(Place::new("/r", true)));
        assert_eq!(place("/r", "YES"), Ok(Place::new("/r", true)));
        assert_eq!(place("/r", "off"), Ok(Place::new("/r", false)));
        for word in ["ture", "2", " ", "y"] {
            let error = place("/r", word).unwrap_err().to_string();
            assert!(error.contains("FH_SHM_SHARED"), "{error}");
        }
        for path in ["r", "./r", "../r"] {
            let error = place(path, "").unwrap_err().to_string();
            assert!(
                error.contains(&format!("FH_SHM_PATH={path}")) && error.contains("absolute"),
                "{error}"
            );
        }
    }

    #[test]
    fn shared_ledgers_lie_beside_the_users() {
        let name = BudgetName::new("b").unwrap();
        let uid = crate::process::effective_uid();
        let own = Place::new("/r", false).ledger_path(&name);
        assert_eq!(own, PathBuf::from(format!("/r/{uid}/b")));
        assert_eq!(
            Place::new("/r", true).ledger_path(&name),
            PathBuf::from("/r/shared/b")
        );
    }
}
