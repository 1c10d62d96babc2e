//! A process's membership of a budget: what the hooks call.

mod gate;
mod leave;
mod request;

pub use leave::Stayed;

use gate::{Gate, Inside};

use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use crate::account::{self, Account};
use crate::denial::Denial;
use crate::directory_lock::DirectoryLock;
use crate::engine::HookEngine;
use crate::error::JoinError;
use crate::fault::fault_point;
use crate::file::now;
use crate::fork_guard::ForkGuard;
use crate::gpu::{GpuKey, GpuSpec};
use crate::kind::Kind;
use crate::layout::{CU_WORDS, Slot, decode_host_pid, effective_limit, encode_limit, store_bytes};
use crate::limit::Limit;
use crate::liveness::{At, Liveness};
use crate::mapping::Mapping;
use crate::notice::Notice;
use crate::place::{BudgetName, Place};
use crate::reap::{Right, Scan, Target, reap};
use crate::slot::{Claim, State};
use crate::sync::{Ordering, fence, sleep, yield_now};
use crate::sys::FileId;
use crate::view::{CellView, GpuView, LivenessMode, Room};

/// How often an operation looks again whether a thread that is about to leave leaves or stays: it does
/// a few dozen stores meanwhile, but the machine may let others run first. About a second, for the case
/// that the thread that leaves is this one, in a signal handler.
const PATIENCE: u32 = if cfg!(all(test, loom)) { 8 } else { 10_000 };
/// How many of these looks only let other threads run; before the others it is slept for [`STEP`].
const YIELDS: u32 = 100;
/// See [`YIELDS`].
const STEP: Duration = Duration::from_micros(100);

/// What a process says of itself when it joins. Shown to people, never relied upon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The command name; the first 16 bytes are kept.
    pub comm: Vec<u8>,
    /// The version of the library that books; the first 48 bytes are kept.
    pub library_version: String,
}

/// The result of [`Member::join`].
#[derive(Debug)]
pub struct Joined {
    /// The membership.
    pub member: Member,
    /// What the user should be told, one line each.
    pub notices: Vec<Notice>,
}

/// Bytes that are reserved and neither booked nor given back yet.
///
/// Give it to [`Member::commit`] or [`Member::cancel`]. Dropping it does nothing: the bytes then
/// stay charged until the process ends.
#[derive(Debug)]
#[must_use = "reserved bytes stay charged until commit or cancel"]
pub struct Reservation {
    gpu: usize,
    bytes: u64,
    kind: Kind,
}

impl Reservation {
    /// The GPU, by its index in the list that was given to [`Member::join`].
    #[must_use]
    pub fn gpu(&self) -> usize {
        self.gpu
    }

    /// How many bytes are reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What they are reserved for.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }
}

/// A live process's slot in a ledger.
///
/// Operations allocate nothing, wait for no lock and never panic. `gpu` is always the index in the
/// list given to [`Member::join`].
///
/// A forked child inherits a copy that is dead: [`Member::is_stale_after_fork`] says so, every
/// operation on it does nothing (requests are refused), and the child joins anew. Dropping a member
/// does nothing either; its slot is released by [`Member::leave`] or reaped after the process's end.
#[derive(Debug)]
pub struct Member {
    // Never unmapped: another thread may be in the middle of an operation when this one leaves.
    map: ManuallyDrop<Mapping>,
    slot: usize,
    claimed: Claim,
    gpus: Box<[MemberGpu]>,
    guard: ForkGuard,
    gate: Gate,
    /// Address of the keeper of the slot's lock, 0 when there is none (any more).
    liveness: AtomicUsize,
    owner: Option<Owner>,
    path: CString,
    lock_path: CString,
    file: FileId,
}

/// One of a member's GPUs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemberGpu {
    /// Its index in the ledger.
    pub(crate) index: usize,
    pub(crate) key: GpuKey,
    /// The encoded limit that this member brought, or [`crate::layout::FOLLOW`].
    pub(crate) own_limit: u64,
}

/// The descriptor by which the kernel tells others this process's PID.
#[derive(Debug)]
pub(crate) struct Owner {
    /// The program may have closed it, and have another file under this number by now.
    pub(crate) fd: RawFd,
    pub(crate) file: FileId,
}

/// What a member is made of.
pub(crate) struct Parts {
    pub(crate) map: Mapping,
    pub(crate) file: FileId,
    pub(crate) slot: usize,
    pub(crate) claimed: Claim,
    pub(crate) gpus: Box<[MemberGpu]>,
    pub(crate) guard: ForkGuard,
    pub(crate) liveness: Option<Liveness>,
    pub(crate) owner: Option<Owner>,
    pub(crate) path: CString,
    pub(crate) lock_path: CString,
}

/// Whether compute unit `cu` is in a mask.
fn has_cu(mask: &[u64; CU_WORDS], cu: usize) -> bool {
    let word = mask.get(cu / 64).copied().unwrap_or(0);
    word & (1 << (cu % 64)) != 0
}

impl Member {
    /// Joins a budget: makes or opens its ledger, checks everything about it, reaps dead members,
    /// claims a slot and takes the lock that shows this process alive.
    ///
    /// * A ledger without a live member is replaced by a fresh one with the limits in `gpus`.
    /// * In a ledger that is in use, the stricter of its limit and the one in `gpus` holds for this
    ///   process, and a [`Notice`] says so. Where both are equal, or this process brings the limit
    ///   that the ledger was made with, the ledger's holds, and a later change of it too.
    /// * GPUs are matched by key. One that the ledger does not have yet is added with the limit that
    ///   this process brings, as long as there is room (a ledger is made with room for at least 16).
    ///
    /// # Errors
    /// [`JoinError`]; its text says what to do. Waits up to about 2 s for another process that makes or
    /// removes a ledger, and longer (up to 30 s) only while many do so, one after the other.
    pub fn join(
        place: &Place,
        budget: &BudgetName,
        gpus: &[GpuSpec],
        identity: &Identity,
    ) -> Result<Joined, JoinError> {
        crate::join::join(place, budget, gpus, identity)
    }

    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            map: ManuallyDrop::new(parts.map),
            slot: parts.slot,
            claimed: parts.claimed,
            gpus: parts.gpus,
            guard: parts.guard,
            gate: Gate::default(),
            liveness: AtomicUsize::new(parts.liveness.map_or(0, Liveness::into_address)),
            owner: parts.owner,
            path: parts.path,
            lock_path: parts.lock_path,
            file: parts.file,
        }
    }

    /// Reserves `bytes` of the device's own memory ([`Kind::Device`]) before the native call, or says
    /// why not.
    ///
    /// Before it refuses it reaps dead members once (see [`Self::reap`]), and waits while nothing but
    /// reservations of others, which may yet be given back, stands in the way: 16 times, about 6 ms
    /// in all and at most 11 ms, and as much more as the machine takes to wake a thread.
    ///
    /// # Errors
    /// [`Denial`]; nothing is charged then.
    pub fn reserve(&self, gpu: usize, bytes: u64) -> Result<Reservation, Denial> {
        self.reserve_as(Kind::Device, gpu, bytes)
    }

    /// As [`Self::reserve`], for memory of any kind. The kind stays with the reservation.
    ///
    /// # Errors
    /// [`Denial`]; nothing is charged then.
    pub fn reserve_as(&self, kind: Kind, gpu: usize, bytes: u64) -> Result<Reservation, Denial> {
        self.charge(gpu, bytes)
            .map(|()| Reservation { gpu, bytes, kind })
    }

    /// Enlarges a reservation by `extra` bytes (when a pitch turns out wider than estimated).
    ///
    /// # Errors
    /// [`Denial`]; the reservation stays as it was.
    pub fn grow(&self, reservation: &mut Reservation, extra: u64) -> Result<(), Denial> {
        self.charge(reservation.gpu, extra)?;
        reservation.bytes = reservation.bytes.saturating_add(extra);
        Ok(())
    }

    /// Books `actual` bytes in place of a reservation: the native call succeeded. Counts one
    /// allocation.
    pub fn commit(&self, reservation: Reservation, actual: u64) {
        let _inside = self.enter_unless_held(reservation.bytes);
        if let Some((slot, account)) = self.account_of(reservation.gpu) {
            slot.allocations.fetch_add(1, Ordering::Relaxed);
            fault_point!(CommitCounted);
            if reservation.kind == Kind::Managed {
                account.add_unseen(actual);
                fault_point!(CommitUnseen);
            }
            self.note(account.commit(reservation.bytes, actual));
            fault_point!(CommitSettled);
        }
    }

    /// Gives a reservation back: the native call failed.
    pub fn cancel(&self, reservation: Reservation) {
        let _inside = self.enter_unless_held(reservation.bytes);
        if let Some((_, account)) = self.account_of(reservation.gpu) {
            self.note(account.cancel(reservation.bytes));
            fault_point!(CancelSettled);
        }
    }

    /// Gives `bytes` of what was booked as [`Kind::Device`] back: the native free succeeded. Counts
    /// one free. Giving back more than is booked leaves 0 and counts an anomaly.
    pub fn release(&self, gpu: usize, bytes: u64) {
        self.release_as(Kind::Device, gpu, bytes);
    }

    /// As [`Self::release`], for memory that was booked as this kind.
    pub fn release_as(&self, kind: Kind, gpu: usize, bytes: u64) {
        let _inside = match (kind, bytes) {
            (_, 0) => match self.enter(false) {
                None => return,
                inside => inside,
            },
            (Kind::Device, _) => None,
            // There is a step after the one that may end the hold.
            (Kind::Managed, _) => self.enter(true),
        };
        if let Some((slot, account)) = self.account_of(gpu) {
            slot.frees.fetch_add(1, Ordering::Relaxed);
            fault_point!(ReleaseCounted);
            self.note(account.release(bytes));
            fault_point!(ReleaseSettled);
            if kind == Kind::Managed {
                self.note(account.release_unseen(bytes));
                fault_point!(ReleaseUnseen);
            }
        }
    }

    /// Says how much of what is booked the program has freed, and pools of the runtime keep.
    pub fn set_kept(&self, gpu: usize, bytes: u64) {
        let Some(_inside) = self.enter(false) else {
            return;
        };
        if let Some((_, account)) = self.account_of(gpu) {
            account.set_kept(bytes);
        }
    }

    /// Gives booked bytes back that no free goes with: a pool has let go of what it had kept of freed blocks.
    pub fn give_back(&self, gpu: usize, bytes: u64) {
        let Some(_inside) = self.enter(false) else {
            return;
        };
        if let Some((_, account)) = self.account_of(gpu) {
            self.note(account.release(bytes));
            fault_point!(ReleaseSettled);
        }
    }

    /// The account of one GPU as this process sees it; `None` for an index it does not have, after
    /// it has left, and in a forked child.
    #[must_use]
    pub fn view(&self, gpu: usize) -> Option<GpuView> {
        let this = self.gpus.get(gpu)?;
        let account = self.account(this)?;
        let totals = account.totals();
        let view = GpuView {
            key: this.key,
            limit: self.limit_on(this, &account),
            charged: totals.charged(),
            mine: totals.mine,
            others: totals.others,
        };
        self.still(view)
    }

    /// What is left on one GPU; `None` where [`Self::view`] is. In few steps: programs ask that often.
    #[inline]
    #[must_use]
    pub fn room(&self, gpu: usize) -> Option<Room> {
        let this = self.gpus.get(gpu)?;
        let account = self.account(this)?;
        let limit = self.limit_on(this, &account);
        let (mine, others) = account.charged();
        let available = match limit {
            Limit::Unlimited => u64::MAX,
            Limit::Bytes(most) => most.saturating_sub(mine).saturating_sub(others),
        };
        self.still(Room {
            limit,
            available,
            shared: others > 0,
        })
    }

    /// This process's own figures on one GPU, without what the others have; `None` where
    /// [`Self::view`] is. A few loads, no sum.
    #[inline]
    #[must_use]
    pub fn cell(&self, gpu: usize) -> Option<CellView> {
        let account = self.account(self.gpus.get(gpu)?)?;
        self.still(account::read(account.own))
    }

    /// This process's PID in the initial PID namespace, if an observer has told it
    /// ([`crate::Ledger::set_host_pid`]); `None` also in a forked child and after leaving. A few loads.
    #[inline]
    #[must_use]
    pub fn host_pid(&self) -> Option<u32> {
        let word = self.map.slot(self.slot)?.host_pid.load(Ordering::Acquire);
        let pid = decode_host_pid(word, self.claimed.generation())?;
        self.still(pid)
    }

    /// The limit that holds for this process; `None` where [`Self::view`] is. A few loads.
    #[must_use]
    pub fn limit(&self, gpu: usize) -> Option<Limit> {
        let this = self.gpus.get(gpu)?;
        Some(self.limit_on(this, &self.account(this)?))
    }

    /// Says how much the driver holds for this process beyond what is booked, in bytes. From then on
    /// it is known ([`crate::CellView::overhead`]), also when it is 0.
    pub fn set_overhead(&self, gpu: usize, bytes: u64) {
        let Some(_inside) = self.enter(false) else {
            return;
        };
        let Some((_, account)) = self.account_of(gpu) else {
            return;
        };
        account.set_overhead(bytes, now());
        fault_point!(OverheadKnown);
    }

    /// Says that it is not known any more how much the driver holds for this process beyond what is
    /// booked ([`Self::set_overhead`]); nothing is charged for it then.
    pub fn forget_overhead(&self, gpu: usize) {
        let Some(_inside) = self.enter(false) else {
            return;
        };
        if let Some((_, account)) = self.account_of(gpu) {
            account.forget_overhead();
            fault_point!(OverheadForgotten);
        }
    }

    /// Counts a refusal and keeps it for observers: what was asked for, why it was refused, the
    /// figures of that moment, the time and the name of the call (the first 32 bytes).
    pub fn record_refusal(&self, gpu: usize, denial: &Denial, api: &str) {
        let Some(_inside) = self.enter(false) else {
            return;
        };
        let Some((slot, _)) = self.account_of(gpu) else {
            return;
        };
        slot.refusals.fetch_add(1, Ordering::Relaxed);
        let record = &slot.last_refusal;
        let sequence = record.sequence.load(Ordering::Relaxed);
        let writing = sequence.wrapping_add(1);
        // Odd: another thread is telling of its own at this moment, which is as good.
        if sequence & 1 == 1
            || record
                .sequence
                .compare_exchange(sequence, writing, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            return;
        }
        fault_point!(RefusalBegun);
        fence(Ordering::Release);
        let index = self.gpus.get(gpu).map_or(u64::MAX, |gpu| gpu.index as u64);
        record.at.store(now(), Ordering::Relaxed);
        for (word, value) in [
            (&record.size, denial.requested),
            (&record.gpu, index),
            (&record.reason, denial.reason.code()),
            (&record.limit, encode_limit(denial.limit)),
            (&record.mine, denial.mine),
            (&record.others, denial.others),
            (&record.overhead, denial.overhead),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        store_bytes(&record.api, api.as_bytes());
        fault_point!(RefusalWritten);
        record
            .sequence
            .store(writing.wrapping_add(1), Ordering::Release);
    }

    /// Says which engine holds hook number `hook` (below [`crate::MAX_HOOKS`]; others are ignored).
    pub fn set_engine(&self, hook: usize, engine: HookEngine) {
        if let Some(_inside) = self.enter(false)
            && let Some(slot) = self.map.slot(self.slot)
            && let Some(place) = slot.engines.get(hook)
        {
            place.store(engine.code(), Ordering::Relaxed);
        }
    }

    /// Says which compute units this process may use: bit 0 of the first word is CU 0. Only shown; nobody is limited by it.
    pub fn set_compute_units(&self, mask: &[u64; CU_WORDS]) {
        if let Some(_inside) = self.enter(false)
            && let Some(slot) = self.map.slot(self.slot)
        {
            for (place, word) in slot.cu_mask.iter().zip(mask) {
                place.store(*word, Ordering::Relaxed);
            }
            let cus = || (0..CU_WORDS * 64).filter(|cu| has_cu(mask, *cu));
            let end = cus().next_back().map_or(0, |last| last.saturating_add(1));
            let first = cus().next().unwrap_or(0);
            slot.cu_first.store(first as u64, Ordering::Relaxed);
            // Last: it says that there is a mask.
            slot.cu_end.store(end as u64, Ordering::Release);
        }
    }

    /// Reaps members that are dead; returns how many. A system call for each live member: about 5 us
    /// with 8 members, 3 ms with 512.
    pub fn reap(&self) -> usize {
        self.reap_some(Scan::All)
    }

    fn reap_some(&self, scan: Scan) -> usize {
        let Some(_inside) = self.enter(false) else {
            return 0;
        };
        let at = At {
            directory: None,
            name: &self.path,
        };
        let target = Target {
            map: &self.map,
            at,
            file: self.file,
        };
        match self.map.liveness() {
            LivenessMode::Locks => reap(target, &Right::SlotLocks, scan, &mut |_| {}),
            LivenessMode::Witness => DirectoryLock::try_take(&self.lock_path).map_or(0, |lock| {
                reap(target, &Right::holding(&lock), scan, &mut |_| {})
            }),
        }
    }

    /// Whether this process inherited the member by a fork. One load.
    #[inline]
    #[must_use]
    pub fn is_stale_after_fork(&self) -> bool {
        self.guard.in_forked_child()
    }

    /// What the slot is for this process: claimed, being cleared by a thread that leaves (and may yet
    /// stay, so that what other threads have to book must be booked), or not its own any more.
    #[inline]
    fn state(&self) -> State {
        if self.is_stale_after_fork() {
            return State::Free;
        }
        match self
            .map
            .slot(self.slot)
            .map(|slot| Claim::load(&slot.claim))
        {
            Some(claim) if claim.generation() == self.claimed.generation() => claim.state(),
            _ => State::Free,
        }
    }

    /// Begins an operation that writes into the slot; `None` if the slot is not this process's. While
    /// a thread leaves, waits outside to see whether it stays.
    ///
    /// With `held` the caller has a reservation, which keeps the thread from leaving whatever it looks
    /// like at this moment.
    fn enter(&self, held: bool) -> Option<Inside<'_>> {
        let mut looks: u32 = 0;
        loop {
            let inside = self.gate.enter();
            match self.state() {
                State::Claimed => {
                    fault_point!(Entered);
                    return Some(inside);
                }
                State::Clearing if held => return Some(inside),
                State::Clearing if looks < PATIENCE => {}
                _ => return None,
            }
            drop(inside);
            looks = looks.saturating_add(1);
            if looks < YIELDS {
                yield_now();
            } else {
                sleep(STEP);
            }
        }
    }

    /// [`Self::enter`] if no thread is about to leave.
    fn enter_at_once(&self) -> Option<Inside<'_>> {
        let inside = self.gate.enter();
        (self.state() == State::Claimed).then_some(inside)
    }

    #[cfg(all(test, loom))]
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    #[inline]
    fn is_member(&self) -> bool {
        matches!(self.state(), State::Claimed | State::Clearing)
    }

    /// What was read from the slot, if the slot was this process's throughout: another thread may have
    /// left meanwhile, and what was read may be the next owner's.
    #[inline]
    fn still<T>(&self, read: T) -> Option<T> {
        // All that is read of a slot is read with Acquire, and so before this look at its state.
        self.is_member().then_some(read)
    }

    /// The account of one GPU, in which this process may book.
    #[inline]
    fn account(&self, gpu: &MemberGpu) -> Option<Account<'_>> {
        if !self.is_member() {
            return None;
        }
        let cells = self.map.column(gpu.index);
        Some(Account {
            cells,
            high_water: &self.map.header().high_water.word,
            own: cells.get(self.slot)?,
            claim: &self.map.slot(self.slot)?.claim,
            claimed: self.claimed.0,
        })
    }

    #[inline]
    fn account_of(&self, gpu: usize) -> Option<(&Slot, Account<'_>)> {
        let account = self.account(self.gpus.get(gpu)?)?;
        Some((self.map.slot(self.slot)?, account))
    }

    #[inline]
    fn limit_on(&self, gpu: &MemberGpu, account: &Account<'_>) -> Limit {
        let own = account.own.member_limit.load(Ordering::Acquire);
        let record = self.map.gpu_records().get(gpu.index);
        record.map_or(Limit::Bytes(0), |record| {
            effective_limit(own, record.limit.load(Ordering::Acquire))
        })
    }

    /// Goes in, unless the caller has something reserved or booked, in bytes, until its last step: nobody leaves
    /// while there is. Then that step must be the one that takes it out of the cell.
    #[inline]
    fn enter_unless_held(&self, bytes: u64) -> Option<Inside<'_>> {
        if bytes > 0 {
            return None;
        }
        self.enter(true)
    }

    #[inline]
    fn note(&self, anomalies: u64) {
        if anomalies > 0 {
            self.note_anomalies(anomalies);
        }
    }

    #[cold]
    fn note_anomalies(&self, anomalies: u64) {
        // What was held may be gone: from here on the slot may be another process's.
        if let Some(_inside) = self.enter(false)
            && let Some(slot) = self.map.slot(self.slot)
        {
            slot.anomalies.fetch_add(anomalies, Ordering::Relaxed);
        }
    }
}
