//! How this process stands: without a limit, with an account, or refusing.
//!
//! Found out at the first HIP call that matters; other threads wait for it meanwhile. No HIP function is
//! called while it is found out, and the dynamic linker is not asked anything.
//!
//! A forked child inherits a copy of all this and must not use it: the account is its parent's and the
//! locks may be held by threads that the child does not have. It starts anew, at its own first call; what it
//! inherited is left alone.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::io;
use std::sync::{Mutex, OnceLock, PoisonError};

use hipflex_ledger::ForkGuard;

use crate::account::Account;
use crate::below;
use crate::clock;
use crate::compute_units;
use crate::entries::belt;
use crate::guard;
use crate::log;
use crate::settings::{self, FailMode, Wish};
use crate::signals::{uncancelled, without_write_signals};
use crate::stderr::say;

/// How long allocations are refused before one of them tries again whether the limit can be kept, in
/// milliseconds.
const PATIENCE: u64 = 1_000;

/// How a process stands.
pub(crate) enum Standing {
    /// No limit on memory: no call that allocates or frees is of interest.
    Inert,
    /// There should be a limit, and it cannot be kept: allocations are refused.
    Refusing(Refusal),
    /// Allocations are booked.
    Booking(Box<Account>),
}

/// A limit that cannot be kept, for now or for good.
#[derive(Default)]
pub(crate) struct Refusal {
    /// When to try again, by [`clock::coarse_ms`]; the largest number: not at all, or not by another thread.
    next: AtomicU64,
    /// Why, as it was told.
    told: Mutex<String>,
    /// How the process stands since that is over. Boxed: a standing in a standing.
    mended: OnceLock<Box<Standing>>,
}

/// Why a limit cannot be kept.
pub(crate) enum Trouble {
    /// What was asked for cannot be understood or does not fit this machine: so it stays.
    Configuration(String),
    /// It may pass, or be mended, while the program runs.
    Passing(String),
}

/// What belongs to one process and not to its forked children.
struct Process {
    /// An error on a kernel that cannot wipe memory in a child: no account can be kept there.
    guard: io::Result<ForkGuard>,
    standing: OnceLock<Standing>,
}

/// Null until the first call. Never freed: other threads may look at it.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(ptr::null_mut());

/// How this process stands. Waits if another thread is finding that out.
#[inline]
pub(crate) fn standing() -> &'static Standing {
    let process = current().unwrap_or_else(begin);
    match process.standing.get() {
        Some(standing) => standing.now(),
        None => find_out(process),
    }
}

/// Whether this process is known to have no limit at all: every call goes to the runtime as it is.
#[inline]
pub(crate) fn is_inert() -> bool {
    let standing = current().and_then(|process| process.standing.get());
    matches!(standing, Some(Standing::Inert)) && !compute_units::are_limited()
}

/// How this process stands, if that was found out already.
pub(crate) fn known_standing() -> Option<&'static Standing> {
    Some(current()?.standing.get()?.now())
}

/// The account, if this process has one already.
#[inline]
pub(crate) fn account() -> Option<&'static Account> {
    match current()?.standing.get()?.now() {
        Standing::Booking(account) => Some(account),
        Standing::Inert | Standing::Refusing(_) => None,
    }
}

impl Standing {
    /// This, or what came after it.
    #[inline]
    fn now(&self) -> &Self {
        match self {
            Self::Refusing(refusal) => refusal.mended.get().map_or(self, |mended| mended),
            Self::Inert | Self::Booking(_) => self,
        }
    }
}

/// How this process stands, which refused allocations when it was last looked at: if that is some time ago
/// and may have passed, one of the threads that ask finds out anew. The others do not wait for it.
#[cold]
pub(crate) fn try_again() -> &'static Standing {
    let process = current().unwrap_or_else(begin);
    let standing = standing();
    let Standing::Refusing(refusal) = standing else {
        return standing;
    };
    let next = refusal.next.load(Ordering::Relaxed);
    if clock::coarse_ms() < next
        || refusal
            .next
            .compare_exchange(next, u64::MAX, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return standing;
    }
    match set_up(|| establish(&process.guard)) {
        None | Some(Err(Trouble::Configuration(_))) => {}
        Some(Err(Trouble::Passing(why))) => {
            let mut told = refusal.told.lock().unwrap_or_else(PoisonError::into_inner);
            if *told != why {
                say_closed_for_now(&why);
                *told = why;
            }
            refusal.next.store(later(), Ordering::Relaxed);
        }
        Some(Ok(mended)) => {
            if let Standing::Booking(_) = mended {
                say!(
                    "the limit can be kept now: HIP allocations of this process are counted from here on"
                );
            }
            // Only one thread comes here at a time, and only once.
            let _ = refusal.mended.set(Box::new(mended));
        }
    }
    standing.now()
}

fn later() -> u64 {
    clock::coarse_ms().saturating_add(PATIENCE)
}

/// Lets the next call begin anew, if `account` still is this process's: it has left the ledger.
pub(crate) fn begin_anew(account: &Account) {
    let present = PROCESS.load(Ordering::Acquire);
    // SAFETY: null or a leaked box.
    let standing = unsafe { present.as_ref() }.and_then(|process| process.standing.get());
    if let Some(Standing::Booking(own)) = standing.map(Standing::now)
        && ptr::eq(&raw const **own, account)
    {
        // If that fails, another thread was first.
        let _ = PROCESS.compare_exchange(
            present,
            ptr::null_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
    }
}

/// Releases this process's place in the ledger, if it holds nothing. Calls after that begin anew.
pub(crate) fn leave() {
    if let Some(account) = account()
        && account.leave()
    {
        begin_anew(account);
    }
}

#[inline]
fn current() -> Option<&'static Process> {
    // SAFETY: null or a leaked box.
    let process = unsafe { PROCESS.load(Ordering::Acquire).as_ref() }?;
    match &process.guard {
        Ok(guard) if guard.in_forked_child() => None,
        _ => Some(process),
    }
}

/// Starts this process, unless another thread has meanwhile.
#[cold]
fn begin() -> &'static Process {
    let process = Box::into_raw(Box::new(Process {
        guard: ForkGuard::new(),
        standing: OnceLock::new(),
    }));
    loop {
        // Null, or what a forked child inherited, or what another thread began meanwhile.
        let present = PROCESS.load(Ordering::Acquire);
        if let Some(current) = current() {
            // SAFETY: it came from `into_raw` above and was not published.
            drop(unsafe { Box::from_raw(process) });
            return current;
        }
        let published =
            PROCESS.compare_exchange(present, process, Ordering::AcqRel, Ordering::Acquire);
        if published.is_ok() {
            // SAFETY: leaked above; it is never freed once it is published.
            return unsafe { &*process };
        }
    }
}

#[cold]
fn find_out(process: &'static Process) -> &'static Standing {
    let find_out = || {
        process.standing.get_or_init(|| {
            belt(|| first_standing(establish(&process.guard)))
                .unwrap_or_else(|| Standing::Refusing(Refusal::final_one()))
        })
    };
    // Around the waiting for another thread as well.
    let standing = uncancelled(|| guard::setting_up(|| without_write_signals(find_out))).now();
    if !matches!(standing, Standing::Inert) {
        // Those that were known before there was a limit.
        set_up(below::install_all);
    }
    standing
}

/// Runs a step that sets this process up: without being cancelled, without a signal of a write (making a
/// ledger makes a file grow), and held by the belt.
fn set_up<T>(step: impl FnOnce() -> T) -> Option<T> {
    uncancelled(|| guard::setting_up(|| without_write_signals(|| belt(step))))
}

fn establish(guard: &io::Result<ForkGuard>) -> Result<Standing, Trouble> {
    log::start();
    let (memory, compute_units) = match settings::read() {
        Wish::Inert => return Ok(Standing::Inert),
        Wish::Limits {
            memory,
            compute_units,
        } => (memory, compute_units),
    };
    if let Some(range) = compute_units {
        compute_units::limit(range)?;
    }
    let budget = match memory {
        None => return Ok(Standing::Inert),
        Some(budget) => budget.map_err(Trouble::Configuration)?,
    };
    if let Err(error) = guard {
        return Err(if error.raw_os_error() == Some(libc::ENOMEM) {
            Trouble::Passing(format!(
                "there is no address space for a page that tells forks ({error}): raise `ulimit -v`"
            ))
        } else {
            Trouble::Configuration(format!(
                "a fork cannot be noticed on this kernel ({error}); Linux 4.14 or later is needed"
            ))
        });
    }
    Ok(Standing::Booking(Box::new(Account::open(budget)?)))
}

/// What follows from the first attempt. The user is told why no limit can be kept.
fn first_standing(found: Result<Standing, Trouble>) -> Standing {
    let trouble = match found {
        Ok(standing) => return standing,
        Err(trouble) => trouble,
    };
    let (Trouble::Configuration(why) | Trouble::Passing(why)) = &trouble;
    if settings::fail_mode() == FailMode::Open {
        say!("{why}. This process runs WITHOUT a limit, because FH_FAIL_MODE=open");
        return Standing::Inert;
    }
    match trouble {
        Trouble::Configuration(why) => {
            say!(
                "{why}. HIP allocations of this process are refused: mend that and restart the program \
                 (FH_FAIL_MODE=open would let it run without a limit)"
            );
            Standing::Refusing(Refusal::final_one())
        }
        Trouble::Passing(why) => {
            say_closed_for_now(&why);
            Standing::Refusing(Refusal {
                next: AtomicU64::new(later()),
                told: Mutex::new(why),
                mended: OnceLock::new(),
            })
        }
    }
}

impl Refusal {
    /// One that nothing is expected to mend.
    fn final_one() -> Self {
        Self {
            next: AtomicU64::new(u64::MAX),
            ..Self::default()
        }
    }
}

fn say_closed_for_now(why: &str) {
    say!(
        "{why}. Until that is mended, which is tried again every second at most, HIP allocations of this \
         process are refused (FH_FAIL_MODE=open would let it run without a limit)"
    );
}
