//! What `status` shows, as plain data: everything is looked up before anything is rendered.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hipflex_ledger::{Alive, GpuKey, Limit};

/// All budgets at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Status {
    /// The moment, in seconds since 1970.
    pub(crate) now: u64,
    /// Budgets of all users are looked at, not only those of this user and the shared ones.
    pub(crate) sees_all: bool,
    /// The only budget that was asked for.
    pub(crate) only: Option<String>,
    /// The budgets that are in use or could not be removed, by owner and name.
    pub(crate) budgets: Vec<Budget>,
    /// The budgets that nobody used any more, and whose ledgers are gone now.
    pub(crate) removed: Vec<Removed>,
    /// The ledgers that could not be shown.
    pub(crate) unusable: Vec<Unusable>,
    /// What else went wrong, a line each.
    pub(crate) problems: Vec<String>,
    /// The boards of this machine; empty when the driver tells nothing.
    pub(crate) boards: Vec<Board>,
}

/// Who owns a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// The user's number.
    pub(crate) uid: u32,
    /// The user's name, if it is not the one who asks.
    pub(crate) name: Option<String>,
    /// The user who asks, so that there is no need to say who.
    pub(crate) is_me: bool,
    /// Every user of the machine may join.
    pub(crate) shared: bool,
}

/// One budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The name given by `--budget` or `FH_BUDGET`.
    pub(crate) name: String,
    /// Whose it is.
    pub(crate) owner: Owner,
    /// Its ledger.
    pub(crate) path: PathBuf,
    /// When the ledger was made, in seconds since 1970.
    pub(crate) created: u64,
    /// Bookings that were found inconsistent and mended; 0 in a healthy ledger.
    pub(crate) anomalies: u64,
    /// Dead processes whose bookings were returned, since the ledger was made.
    pub(crate) reaped: u64,
    /// The account of each GPU.
    pub(crate) gpus: Vec<GpuAccount>,
    /// The processes in it, by PID.
    pub(crate) processes: Vec<Process>,
    /// What was returned just now, of dead processes.
    pub(crate) returned: Returned,
}

/// The account of a budget on one GPU, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuAccount {
    /// Its PCI address.
    pub(crate) key: GpuKey,
    /// The budget's limit. A process may have a stricter one of its own.
    pub(crate) limit: Limit,
    /// VRAM of the board; `None` if it is not known.
    pub(crate) board_bytes: Option<u64>,
    /// Allocated by the programs.
    pub(crate) booked: u64,
    /// Reserved for allocations that are under way.
    pub(crate) pending: u64,
    /// Held by the driver for the programs besides; `None` where it is not measured.
    pub(crate) overhead: Option<u64>,
    /// Booked, pending and overhead: what counts against the limit.
    pub(crate) charged: u64,
    /// What is left of the limit; `None` without a limit.
    pub(crate) free: Option<u64>,
}

/// A process that has joined a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its PID.
    pub(crate) pid: Pid,
    /// Whether it lives. Where locks work this is always yes: the dead have been reaped.
    pub(crate) alive: Alive,
    /// Its user.
    pub(crate) uid: u32,
    /// Its name, as it had it when it joined.
    pub(crate) comm: String,
    /// The version of its libhipflex.so.
    pub(crate) library_version: String,
    /// How many of its hooks are in place by which engine.
    pub(crate) hooks: BTreeMap<&'static str, usize>,
    /// When it joined the budget, in seconds since 1970.
    pub(crate) since: u64,
    /// What it holds on each GPU, in the order of [`Budget::gpus`].
    pub(crate) gpus: Vec<Holding>,
    /// The compute units that it may use, as a list of ranges; `None`: all of them.
    pub(crate) compute_units: Option<String>,
    /// Allocations granted.
    pub(crate) allocations: u64,
    /// Allocations given back.
    pub(crate) frees: u64,
    /// Allocations refused.
    pub(crate) refusals: u64,
    /// The latest refusal.
    pub(crate) last_refusal: Option<Refusal>,
}

/// A PID, and where it is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pid {
    /// In the PID namespace of the one who asks.
    Here(u32),
    /// In the process's own PID namespace (a container), where another process may have it here.
    Inside(u32),
}

/// What one process holds on one GPU, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Allocated by the program.
    pub(crate) booked: u64,
    /// Reserved for allocations that are under way.
    pub(crate) pending: u64,
    /// Held by the driver besides; `None` where it is not measured.
    pub(crate) overhead: Option<u64>,
    /// The most that was booked at one time.
    pub(crate) peak: u64,
    /// The limit of this process, where it is stricter than the budget's.
    pub(crate) own_limit: Option<Limit>,
}

impl Holding {
    /// Whether the process has, or ever had, anything there.
    pub(crate) fn is_used(&self) -> bool {
        self.booked > 0 || self.pending > 0 || self.peak > 0 || self.overhead.is_some()
    }
}

/// A refused allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The GPU, by its PCI address.
    pub(crate) gpu: GpuKey,
    /// What was asked for, in bytes.
    pub(crate) bytes: u64,
    /// The function that was called.
    pub(crate) api: String,
    /// When, in seconds since 1970.
    pub(crate) at: u64,
    /// Why.
    pub(crate) why: Why,
}

/// Why an allocation was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The limit would have been exceeded.
    OverLimit(Figures),
    /// No request may be so large.
    TooLarge,
    /// Nobody told, or it is a reason of a later version.
    Unknown,
}

/// The account of the GPU at the moment of a refusal, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// The limit that held for the process.
    pub(crate) limit: Limit,
    /// What the process had booked and reserved.
    pub(crate) held: u64,
    /// What was charged to all others.
    pub(crate) others: u64,
    /// The overhead of the process; 0 also where it was not measured.
    pub(crate) overhead: u64,
    /// What could have been had; `None` without a limit.
    pub(crate) available: Option<u64>,
}

/// What was taken back from dead processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Returned {
    /// How many processes.
    pub(crate) processes: usize,
    /// What they had booked and reserved, in bytes.
    pub(crate) bytes: u64,
}

/// A budget whose ledger was removed because nobody used it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Removed {
    /// Its name.
    pub(crate) name: String,
    /// Whose it was.
    pub(crate) owner: Owner,
    /// What was returned before.
    pub(crate) returned: Returned,
}

/// A ledger that could not be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unusable {
    /// Its file.
    pub(crate) path: PathBuf,
    /// Why.
    pub(crate) reason: String,
}

/// One board, or one partition of a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Board {
    /// Its PCI address.
    pub(crate) key: GpuKey,
    /// The name on the box.
    pub(crate) name: String,
    /// Its VRAM in bytes; `None` if it has none of its own.
    pub(crate) vram: Option<u64>,
    /// The VRAM in use, whoever holds it; `None` if the driver does not tell, as of partitions.
    pub(crate) used: Option<u64>,
    /// The sum of the budgets' limits on it, in bytes. A limit above the board counts as the board,
    /// and a budget without a limit has nothing promised.
    pub(crate) promised: u64,
}

impl Board {
    /// The limits together are more than there is: programs inside their limits can still run out.
    pub(crate) fn is_overcommitted(&self) -> bool {
        self.vram.is_some_and(|vram| self.promised > vram)
    }
}

impl Status {
    /// Whether everything could be shown, and done on the way.
    pub(crate) fn is_complete(&self) -> bool {
        self.unusable.is_empty() && self.problems.is_empty()
    }
}
