//! The part of a kernel that the ledger relies on: it locks, and unlocks what the dead had locked.
//! It gives out GPU memory, the way a driver does that knows of no limit, and it kills.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread::ThreadId;

use super::{MOST, SLOTS};
use crate::fault::{FaultPoint, set_hook};

/// The locks of one file, and who is to die where. A thread of the model is a process.
///
/// The real kernel takes a spinlock for each call: calls have an order, and what was done before
/// one is seen after a later one, but a call is no full fence. Hence a read-modify-write with
/// `AcqRel` for each, the question included.
#[derive(Default)]
pub(crate) struct Kernel {
    locks: [AtomicU64; SLOTS],
    // Not of the model: no steps of a process.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// What the driver has given to whom.
    given: Vec<(ThreadId, u64)>,
    holders: Vec<(ThreadId, usize)>,
    victim: Option<Victim>,
}

struct Victim {
    process: ThreadId,
    /// How many fault points it still passes.
    passes: usize,
    dead_at: Option<FaultPoint>,
}

/// With what a killed thread unwinds.
struct Killed;

thread_local! {
    // A model runs on the thread of its test, all its threads included.
    static CURRENT: RefCell<Option<Arc<Kernel>>> = const { RefCell::new(None) };
}

impl Kernel {
    /// Starts a kernel for the model on this thread; the one before is gone.
    pub(super) fn boot() {
        set_hook(Some(on_point));
        CURRENT.set(Some(Arc::new(Self::default())));
    }

    /// Nothing of the model may outlive it.
    pub(super) fn halt() {
        CURRENT.set(None);
    }

    pub(crate) fn current() -> Arc<Self> {
        let current = CURRENT.with_borrow(Clone::clone);
        current.expect("there is no kernel outside of a model")
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn try_lock(&self, slot: usize) -> bool {
        let lock = &self.locks[slot];
        let taken = lock.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_ok() {
            self.adopt(slot);
        }
        taken.is_ok()
    }

    /// The lock is this process's from now on, whoever took it.
    pub(super) fn adopt(&self, slot: usize) {
        let mut state = self.state();
        state.holders.retain(|(_, held)| *held != slot);
        state.holders.push((loom::thread::current().id(), slot));
    }

    pub(crate) fn unlock(&self, slot: usize) {
        let mut state = self.state();
        let before = state.holders.len();
        state.holders.retain(|(_, held)| *held != slot);
        let held = state.holders.len() < before;
        drop(state);
        // The dead hold nothing, though they unwind.
        if held {
            self.locks[slot].swap(0, Ordering::AcqRel);
        }
    }

    pub(crate) fn is_locked(&self, slot: usize) -> bool {
        self.locks[slot].fetch_add(0, Ordering::AcqRel) != 0
    }

    /// Runs `body` as a process that dies at the fault point after `passes` others, or lives. Tells
    /// where it died.
    pub(super) fn run_mortal(passes: usize, body: impl FnOnce()) -> Option<FaultPoint> {
        let kernel = Self::current();
        let process = loom::thread::current().id();
        kernel.state().victim = Some(Victim {
            process,
            passes,
            dead_at: None,
        });
        match catch_unwind(AssertUnwindSafe(body)) {
            Ok(()) => {}
            Err(killed) if killed.is::<Killed>() => {}
            Err(failed) => resume_unwind(failed),
        }
        let dead_at = kernel
            .state()
            .victim
            .take()
            .and_then(|victim| victim.dead_at);
        dead_at
    }

    /// The driver gives this process memory.
    pub(super) fn give(&self, bytes: u64) {
        let mut state = self.state();
        state.given.push((loom::thread::current().id(), bytes));
        let held: u64 = state.given.iter().map(|(_, bytes)| bytes).sum();
        drop(state);
        assert!(held <= MOST, "{held} of {MOST} bytes are held");
    }

    /// A process, whichever, gives memory back.
    pub(super) fn take_back(&self, bytes: u64) {
        let mut state = self.state();
        let index = state.given.iter().position(|(_, given)| *given == bytes);
        state.given.remove(index.expect("it was given out"));
    }

    /// What is given out to all.
    pub(super) fn given(&self) -> u64 {
        self.state().given.iter().map(|(_, bytes)| bytes).sum()
    }

    /// What becomes of a process that is killed: its memory and its locks are others' to have.
    fn end(&self, process: ThreadId) {
        let held: Vec<_> = {
            let mut state = self.state();
            state.given.retain(|(owner, _)| *owner != process);
            let (held, others) = state
                .holders
                .drain(..)
                .partition(|(holder, _)| *holder == process);
            state.holders = others;
            held
        };
        for (_, slot) in held {
            self.locks[slot].swap(0, Ordering::AcqRel);
        }
    }
}

fn on_point(point: FaultPoint) {
    let Some(kernel) = CURRENT.with_borrow(Clone::clone) else {
        return;
    };
    let process = loom::thread::current().id();
    {
        let mut state = kernel.state();
        let Some(victim) = &mut state.victim else {
            return;
        };
        if victim.process != process || victim.dead_at.is_some() {
            return;
        }
        if victim.passes > 0 {
            victim.passes -= 1;
            return;
        }
        victim.dead_at = Some(point);
    }
    kernel.end(process);
    resume_unwind(Box::new(Killed));
}
