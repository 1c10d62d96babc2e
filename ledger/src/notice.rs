//! What a process should be told when it joins, one line each.

use std::fmt;

use crate::gpu::GpuKey;
use crate::limit::Limit;
use crate::place::BudgetName;

/// Something that is no error and that the user should know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// The budget in use has another limit than the one this process asks for; the stricter holds.
    StricterLimit(StricterLimit),
}

/// A conflict between the limit of a budget in use and the limit that a process asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StricterLimit {
    /// The budget.
    pub budget: BudgetName,
    /// The GPUs on which these two limits meet.
    pub gpus: Vec<GpuKey>,
    /// What this process asks for.
    pub mine: Limit,
    /// What the budget has.
    pub ledger: Limit,
}

impl fmt::Display for Notice {
    /// One line without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::StricterLimit(conflict) = self;
        let StricterLimit {
            budget,
            gpus,
            mine,
            ledger,
        } = conflict;
        write!(f, "budget '{budget}' is in use with the limit {ledger}")?;
        for (n, gpu) in gpus.iter().enumerate() {
            f.write_str(if n == 0 { " on GPU " } else { ", " })?;
            gpu.fmt(f)?;
        }
        write!(
            f,
            ", this process asks for {mine}: the stricter one, {}, holds for this process; for a limit \
             of its own use another budget (with hipflex run another --budget NAME, or none; else \
             another FH_BUDGET)",
            mine.stricter(*ledger)
        )
    }
}
