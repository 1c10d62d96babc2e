//! The steps of `hipDeviceReset`: the books follow what it frees.
//!
//! Seen in 5.7.1, 6.4.3 and 7.2.4: linear memory, pools with all that is in them, and physical memory that is not
//! mapped. Arrays and managed memory stay and are freed by their own functions; what is mapped stays until the
//! process ends. 5.2.3 forgets its pointers and the driver keeps everything.

use core::ffi::c_int;

use crate::account::{Account, Place, Reset};
use crate::allocation::Plan;
use crate::entries::{Verdict, belt};
use crate::guard::Thread;
use crate::helpers;
use crate::hip;
use crate::process;

/// The first release whose reset is known to free anything (5.2 does not; those between were not seen).
const FREES: c_int = 507;

/// A reset under way.
pub(crate) struct ResetCall {
    account: &'static Account,
    reset: Reset,
}

impl ResetCall {
    pub(crate) fn account(&self) -> &'static Account {
        self.account
    }

    /// The call never came back from the runtime. What it was to free may be there, and is known until its
    /// address is given again.
    pub(crate) fn abandon(self) {
        self.account.end_reset(self.reset, false);
    }
}

/// Takes all that will be freed on the current device out of the books. A native call.
pub(crate) fn before(thread: &Thread) -> Verdict {
    let Some(account) = process::account() else {
        return Verdict::Native;
    };
    if !helpers::release().is_ok_and(|release| release >= FREES) {
        return Verdict::Native;
    }
    let Place::Gpu(gpu) = account.place(helpers::current_device()) else {
        return Verdict::Native;
    };
    match belt(|| account.begin_reset(gpu)) {
        Some(reset) => {
            thread.begin(Plan::Reset(ResetCall { account, reset }));
            Verdict::Planned
        }
        None => Verdict::Native,
    }
}

/// The runtime has answered.
pub(crate) fn after(plan: Plan, error: c_int) -> c_int {
    if let Plan::Reset(ResetCall { account, reset }) = plan {
        belt(|| account.end_reset(reset, error == hip::SUCCESS));
    }
    error
}
