//! `hipflex`: run a program inside a budget, and see what the budgets hold.

mod args;
mod environment;
mod exit;
mod failure;
mod output;
mod place;
mod run;
mod sigpipe;
mod status;
mod text;

use std::process::ExitCode;

use crate::args::Command;

fn main() -> ExitCode {
    sigpipe::restore();
    let exit = match args::parse().command {
        Command::Run(args) => run::run(args),
        Command::Status(args) => status::status(&args),
        Command::PreloadProbe { library } => run::preload::probe(&library),
    };
    exit.into()
}
