//! `hipflex run`: check everything, then become the program.

mod budget;
mod checks;
mod command;
mod compute_units;
mod elf;
mod exec;
mod gpus;
mod library;
mod limit;
pub(crate) mod preload;
mod settings;

use crate::args::RunArgs;
use crate::environment::Environment;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output;

/// Starts the program; comes back only if that did not happen.
pub(crate) fn run(args: RunArgs) -> Exit {
    match start(args) {
        Ok(never) => match never {},
        Err(failure) => {
            output::message(&failure.to_string());
            failure.exit
        }
    }
}

fn start(args: RunArgs) -> Result<std::convert::Infallible, Failure> {
    let own = std::env::current_exe().ok();
    let directory = own.as_deref().and_then(|path| path.parent());
    let prepared = checks::prepare(args, Environment::inherited(), directory)?;
    for warning in &prepared.warnings {
        output::message(&format!("warning: {warning}"));
    }
    exec::exec(&prepared.program, &prepared.command, &prepared.environment)
}
