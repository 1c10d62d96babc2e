//! Plain copies of what stands in a ledger.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::denial::DenialReason;
use crate::engine::HookEngine;
use crate::gpu::GpuKey;
use crate::layout::CU_WORDS;
use crate::limit::Limit;

/// One process's figures on one GPU, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CellView {
    /// Booked: allocated and not freed.
    pub live: u64,
    /// Freed by the program, and kept by a pool of the runtime for its next blocks.
    pub kept: u64,
    /// Reserved for native calls that have not returned.
    pub pending: u64,
    /// What the driver holds for the process beyond its bookings; `None` where it was not measured
    /// (0 where it was, and there is none).
    pub overhead: Option<u64>,
    /// The most that was ever booked at a time.
    pub peak: u64,
    /// The part of `live` that the driver's own counter does not show ([`crate::Kind::Managed`]).
    pub live_unseen: u64,
}

impl CellView {
    /// What counts against the limit.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.live
            .saturating_add(self.kept)
            .saturating_add(self.pending)
            .saturating_add(self.overhead.unwrap_or(0))
    }

    /// What is held beyond the bookings: the overhead, and what pools keep. `None` where nothing is known of either.
    #[must_use]
    pub fn beyond(&self) -> Option<u64> {
        match (self.overhead, self.kept) {
            (None, 0) => None,
            (overhead, kept) => Some(overhead.unwrap_or(0).saturating_add(kept)),
        }
    }
}

/// The account of one GPU as one of its members sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuView {
    /// Which GPU.
    pub key: GpuKey,
    /// The limit that holds for this member.
    pub limit: Limit,
    /// Charged to all members, in bytes.
    pub charged: u64,
    /// This member's part.
    pub mine: CellView,
    /// Charged to the other members, in bytes.
    pub others: u64,
}

impl GpuView {
    /// What one request could get, in bytes; `u64::MAX` without a limit.
    #[must_use]
    pub fn available(&self) -> u64 {
        match self.limit {
            Limit::Unlimited => u64::MAX,
            Limit::Bytes(bytes) => bytes.saturating_sub(self.charged),
        }
    }
}

/// What is left on one GPU: as [`GpuView`], and no more than an answer to a program needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The limit that holds for this member.
    pub limit: Limit,
    /// What one request could get, in bytes; `u64::MAX` without a limit.
    pub available: u64,
    /// Whether anything is charged to other members.
    pub shared: bool,
}

/// A whole ledger at one time. Members go on while it is read, so that figures of different
/// members need not be of the same instant.
#[derive(Debug, Clone)]
pub struct LedgerSnapshot {
    /// Where the ledger lies.
    pub path: PathBuf,
    /// The name of its budget.
    pub budget: String,
    /// The user who made it.
    pub uid: u32,
    /// Whether all users may join it.
    pub shared: bool,
    /// The version of its layout.
    pub layout_version: u64,
    /// When it was made.
    pub created: SystemTime,
    /// How its members' lives are told.
    pub liveness: LivenessMode,
    /// How many members it can hold.
    pub slots: u64,
    /// How many dead members were reaped so far.
    pub reaped: u64,
    /// Bookings and reservations that were found inconsistent and mended (0 in a healthy ledger).
    pub anomalies: u64,
    /// Its GPUs.
    pub gpus: Vec<GpuSnapshot>,
    /// Its members, live and dead ones that are not reaped yet.
    pub members: Vec<MemberSnapshot>,
}

/// How a ledger tells whether a member lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LivenessMode {
    /// By a record lock that the kernel drops at the member's end.
    Locks,
    /// The file system does not keep such locks: by PID and start time, and only where both can be
    /// seen without doubt.
    Witness,
}

/// One GPU of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuSnapshot {
    /// Which GPU.
    pub key: GpuKey,
    /// The ledger's limit on it. Members may have a stricter one of their own.
    pub limit: Limit,
    /// VRAM of the board in bytes, 0 when unknown.
    pub board_bytes: u64,
    /// Charged to all members, in bytes.
    pub charged: u64,
}

/// Whether a member lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alive {
    /// It does.
    Yes,
    /// It does not; its slot waits to be reaped.
    No,
    /// It cannot be told from here.
    Unknown,
}

/// One member of a ledger. What it says of itself (`comm`, `library_version`) is shown with control
/// characters and invalid UTF-8 replaced.
#[derive(Debug, Clone)]
pub struct MemberSnapshot {
    /// Its slot.
    pub slot: usize,
    /// How often the slot was claimed; with the slot it tells memberships apart.
    pub generation: u64,
    /// Whether it lives.
    pub alive: Alive,
    /// Its PID in its own PID namespace.
    pub pid: u32,
    /// The inode of its PID namespace, 0 when unknown.
    pub pid_namespace: u64,
    /// Its start time, field 22 of `/proc/PID/stat`: clock ticks after boot. 0 when unknown.
    pub start_time: u64,
    /// Its PID in the initial namespace, as an observer wrote it; 0 when none did.
    pub host_pid: u32,
    /// Its PID in the namespace of the one who took the snapshot, when that can be known.
    pub pid_here: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its command name when it joined.
    pub comm: String,
    /// The version of the library that books for it.
    pub library_version: String,
    /// When it joined.
    pub joined: SystemTime,
    /// How its hooks are in place, by hook number; trailing unknown ones are left out.
    pub engines: Vec<HookEngine>,
    /// The compute units that it may use on its first GPU, bit 0 of the first word being CU 0; `None`: all of them.
    pub compute_units: Option<[u64; CU_WORDS]>,
    /// Allocations that were booked.
    pub allocations: u64,
    /// Frees that were booked.
    pub frees: u64,
    /// Requests that were refused.
    pub refusals: u64,
    /// Operations that would have gone below zero.
    pub anomalies: u64,
    /// The last refusal.
    pub last_refusal: Option<LastRefusal>,
    /// Its figures on each GPU of the ledger, in the order of [`LedgerSnapshot::gpus`].
    pub cells: Vec<MemberCell>,
}

/// A member's account of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberCell {
    /// The figures.
    pub figures: CellView,
    /// The limit that holds for this member: the stricter of the ledger's and its own.
    pub limit: Limit,
}

/// A request that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastRefusal {
    /// The GPU.
    pub gpu: GpuKey,
    /// What was asked for, in bytes.
    pub size: u64,
    /// When.
    pub time: SystemTime,
    /// By which call.
    pub api: String,
    /// Why; `None` for a reason that this version does not know.
    pub reason: Option<DenialReason>,
    /// The limit that held for the member then. This and what follows says something only where the
    /// reason is [`DenialReason::OverLimit`].
    pub limit: Limit,
    /// Booked or about to be booked by the member then, without this request, in bytes.
    pub mine: u64,
    /// Charged to all other members then, in bytes.
    pub others: u64,
    /// The overhead of the member then, in bytes; 0 also where it was not measured.
    pub overhead: u64,
}

impl LastRefusal {
    /// What one request could have got then, in bytes; `None` without a limit.
    #[must_use]
    pub fn available(&self) -> Option<u64> {
        let charged = self
            .mine
            .saturating_add(self.others)
            .saturating_add(self.overhead);
        match self.limit {
            Limit::Unlimited => None,
            Limit::Bytes(limit) => Some(limit.saturating_sub(charged)),
        }
    }
}

/// A dead member whose slot was cleared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reaped {
    /// Its slot.
    pub slot: usize,
    /// The slot's generation, see [`MemberSnapshot::generation`].
    pub generation: u64,
    /// Its PID in its own PID namespace.
    pub pid: u32,
    /// Its command name.
    pub comm: String,
    /// What was charged to it and came back, for each GPU where that was not 0.
    pub returned: Vec<(GpuKey, u64)>,
}
