//! Plain copies of a ledger while its members go on.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::account;
use crate::denial::DenialReason;
use crate::engine::HookEngine;
use crate::gpu::GpuKey;
use crate::layout::{
    CU_WORDS, FLAG_SHARED, GpuRecord, RefusalRecord, Slot, decode_host_pid, decode_limit,
    effective_limit, load_text,
};
use crate::mapping::Mapping;
use crate::process::Who;
use crate::reap::is_alive;
use crate::slot::{Claim, State};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::sys::{self, Holder, Kind, Range};
use crate::view::{Alive, GpuSnapshot, LastRefusal, LedgerSnapshot, MemberCell, MemberSnapshot};

/// How often to read again what changed while it was read.
const ATTEMPTS: usize = 4;

/// Descriptors through which the kernel tells about members.
pub(crate) struct Witnesses<'a> {
    /// Of the ledger: who lives.
    pub(crate) ledger: BorrowedFd<'a>,
    /// Of the owners file: which PID they have, seen from here.
    pub(crate) owners: Option<BorrowedFd<'a>>,
}

/// Turns a ledger into plain data: a mapped one, or a copy, parts of which are read again where they
/// changed while they were read.
pub(crate) fn take(map: &Mapping, path: &Path, witnesses: &Witnesses<'_>) -> LedgerSnapshot {
    let header = map.header();
    let high_water = &header.high_water.word;
    let gpus = map
        .gpus()
        .iter()
        .enumerate()
        .map(|(index, record)| GpuSnapshot {
            key: GpuKey(load(&record.key)),
            limit: decode_limit(load(&record.limit)),
            board_bytes: load(&record.board_bytes),
            charged: account::charged(map.column(index), high_water),
        });
    let gpus: Vec<_> = gpus.collect();
    let here = Who::this();
    let members: Vec<_> = map
        .used_slots()
        .filter_map(|(index, slot)| member(map, witnesses, &here, index, slot))
        .collect();
    let gone = load(&header.anomalies);
    LedgerSnapshot {
        path: path.to_owned(),
        budget: load_text(&header.budget),
        uid: narrow(&header.uid),
        shared: load(&header.flags) & FLAG_SHARED != 0,
        layout_version: load(&header.version),
        created: time(&header.created_at),
        liveness: map.liveness(),
        slots: map.slots().len() as u64,
        reaped: load(&header.reaped),
        anomalies: members
            .iter()
            .fold(gone, |sum, member| sum.saturating_add(member.anomalies)),
        gpus,
        members,
    }
}

/// Copies one slot, if a member has it that is more than moving in.
fn member(
    map: &Mapping,
    witnesses: &Witnesses<'_>,
    here: &Who,
    index: usize,
    slot: &Slot,
) -> Option<MemberSnapshot> {
    for _ in 0..ATTEMPTS {
        let before = Claim::load(&slot.claim);
        if matches!(before.state(), State::Free | State::Invalid) {
            return None;
        }
        let alive = is_alive(map, witnesses.ledger, index, slot);
        if before.state() == State::Claiming && alive != Alive::No {
            return None;
        }
        let copy = copy(map, witnesses, here, index, slot, before, alive);
        fence(Ordering::Acquire);
        map.read_slot_again(witnesses.ledger, index).ok()?;
        if Claim::load(&slot.claim) == before {
            return Some(copy);
        }
    }
    None
}

fn copy(
    map: &Mapping,
    witnesses: &Witnesses<'_>,
    here: &Who,
    index: usize,
    slot: &Slot,
    claim: Claim,
    alive: Alive,
) -> MemberSnapshot {
    let mut engines: Vec<_> = slot
        .engines
        .iter()
        .map(|engine| HookEngine::from_code(engine.load(Ordering::Relaxed)))
        .collect();
    let known = engines
        .iter()
        .rposition(|engine| *engine != HookEngine::Unknown);
    engines.truncate(known.map_or(0, |last| last.saturating_add(1)));
    let cells = map
        .gpus()
        .iter()
        .zip(map.row(index))
        .map(|(gpu, cell)| MemberCell {
            figures: account::read(cell),
            limit: effective_limit(load(&cell.member_limit), load(&gpu.limit)),
        });
    let again = || map.read_slot_again(witnesses.ledger, index).is_ok();
    let (pid, pid_namespace) = (narrow(&slot.pid), load(&slot.pid_namespace));
    let told = witnesses
        .owners
        .and_then(|owners| sys::lock_holder(owners, Kind::Process, Range::Byte(index as u64)).ok());
    let pid_here = match told {
        Some(Holder::Process(pid)) => Some(pid),
        // A process is never told of its own lock, and programs may close the descriptor.
        _ => (pid_namespace != 0 && pid_namespace == here.pid_namespace).then_some(pid),
    };
    MemberSnapshot {
        slot: index,
        generation: claim.generation(),
        alive,
        pid,
        pid_namespace,
        start_time: load(&slot.start_time),
        host_pid: decode_host_pid(load(&slot.host_pid), claim.generation()).unwrap_or(0),
        pid_here,
        uid: narrow(&slot.uid),
        comm: load_text(&slot.comm),
        library_version: load_text(&slot.library_version),
        joined: time(&slot.joined_at),
        engines,
        compute_units: compute_units(slot),
        allocations: load(&slot.allocations),
        frees: load(&slot.frees),
        refusals: load(&slot.refusals),
        anomalies: load(&slot.anomalies),
        last_refusal: last_refusal(map.gpus(), &slot.last_refusal, &again),
        cells: cells.collect(),
    }
}

fn compute_units(slot: &Slot) -> Option<[u64; CU_WORDS]> {
    if load(&slot.cu_end) == 0 {
        return None;
    }
    let mut mask = [0; CU_WORDS];
    for (word, place) in mask.iter_mut().zip(&slot.cu_mask) {
        *word = load(place);
    }
    Some(mask)
}

fn last_refusal(
    gpus: &[GpuRecord],
    record: &RefusalRecord,
    again: &dyn Fn() -> bool,
) -> Option<LastRefusal> {
    for _ in 0..ATTEMPTS {
        let before = record.sequence.load(Ordering::Acquire);
        if before == 0 {
            return None;
        }
        let gpu = usize::try_from(load(&record.gpu))
            .ok()
            .and_then(|index| gpus.get(index));
        let refusal = gpu.map(|gpu| LastRefusal {
            gpu: GpuKey(load(&gpu.key)),
            size: load(&record.size),
            time: time(&record.at),
            api: load_text(&record.api),
            reason: DenialReason::from_code(load(&record.reason)),
            limit: decode_limit(load(&record.limit)),
            mine: load(&record.mine),
            others: load(&record.others),
            overhead: load(&record.overhead),
        });
        fence(Ordering::Acquire);
        if !again() {
            return None;
        }
        // Odd: it was being written, and is for good if its writer died there.
        if before & 1 == 0 && record.sequence.load(Ordering::Relaxed) == before {
            return refusal;
        }
    }
    None
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

fn narrow(word: &AtomicU64) -> u32 {
    u32::try_from(load(word)).unwrap_or(0)
}

fn time(word: &AtomicU64) -> SystemTime {
    UNIX_EPOCH
        .checked_add(Duration::from_nanos(load(word)))
        .unwrap_or(UNIX_EPOCH)
}
