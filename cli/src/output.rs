//! Results go to standard output, messages to standard error, each in one write.

use std::io::{self, ErrorKind, Write};

use crate::text;

/// Writes a line to standard error. There is nowhere to tell that this failed.
pub(crate) fn message(text: &str) {
    let line = format!("hipflex: {}\n", text::printable(text));
    io::stderr().write_all(line.as_bytes()).ok();
}

/// Writes what is wrong with the command line, which takes several lines, to standard error.
pub(crate) fn usage(text: &str) {
    let lines: Vec<String> = text.trim_end().lines().map(text::printable).collect();
    let text = format!("hipflex: {}\n", lines.join("\n"));
    io::stderr().write_all(text.as_bytes()).ok();
}

/// Writes a result to standard output. A reader that has gone away (`| head`) is no failure.
pub(crate) fn result(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
