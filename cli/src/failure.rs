//! A failed check, told in one line: what was tried, what happened, what to do.

use std::fmt;

use crate::exit::Exit;
use crate::text;

/// Why nothing was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The exit code that goes with it.
    pub(crate) exit: Exit,
    /// What was tried and what happened.
    pub(crate) problem: String,
    /// What the reader can do about it.
    pub(crate) remedy: String,
}

impl Failure {
    /// A failed check: nothing was started, exit code 2.
    pub(crate) fn refused(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            exit: Exit::Refused,
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A path or a variable may hold anything; the message stays one line.
        let (problem, remedy) = (
            text::printable(&self.problem),
            text::printable(&self.remedy),
        );
        if remedy.is_empty() {
            f.write_str(&problem)
        } else {
            write!(f, "{problem}; {remedy}")
        }
    }
}
