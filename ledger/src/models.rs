//! The account under all interleavings and all orders in which memory may show stores to others.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p hipflex-ledger --profile model --lib --features fault-points \
//!     --target-dir target/loom models::
//! ```
//!
//! The code is that of the product: reserving, booking, leaving, claiming and reaping run as they are,
//! on the atomics of `loom`. Only what is below has a stand-in: the mapped file (`mapping`) and the
//! kernel's locks (`liveness`, `kernel`). A thread is a process, but where it is said to be one of
//! several of a process.
//!
//! What loom does not see: it takes `SeqCst` accesses for `AcqRel`, which can only raise false alarms
//! (fences are taken for what they are, and the account relies on fences alone); it does not let a
//! load see a store that comes later in its own thread's program, which no rule here is about; and it
//! overlooks that a load is in conflict with another thread's change if that thread has loaded the same
//! word in between, so that a thread which only looks must be the one that is started.
//!
//! Most models of three threads bound the number of preemptions, as the number of interleavings grows
//! with its power: three that ask at once run 8,545 times with at most three preemptions; without a bound
//! an earlier form of the account, which looked at the peak once less, ran 1,690,323 times (all of them
//! hold). Errors of such protocols show with two: a step of
//! one process comes between two of another.
//!
//! Each model fails when its rule is broken. What is named with it as a cause of failure was tried.

mod accounts;
mod deaths;
pub(crate) mod kernel;
mod slots;
mod world;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many slots a ledger has in a model.
pub(crate) const SLOTS: usize = 3;

/// How many GPUs a ledger has in a model.
pub(crate) const GPUS: usize = 1;

/// The limit in models.
const MOST: u64 = 10;

/// What stands for descriptors.
pub(crate) fn nothing() -> &'static OwnedFd {
    static NOTHING: OnceLock<OwnedFd> = OnceLock::new();
    NOTHING.get_or_init(|| File::open("/dev/null").expect("there is /dev/null").into())
}

/// Runs a model in all interleavings with at most `preemptions` of them forced (all, if `None`).
fn explore(preemptions: Option<usize>, model: impl Fn() + Send + Sync + 'static) {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    let runs = std::sync::Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let runs = runs.load(Ordering::Relaxed);
    println!(
        "{runs} runs, {} in all",
        RUNS.fetch_add(runs, Ordering::Relaxed) + runs
    );
}
