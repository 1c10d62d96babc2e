//! What a budget has for a process that is none of its members, and may never be: tools that only show
//! memory ask, and must leave no trace.

use std::os::fd::BorrowedFd;

use crate::account;
use crate::gpu::GpuSpec;
use crate::layout::{Slot, effective_limit, encode_limit, own_limit};
use crate::limit::Limit;
use crate::mapping::Mapping;
use crate::reap::is_alive;
use crate::slot::{Claim, State};
use crate::sync::Ordering;
use crate::view::Alive;

/// One GPU of a budget, as a newcomer would find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prospect {
    /// The limit that would hold for it.
    pub limit: Limit,
    /// What is charged to the members that live, in bytes.
    pub charged: u64,
}

impl Prospect {
    /// Of a budget that nobody is in: the newcomer's own limit will hold.
    #[must_use]
    pub fn unused(gpu: &GpuSpec) -> Self {
        Self {
            limit: gpu.limit,
            charged: 0,
        }
    }
}

/// See [`crate::Ledger::prospect`].
pub(crate) fn of(map: &Mapping, fd: BorrowedFd<'_>, gpu: &GpuSpec) -> Prospect {
    // What the dead hold comes back before it stands in anybody's way.
    let lives = |(index, slot): &(usize, &Slot)| {
        Claim::load(&slot.claim).state() == State::Claimed
            && is_alive(map, fd, *index, slot) != Alive::No
    };
    let mut living = map.used_slots().filter(lives).peekable();
    let mut records = map.gpus().iter().enumerate();
    let record = records.find(|(_, record)| record.key.load(Ordering::Relaxed) == gpu.key.0);
    // A ledger without a living member is replaced by the next who comes.
    let (Some(_), Some((column, record))) = (living.peek(), record) else {
        return Prospect::unused(gpu);
    };
    let ledger = record.limit.load(Ordering::Acquire);
    let own = own_limit(
        encode_limit(gpu.limit),
        ledger,
        record.made_limit.load(Ordering::Acquire),
    );
    let cells = map.column(column);
    let charged = living
        .filter_map(|(index, _)| cells.get(index))
        .fold(0, |sum: u64, cell| {
            sum.saturating_add(account::charged_in(cell))
        });
    Prospect {
        limit: effective_limit(own, ledger),
        charged,
    }
}
