//! `LD_PRELOAD`: our library first, then what was there; and a real try whether it loads.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::PRELOAD_PROBE;
use crate::environment::{Environment, PRELOAD};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::run::library;
use crate::text;

/// The new value of `LD_PRELOAD`.
///
/// Ours comes first, so that what follows (an allocator, a profiler) is found behind it. Any
/// libhipflex.so that was already there goes: two of them would book everything twice.
pub(crate) fn compose(ours: &Path, inherited: Option<&OsStr>) -> OsString {
    let mut value = ours.as_os_str().to_owned();
    // The separators of ld.so(8): spaces or colons.
    let entries = inherited.map_or(&b""[..], OsStrExt::as_bytes);
    for entry in entries.split(|byte| matches!(byte, b' ' | b':')) {
        let entry = OsStr::from_bytes(entry);
        if !entry.is_empty() && !library::is_hipflex(entry, ours) {
            value.push(":");
            value.push(entry);
        }
    }
    value
}

/// Runs this very program once with the environment that the started program will have, and lets it
/// say whether the library was loaded. Only the dynamic linker knows whether a library's own needs
/// are met and whether its file system allows execution.
pub(crate) fn try_loading(ours: &Path, environment: &Environment) -> Result<(), Failure> {
    let mut probe = Command::new("/proc/self/exe");
    probe.arg(PRELOAD_PROBE).arg(ours);
    probe.env_clear().envs(environment.iter());
    let output = probe
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| {
            Failure::refused(
                format!(
                    "cannot try to preload {}: starting /proc/self/exe failed: {error}",
                    ours.display()
                ),
                "check that /proc is mounted and that processes can be started",
            )
        })?;
    if output.status.success() {
        return Ok(());
    }
    let name = ours.to_string_lossy();
    let reason = complaint(&String::from_utf8_lossy(&output.stderr), &name)
        .unwrap_or_else(|| format!("the trial process ended with {}", output.status));
    Err(Failure::refused(
        format!("the dynamic linker does not load {name}: {reason}"),
        "build or install the library for this system, or name another with --lib PATH",
    ))
}

/// The linker's own reason, if it gave one. It names the library when it ignores it, and what the
/// library needs when it gives up. Other lines (about other preloads, say) are not it.
fn complaint(stderr: &str, library: &str) -> Option<String> {
    let gives_up = |line: &&str| line.contains("error while loading shared libraries");
    let ignores = |line: &&str| line.contains(library);
    let line = stderr
        .lines()
        .find(gives_up)
        .or_else(|| stderr.lines().find(ignores))?;
    Some(text::printable(line))
}

/// The trial process's part: is the library in this process?
pub(crate) fn probe(library: &Path) -> Exit {
    let Ok(name) = CString::new(library.as_os_str().as_bytes()) else {
        return Exit::Incomplete;
    };
    // SAFETY: `name` is a C string that outlives the call. With RTLD_NOLOAD nothing is loaded and no
    // constructor runs; the handle is not closed, and the process ends right after.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        Exit::Incomplete
    } else {
        Exit::Success
    }
}

/// The value of `LD_PRELOAD` for the started program.
pub(crate) fn set(ours: &Path, environment: &mut Environment) {
    let value = compose(ours, environment.get(PRELOAD));
    environment.set(PRELOAD, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn composed(inherited: &str) -> String {
        compose(Path::new("/opt/libhipflex.so"), Some(OsStr::new(inherited)))
            .into_string()
            .unwrap()
    }

    #[test]
    fn ours_comes_first_and_others_keep_their_order() {
        assert_eq!(compose(Path::new("/x.so"), None), "/x.so");
        assert_eq!(
            composed("/usr/lib/libjemalloc.so.2"),
            "/opt/libhipflex.so:/usr/lib/libjemalloc.so.2"
        );
        assert_eq!(
            composed("a.so b.so:c.so"),
            "/opt/libhipflex.so:a.so:b.so:c.so"
        );
        assert_eq!(composed(" : :"), "/opt/libhipflex.so");
    }

    #[test]
    fn no_libhipflex_is_loaded_twice() {
        assert_eq!(composed("/opt/libhipflex.so"), "/opt/libhipflex.so");
        assert_eq!(
            composed("a.so:/opt/libhipflex.so:b.so"),
            "/opt/libhipflex.so:a.so:b.so"
        );
        assert_eq!(composed("/old/libhipflex.so"), "/opt/libhipflex.so");
    }

    #[test]
    fn the_same_file_by_another_name_is_recognised() {
        let directory = tempfile::tempdir().unwrap();
        let (ours, link) = (
            directory.path().join("ours.so"),
            directory.path().join("link.so"),
        );
        std::fs::write(&ours, "").unwrap();
        std::os::unix::fs::symlink(&ours, &link).unwrap();
        assert_eq!(compose(&ours, Some(link.as_os_str())), ours.as_os_str());
    }

    #[test]
    fn names_that_are_not_utf8_survive() {
        let inherited = OsStr::from_bytes(b"/caf\xe9.so");
        let value = compose(Path::new("/x.so"), Some(inherited));
        assert_eq!(value.as_bytes(), b"/x.so:/caf\xe9.so");
    }

    #[test]
    fn the_linkers_reason_is_found_among_other_lines() {
        let other =
            "ERROR: ld.so: object '/other.so' from LD_PRELOAD cannot be preloaded: ignored.";
        let ignored = "ERROR: ld.so: object '/ours.so' from LD_PRELOAD cannot be preloaded (wrong ELF class): ignored.";
        let fatal = "hipflex: error while loading shared libraries: libneeded.so: cannot open shared object file";
        assert_eq!(
            complaint(&format!("{other}\n{ignored}\n"), "/ours.so").unwrap(),
            ignored
        );
        assert_eq!(
            complaint(&format!("{other}\n{fatal}\n"), "/ours.so").unwrap(),
            fatal
        );
        assert_eq!(complaint(other, "/ours.so"), None);
    }
}
