//! The variables that decide whether and how the library works, as the user wrote them.

use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::OsString;

use hipflex_ledger::{BudgetName, DEFAULT_BUDGET, EngineChoice, LimitSpec, Place, yes_or_no};

use crate::environment::{kept_var, var};
use crate::linker;
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
    /// Limits, as far as they can be understood.
    Limits {
        /// On memory.
        memory: Option<Result<Budget, String>>,
        /// On compute units: `FH_CU_RANGE`.
        compute_units: Option<Result<OsString, String>>,
    },
}

/// A limit, and the account that it is kept in.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) limit: LimitSpec,
    pub(crate) name: BudgetName,
    pub(crate) place: Place,
    pub(crate) fail_mode: FailMode,
}

/// Reads the variables.
pub(crate) fn read() -> Wish {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if says_no("FH_ENABLE_HOOKS", &TOLD) || linker::another_copy_was_found() {
        return Wish::Inert;
    }
    let memory = kept_var("FH_MEMORY_LIMIT").transpose();
    let compute_units = kept_var("FH_CU_RANGE").transpose();
    if memory.is_none() && compute_units.is_none() {
        return Wish::Inert;
    }
    Wish::Limits {
        memory: memory.map(|limit| budget(&limit?)),
        compute_units,
    }
}

/// How functions are hooked below the runtime's exports (`FH_HOOK_ENGINE`). The error has a text for the user.
pub(crate) fn engine() -> Result<EngineChoice, String> {
    EngineChoice::parse(&kept_var("FH_HOOK_ENGINE")?.unwrap_or_default())
}

fn budget(limit: &OsString) -> Result<Budget, String> {
    engine()?;
    let set = |name| kept_var(name).map(|value| value.filter(|value| !value.is_empty()));
    let name = set("FH_BUDGET")?;
    let name = name.map_or_else(
        || DEFAULT_BUDGET.to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let place = Place::of_variables(set("FH_SHM_PATH")?, set("FH_SHM_SHARED")?);
    Ok(Budget {
        limit: LimitSpec::parse(&limit.to_string_lossy())
            .map_err(|error| format!("FH_MEMORY_LIMIT: {error}"))?,
        name: BudgetName::new(&name).map_err(|error| error.to_string())?,
        place: place.map_err(|error| error.to_string())?,
        fail_mode: fail_mode(),
    })
}

/// `FH_FAIL_MODE`; what is neither of its values is told to the user and taken for `closed`.
pub(crate) fn fail_mode() -> FailMode {
    let Some(value) = var("FH_FAIL_MODE") else {
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

/// Whether a variable says no ([`yes_or_no`]). A word that is neither is told to the user, once by each of these
/// marks, and is none.
pub(crate) fn says_no(variable: &str, told: &AtomicBool) -> bool {
    let Some(value) = var(variable).filter(|value| !value.is_empty()) else {
        return false;
    };
    let word = yes_or_no(&value);
    if word.is_none() && !told.swap(true, Ordering::Relaxed) {
        say!(
            "{variable}={value:?} is neither yes (1, true, on, yes) nor no (0, false, off, no); taken for yes"
        );
    }
    word == Some(false)
}
