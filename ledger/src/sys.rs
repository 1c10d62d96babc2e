//! System calls, wrapped so that their arguments and results are checked in one place.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// The size of a page in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Repeats a call that a signal interrupted.
fn uninterrupted(mut call: impl FnMut() -> libc::c_int) -> io::Result<libc::c_int> {
    loop {
        match checked(call()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// `openat` with `O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK`; `directory` may be left out for an absolute
/// path. Without `O_NONBLOCK` (which files and directories do not care for) a FIFO that somebody put
/// in a file's place would hold us up.
pub(crate) fn open_at(
    directory: Option<BorrowedFd<'_>>,
    name: &CStr,
    flags: libc::c_int,
    mode: libc::mode_t,
) -> io::Result<OwnedFd> {
    let directory = directory.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    let flags = flags | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NOCTTY | libc::O_NONBLOCK;
    let fd = uninterrupted(|| {
        // SAFETY: `name` is a C string; the mode is passed as the promoted type that open expects.
        unsafe { libc::openat(directory, name.as_ptr(), flags, libc::c_uint::from(mode)) }
    })?;
    // SAFETY: openat returned a descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What `fstat` and `fstatat` tell, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    /// Device and inode: which file it is, whatever its names.
    pub(crate) file: FileId,
    pub(crate) uid: u32,
    /// Type and permission bits.
    pub(crate) mode: u32,
    pub(crate) size: u64,
}

/// Which file, whatever its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The inode number, which is what tells namespaces apart.
    pub(crate) fn inode(self) -> u64 {
        self.inode
    }
}

impl Status {
    fn from(stat: &libc::stat) -> Self {
        Self {
            file: FileId {
                device: stat.st_dev,
                inode: stat.st_ino,
            },
            uid: stat.st_uid,
            mode: stat.st_mode,
            size: u64::try_from(stat.st_size).unwrap_or(0),
        }
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub(crate) fn is_regular(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFREG
    }

    /// The permission bits, set-user-ID, set-group-ID and sticky included.
    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }
}

/// The status of an open file.
pub(crate) fn status(fd: BorrowedFd<'_>) -> io::Result<Status> {
    raw_status(fd.as_raw_fd())
}

/// The status of whatever a descriptor number stands for at this moment, if anything.
pub(crate) fn raw_status(fd: RawFd) -> io::Result<Status> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is large enough for the result; a number that is no descriptor is an error.
    checked(unsafe { libc::fstat(fd, stat.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded and has filled it.
    Ok(Status::from(unsafe { stat.assume_init_ref() }))
}

/// When a file was last changed, to be compared with another look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    seconds: libc::time_t,
    nanoseconds: i64,
}

/// When an open file was last changed.
pub(crate) fn last_change(fd: BorrowedFd<'_>) -> io::Result<Changed> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is large enough for the result.
    checked(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: fstat succeeded and has filled it.
    let stat = unsafe { stat.assume_init_ref() };
    Ok(Changed {
        seconds: stat.st_mtime,
        nanoseconds: stat.st_mtime_nsec,
    })
}

/// Says that a file was changed just now. Needs no space, and no size that could be limited; where it is
/// not permitted nothing happens.
pub(crate) fn touch(fd: BorrowedFd<'_>) {
    // SAFETY: `fd` is open; without times it is the time of now.
    unsafe { libc::futimens(fd.as_raw_fd(), std::ptr::null()) };
}

/// The status of a name in a directory (or of an absolute path); a symbolic link is followed only
/// on request.
pub(crate) fn status_at(
    directory: Option<BorrowedFd<'_>>,
    name: &CStr,
    follow: bool,
) -> io::Result<Status> {
    let directory = directory.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `name` is a C string and `stat` is large enough for the result.
    checked(unsafe { libc::fstatat(directory, name.as_ptr(), stat.as_mut_ptr(), flags) })?;
    // SAFETY: fstatat succeeded and has filled it.
    Ok(Status::from(unsafe { stat.assume_init_ref() }))
}

pub(crate) fn make_directory(
    parent: Option<BorrowedFd<'_>>,
    name: &CStr,
    mode: libc::mode_t,
) -> io::Result<()> {
    let parent = parent.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: `name` is a C string.
    checked(unsafe { libc::mkdirat(parent, name.as_ptr(), mode) }).map(drop)
}

pub(crate) fn change_mode(fd: BorrowedFd<'_>, mode: libc::mode_t) -> io::Result<()> {
    // SAFETY: `fd` is open.
    uninterrupted(|| unsafe { libc::fchmod(fd.as_raw_fd(), mode) }).map(drop)
}

pub(crate) fn change_owner(fd: BorrowedFd<'_>, uid: u32) -> io::Result<()> {
    // SAFETY: `fd` is open; the group -1 stays as it is.
    uninterrupted(|| unsafe { libc::fchown(fd.as_raw_fd(), uid, libc::gid_t::MAX) }).map(drop)
}

/// Gives a file a second name; an existing one is an error.
pub(crate) fn link_at(directory: BorrowedFd<'_>, from: &CStr, to: &CStr) -> io::Result<()> {
    let fd = directory.as_raw_fd();
    // SAFETY: both names are C strings.
    checked(unsafe { libc::linkat(fd, from.as_ptr(), fd, to.as_ptr(), 0) }).map(drop)
}

/// Removes a name; one that is not there is fine.
pub(crate) fn unlink_at(directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: `name` is a C string.
    match checked(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) }) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Gives a directory another name, which must not exist. Not every file system can make sure of that.
pub(crate) fn rename_new(parent: Option<BorrowedFd<'_>>, from: &CStr, to: &CStr) -> io::Result<()> {
    let parent = parent.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // Not the function of the C library, which older ones do not have.
    // SAFETY: both names are C strings; the arguments are those of renameat2.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            parent,
            from.as_ptr(),
            parent,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Removes an empty directory.
pub(crate) fn remove_directory(parent: Option<BorrowedFd<'_>>, name: &CStr) -> io::Result<()> {
    let parent = parent.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: `name` is a C string.
    checked(unsafe { libc::unlinkat(parent, name.as_ptr(), libc::AT_REMOVEDIR) }).map(drop)
}

/// How large a file this process may make (`RLIMIT_FSIZE`), in bytes. Trying more is not only an
/// error: the kernel sends `SIGXFSZ`, which ends the process.
pub(crate) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: `limit` may be written to; it cannot fail for a limit that exists.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    limit.rlim_cur
}

/// Closes a descriptor number that this process opened and nobody else uses.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: closing a number is no memory access; the caller has made sure whose file it is.
    unsafe { libc::close(fd) };
}

/// Reserves the space of a file, so that touching its mapping later cannot run out of it.
pub(crate) fn allocate(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    loop {
        // SAFETY: `fd` is open. posix_fallocate returns the error instead of setting errno.
        match unsafe { libc::posix_fallocate(fd.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Reads what fits into `buffer`; returns the part that was filled.
pub(crate) fn read_some<'b>(fd: BorrowedFd<'_>, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    loop {
        // SAFETY: the buffer is writable for its length.
        let n = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        match usize::try_from(n) {
            Ok(n) => return Ok(buffer.get(..n).unwrap_or_default()),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

/// Fills `length` bytes at `to` from an offset of a file; returns how many were there.
///
/// # Safety
/// The range is writable, and whoever else looks at it does so by atomic loads.
pub(crate) unsafe fn read_at(
    fd: BorrowedFd<'_>,
    to: *mut u8,
    length: usize,
    offset: usize,
) -> io::Result<usize> {
    let mut done: usize = 0;
    while done < length {
        let from = libc::off_t::try_from(offset.saturating_add(done))
            .map_err(|_| io::ErrorKind::InvalidInput)?;
        let rest = length.saturating_sub(done);
        // SAFETY: `done` is below `length`, so that the rest of the range is the caller's promise.
        let n = unsafe { libc::pread(fd.as_raw_fd(), to.add(done).cast(), rest, from) };
        match usize::try_from(n) {
            Ok(0) => break,
            Ok(n) => done = done.saturating_add(n),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(done)
}

/// Which kind of record lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Belongs to the open file (`F_OFD_SETLK`): it lasts until the last descriptor and mapping of
    /// that open file is gone.
    OpenFile,
    /// Belongs to the process (`F_SETLK`): it ends when the process closes *any* descriptor of the
    /// file, and in return others can ask for the owner's PID.
    Process,
}

/// Which bytes of a file a lock is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Range {
    /// One byte; it need not exist in the file.
    Byte(u64),
    /// All.
    All,
}

fn record(kind: libc::c_int, range: Range) -> io::Result<libc::flock> {
    // SAFETY: all fields of flock are integers, for which zero is valid. The PID must be 0 for an
    // open-file lock.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = libc::c_short::try_from(kind).map_err(|_| io::ErrorKind::InvalidInput)?;
    record.l_whence = 0; // SEEK_SET
    (record.l_start, record.l_len) = match range {
        // A length of 0 reaches to the end, however far that moves.
        Range::All => (0, 0),
        Range::Byte(n) => (
            libc::off_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput)?,
            1,
        ),
    };
    Ok(record)
}

fn set_lock(fd: RawFd, kind: Kind, range: Range, operation: libc::c_int) -> io::Result<()> {
    let command = match kind {
        Kind::OpenFile => libc::F_OFD_SETLK,
        Kind::Process => libc::F_SETLK,
    };
    let record = record(operation, range)?;
    // SAFETY: `record` is a valid flock for these commands; a bad descriptor is an error.
    uninterrupted(|| unsafe { libc::fcntl(fd, command, &record) }).map(drop)
}

/// Tries to take a write lock without waiting; `false` if another holds one, or a read lock.
pub(crate) fn try_lock(fd: BorrowedFd<'_>, kind: Kind, range: Range) -> io::Result<bool> {
    try_set_lock(fd, kind, range, libc::F_WRLCK)
}

/// Tries to take a read lock without waiting; `false` if another holds a write lock.
pub(crate) fn try_share(fd: BorrowedFd<'_>, kind: Kind, range: Range) -> io::Result<bool> {
    try_set_lock(fd, kind, range, libc::F_RDLCK)
}

fn try_set_lock(
    fd: BorrowedFd<'_>,
    kind: Kind,
    range: Range,
    operation: libc::c_int,
) -> io::Result<bool> {
    match set_lock(fd.as_raw_fd(), kind, range, operation) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Drops a lock.
pub(crate) fn unlock(fd: RawFd, kind: Kind, range: Range) -> io::Result<()> {
    set_lock(fd, kind, range, libc::F_UNLCK)
}

/// Who keeps others from locking a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// Nobody.
    Nobody,
    /// A process, if the lock is a process's and that can be seen from the caller's PID namespace.
    Process(u32),
    /// Somebody who is not told.
    Unknown,
}

/// Asks whether a write lock could be had, and if not, because of whom. Locks of the asking
/// process's own [`Kind::Process`] do not count against themselves.
pub(crate) fn lock_holder(fd: BorrowedFd<'_>, kind: Kind, range: Range) -> io::Result<Holder> {
    let command = match kind {
        Kind::OpenFile => libc::F_OFD_GETLK,
        Kind::Process => libc::F_GETLK,
    };
    let mut record = record(libc::F_WRLCK, range)?;
    // SAFETY: `record` is a valid flock for these commands and may be written to.
    uninterrupted(|| unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut record) })?;
    if libc::c_int::from(record.l_type) == libc::F_UNLCK {
        return Ok(Holder::Nobody);
    }
    match u32::try_from(record.l_pid) {
        Ok(pid) if pid != 0 => Ok(Holder::Process(pid)),
        _ => Ok(Holder::Unknown),
    }
}

/// A whole-file lock of the older kind, for file systems without record locks per open file.
pub(crate) fn try_flock(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: `fd` is open.
    match uninterrupted(|| unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(error),
    }
}

/// Drops a lock of [`try_flock`].
pub(crate) fn drop_flock(fd: BorrowedFd<'_>) {
    // SAFETY: `fd` is open. Nothing can be done about a failure; closing drops the lock too.
    unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_UN) };
}

/// Moves a descriptor to a high number, where programs that count on low ones do not meet it.
pub(crate) fn move_high(fd: OwnedFd) -> OwnedFd {
    // Below the default soft limit of 1,024, and less where the limit is less.
    for lowest in [1000, 500, 200, 100] {
        // SAFETY: `fd` is open.
        let high = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) };
        if high >= 0 {
            // SAFETY: fcntl returned a new descriptor that nobody else owns.
            return unsafe { OwnedFd::from_raw_fd(high) };
        }
    }
    fd
}

/// Whether no process of this PID has an entry in the caller's PID namespace. A PID that exists and
/// may not be signalled is there.
pub(crate) fn no_such_process(pid: libc::pid_t) -> bool {
    // SAFETY: signal 0 is not delivered; it only asks.
    pid > 0
        && unsafe { libc::kill(pid, 0) } != 0
        && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// A shared mapping of a whole file, or private memory of its size; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct SharedMap {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it is a range of memory; what is done with its contents is the user's care.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Maps the first `length` bytes of a file.
    pub(crate) fn new(fd: BorrowedFd<'_>, length: usize, writable: bool) -> io::Result<Self> {
        let write = if writable { libc::PROT_WRITE } else { 0 };
        let start = map(fd, length, libc::PROT_READ | write)?;
        Ok(Self { start, length })
    }

    /// As much memory of this process alone, filled with zeros.
    pub(crate) fn private(length: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned 0"))?;
        Ok(Self { start, length })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

/// A mapping without access, of which a forked child inherits nothing: all it does is to keep the
/// open file, and with it the open file's locks, until it is unmapped or the memory of the process
/// goes away (at its end, and at exec).
#[derive(Debug)]
pub(crate) struct Keeper {
    start: NonNull<u8>,
}

// SAFETY: nothing is ever read or written through it.
unsafe impl Send for Keeper {}
// SAFETY: as above.
unsafe impl Sync for Keeper {}

impl Keeper {
    pub(crate) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let keeper = Self {
            start: map(fd, page_size(), libc::PROT_NONE)?,
        };
        // SAFETY: the range was just mapped, one page long.
        checked(unsafe {
            libc::madvise(
                keeper.start.as_ptr().cast(),
                page_size(),
                libc::MADV_DONTFORK,
            )
        })?;
        Ok(keeper)
    }

    /// The address alone, for a place that can hold no more than a word. It stays mapped.
    pub(crate) fn into_address(self) -> usize {
        std::mem::ManuallyDrop::new(self)
            .start
            .as_ptr()
            .expose_provenance()
    }

    /// The keeper that was turned into this address.
    ///
    /// # Safety
    /// `address` comes from [`Self::into_address`] in this process (not in the one that it was forked
    /// from), and is given back once only.
    pub(crate) unsafe fn from_address(address: usize) -> Option<Self> {
        NonNull::new(std::ptr::with_exposed_provenance_mut(address)).map(|start| Self { start })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`; in a forked child, which has no such mapping, the
        // owner of a keeper must not drop it (see `Liveness`).
        unsafe { libc::munmap(self.start.as_ptr().cast(), page_size()) };
    }
}

fn map(fd: BorrowedFd<'_>, length: usize, access: libc::c_int) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory that is in use.
    let start = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap returned address 0"))
}
