//! Where the ledgers lie, and how a budget is named, as a user says it to a command.

use std::ffi::OsStr;

use hipflex_ledger::{BUDGET_NAME_MAX, BudgetName, Place};

use crate::failure::Failure;

/// The place that the environment names.
pub(crate) fn from_environment() -> Result<Place, Failure> {
    Place::from_env().map_err(|error| Failure::refused(error.to_string(), ""))
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
