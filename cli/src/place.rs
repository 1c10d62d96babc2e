//! Where the ledgers lie, and how a budget is named, as a user says it to a command.

use std::ffi::OsStr;

use hipflex_ledger::{BUDGET_NAME_MAX, BudgetName, Place};

use crate::environment::SHM_PATH;
use crate::failure::Failure;

/// The place that the environment names.
///
/// # Errors
/// It must be absolute: another process, and `run`'s program, may have another working directory.
pub(crate) fn from_environment() -> Result<Place, Failure> {
    let place = Place::from_env();
    if place.root().is_relative() {
        return Err(Failure::refused(
            format!(
                "{SHM_PATH}={} is not an absolute path",
                place.root().display()
            ),
            "start it with a slash: each process may look from another directory",
        ));
    }
    Ok(place)
}

/// The budget that `--budget` names.
pub(crate) fn budget(name: &OsStr) -> Result<BudgetName, Failure> {
    let name = name.to_string_lossy();
    // The ledger's own error names the variable FH_BUDGET.
    BudgetName::new(&name).map_err(|_| {
        Failure::refused(
            format!("--budget: '{name}' is not a budget name"),
            format!("use 1 to {BUDGET_NAME_MAX} of A-Z a-z 0-9 . _ - and no dot at the start"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_none_is_told_by_its_source() {
        assert_eq!(
            budget(OsStr::new("a b")).unwrap_err().to_string(),
            "--budget: 'a b' is not a budget name; use 1 to 64 of A-Z a-z 0-9 . _ - and no dot at \
             the start"
        );
        assert_eq!(budget(OsStr::new("a.b")).unwrap().as_str(), "a.b");
    }
}
