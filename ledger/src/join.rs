//! How a process becomes a member. All of it happens under the lock of the directory, so that nobody
//! removes a ledger while another moves in, and limits are replaced only where nobody lives. A share of
//! the lock is enough for whoever finds a ledger in use and its GPUs in it, and only claims a slot.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;

use crate::MAX_GPUS;
use crate::create;
use crate::directory::{Directory, c_string};
use crate::directory_lock::{
    DEADLINE, DirectoryLock, LOCK_FILE, LockFile, Queue, SharedLock, Turn,
};
use crate::error::{JoinError, OpenError, SystemError};
use crate::fault::fault_point;
use crate::file::{self, Access, LedgerFile, Names, View, now};
use crate::fork_guard::ForkGuard;
use crate::gpu::GpuSpec;
use crate::layout::{FOLLOW, Slot, decode_limit, encode_limit, own_limit, store_bytes};
use crate::liveness::{self, At, Taken};
use crate::mapping::Mapping;
use crate::member::{Identity, Joined, Member, MemberGpu, Owner, Parts};
use crate::notice::{Notice, StricterLimit};
use crate::place::{BudgetName, Place};
use crate::process::{Who, effective_uid};
use crate::reap::{Right, Scan, Target, empty, reap, some_live, somebody_lives};
use crate::slot::{Claim, State};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::{self, Kind, Range};
use crate::view::LivenessMode;

/// How often to begin again when somebody removes the ledger from outside.
const ATTEMPTS: usize = 4;

/// See [`Member::join`].
pub(crate) fn join(
    place: &Place,
    budget: &BudgetName,
    gpus: &[GpuSpec],
    identity: &Identity,
) -> Result<Joined, JoinError> {
    check_gpus(gpus)?;
    let directory = Directory::open_or_create(place)?;
    let names = Names::of(budget)?;
    let guard = ForkGuard::new().map_err(|source| SystemError {
        attempt: "cannot map a page that tells forks (MADV_WIPEONFORK, Linux 4.14) for",
        path: directory.path_of(&names.ledger),
        source,
    })?;
    // All that needs no lock comes before it: others wait for what is done under it.
    let newcomer = Newcomer {
        directory: &directory,
        names: &names,
        budget,
        gpus,
        identity,
        who: Who::this(),
    };
    let _ = file::boot_id();
    let mut file = LockFile::open(&directory)?;
    let mut queue = Queue::new(DEADLINE);
    let lock = loop {
        let turn = queue.turn(&file);
        if turn == Turn::Share
            && let Some(shared) = file.try_share()
        {
            fault_point!(JoinShared);
            if let Some(inside) = newcomer.move_in_beside_others(&shared)? {
                fault_point!(JoinChecked);
                shared.sufficed();
                return newcomer.joined(inside, guard);
            }
            shared.did_not_help(&mut queue);
        }
        if turn != Turn::GiveWay {
            file = match file.try_take()? {
                Ok(lock) => break lock,
                Err(file) => file,
            };
        }
        queue.wait(&mut file)?;
    };
    fault_point!(JoinLocked);
    create::remove_draft(&directory, &names)?;
    for _ in 0..ATTEMPTS {
        let ledger = newcomer.open_or_create(&lock)?;
        let (gpus, notices) = newcomer.settle_gpus(&ledger.map)?;
        let claimed = newcomer.claim(&ledger, &gpus, &lock)?;
        if !file::is_current(&directory, &names.ledger, ledger.id) {
            // Somebody removed it from outside, without the lock. Others may still be in it; the
            // next round sees that.
            give_up(&ledger.map, &claimed);
            fault_point!(JoinGaveUp);
            continue;
        }
        fault_point!(JoinChecked);
        let inside = Inside {
            ledger,
            gpus,
            notices,
            claimed,
        };
        return newcomer.joined(inside, guard);
    }
    Err(JoinError::Removed {
        path: directory.path_of(&names.ledger),
        holder: None,
    })
}

fn check_gpus(gpus: &[GpuSpec]) -> Result<(), JoinError> {
    let wrong = |brought: String| {
        Err(JoinError::GpuList {
            brought,
            max: MAX_GPUS,
        })
    };
    if gpus.is_empty() {
        return wrong("none".to_owned());
    }
    if gpus.len() > MAX_GPUS {
        return wrong(gpus.len().to_string());
    }
    let mut keys: Vec<_> = gpus.iter().map(|gpu| gpu.key).collect();
    keys.sort_unstable();
    let twice = keys.windows(2).find_map(|pair| match pair {
        [a, b] if a == b => Some(*a),
        _ => None,
    });
    twice.map_or(Ok(()), |key| wrong(format!("{key} twice")))
}

/// A process that is about to be a member.
pub(crate) struct Newcomer<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) names: &'a Names,
    pub(crate) budget: &'a BudgetName,
    pub(crate) gpus: &'a [GpuSpec],
    pub(crate) identity: &'a Identity,
    pub(crate) who: Who,
}

/// A slot that is this process's.
pub(crate) struct Claimed {
    pub(crate) index: usize,
    pub(crate) claim: Claim,
    pub(crate) liveness: Option<liveness::Liveness>,
}

/// What a newcomer has once a slot is its own.
struct Inside {
    ledger: LedgerFile,
    gpus: Vec<MemberGpu>,
    notices: Vec<Notice>,
    claimed: Claimed,
}

impl Newcomer<'_> {
    fn access(&self) -> Access {
        Access {
            writable: true,
            view: View::Mapping,
            owner: (!self.directory.shared()).then(effective_uid),
        }
    }

    /// Claims a slot of a ledger that is in use, has this process's GPUs, and in which no dead member
    /// is seen. Where it is not so, or anything is wrong, whoever has the lock alone finds out.
    fn move_in_beside_others(&self, _: &SharedLock<'_>) -> Result<Option<Inside>, JoinError> {
        // Nobody makes a ledger meanwhile: a draft was left by one who died.
        if sys::status_at(Some(self.directory.fd()), &self.names.draft, false).is_ok() {
            return Ok(None);
        }
        let Ok(ledger) = file::open(self.directory, &self.names.ledger, self.access()) else {
            return Ok(None);
        };
        let map = &ledger.map;
        let entered = |gpu: &GpuSpec| {
            let mut records = map.gpus().iter();
            records.any(|record| record.key.load(Ordering::Relaxed) == gpu.key.0)
        };
        // Without locks of the slots, claims are told by the lock of the directory.
        if map.liveness() != LivenessMode::Locks
            || !self.gpus.iter().all(entered)
            || !some_live(map, ledger.fd.as_fd())
        {
            return Ok(None);
        }
        let (gpus, notices) = self.settle_gpus(map)?;
        let Some(claimed) = self.claim_first_free(&ledger, &gpus)? else {
            return Ok(None);
        };
        if !file::is_current(self.directory, &self.names.ledger, ledger.id) {
            give_up(map, &claimed);
            return Ok(None);
        }
        Ok(Some(Inside {
            ledger,
            gpus,
            notices,
            claimed,
        }))
    }

    /// The budget's ledger with a live member in it, or a fresh one.
    fn open_or_create(&self, lock: &DirectoryLock) -> Result<LedgerFile, JoinError> {
        let access = self.access();
        let mut fresh = false;
        for _ in 0..ATTEMPTS {
            match file::open(self.directory, &self.names.ledger, access) {
                Ok(ledger) if fresh || self.somebody_lives(&ledger, lock) => return Ok(ledger),
                // Nobody can move in meanwhile: that takes the lock which is held here.
                Ok(ledger) => {
                    if !file::remove(self.directory, self.names)? {
                        let version = &self.identity.library_version;
                        create::renew(self.directory, self.names, &ledger, self.gpus, version)?;
                        return Ok(ledger);
                    }
                }
                Err(OpenError::Missing(path)) => {
                    if let Some(holder) = file::orphan(self.directory, self.names) {
                        return Err(JoinError::Removed { path, holder });
                    }
                }
                Err(error) => return Err(error.into()),
            }
            let version = &self.identity.library_version;
            create::create(self.directory, self.names, self.budget, self.gpus, version)?;
            fresh = true;
        }
        let path = self.directory.path_of(&self.names.ledger);
        Err(JoinError::Removed { path, holder: None })
    }

    fn somebody_lives(&self, ledger: &LedgerFile, lock: &DirectoryLock) -> bool {
        somebody_lives(self.target(ledger), &Right::holding(lock))
    }

    fn target<'l>(&'l self, ledger: &'l LedgerFile) -> Target<'l> {
        let at = At {
            directory: Some(self.directory.fd()),
            name: &self.names.ledger,
        };
        Target {
            map: &ledger.map,
            at,
            file: ledger.id,
        }
    }

    /// Finds this process's GPUs in the ledger, adds those that it does not have yet, and compares
    /// limits.
    fn settle_gpus(&self, map: &Mapping) -> Result<(Vec<MemberGpu>, Vec<Notice>), JoinError> {
        let mut found = Vec::with_capacity(self.gpus.len());
        let mut conflicts: Vec<StricterLimit> = Vec::new();
        for gpu in self.gpus {
            let index = map
                .gpus()
                .iter()
                .position(|record| record.key.load(Ordering::Relaxed) == gpu.key.0)
                .map_or_else(|| self.add_gpu(map, gpu), Ok)?;
            let mine = encode_limit(gpu.limit);
            // What was added just now has the limit it was added with.
            let (ledger, made) = map.gpus().get(index).map_or((mine, mine), |record| {
                let load = |word: &AtomicU64| word.load(Ordering::Acquire);
                (load(&record.limit), load(&record.made_limit))
            });
            let own = own_limit(mine, ledger, made);
            let ledger = decode_limit(ledger);
            found.push(MemberGpu {
                index,
                key: gpu.key,
                own_limit: own,
            });
            if own == FOLLOW {
                continue;
            }
            match conflicts
                .iter_mut()
                .find(|c| c.mine == gpu.limit && c.ledger == ledger)
            {
                Some(conflict) => conflict.gpus.push(gpu.key),
                None => conflicts.push(StricterLimit {
                    budget: self.budget.clone(),
                    gpus: vec![gpu.key],
                    mine: gpu.limit,
                    ledger,
                }),
            }
        }
        Ok((
            found,
            conflicts.into_iter().map(Notice::StricterLimit).collect(),
        ))
    }

    fn add_gpu(&self, map: &Mapping, gpu: &GpuSpec) -> Result<usize, JoinError> {
        let index = map.gpus().len();
        let no_room = || JoinError::NoRoomForGpu {
            path: self.directory.path_of(&self.names.ledger),
            gpu: gpu.key,
            capacity: map.geometry().gpu_capacity() as u64,
        };
        let record = map.gpu_records().get(index).ok_or_else(no_room)?;
        create::enter(record, gpu);
        // Whoever is a member already follows its limit, and has nothing on it.
        let members = map.used_slots().len();
        map.column(index).iter().take(members).for_each(empty);
        fault_point!(GpuWritten);
        // Published with its count: nobody looks at a record before.
        map.header()
            .gpu_count
            .word
            .store(index.saturating_add(1) as u64, Ordering::Release);
        fault_point!(GpuAdded);
        Ok(index)
    }

    /// Takes a free slot. Dead members are reaped before: some, so that many processes that start at
    /// once do not each ask for the life of all others; all, if no slot is free otherwise.
    fn claim(
        &self,
        ledger: &LedgerFile,
        gpus: &[MemberGpu],
        lock: &DirectoryLock,
    ) -> Result<Claimed, JoinError> {
        for scan in [Scan::Some, Scan::All] {
            reap(
                self.target(ledger),
                &Right::holding(lock),
                scan,
                &mut |_| {},
            );
            if let Some(claimed) = self.claim_first_free(ledger, gpus)? {
                return Ok(claimed);
            }
        }
        let path = self.directory.path_of(&self.names.ledger);
        Err(JoinError::Full {
            path,
            slots: ledger.map.slots().len() as u64,
        })
    }

    pub(crate) fn claim_first_free(
        &self,
        ledger: &LedgerFile,
        gpus: &[MemberGpu],
    ) -> Result<Option<Claimed>, JoinError> {
        let map = &ledger.map;
        let Target { at, .. } = self.target(ledger);
        for (index, slot) in map.slots().iter().enumerate() {
            let free = Claim::load(&slot.claim);
            if free.state() != State::Free {
                continue;
            }
            // The lock comes first: a slot that is not free and not locked is a dead one's.
            let liveness = match map.liveness() {
                LivenessMode::Witness => None,
                LivenessMode::Locks => match liveness::take(at, ledger.id, index) {
                    Ok(Taken::Held(liveness)) => Some(liveness),
                    Ok(Taken::Busy) => continue,
                    Ok(Taken::NotKept) => {
                        let path = self.directory.path().to_owned();
                        return Err(JoinError::LivenessNotKept(path));
                    }
                    // The file was replaced; the caller finds out by its name.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        let name = &self.names.ledger;
                        return Err(self
                            .directory
                            .error("cannot lock a slot of", name, error)
                            .into());
                    }
                },
            };
            // Before the slot is claimed, so that no reaper overlooks what a killed claimer leaves, and
            // before the first byte is charged to it, so that every sum reaches it.
            let above = index.saturating_add(1) as u64;
            map.header()
                .high_water
                .word
                .fetch_max(above, Ordering::SeqCst);
            fault_point!(HighWaterRaised);
            let claiming = free.next_claiming();
            if !free.swap(&slot.claim, claiming) {
                continue;
            }
            fault_point!(SlotClaiming);
            self.move_in(map, index, slot, gpus);
            let claim = claiming.with(State::Claimed);
            if claiming.swap(&slot.claim, claim) {
                fault_point!(SlotClaimed);
                return Ok(Some(Claimed {
                    index,
                    claim,
                    liveness,
                }));
            }
        }
        Ok(None)
    }

    /// Fills in a slot that is being claimed.
    fn move_in(&self, map: &Mapping, index: usize, slot: &Slot, gpus: &[MemberGpu]) {
        // Those of GPUs that are entered later are set up then.
        map.used_row(index).for_each(empty);
        for gpu in gpus {
            if let Some(cell) = map.column(gpu.index).get(index) {
                cell.member_limit.store(gpu.own_limit, Ordering::Release);
            }
        }
        fault_point!(SlotLimited);
        let who = &self.who;
        let relaxed = Ordering::Relaxed;
        slot.pid.store(u64::from(who.pid), relaxed);
        slot.start_time.store(who.start_time, relaxed);
        slot.pid_namespace.store(who.pid_namespace, relaxed);
        slot.time_namespace.store(who.time_namespace, relaxed);
        slot.host_pid.store(0, relaxed);
        slot.uid.store(u64::from(effective_uid()), relaxed);
        slot.joined_at.store(now(), relaxed);
        store_bytes(&slot.comm, &self.identity.comm);
        store_bytes(
            &slot.library_version,
            self.identity.library_version.as_bytes(),
        );
        slot.engines
            .iter()
            .for_each(|engine| engine.store(0, relaxed));
        let refusal = &slot.last_refusal;
        let counters = [
            &slot.cu_first,
            &slot.cu_end,
            &slot.allocations,
            &slot.frees,
            &slot.refusals,
            &slot.anomalies,
            &refusal.sequence,
            &refusal.at,
            &refusal.size,
            &refusal.gpu,
            &refusal.reason,
            &refusal.limit,
            &refusal.mine,
            &refusal.others,
            &refusal.overhead,
            &slot.end_seen_at,
            &slot.end_kind,
        ];
        let arrays = slot
            .cu_mask
            .iter()
            .chain(&refusal.api)
            .chain(&slot.unused)
            .chain(&slot.spare);
        counters
            .into_iter()
            .chain(arrays)
            .for_each(|word| word.store(0, relaxed));
        fault_point!(SlotFilled);
    }

    fn joined(&self, inside: Inside, guard: ForkGuard) -> Result<Joined, JoinError> {
        let Inside {
            ledger,
            gpus,
            notices,
            claimed,
        } = inside;
        let member = Member::new(Parts {
            file: ledger.id,
            map: ledger.map,
            slot: claimed.index,
            claimed: claimed.claim,
            gpus: gpus.into_boxed_slice(),
            guard,
            owner: self.own(claimed.index),
            liveness: claimed.liveness,
            path: self.path(&self.names.ledger)?,
            lock_path: self.path(LOCK_FILE)?,
        });
        Ok(Joined { member, notices })
    }

    fn path(&self, name: &std::ffi::CStr) -> Result<CString, SystemError> {
        let path = self.directory.path_of(name);
        c_string(&path, path.as_os_str().as_bytes())
    }

    /// Locks this slot's byte of the owners file, by which others can ask the kernel for this
    /// process's PID as they see it. Only for that: nothing depends on it, so that no failure counts.
    fn own(&self, slot: usize) -> Option<Owner> {
        // Moving it closes a descriptor of the file, which drops this process's locks on it; so the
        // lock comes last.
        let fd = sys::move_high(self.directory.helper_file(&self.names.owners).ok()?);
        let file = sys::status(fd.as_fd()).ok()?.file;
        let held = sys::try_lock(fd.as_fd(), Kind::Process, Range::Byte(slot as u64));
        fault_point!(OwnerLocked);
        (held.ok()?).then(|| Owner {
            fd: fd.into_raw_fd(),
            file,
        })
    }
}

/// Gives back a slot that was claimed in a ledger which is not the budget's any more.
fn give_up(map: &Mapping, claimed: &Claimed) {
    if let Some(slot) = map.slot(claimed.index) {
        claimed
            .claim
            .swap(&slot.claim, claimed.claim.with(State::Free));
    }
}
