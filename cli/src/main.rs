//! `hipflex`: run a program inside a budget, and see what the budgets hold.
fn main() {}
