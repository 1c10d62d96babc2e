//! `hipflex status`: who holds how much, in which budget.

mod collect;
mod json;
mod model;
mod render;
#[cfg(test)]
mod samples;
mod table;

use std::path::Path;

use crate::args::StatusArgs;
use crate::environment::{Environment, SHM_PATH};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;
use crate::place;

/// Shows the budgets.
pub(crate) fn status(args: &StatusArgs) -> Exit {
    show(args).unwrap_or_else(|failure| {
        output::message(&failure.to_string());
        failure.exit
    })
}

fn show(args: &StatusArgs) -> Result<Exit, Failure> {
    let only = args.budget.as_deref().map(place::budget).transpose()?;
    let place = place::from_environment()?;
    let environment = Environment::inherited();
    // The usual place is missing until the first program is started; one that was named may be a
    // slip of the pen.
    if environment.get(SHM_PATH).is_some()
        && let Some(message) = missing(place.root())
    {
        output::message(&message);
    }
    let status = collect::collect(&place, only, &environment.root());
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
        return Ok(Exit::Incomplete);
    }
    Ok(if status.is_complete() {
        Exit::Success
    } else {
        Exit::Incomplete
    })
}

/// What to say of a directory of ledgers that is not there.
fn missing(root: &Path) -> Option<String> {
    if root.exists() {
        return None;
    }
    let shown = root.display();
    Some(match root.parent().filter(|parent| !parent.exists()) {
        // Only the last part of the path is made by the first program that is started.
        Some(parent) => format!(
            "there is no directory {shown} ({SHM_PATH}), nor the {} that it should be in",
            parent.display()
        ),
        None => format!(
            "there is no directory {shown} ({SHM_PATH}): no program has been started with it yet"
        ),
    })
}
