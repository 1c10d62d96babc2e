//! The command line: what can be asked, and what the help says about it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit::{self, Exit};
use crate::output;

/// Keep HIP programs inside their share of a GPU, and see what each of them holds.
///
/// A program started by `hipflex run` sees a GPU of the size you give it, and gets
/// hipErrorOutOfMemory beyond that. Programs in the same budget share one limit.
/// `hipflex status` shows every budget and who holds what.
#[derive(Debug, Parser)]
#[command(
    name = "hipflex",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
#[command(disable_help_subcommand = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The command line of this process. What cannot be understood is told, and ends the process; help
/// and version are printed, and end it too.
pub(crate) fn parse() -> Cli {
    Cli::try_parse().unwrap_or_else(|mut error| match wrong_usage(&mut error) {
        Ok(text) => {
            output::usage(&text);
            std::process::exit(Exit::Refused as i32)
        }
        Err(help) => help.exit(),
    })
}

/// What is wrong with a command line, without the "error: " that clap begins with.
///
/// The tip to write `-- --option` for an option that does not exist is left out: behind `--` stands
/// the program to start, so that it would make a program of a misspelt option.
///
/// # Errors
/// Nothing is wrong: it is a help text or the version.
fn wrong_usage(error: &mut clap::Error) -> Result<String, &clap::Error> {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        return Err(error);
    }
    error.remove(ContextKind::Suggested);
    let text = error.render().to_string();
    Ok(text.strip_prefix("error: ").unwrap_or(&text).to_owned())
}

const EXAMPLES: &str = "\
Examples:
  hipflex run --memory 4GiB -- python3 train.py
  hipflex status
Each command explains itself: hipflex run --help";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a program that can use only so much of a GPU
    ///
    /// Everything is checked first: the limit, the library, the GPUs, the account of the budget and
    /// the program itself. If something is wrong, one line says what, and nothing is started. Then
    /// hipflex replaces itself with the program, which keeps its process ID, its exit code and its
    /// signals.
    ///
    /// Children of the program are in the same budget: all of them together stay inside the limit.
    Run(RunArgs),
    /// Show every budget: its limit, what is booked, and by which process
    ///
    /// You see your own budgets and those shared by all users; root sees those of everyone. What dead
    /// processes had booked is returned first, and budgets that nobody uses any more are removed.
    ///
    /// Booked is what the programs allocated; pending are allocations under way; overhead is what the
    /// driver holds for the programs besides, where that is measured. All together are charged, and
    /// free is what is left of the limit. What is not known is shown as –.
    ///
    /// Below the budgets are the GPUs of this machine, with the addresses that a limit for each GPU
    /// takes.
    Status(StatusArgs),
    /// Tell by the exit code whether a library was preloaded into this very process.
    #[command(hide = true, name = PRELOAD_PROBE)]
    PreloadProbe { library: PathBuf },
}

/// The hidden command by which `run` checks that its library can be preloaded.
pub(crate) const PRELOAD_PROBE: &str = "__preload-probe";

/// The arguments of `hipflex run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, after_long_help = format!("{RUN_EXAMPLES}\n\n{}", exit::RUN_HELP))]
pub(crate) struct RunArgs {
    /// How much GPU memory the budget may hold [default: $FH_MEMORY_LIMIT]
    ///
    /// A size per GPU (4GiB, 512MiB, 1.5GiB; 4Gi and 4GB work too), a share of each board (50%), or
    /// sizes by PCI address (0000:03:00.0=8GiB,*=4GiB). "unlimited" books everything and refuses
    /// nothing.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) memory: Option<OsString>,

    /// Which compute units the program may use [default: $FH_CU_RANGE, else all]
    ///
    /// The first and the last (0-37), or several ranges (0-37,64-75), on each GPU; or ranges by PCI address
    /// (0000:03:00.0=0-37,*=0-15). "all" are all of them. On RDNA, two neighbours (a WGP) are used together or not at
    /// all. Without --memory, memory is not limited.
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub(crate) cus: Option<OsString>,

    /// Join the budget of this name, of your user (of all users with --shared), or start it [default:
    /// a new budget for this run]
    ///
    /// Programs in one budget share one limit. If the budget is in use with another limit, the
    /// stricter one holds. Names are 1 to 64 letters, digits, dots, dashes and underscores.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) budget: Option<OsString>,

    /// Join the budget of that name which is for all users
    ///
    /// Each user has budgets of his own, and root has, too: with the same name they are still
    /// different budgets with a limit each. Those for all users are apart from them, so every program
    /// that shares one has to be started with --shared (or with FH_SHM_SHARED=1).
    #[arg(long, requires = "budget")]
    pub(crate) shared: bool,

    /// What happens when the limit cannot be enforced [default: $FH_FAIL_MODE, else closed]
    #[arg(long, value_name = "MODE", value_enum)]
    pub(crate) fail_mode: Option<FailMode>,

    /// The libhipflex.so to use [default: $FH_LIB, else the one installed with this program]
    #[arg(long, value_name = "PATH")]
    pub(crate) lib: Option<PathBuf>,

    /// The program to start, and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, num_args = 1..)]
    pub(crate) command: Vec<OsString>,
}

const RUN_EXAMPLES: &str = "\
Examples:
  # a GPU of 4 GiB
  hipflex run --memory 4GiB -- python3 train.py
  # half of each board, shared with others by the name of the budget
  hipflex run --memory 50% --budget team -- ./infer
  # one limit for the programs of several users
  hipflex run --memory 8GiB --budget lab --shared -- ./app
  # by PCI address, as `hipflex status` lists them
  hipflex run --memory '0000:03:00.0=8GiB,*=4GiB' -- ./app
  # 38 compute units, and all of the memory
  hipflex run --cus 0-37 -- ./app
  # only watch: everything is booked, nothing is refused
  hipflex run --memory unlimited -- ./app";

/// `--fail-mode` and `FH_FAIL_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailMode {
    /// Refuse: nothing is started, or GPU allocations fail
    Closed,
    /// Warn, and let the program run unlimited
    Open,
}

impl FailMode {
    /// The value of `FH_FAIL_MODE`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
        }
    }
}

/// The arguments of `hipflex status`.
#[derive(Debug, Args)]
#[command(after_help = STATUS_EXAMPLES, after_long_help = format!("{STATUS_EXAMPLES}\n\n{}", exit::STATUS_HELP))]
pub(crate) struct StatusArgs {
    /// Print JSON (documented in docs/status-json.md); messages go to standard error
    #[arg(long)]
    pub(crate) json: bool,

    /// Show only the budgets of this name, and no GPUs
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) budget: Option<OsString>,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  hipflex status
  hipflex status --budget team
  # the budgets of all users
  sudo hipflex status
  # for a script
  hipflex status --json | jq '.budgets[].name'";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn help(path: &[&str], long: bool) -> String {
        let mut command = Cli::command().term_width(80);
        command.build();
        for name in path {
            command = command
                .find_subcommand(name)
                .unwrap()
                .clone()
                .term_width(80);
        }
        if long {
            command.render_long_help().to_string()
        } else {
            command.render_help().to_string()
        }
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_texts() {
        insta::assert_snapshot!("help", help(&[], false));
        insta::assert_snapshot!("help_run", help(&["run"], true));
        insta::assert_snapshot!("help_run_short", help(&["run"], false));
        insta::assert_snapshot!("help_status", help(&["status"], true));
    }

    fn run(args: &[&str]) -> Result<RunArgs, clap::Error> {
        let all = ["hipflex", "run"].into_iter().chain(args.iter().copied());
        Cli::try_parse_from(all).map(|cli| match cli.command {
            Command::Run(run) => run,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn options_after_the_program_are_the_programs() {
        for args in [
            &["--memory", "1GiB", "--", "app", "--memory", "x", "--", "-h"][..],
            &["--memory", "1GiB", "app", "--memory", "x", "--", "-h"],
        ] {
            let run = run(args).unwrap();
            assert_eq!(run.command, ["app", "--memory", "x", "--", "-h"]);
            assert_eq!(run.memory.unwrap(), "1GiB");
        }
    }

    #[test]
    fn wrong_usage_is_told_without_harmful_tips() {
        let told = |args: &[&str]| {
            let all = ["hipflex"].into_iter().chain(args.iter().copied());
            wrong_usage(&mut Cli::try_parse_from(all).unwrap_err()).unwrap()
        };
        insta::assert_snapshot!(
            "wrong_usage",
            [
                told(&["run", "--memroy", "1GiB", "--", "app"]),
                told(&["run", "--nonsense", "--", "app"]),
                told(&["run", "--memory", "1GiB"]),
                told(&["run", "--fail-mode", "ajar", "app"]),
                told(&["statsu"]),
            ]
            .join("----\n")
        );
    }

    #[test]
    fn help_and_version_are_no_wrong_usage() {
        for args in [&["hipflex"][..], &["hipflex", "--help"], &["hipflex", "-V"]] {
            let mut error = Cli::try_parse_from(args).unwrap_err();
            assert!(wrong_usage(&mut error).is_err(), "{args:?}");
        }
    }

    #[test]
    fn a_negative_size_is_a_value_and_not_an_option() {
        assert_eq!(
            run(&["--memory", "-1", "--", "app"])
                .unwrap()
                .memory
                .unwrap(),
            "-1"
        );
    }

    #[test]
    fn a_program_is_needed() {
        for args in [&["--memory", "1GiB"][..], &["--memory", "1GiB", "--"]] {
            assert!(run(args).unwrap_err().to_string().contains("<CMD>"));
        }
    }
}
