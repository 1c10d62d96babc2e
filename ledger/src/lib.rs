//! The shared-memory account of a budget: who holds how much of which GPU, and who may have more.
//!
//! One file per user and budget, mapped by every process of that budget ([`Member`]) and by those
//! who look on ([`Ledger`]). Each process has one slot, and for each GPU one cell with four figures:
//!
//! * **live**: booked, that is allocated and not freed;
//! * **pending**: reserved for a native call that has not returned;
//! * **overhead**: what the driver holds for the process beyond its bookings;
//! * **peak**: the most that was live at a time.
//!
//! `live + pending + overhead` is *charged*. The total of a GPU is never stored: it is the sum of
//! what is charged to all slots, so that it cannot drift from its parts. A process that dies at any
//! instruction leaves its slot overstated at worst, and the slot goes as a whole when it is reaped.
//!
//! This crate knows nothing of HIP or the driver.
//!
//! # What is trusted
//! Everyone who may write to a ledger is trusted to keep to the rules: that is its owner, root, and
//! in a shared ledger every user. Whoever may write to the file could also cut it, which ends its
//! members, who have it mapped; onlookers (root among them, who looks at everyone's) read a copy, and
//! map it for a moment only when they change something ([`Ledger`]). Everyone else is kept out by the modes of file and directories, which are
//! checked each time. What a ledger says is bounded and checked nevertheless, as an old or damaged one
//! must do no harm.
//!
//! # Where to begin
//! `layout` has the file, `account` the arithmetic, `slot` and `liveness` who owns what and how that is
//! known, `join`, `member` and `reap` a member's life from its beginning to its end.

#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
#![cfg_attr(
    all(test, loom),
    allow(
        dead_code,
        reason = "what has a stand-in in models is not used by them"
    )
)]

#[cfg(all(test, loom, not(feature = "fault-points")))]
compile_error!("models kill at fault points: add --features fault-points");

mod account;
mod create;
mod denial;
mod directory;
mod directory_lock;
mod engine;
mod error;
#[cfg(feature = "fault-points")]
pub mod fault;
#[cfg(not(feature = "fault-points"))]
mod fault;
mod file;
mod fork_guard;
mod gpu;
mod join;
mod kind;
mod layout;
pub mod limit;
#[cfg_attr(all(test, loom), path = "models/liveness.rs")]
mod liveness;
#[cfg_attr(all(test, loom), path = "models/mapping.rs")]
mod mapping;
mod member;
#[cfg(all(test, loom))]
mod models;
mod notice;
mod observe;
mod place;
mod process;
mod prospect;
mod reap;
pub mod size;
mod slot;
mod snapshot;
mod sync;
mod sys;
mod view;
mod words;

pub use denial::{Denial, DenialReason};
pub use engine::{EngineChoice, HookEngine};
pub use error::{ChangeError, JoinError, OpenError, PlaceError, SystemError};
pub use fork_guard::ForkGuard;
pub use gpu::{GpuKey, GpuSpec};
pub use kind::Kind;
pub use layout::CU_WORDS;
pub use limit::{Limit, LimitError, LimitSpec};
pub use member::{Identity, Joined, Member, Reservation, Stayed};
pub use notice::{Notice, StricterLimit};
pub use observe::{Ledger, Listed};
pub use place::{
    BUDGET_NAME_MAX, BudgetName, BudgetNameError, DEFAULT_BUDGET, DEFAULT_ROOT, Place,
    PlaceVariableError,
};
pub use prospect::Prospect;
pub use view::{
    Alive, CellView, GpuSnapshot, GpuView, LastRefusal, LedgerSnapshot, LivenessMode, MemberCell,
    MemberSnapshot, Reaped, Room,
};
pub use words::yes_or_no;

/// How many hooks a member can tell the engines of ([`Member::set_engine`]).
pub const MAX_HOOKS: usize = 128;

/// How many GPUs one ledger can hold.
pub const MAX_GPUS: usize = 64;

/// How many processes one ledger can hold.
pub const MAX_MEMBERS: usize = 1024;
