//! What is looked at when a call has succeeded that neither allocates nor frees by itself.

use crate::account::Account;
use crate::allocation::Plan;
use crate::entries::{Verdict, belt};
use crate::guard::Thread;
use crate::process;

/// There is something to look at if anything was counted. (Such a call does not begin the counting.)
pub(crate) fn before(thread: &Thread) -> Verdict {
    match process::account() {
        Some(account) => {
            thread.begin(Plan::Look(account));
            Verdict::Planned
        }
        None => Verdict::Native,
    }
}

/// `hipMemImportFromShareableHandle`: the memory is charged to who exported it, and the driver does not count it
/// here. Its handle must not be taken for one that had the same value.
///
/// # Safety
/// The runtime has returned success from a call with this place for its result, which is not null then.
pub(crate) unsafe fn imported(account: &Account, handle: *const usize) {
    // SAFETY: see above.
    let handle = unsafe { handle.read_unaligned() };
    belt(|| account.physical(|physical, tell| physical.forget_name(handle, tell)));
}

/// Pools may have given back what they had kept: a stream has come to its end, a pool was trimmed or destroyed. A
/// native call.
pub(crate) fn settle_pools(account: &Account) {
    if account.pools_keep() {
        account.settle_all_pools();
    }
}

/// A graph has a node that allocates, or may have one.
pub(crate) fn graphs_allocate(account: &Account) {
    account.graphs_allocate();
}

/// A graph was launched.
pub(crate) fn graph_was_launched(account: &Account) {
    account.graph_was_launched();
}
