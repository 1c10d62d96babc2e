//! Where log lines go.

use core::sync::atomic::{AtomicBool, Ordering};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::signals::{uncancelled, without_write_signals};
use crate::stderr::{self, Errno, say};

/// A log file that has grown to this size is renamed to `NAME.old`, in the place of an older one.
const LARGEST: u64 = 8 << 20;
/// Where logs go if nothing is said.
const DEFAULT_DIRECTORY: &str = "/tmp/hipflex";

/// Where log lines go.
#[derive(Debug)]
pub(super) enum Sink {
    Stderr,
    File(Target),
}

/// A log file.
#[derive(Debug)]
pub(super) struct Target {
    path: PathBuf,
    /// A directory that others may write to: the file in it must be ours.
    shared_directory: Option<PathBuf>,
    /// A failure was told.
    told: AtomicBool,
}

impl Sink {
    /// By the value of `FH_LOG_PATH`. Nothing is opened.
    pub(super) fn new(path: Option<&OsStr>) -> Self {
        match path {
            Some(path) if path == "stderr" => Self::Stderr,
            None => Self::in_directory(Path::new(DEFAULT_DIRECTORY)),
            Some(path) if path.is_empty() => Self::in_directory(Path::new(DEFAULT_DIRECTORY)),
            Some(path) if path.as_bytes().ends_with(b"/") || Path::new(path).is_dir() => {
                Self::in_directory(Path::new(path))
            }
            Some(path) => Self::File(Target {
                path: PathBuf::from(path),
                shared_directory: None,
                told: AtomicBool::new(false),
            }),
        }
    }

    fn in_directory(directory: &Path) -> Self {
        // SAFETY: geteuid has no preconditions and does not fail.
        let user = unsafe { libc::geteuid() };
        Self::File(Target {
            path: directory.join(format!("hipflex.log.{user}")),
            shared_directory: Some(directory.to_owned()),
            told: AtomicBool::new(false),
        })
    }

    /// Writes one line. A failure is told once on stderr.
    pub(super) fn write(&self, line: &[u8]) {
        let _errno = Errno::keep();
        match self {
            Self::Stderr => stderr::write_without_waiting(libc::STDERR_FILENO, line),
            Self::File(target) => {
                let appended = uncancelled(|| without_write_signals(|| target.append(line)));
                if let Err(error) = appended
                    && !target.told.swap(true, Ordering::Relaxed)
                {
                    say!(
                        "cannot log to {:?} ({error}); name another file or directory in FH_LOG_PATH, or set \
                         FH_ENABLE_LOG=off",
                        target.path
                    );
                }
            }
        }
    }
}

impl Target {
    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut file = self.open()?;
        if file.metadata()?.len() >= LARGEST {
            let mut old = self.path.clone().into_os_string();
            old.push(".old");
            // Two processes may come here at once; the second then renames a young file.
            fs::rename(&self.path, old)?;
            file = self.open()?;
        }
        file.write(line).map(drop)
    }

    fn open(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        // O_NONBLOCK: the file may be a FIFO that nobody reads.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        options.append(true).create(true).mode(0o600);
        let Some(directory) = &self.shared_directory else {
            return options.custom_flags(flags).open(&self.path);
        };
        options.custom_flags(flags | libc::O_NOFOLLOW);
        let file = match options.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_shared_directory(directory)?;
                options.open(&self.path)?
            }
            opened => opened?,
        };
        let metadata = file.metadata()?;
        // SAFETY: geteuid has no preconditions and does not fail.
        let user = unsafe { libc::geteuid() };
        if !metadata.is_file() || metadata.uid() != user || metadata.nlink() != 1 {
            return Err(io::Error::other("it is not a plain file of this user"));
        }
        Ok(file)
    }
}

/// Makes a directory in which each user has a file, as `/tmp` is.
fn make_shared_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(0o1777)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn target(sink: Sink) -> Target {
        match sink {
            Sink::File(target) => target,
            Sink::Stderr => panic!("stderr"),
        }
    }

    #[test]
    fn a_directory_gets_a_file_for_each_user() {
        let directory = tempfile::tempdir().unwrap();
        // SAFETY: no preconditions.
        let name = format!("hipflex.log.{}", unsafe { libc::geteuid() });
        let target = target(Sink::new(Some(directory.path().as_os_str())));
        target.append(b"one\n").unwrap();
        target.append(b"two\n").unwrap();
        assert_eq!(
            fs::read(directory.path().join(name)).unwrap(),
            b"one\ntwo\n"
        );
    }

    #[test]
    fn a_directory_that_is_missing_is_made_for_all_users() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("logs/");
        let target = target(Sink::new(Some(path.as_os_str())));
        target.append(b"one\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o1777);
    }

    #[test]
    fn links_in_a_shared_directory_are_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let victim = directory.path().join("victim");
        fs::write(&victim, "").unwrap();
        let target = target(Sink::new(Some(directory.path().as_os_str())));
        symlink(&victim, &target.path).unwrap();
        target.append(b"one\n").unwrap_err();
        fs::remove_file(&target.path).unwrap();
        fs::hard_link(&victim, &target.path).unwrap();
        target.append(b"one\n").unwrap_err();
        assert_eq!(fs::read(&victim).unwrap(), b"");
    }

    #[test]
    fn a_log_does_not_grow_without_bound() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let target = target(Sink::new(Some(path.as_os_str())));
        for _ in 0..2 {
            File::options()
                .create(true)
                .append(true)
                .open(&path)
                .unwrap()
                .set_len(LARGEST)
                .unwrap();
            target.append(b"young\n").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"young\n");
            assert_eq!(
                fs::metadata(directory.path().join("log.old"))
                    .unwrap()
                    .len(),
                LARGEST
            );
        }
    }
}
