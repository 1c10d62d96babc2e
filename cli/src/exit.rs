//! The exit codes of `hipflex`: the one place that defines and describes them.

use std::process::ExitCode;

/// How a command ended.
///
/// `hipflex run` replaces itself with the program it starts, so once the program runs, the exit code
/// (or the signal) is the program's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Everything asked for was done.
    Success = 0,
    /// `status`: something could not be shown, such as a ledger of another version.
    Incomplete = 1,
    /// Wrong usage, or `run`: a check failed. Nothing was started.
    Refused = 2,
    /// `run`: the program is there but cannot be executed, as shells say it.
    NotExecutable = 126,
    /// `run`: there is no such program, as shells say it.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        // The discriminants are the codes.
        ExitCode::from(exit as u8)
    }
}

/// The section on exit codes at the end of `hipflex run --help`.
pub(crate) const RUN_HELP: &str = "\
Exit codes:
  2    wrong usage, or a check failed; nothing was started
  126  the program is there but cannot be executed
  127  there is no such program
  Otherwise the exit code is the program's own.";

/// The section on exit codes at the end of `hipflex status --help`.
pub(crate) const STATUS_HELP: &str = "\
Exit codes:
  0    everything was shown (also when there is nothing to show)
  1    something could not be shown; the rest was
  2    wrong usage";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_texts_tell_the_codes() {
        let told = |help: &str, exit: Exit| {
            let start = format!("  {:<5}", exit as u8);
            help.lines().any(|line| line.starts_with(&start))
        };
        assert!(told(RUN_HELP, Exit::Refused));
        assert!(told(RUN_HELP, Exit::NotExecutable));
        assert!(told(RUN_HELP, Exit::NotFound));
        assert!(told(STATUS_HELP, Exit::Success));
        assert!(told(STATUS_HELP, Exit::Incomplete));
        assert!(told(STATUS_HELP, Exit::Refused));
    }
}
