//! The steps of calls about physical memory that is there already: mapping, unmapping, releasing, importing.
//!
//! The books follow [`crate::physical`], which says what runtimes do. None of these calls is ever refused: they
//! take nothing.

use core::ffi::c_int;

use crate::account::Account;
use crate::allocation::Plan;
use crate::entries::{Verdict, belt};
use crate::guard::Thread;
use crate::helpers;
use crate::hip;
use crate::physical::{Change, Physical, Ticket};
use crate::process;

/// The first release that unmaps several mappings in one call (seen in 7.2.4; 6.4.3 does nothing then).
const UNMAPS_SEVERAL: c_int = 7;

/// A call under way.
pub(crate) struct MappingCall {
    account: &'static Account,
    ticket: Ticket,
}

impl MappingCall {
    pub(crate) fn account(&self) -> &'static Account {
        self.account
    }

    /// The call never came back from the runtime. What it was to map may be mapped, and what it was to take
    /// away may be there: so they count.
    pub(crate) fn abandon(self) {
        let done = self.ticket.is_mapping();
        self.account.end_physical(self.ticket, done);
    }
}

/// `hipMemMap`.
pub(crate) fn before_map(thread: &Thread, at: usize, bytes: usize, handle: usize) -> Verdict {
    begin(thread, |physical, _| {
        physical.begin_map(at, bytes as u64, handle)
    })
}

/// `hipMemUnmap`. A native call.
pub(crate) fn before_unmap(thread: &Thread, at: usize, bytes: usize) -> Verdict {
    if process::account().is_none() {
        return Verdict::Native;
    }
    let several = helpers::is_since(UNMAPS_SEVERAL);
    begin(thread, |physical, tell| {
        physical.begin_unmap(at, bytes as u64, several, tell)
    })
}

/// `hipMemRelease`.
pub(crate) fn before_release(thread: &Thread, handle: usize) -> Verdict {
    begin(thread, |physical, tell| {
        physical.begin_release(handle, tell)
    })
}

fn begin(
    thread: &Thread,
    step: impl FnOnce(&mut Physical, &mut dyn FnMut(Change)) -> Option<Ticket>,
) -> Verdict {
    let Some(account) = process::account() else {
        return Verdict::Native;
    };
    match belt(|| account.physical(step)).flatten() {
        Some(ticket) => {
            thread.begin(Plan::Mapping(MappingCall { account, ticket }));
            Verdict::Planned
        }
        None => Verdict::Native,
    }
}

/// The runtime has answered.
pub(crate) fn after(plan: Plan, error: c_int) -> c_int {
    if let Plan::Mapping(MappingCall { account, ticket }) = plan {
        belt(|| account.end_physical(ticket, error == hip::SUCCESS));
    }
    error
}
