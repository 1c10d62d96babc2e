//! The shared-memory account of a budget.
