//! `hipflex status`: who holds how much, in which budget.

mod collect;
mod json;
mod model;
mod render;
#[cfg(test)]
mod samples;
mod table;

use hipflex_ledger::{BudgetName, Place};

use crate::args::StatusArgs;
use crate::environment::Environment;
use crate::exit::Exit;
use crate::output;

/// Shows the budgets.
pub(crate) fn status(args: &StatusArgs) -> Exit {
    let only = match args
        .budget
        .as_deref()
        .map(|name| BudgetName::new(&name.to_string_lossy()))
    {
        None => None,
        Some(Ok(name)) => Some(name),
        Some(Err(error)) => {
            output::message(&format!("--budget: {error}"));
            return Exit::Refused;
        }
    };
    let place = match Place::from_env() {
        Ok(place) => place,
        Err(error) => {
            output::message(&error.to_string());
            return Exit::Refused;
        }
    };
    let status = collect::collect(&place, only, &Environment::inherited().root());
    for message in render::messages(&status) {
        output::message(&message);
    }
    let text = if args.json {
        json::render(&status)
    } else {
        render::render(&status)
    };
    if let Err(error) = output::result(&text) {
        output::message(&format!("cannot write the result: {error}"));
        return Exit::Incomplete;
    }
    if status.is_complete() {
        Exit::Success
    } else {
        Exit::Incomplete
    }
}
