//! Becoming the program: same process, new image.

use std::convert::Infallible;
use std::ffi::{CString, NulError, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use crate::environment::Environment;
use crate::exit::Exit;
use crate::failure::Failure;

/// Replaces this process by `program`, with `command` as its arguments (the first is its name).
///
/// `std`'s `CommandExt::exec` is not used: it also resets the signal mask and SIGPIPE, and a program
/// should find both as if it had been started without us.
///
/// # Errors
/// Returns only if the program could not be started.
pub(crate) fn exec(
    program: &Path,
    command: &[OsString],
    environment: &Environment,
) -> Result<Infallible, Failure> {
    let error = match try_exec(program, command, environment) {
        Ok(error) => error,
        Err(error) => error.into(),
    };
    let exit = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    let problem = format!("cannot execute {}: {error}", program.display());
    let remedy = match error.raw_os_error() {
        // The file was there a moment ago, so what is missing is what its first line or its
        // program headers name.
        Some(libc::ENOENT) => "its interpreter or dynamic linker may be missing",
        Some(libc::E2BIG) => "the arguments and the environment together are too long",
        _ => "",
    };
    Err(Failure {
        exit,
        problem,
        remedy: remedy.to_owned(),
    })
}

fn try_exec(
    program: &Path,
    command: &[OsString],
    environment: &Environment,
) -> Result<io::Error, NulError> {
    let path = CString::new(program.as_os_str().as_bytes())?;
    let arguments = command
        .iter()
        .map(|word| c_string(&[word]))
        .collect::<Result<Vec<_>, _>>()?;
    let variables = environment
        .iter()
        .map(|(name, value)| c_string(&[name, OsStr::new("="), value]))
        .collect::<Result<Vec<_>, _>>()?;
    let (argv, envp) = (pointers(&arguments), pointers(&variables));
    // SAFETY: path is a C string, argv and envp are NULL-terminated arrays of C strings, and all of
    // them live until the call returns, which it does only on failure. The path contains a slash, so
    // execvpe does not search; unlike execve it gives a script without `#!` to the shell.
    unsafe { libc::execvpe(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    Ok(io::Error::last_os_error())
}

fn c_string(parts: &[&OsStr]) -> Result<CString, NulError> {
    CString::new(
        parts
            .iter()
            .flat_map(|part| part.as_bytes())
            .copied()
            .collect::<Vec<u8>>(),
    )
}

/// The pointers, with NULL behind the last. They are valid as long as `strings`.
fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings
        .iter()
        .map(|string| string.as_ptr())
        .chain([ptr::null()])
        .collect()
}
