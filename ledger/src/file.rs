//! The file of a ledger: opened, checked and removed.

// Those of `sync` are for what other processes have too.
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::directory::{Directory, c_string};
use crate::error::{OpenError, SystemError};
use crate::fault::fault_point;
use crate::layout::{
    FLAG_SHARED, Geometry, Header, LIVENESS_LOCKS, LIVENESS_WITNESS, MAGIC, VERSION, load_text,
};
use crate::mapping::Mapping;
use crate::place::BudgetName;
use crate::process::effective_uid;
use crate::sync::Ordering;
use crate::sys::{self, FileId, Holder, Kind, Range};

/// The names of a budget's files in its directory.
#[derive(Debug)]
pub(crate) struct Names {
    /// The ledger.
    pub(crate) ledger: CString,
    /// A file whose only use is that each member locks the byte of its slot's number, so that others
    /// can ask the kernel for its PID.
    pub(crate) owners: CString,
    /// The ledger while it is made.
    pub(crate) draft: CString,
}

impl Names {
    pub(crate) fn of(budget: &BudgetName) -> Result<Self, SystemError> {
        let name = |text: String| c_string(Path::new(budget.as_str()), text.as_bytes());
        Ok(Self {
            ledger: name(budget.as_str().to_owned())?,
            owners: name(format!(".{budget}.owners"))?,
            // A leftover of another user could not be removed from a sticky directory.
            draft: name(format!(".{budget}.draft.{}", effective_uid()))?,
        })
    }
}

/// An open and checked ledger.
#[derive(Debug)]
pub(crate) struct LedgerFile {
    pub(crate) map: Mapping,
    pub(crate) fd: OwnedFd,
    pub(crate) id: FileId,
    /// The user whose the file is.
    pub(crate) owner: u32,
}

/// Nanoseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// How a ledger is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) writable: bool,
    pub(crate) view: View,
    /// Whose it must be, if not just anybody's.
    pub(crate) owner: Option<u32>,
}

/// What is made of the file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// A mapping: for members. Whoever may write to the file could cut it, which would end those who
    /// have it mapped.
    Mapping,
    /// A private copy: for onlookers, who may trust the file's owner less.
    Copy,
}

/// Opens a budget's ledger and checks everything about it.
pub(crate) fn open(
    directory: &Directory,
    name: &CStr,
    access: Access,
) -> Result<LedgerFile, OpenError> {
    let path = directory.path_of(name);
    let system = |attempt: &'static str| {
        move |error: io::Error| OpenError::System(directory.error(attempt, name, error))
    };
    let flags = if access.writable {
        libc::O_RDWR
    } else {
        libc::O_RDONLY
    };
    let opened = sys::open_at(Some(directory.fd()), name, flags, 0);
    let fd = match opened {
        Ok(fd) => fd,
        Err(error) => {
            return Err(match error.raw_os_error() {
                Some(libc::ENOENT) => OpenError::Missing(path),
                Some(libc::ELOOP) => OpenError::NotAPlainFile {
                    path,
                    what: "a symbolic link",
                },
                Some(libc::EISDIR) => OpenError::NotAPlainFile {
                    path,
                    what: "a directory",
                },
                Some(libc::ENXIO) => OpenError::NotAPlainFile {
                    path,
                    what: "a device or socket",
                },
                _ => system("cannot open")(error),
            });
        }
    };
    let status = sys::status(fd.as_fd()).map_err(system("cannot examine"))?;
    check_status(directory, name, &status, access.owner)?;
    let map = map_checked(directory, name, &fd, status.size, access)?;
    check_contents(directory, name, &map, access.owner)?;
    Ok(LedgerFile {
        map,
        fd,
        id: status.file,
        owner: status.uid,
    })
}

fn check_status(
    directory: &Directory,
    name: &CStr,
    status: &sys::Status,
    owner: Option<u32>,
) -> Result<(), OpenError> {
    let path = directory.path_of(name);
    if !status.is_regular() {
        return Err(OpenError::NotAPlainFile {
            path,
            what: "a directory, device or pipe",
        });
    }
    if let Some(expected) = owner
        && status.uid != expected
    {
        return Err(OpenError::ForeignOwner {
            path,
            owner: status.uid,
            expected,
        });
    }
    let (mode, expected) = (status.permissions(), directory.file_mode());
    if mode != expected {
        return Err(OpenError::WrongMode {
            path,
            mode,
            expected,
        });
    }
    Ok(())
}

/// Maps or copies a file after its first bytes have been read: they say what it is and how large.
fn map_checked(
    directory: &Directory,
    name: &CStr,
    fd: &OwnedFd,
    size: u64,
    access: Access,
) -> Result<Mapping, OpenError> {
    let path = directory.path_of(name);
    if size < size_of::<Header>() as u64 {
        return Err(OpenError::NotALedger(path));
    }
    let system = |error| OpenError::System(directory.error("cannot read", name, error));
    let peek = Mapping::copy_of_header(fd.as_fd()).map_err(system)?;
    let header = peek.header();
    if header.magic.load(Ordering::Acquire) != MAGIC {
        return Err(OpenError::NotALedger(path));
    }
    let found = header.version.load(Ordering::Relaxed);
    if found != VERSION {
        return Err(OpenError::Version {
            path,
            found,
            own: VERSION,
        });
    }
    let geometry = Geometry::read(header).ok_or_else(|| OpenError::Damaged {
        path: path.clone(),
        what: "its offsets are wrong",
    })?;
    if size != geometry.file_size() as u64 {
        return Err(OpenError::Damaged {
            path,
            what: "its size is not what it says itself",
        });
    }
    match access.view {
        View::Mapping => Mapping::new(fd.as_fd(), geometry, access.writable),
        View::Copy => Mapping::copy(fd.as_fd(), geometry),
    }
    .map_err(system)
}

fn check_contents(
    directory: &Directory,
    name: &CStr,
    map: &Mapping,
    owner: Option<u32>,
) -> Result<(), OpenError> {
    let path = || directory.path_of(name);
    let damaged = |what| OpenError::Damaged { path: path(), what };
    let header = map.header();
    let boot = boot_id().map_err(|error| {
        OpenError::System(directory.error("cannot read the boot ID for", name, error))
    })?;
    if header
        .boot_id
        .iter()
        .zip(boot)
        .any(|(word, value)| word.load(Ordering::Relaxed) != value)
    {
        return Err(OpenError::OtherBoot(path()));
    }
    if (header.flags.load(Ordering::Relaxed) & FLAG_SHARED != 0) != directory.shared() {
        return Err(damaged(
            "it is shared and its directory is not, or the other way round",
        ));
    }
    // Where the owner may be anybody, the same user may have another ID here (user namespaces).
    if owner.is_some_and(|owner| header.uid.load(Ordering::Relaxed) != u64::from(owner)) {
        return Err(damaged("it names another owner than it has"));
    }
    if load_text(&header.budget).as_bytes() != name.to_bytes() {
        return Err(damaged("it was made for a budget of another name"));
    }
    let liveness = header.liveness.load(Ordering::Relaxed);
    if !matches!(liveness, LIVENESS_LOCKS | LIVENESS_WITNESS) {
        return Err(damaged("it does not say how lives are told"));
    }
    let capacity = map.geometry().gpu_capacity() as u64;
    if header.gpu_count.word.load(Ordering::Acquire) > capacity {
        return Err(damaged("it has more GPUs than room for them"));
    }
    if header.high_water.word.load(Ordering::Acquire) > map.slots().len() as u64 {
        return Err(damaged("it has more members than slots"));
    }
    Ok(())
}

/// Removes a ledger and its owners file, under the directory's lock; `false` if only another user
/// may do so, in a directory of all users.
pub(crate) fn remove(directory: &Directory, names: &Names) -> Result<bool, SystemError> {
    match sys::unlink_at(directory.fd(), &names.ledger) {
        Ok(()) => {}
        Err(error) if not_ours(&error) => return Ok(false),
        Err(error) => return Err(directory.error("cannot remove", &names.ledger, error)),
    }
    fault_point!(LedgerUnlinked);
    // Another user's may stay: it holds nothing, and all may use it.
    let removed = sys::unlink_at(directory.fd(), &names.owners);
    fault_point!(OwnersUnlinked);
    match removed {
        Err(error) if !not_ours(&error) => {
            Err(directory.error("cannot remove", &names.owners, error))
        }
        _ => Ok(true),
    }
}

fn not_ours(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
}

/// The owners file, if it is one: in a directory of all users anybody may have made it.
pub(crate) fn open_owners(directory: &Directory, names: &Names) -> Option<OwnedFd> {
    let fd = sys::open_at(Some(directory.fd()), &names.owners, libc::O_RDONLY, 0).ok()?;
    sys::status(fd.as_fd()).ok()?.is_regular().then_some(fd)
}

/// Whether a name in a directory is (still) this file.
pub(crate) fn is_current(directory: &Directory, name: &CStr, file: FileId) -> bool {
    sys::status_at(Some(directory.fd()), name, false).is_ok_and(|status| status.file == file)
}

/// Whether somebody lives who was a member of a ledger that is not there any more.
pub(crate) fn orphan(directory: &Directory, names: &Names) -> Option<Option<u32>> {
    let fd = open_owners(directory, names)?;
    match sys::lock_holder(fd.as_fd(), Kind::Process, Range::All).ok()? {
        Holder::Nobody => None,
        Holder::Process(pid) => Some(Some(pid)),
        Holder::Unknown => Some(None),
    }
}

/// The ID of this start of the machine, as two words. A process lives through one start only, so that it
/// is read once, or by several threads that ask at a time: none waits for another. (In a forked child the
/// other would never come to its end.)
pub(crate) fn boot_id() -> io::Result<[u64; 2]> {
    // Not those of `sync`: no other process has these words.
    static KNOWN: AtomicBool = AtomicBool::new(false);
    static ID: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    if KNOWN.load(Ordering::Acquire) {
        return Ok(ID.each_ref().map(|word| word.load(Ordering::Relaxed)));
    }
    let id = read_boot_id()?;
    for (word, value) in ID.iter().zip(id) {
        word.store(value, Ordering::Relaxed);
    }
    // Whoever sees this sees both words, which are the same whoever has read them.
    KNOWN.store(true, Ordering::Release);
    Ok(id)
}

fn read_boot_id() -> io::Result<[u64; 2]> {
    let fd = sys::open_at(None, c"/proc/sys/kernel/random/boot_id", libc::O_RDONLY, 0)?;
    let mut buffer = [0_u8; 64];
    let text = sys::read_some(fd.as_fd(), &mut buffer)?;
    let mut id: u128 = 0;
    let mut digits: u32 = 0;
    for digit in text.iter().filter_map(|b| char::from(*b).to_digit(16)) {
        id = id << 4 | u128::from(digit);
        digits = digits.saturating_add(1);
    }
    if digits != 32 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "it is not 32 hexadecimal digits",
        ));
    }
    let halves = id.to_be_bytes();
    let (high, low) = halves.split_at(8);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    Ok([word(high), word(low)])
}
