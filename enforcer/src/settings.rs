//! The variables that decide whether and how the library works, as the user wrote them.

use std::env;
use std::ffi::OsString;

use hipflex_ledger::{BudgetName, LimitSpec, Place, yes_or_no};

use crate::stderr::{say, say_once};

/// What happens to allocations when the limit cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailMode {
    /// They are refused.
    Closed,
    /// The program runs without a limit.
    Open,
}

/// What the variables ask for.
#[derive(Debug)]
pub(crate) enum Wish {
    /// Nothing: every call goes to the runtime.
    Inert,
    /// A limit, if it can be understood.
    Limit(Result<Budget, String>),
}

/// A limit, and the account that it is kept in.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limit: LimitSpec,
    pub(crate) name: BudgetName,
    pub(crate) place: Place,
    pub(crate) fail_mode: FailMode,
}

/// Reads the variables. `FH_CU_RANGE`, which this version does not know, is told to the user.
pub(crate) fn read() -> Wish {
    if says_no("FH_ENABLE_HOOKS") {
        return Wish::Inert;
    }
    if env::var_os("FH_CU_RANGE").is_some() {
        say_once!(
            "FH_CU_RANGE is set, but this version does not limit compute units yet: the program may \
             use all of them"
        );
    }
    match env::var_os("FH_MEMORY_LIMIT") {
        None => Wish::Inert,
        Some(limit) => Wish::Limit(budget(&limit)),
    }
}

fn budget(limit: &OsString) -> Result<Budget, String> {
    Ok(Budget {
        limit: LimitSpec::parse(&limit.to_string_lossy())
            .map_err(|error| format!("FH_MEMORY_LIMIT: {error}"))?,
        name: BudgetName::from_env().map_err(|error| error.to_string())?,
        place: Place::from_env().map_err(|error| error.to_string())?,
        fail_mode: fail_mode(),
    })
}

/// `FH_FAIL_MODE`; what is neither of its values is told to the user and taken for `closed`.
pub(crate) fn fail_mode() -> FailMode {
    let Some(value) = env::var_os("FH_FAIL_MODE") else {
        return FailMode::Closed;
    };
    match value.to_str() {
        Some("open") => FailMode::Open,
        Some("closed" | "") => FailMode::Closed,
        _ => {
            say_once!(
                "FH_FAIL_MODE={value:?} is neither \"closed\" nor \"open\"; taken for \"closed\""
            );
            FailMode::Closed
        }
    }
}

/// Whether a variable says no ([`yes_or_no`]). A word that is neither is told to the user, and is none.
pub(crate) fn says_no(variable: &str) -> bool {
    let Some(value) = env::var_os(variable).filter(|value| !value.is_empty()) else {
        return false;
    };
    let word = yes_or_no(&value);
    if word.is_none() {
        say!(
            "{variable}={value:?} is neither yes (1, true, on, yes) nor no (0, false, off, no); taken for yes"
        );
    }
    word == Some(false)
}
