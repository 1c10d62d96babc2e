//! The directories that hold ledgers: made, opened and checked.
//!
//! The root is open to all and sticky (01777), so that nobody can put his own in place of another's.
//! A user's directory below it is his alone (0700). The one of the shared ledgers is as the root is.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::{PlaceError, SystemError};
use crate::place::{DEFAULT_ROOT, Place};
use crate::process::effective_uid;
use crate::sys;

const OPEN_TO_ALL: u32 = 0o1777;
const PRIVATE: u32 = 0o700;

/// How long to wait for another process that has just made a directory and not yet set its mode, on
/// a file system where both cannot be done in one step.
const PATIENCE: Duration = Duration::from_millis(200);

/// An open directory of ledgers.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    owner: u32,
    shared: bool,
}

impl Directory {
    /// Opens this user's (or the shared) directory of a place and checks it; makes what is missing.
    pub(crate) fn open_or_create(place: &Place) -> Result<Self, PlaceError> {
        let started = Instant::now();
        loop {
            match Self::try_open_or_create(place) {
                Err(error) if may_be_half_made(&error) && started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                result => return result,
            }
        }
    }

    fn try_open_or_create(place: &Place) -> Result<Self, PlaceError> {
        let root = absolute(place.root())?;
        let uid = effective_uid();
        let path = root.join(place.directory_name(uid));
        let mode = if place.shared() { OPEN_TO_ALL } else { PRIVATE };

        let root_fd = open_or_make(None, &root, OPEN_TO_ALL)?;
        if root == Path::new(DEFAULT_ROOT) {
            // Another root may be a directory that its owner has a use for, and wants as it is.
            mend(root_fd.as_fd(), &root, OPEN_TO_ALL)?;
        }
        check_open_to_all(&root, &status(root_fd.as_fd(), &root)?, false)?;
        let name = c_string(&path, path.file_name().unwrap_or_default().as_bytes())?;
        let fd = open_or_make(Some((root_fd.as_fd(), &name)), &path, mode)?;
        mend(fd.as_fd(), &path, mode)?;
        Self::checked(fd, path, Some(uid), place.shared())
    }

    /// Opens a directory of ledgers that exists. `owner` is whose it must be, if that matters.
    pub(crate) fn open(path: &Path, owner: Option<u32>, shared: bool) -> Result<Self, PlaceError> {
        let path = absolute(path)?;
        let name = c_string(&path, path.as_os_str().as_bytes())?;
        let fd = open_directory(None, &name).map_err(|error| cannot_open(error, &path))?;
        Self::checked(fd, path, owner, shared)
    }

    fn checked(
        fd: OwnedFd,
        path: PathBuf,
        owner: Option<u32>,
        shared: bool,
    ) -> Result<Self, PlaceError> {
        let status = status(fd.as_fd(), &path)?;
        if shared {
            check_open_to_all(&path, &status, true)?;
        } else {
            if let Some(expected) = owner
                && status.uid != expected
            {
                return Err(PlaceError::ForeignOwner {
                    path,
                    owner: status.uid,
                    expected,
                });
            }
            if status.permissions() != PRIVATE {
                let mode = status.permissions();
                return Err(PlaceError::WrongMode {
                    path,
                    mode,
                    expected: "0700",
                });
            }
        }
        Ok(Self {
            fd,
            path,
            owner: status.uid,
            shared,
        })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its ledgers are for all users.
    pub(crate) fn shared(&self) -> bool {
        self.shared
    }

    /// The permission bits of the files in it.
    pub(crate) fn file_mode(&self) -> u32 {
        if self.shared { 0o666 } else { 0o600 }
    }

    /// Opens a helper file of the ledgers, readable and writable, and makes it if it is missing. What
    /// is no regular file is an error.
    ///
    /// It is opened without `O_CREAT` first: in a sticky directory the kernel may refuse `O_CREAT`
    /// on a file of another user (`fs.protected_regular`), even if that file is open to all.
    pub(crate) fn helper_file(&self, name: &CStr) -> Result<OwnedFd, SystemError> {
        let fd = self.open_or_make_helper(name)?;
        let regular = sys::status(fd.as_fd()).is_ok_and(|status| status.is_regular());
        if regular {
            Ok(fd)
        } else {
            let source = io::Error::other("it is a device or pipe; remove it");
            Err(self.error("cannot use", name, source))
        }
    }

    fn open_or_make_helper(&self, name: &CStr) -> Result<OwnedFd, SystemError> {
        loop {
            match sys::open_at(Some(self.fd()), name, libc::O_RDWR, 0) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => return result.map_err(|error| self.error("cannot open", name, error)),
            }
            let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
            match sys::open_at(Some(self.fd()), name, flags, self.file_mode()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(self.error("cannot make", name, error)),
                Ok(fd) => {
                    self.settle_owner_and_mode(fd.as_fd())
                        .map_err(|error| self.error("cannot set the mode of", name, error))?;
                    return Ok(fd);
                }
            }
        }
    }

    /// Gives a new file the mode its directory asks for, whatever the umask, and its directory's
    /// owner, when root makes it in a user's directory.
    pub(crate) fn settle_owner_and_mode(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        sys::change_mode(fd, self.file_mode())?;
        if !self.shared && self.owner != effective_uid() {
            sys::change_owner(fd, self.owner)?;
        }
        Ok(())
    }

    /// An error about a name in this directory.
    pub(crate) fn error(
        &self,
        attempt: &'static str,
        name: &CStr,
        source: io::Error,
    ) -> SystemError {
        SystemError {
            attempt,
            path: self.path_of(name),
            source,
        }
    }

    /// The absolute path of a name in this directory.
    pub(crate) fn path_of(&self, name: &CStr) -> PathBuf {
        self.path.join(std::ffi::OsStr::from_bytes(name.to_bytes()))
    }
}

/// A path as C wants it.
pub(crate) fn c_string(path: &Path, bytes: &[u8]) -> Result<CString, SystemError> {
    CString::new(bytes).map_err(|error| SystemError {
        attempt: "there is a zero byte in the name of",
        path: path.to_owned(),
        source: io::Error::new(io::ErrorKind::InvalidInput, error),
    })
}

/// A path that stays right when the program changes its working directory.
fn absolute(path: &Path) -> Result<PathBuf, SystemError> {
    std::path::absolute(path).map_err(|source| SystemError {
        attempt: "cannot find",
        path: path.to_owned(),
        source,
    })
}

fn open_directory(parent: Option<BorrowedFd<'_>>, name: &CStr) -> io::Result<OwnedFd> {
    sys::open_at(parent, name, libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Opens a directory, and makes it with this mode if it is missing. `at` is its parent and its name
/// there; without it `path` itself is used.
fn open_or_make(
    at: Option<(BorrowedFd<'_>, &CStr)>,
    path: &Path,
    mode: u32,
) -> Result<OwnedFd, PlaceError> {
    let whole;
    let (parent, name) = match at {
        Some((parent, name)) => (Some(parent), name),
        None => {
            whole = c_string(path, path.as_os_str().as_bytes())?;
            (None, whole.as_c_str())
        }
    };
    match open_directory(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        result => return result.map_err(|error| cannot_open(error, path)),
    }
    let failed = |source| SystemError {
        attempt: "cannot make",
        path: path.to_owned(),
        source,
    };
    if make_complete(parent, name, mode).is_ok() {
        return open_directory(parent, name).map_err(|error| cannot_open(error, path));
    }
    let made = match sys::make_directory(parent, name, mode) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => return Err(failed(error).into()),
    };
    let fd = open_directory(parent, name).map_err(|error| cannot_open(error, path))?;
    if made && sys::status(fd.as_fd()).is_ok_and(|status| status.uid == effective_uid()) {
        // Whatever the umask took away.
        sys::change_mode(fd.as_fd(), mode).map_err(failed)?;
    }
    Ok(fd)
}

/// Makes a directory that has its mode from the first moment on, whatever the umask: it gets its name
/// when it is complete. Nobody meets it half made, and nobody who is killed on the way leaves it so.
fn make_complete(parent: Option<BorrowedFd<'_>>, name: &CStr, mode: u32) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let draft = format!(".new.{}.{count}", std::process::id());
    let draft = CString::new([name.to_bytes(), draft.as_bytes()].concat())?;
    sys::make_directory(parent, &draft, PRIVATE)?;
    let result = open_directory(parent, &draft)
        .and_then(|fd| sys::change_mode(fd.as_fd(), mode))
        .and_then(|()| sys::rename_new(parent, &draft, name));
    if result.is_err() {
        // It is empty and unknown to everyone else; one that stays is in nobody's way.
        let _ = sys::remove_directory(parent, &draft);
    }
    match result {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result,
    }
}

/// Gives a directory of one's own that was left half made the mode that it should have. Private ones
/// are only ever given what the umask took: one that lets others in is not mended but refused.
fn mend(fd: BorrowedFd<'_>, path: &Path, mode: u32) -> Result<(), PlaceError> {
    let status = status(fd, path)?;
    let found = status.permissions();
    if status.uid != effective_uid() || found == mode || found & !mode != 0 {
        return Ok(());
    }
    sys::change_mode(fd, mode).map_err(|source| {
        SystemError {
            attempt: "cannot set the mode of",
            path: path.to_owned(),
            source,
        }
        .into()
    })
}

/// Whether somebody may be about to give the directory its mode.
fn may_be_half_made(error: &PlaceError) -> bool {
    match error {
        PlaceError::System(error) => error.source.kind() == io::ErrorKind::PermissionDenied,
        PlaceError::WrongMode { .. } => true,
        PlaceError::NotADirectory(_) | PlaceError::ForeignOwner { .. } => false,
    }
}

fn cannot_open(source: io::Error, path: &Path) -> PlaceError {
    match source.raw_os_error() {
        Some(libc::ENOTDIR | libc::ELOOP) => PlaceError::NotADirectory(path.to_owned()),
        _ => SystemError {
            attempt: "cannot open",
            path: path.to_owned(),
            source,
        }
        .into(),
    }
}

fn status(fd: BorrowedFd<'_>, path: &Path) -> Result<sys::Status, SystemError> {
    sys::status(fd).map_err(|source| SystemError {
        attempt: "cannot examine",
        path: path.to_owned(),
        source,
    })
}

/// A directory in which others may make files must be sticky. One that only its owner may write to is
/// fine as a root, but not as the directory of the shared ledgers.
fn check_open_to_all(path: &Path, status: &sys::Status, shared: bool) -> Result<(), PlaceError> {
    let mode = status.permissions();
    let sticky = mode & 0o1000 != 0;
    let others_write = mode & 0o022 != 0;
    if !status.is_directory() {
        return Err(PlaceError::NotADirectory(path.to_owned()));
    }
    if shared && mode != OPEN_TO_ALL || others_write && !sticky {
        let expected = if shared {
            "1777"
        } else {
            "1777, or writable by its owner only"
        };
        return Err(PlaceError::WrongMode {
            path: path.to_owned(),
            mode,
            expected,
        });
    }
    Ok(())
}
