//! How this process stands: without a limit, with an account, or refusing.
//!
//! Found out at the first HIP call that matters; other threads wait for it meanwhile. No HIP function is
//! called while it is found out, and the dynamic linker is not asked anything.
//!
//! A forked child inherits a copy of all this and must not use it: the account is its parent's and the
//! locks may be held by threads that the child does not have. It starts anew, at its own first call; what it
//! inherited is left alone.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::io;
use std::sync::OnceLock;

use hipflex_ledger::ForkGuard;

use crate::account::Account;
use crate::entries::belt;
use crate::log;
use crate::settings::{self, FailMode, Wish};
use crate::stderr::say;

/// How a process stands.
pub(crate) enum Standing {
    /// No limit: every call goes to the runtime as it is.
    Inert,
    /// There should be a limit, and it cannot be kept: allocations are refused.
    Refusing,
    /// Allocations are booked.
    Booking(Box<Account>),
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
        Some(standing) => standing,
        None => find_out(process),
    }
}

/// The account, if this process has one already.
#[inline]
pub(crate) fn account() -> Option<&'static Account> {
    match current()?.standing.get()? {
        Standing::Booking(account) => Some(account),
        Standing::Inert | Standing::Refusing => None,
    }
}

/// Lets the next call begin anew, if `account` still is this process's: it has left the ledger.
pub(crate) fn begin_anew(account: &Account) {
    let present = PROCESS.load(Ordering::Acquire);
    // SAFETY: null or a leaked box.
    let standing = unsafe { present.as_ref() }.and_then(|process| process.standing.get());
    if let Some(Standing::Booking(own)) = standing
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
    process
        .standing
        .get_or_init(|| belt(|| establish(&process.guard)).unwrap_or(Standing::Refusing))
}

fn establish(guard: &io::Result<ForkGuard>) -> Standing {
    log::start();
    let budget = match settings::read() {
        Wish::Inert => return Standing::Inert,
        Wish::Limit(budget) => budget,
    };
    if let Err(error) = guard {
        return fail(format_args!(
            "a fork cannot be noticed on this kernel ({error}); Linux 4.14 or later is needed"
        ));
    }
    match budget.and_then(Account::open) {
        Ok(account) => Standing::Booking(Box::new(account)),
        Err(error) => fail(format_args!("{error}")),
    }
}

/// Tells the user why no limit can be kept, and what follows.
fn fail(why: core::fmt::Arguments<'_>) -> Standing {
    match settings::fail_mode() {
        FailMode::Closed => {
            say!(
                "{why}. Until that is mended, HIP allocations of this process are refused \
                 (FH_FAIL_MODE=open would let it run without a limit)"
            );
            Standing::Refusing
        }
        FailMode::Open => {
            say!("{why}. This process runs WITHOUT a limit, because FH_FAIL_MODE=open");
            Standing::Inert
        }
    }
}
