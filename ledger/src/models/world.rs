//! A ledger with its members, live and dead, as the models of slots begin with it.

use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use super::kernel::Kernel;
use super::{MOST, nothing};
use crate::account;
use crate::directory::Directory;
use crate::file::{LedgerFile, Names};
use crate::fork_guard::ForkGuard;
use crate::gpu::{GpuKey, GpuSpec};
use crate::join::{Claimed, Newcomer};
use crate::layout::{FOLLOW, encode_limit};
use crate::limit::Limit;
use crate::liveness::{self, At, Taken};
use crate::mapping::{Mapping, Memory};
use crate::member::{Identity, Member, MemberGpu, Parts};
use crate::place::{BudgetName, Place};
use crate::process::Who;
use crate::reap::{Right, Scan, Target, reap};
use crate::slot::{Claim, State};
use crate::sync::Ordering;
use crate::sys::{self, FileId};
use crate::view::Reaped;

const KEY: GpuKey = GpuKey(0x300);

pub(super) struct World {
    memory: Box<Memory>,
}

impl Drop for World {
    fn drop(&mut self) {
        Kernel::halt();
    }
}

/// What a newcomer has read before it claims; no model changes it.
struct Surroundings {
    directory: Directory,
    names: Names,
    budget: BudgetName,
    gpus: [GpuSpec; 1],
    identity: Identity,
    who: Who,
}

fn surroundings() -> &'static Surroundings {
    static ONCE: OnceLock<Surroundings> = OnceLock::new();
    ONCE.get_or_init(|| {
        // The directory is gone when this returns, and its descriptor is all that is needed.
        let root = tempfile::tempdir().unwrap();
        let budget = BudgetName::new("model").unwrap();
        Surroundings {
            directory: Directory::open_or_create(&Place::new(root.path(), false)).unwrap(),
            names: Names::of(&budget).unwrap(),
            budget,
            gpus: [GpuSpec {
                key: KEY,
                limit: Limit::Bytes(MOST),
                board_bytes: 0,
            }],
            identity: Identity {
                comm: b"model".to_vec(),
                library_version: "0".to_owned(),
            },
            who: Who::this(),
        }
    })
}

fn at() -> At<'static> {
    At {
        directory: None,
        name: c"ledger",
    }
}

fn file() -> FileId {
    static ONCE: OnceLock<FileId> = OnceLock::new();
    *ONCE.get_or_init(|| sys::status(nothing().as_fd()).unwrap().file)
}

impl World {
    /// A ledger with a limit of [`MOST`] and free slots.
    pub(super) fn new() -> Arc<Self> {
        Kernel::boot();
        let memory = Box::<Memory>::default();
        let world = Self { memory };
        let map = world.map();
        for gpu in map.gpu_records() {
            gpu.key.store(KEY.0, Ordering::Relaxed);
            let limit = encode_limit(Limit::Bytes(MOST));
            gpu.limit.store(limit, Ordering::Relaxed);
        }
        Arc::new(world)
    }

    pub(super) fn map(&self) -> Mapping {
        // SAFETY: each thread of a model has the world for as long as it runs, and gives no mapping
        // to others.
        unsafe { Mapping::of(&self.memory) }
    }

    pub(super) fn claim(&self, slot: usize) -> Claim {
        Claim::load(&self.map().slot(slot).unwrap().claim)
    }

    fn occupy(&self, slot: usize, state: State, live: u64) -> Claim {
        let map = self.map();
        let claim = Claim(0).next_claiming().with(state);
        map.slot(slot)
            .unwrap()
            .claim
            .store(claim.0, Ordering::SeqCst);
        let cell = &map.column(0)[slot];
        cell.live.store(live, Ordering::SeqCst);
        cell.member_limit.store(FOLLOW, Ordering::SeqCst);
        let above = slot as u64 + 1;
        map.header()
            .high_water
            .word
            .fetch_max(above, Ordering::SeqCst);
        claim
    }

    /// A slot whose owner has died in this state.
    pub(super) fn corpse(&self, slot: usize, state: State, live: u64) {
        self.occupy(slot, state, live);
    }

    /// A member since before the model begins.
    pub(super) fn member(&self, slot: usize) -> Member {
        let claim = self.occupy(slot, State::Claimed, 0);
        let Ok(Taken::Held(lock)) = liveness::take(at(), file(), slot) else {
            panic!("slot {slot} is taken");
        };
        self.member_of(Claimed {
            index: slot,
            claim,
            liveness: Some(lock),
        })
    }

    fn member_of(&self, claimed: Claimed) -> Member {
        Member::new(Parts {
            map: self.map(),
            file: file(),
            slot: claimed.index,
            claimed: claimed.claim,
            gpus: Box::new([MemberGpu {
                index: 0,
                key: KEY,
                own_limit: FOLLOW,
            }]),
            guard: ForkGuard::never_forked(),
            liveness: claimed.liveness,
            owner: None,
            path: c"ledger".to_owned(),
            lock_path: c"lock".to_owned(),
        })
    }

    /// Claims a free slot, as a newcomer does.
    pub(super) fn join(&self) -> Option<Member> {
        let surroundings = surroundings();
        let newcomer = Newcomer {
            directory: &surroundings.directory,
            names: &surroundings.names,
            budget: &surroundings.budget,
            gpus: &surroundings.gpus,
            identity: &surroundings.identity,
            who: surroundings.who,
        };
        let ledger = LedgerFile {
            map: self.map(),
            fd: nothing().try_clone().unwrap(),
            id: file(),
            owner: 0,
        };
        let gpus = [MemberGpu {
            index: 0,
            key: KEY,
            own_limit: FOLLOW,
        }];
        let claimed = newcomer.claim_first_free(&ledger, &gpus).unwrap();
        claimed.map(|claimed| self.member_of(claimed))
    }

    /// Reaps, as an observer does.
    pub(super) fn reap(&self) -> Vec<Reaped> {
        let map = self.map();
        let target = Target {
            map: &map,
            at: at(),
            file: file(),
        };
        let mut reaped = Vec::new();
        reap(target, &Right::SlotLocks, Scan::All, &mut |cleared| {
            reaped.push(cleared.describe(&map));
        });
        reaped
    }

    pub(super) fn charged(&self) -> u64 {
        let map = self.map();
        account::charged(map.column(0), &map.header().high_water.word)
    }

    /// How many slots were reaped so far.
    pub(super) fn reaped(&self) -> u64 {
        self.map().header().reaped.load(Ordering::SeqCst)
    }

    /// When all is quiet, what is charged is what is held.
    pub(super) fn settled(&self) {
        assert_eq!(self.charged(), Kernel::current().given());
        let pending = |cell: &crate::layout::Cell| account::read(cell).pending;
        assert!(self.map().column(0).iter().all(|cell| pending(cell) == 0));
    }
}

/// As a process does it: asks, takes from the driver, books.
pub(super) fn allocate(member: &Member, bytes: u64) -> bool {
    let Ok(reservation) = member.reserve(0, bytes) else {
        return false;
    };
    Kernel::current().give(bytes);
    member.commit(reservation, bytes);
    true
}

/// Gives back to the driver, then to the others.
pub(super) fn free(member: &Member, bytes: u64) {
    Kernel::current().take_back(bytes);
    member.release(0, bytes);
}
