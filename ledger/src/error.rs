//! What can go wrong when a ledger is made, opened or joined. Every message names the path, what
//! was found and what to do.

use std::io;
use std::path::PathBuf;

use crate::gpu::GpuKey;
use crate::size;

/// What to do where only this budget is in the way. Who reads it may have started a program either way.
const OTHER_BUDGET: &str = "use another budget (--budget NAME of hipflex run, else FH_BUDGET)";

/// A system call that failed for a reason of the machine's.
#[derive(Debug, thiserror::Error)]
#[error("{attempt} {path}: {source}")]
pub struct SystemError {
    /// What was tried, such as `cannot open`.
    pub attempt: &'static str,
    /// On which file or directory.
    pub path: PathBuf,
    /// What the kernel answered.
    pub source: io::Error,
}

/// Why a directory of ledgers cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The kernel refused.
    #[error("{0}; FH_SHM_PATH names the directory of the ledgers")]
    System(#[from] SystemError),
    /// It is a symbolic link or no directory.
    #[error(
        "{0} is no directory (or a symbolic link, which is not followed): remove it, or name \
         another directory with FH_SHM_PATH"
    )]
    NotADirectory(PathBuf),
    /// It belongs to someone else.
    #[error(
        "{path} belongs to user {owner}, not to user {expected}: it is not trusted with an \
         account; have it removed, or name another directory with FH_SHM_PATH"
    )]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it should be.
        expected: u32,
    },
    /// Its permissions let others in (or keep its owner out).
    #[error(
        "{path} has mode {mode:04o}; it must be {expected}: chmod it, or name another directory with FH_SHM_PATH"
    )]
    WrongMode {
        /// The directory.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// What is accepted.
        expected: &'static str,
    },
}

/// Why a file is not accepted as a ledger.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The directory it lies in is not trusted.
    #[error(transparent)]
    Directory(Box<PlaceError>),
    /// There is no such file.
    #[error("there is no ledger {0}")]
    Missing(PathBuf),
    /// It is a symbolic link, a directory, a device or a pipe.
    #[error("{path} is {what}, not a ledger: remove it, or {OTHER_BUDGET}")]
    NotAPlainFile {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It belongs to someone else.
    #[error(
        "{path} belongs to user {owner}, not to user {expected}: it is not trusted with an \
         account; have it removed, or set FH_SHM_PATH to another directory"
    )]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Whose it should be.
        expected: u32,
    },
    /// Its permissions are not those it was made with.
    #[error(
        "{path} has mode {mode:04o}; a ledger has {expected:04o}: chmod it, or remove it when nobody uses it"
    )]
    WrongMode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
        /// Those of a ledger.
        expected: u32,
    },
    /// It does not start as a ledger does, or is shorter than a header.
    #[error("{0} is not a hipflex ledger: remove it, or {OTHER_BUDGET}")]
    NotALedger(PathBuf),
    /// It was made by an incompatible hipflex.
    #[error(
        "{path} has ledger layout {found}, this hipflex has layout {own}: end the processes that \
         use it and remove it, or {OTHER_BUDGET}"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its layout version.
        found: u64,
        /// The one this library reads and writes.
        own: u64,
    },
    /// Its size or inner structure is not what its header says.
    #[error("{path} is damaged ({what}): end the processes that use it and remove it")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: &'static str,
    },
    /// It was made before this machine was started the last time.
    #[error("{0} is from before the last start of this machine; nobody can be using it: remove it")]
    OtherBoot(PathBuf),
}

/// Why a process could not join a budget.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The directory cannot be used.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The file cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Somebody holds the lock under which ledgers are made, joined and removed, and does not go on.
    #[error(
        "{path} has been locked for {waited_ms} ms by {}: is that process stopped? Let it go on or end it",
        shown_holder(*.holder)
    )]
    LockBusy {
        /// The lock file.
        path: PathBuf,
        /// The holder's PID as the caller's PID namespace knows it, when it can be known there.
        holder: Option<u32>,
        /// How long was waited, in milliseconds.
        waited_ms: u64,
    },
    /// No file system locks at all where the ledgers lie.
    #[error(
        "the file system of {path} has no record locks ({source}): set FH_SHM_PATH to a directory on \
         a tmpfs or a local disk"
    )]
    NoLocks {
        /// The lock file.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The file system has no room for a ledger.
    #[error(
        "no room for the ledger {path} ({}): free some space there, or set FH_SHM_PATH to another \
         directory",
        size::Display(*.bytes)
    )]
    NoSpace {
        /// The ledger.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
    },
    /// This process may not make a file as large as a ledger.
    #[error(
        "this process may make files of at most {} (RLIMIT_FSIZE, ulimit -f), and the ledger {path} takes {}: \
         raise that limit",
        size::Display(*.limit),
        size::Display(*.bytes)
    )]
    FileSizeLimit {
        /// The ledger.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// A ledger that nobody uses has no room for this process's GPUs, and another user owns it.
    #[error(
        "{path} has room for {capacity} GPUs, this process brought {brought}, and only user {owner} may \
         replace it: have it removed, or {OTHER_BUDGET}"
    )]
    CannotReplace {
        /// The ledger.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// For how many GPUs it has room.
        capacity: u64,
        /// How many this process brought.
        brought: usize,
    },
    /// All slots belong to live processes.
    #[error("{path} already has {slots} live processes, more do not fit: {OTHER_BUDGET}")]
    Full {
        /// The ledger.
        path: PathBuf,
        /// Its number of slots.
        slots: u64,
    },
    /// The ledger has no room for another GPU.
    #[error(
        "{path} has no room for GPU {gpu}: it was made with room for {capacity} GPUs, all taken; \
         {OTHER_BUDGET}"
    )]
    NoRoomForGpu {
        /// The ledger.
        path: PathBuf,
        /// The GPU that is not among its GPUs.
        gpu: GpuKey,
        /// For how many GPUs it has room.
        capacity: u64,
    },
    /// No GPU, more than a ledger can hold, or one twice.
    #[error("a budget is about 1 to {max} different GPUs; this process has {brought}")]
    GpuList {
        /// What was given.
        brought: String,
        /// The most GPUs a ledger can hold.
        max: usize,
    },
    /// The ledger was removed while processes were using it.
    #[error(
        "the ledger {path} was removed while {} still uses it, so what is held cannot be known: end \
         that process, or {OTHER_BUDGET}",
        shown_holder(*.holder)
    )]
    Removed {
        /// Where it was.
        path: PathBuf,
        /// A user of the removed ledger, as the caller's PID namespace knows it.
        holder: Option<u32>,
    },
    /// The lock that proves this process alive does not stay, so others would take it for dead.
    #[error(
        "the lock that shows others that this process lives is not kept on {0}: set FH_SHM_PATH to a \
         directory on a tmpfs"
    )]
    LivenessNotKept(PathBuf),
}

fn shown_holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "a process that is not visible from here".to_owned(),
        |pid| format!("process {pid}"),
    )
}

/// Why a change through [`crate::Ledger`] was not made.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The ledger was opened read-only, for want of permission to write.
    #[error("{0} can only be read by this user: act as its owner or as root")]
    ReadOnly(PathBuf),
    /// The ledger has no such GPU.
    #[error("{path} has no GPU {gpu}")]
    UnknownGpu {
        /// The ledger.
        path: PathBuf,
        /// The GPU.
        gpu: GpuKey,
    },
    /// The ledger has no such process (any more).
    #[error("slot {slot} of {path} has another owner than in generation {generation}")]
    UnknownMember {
        /// The ledger.
        path: PathBuf,
        /// The slot.
        slot: usize,
        /// The generation that was meant.
        generation: u64,
    },
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The file is not as it was when it was opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The ledger's directory or its lock cannot be used.
    #[error(transparent)]
    Lock(#[from] JoinError),
}
