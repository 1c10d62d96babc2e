//! The steps of a call that allocates or frees: reserve, native call, book or cancel.

use core::ffi::c_int;
use core::ptr;

use hipflex_ledger::Reservation;

use crate::account::{Account, NotReserved};
use crate::entries::{Api, Verdict, belt};
use crate::guard::Thread;
use crate::hip;
use crate::live::Block;
use crate::process::{self, Standing};
use crate::runtime;

/// What a call has to finish when the runtime's function has returned.
pub(crate) enum Plan {
    /// Book what was reserved, or give it back.
    Allocation(Allocation),
    /// Give a block's bytes back, or put it in the books again.
    Free(Free),
    /// Adapt an answer.
    Query(&'static Standing),
}

/// An allocation under way.
pub(crate) struct Allocation {
    account: &'static Account,
    reservation: Reservation,
}

/// A free under way. The block is out of the books.
pub(crate) struct Free {
    account: &'static Account,
    block: Block,
}

impl Plan {
    /// Puts right what a call left that never came back from the runtime: nothing is known of an
    /// allocation, so it is not there; a block that was to be freed is in the books again, until it is freed
    /// or its address given anew.
    pub(crate) fn abandon(self) {
        let own = |account| process::account().is_some_and(|own| ptr::eq(own, account));
        match self {
            Self::Allocation(lost) if own(lost.account) => lost.account.cancel(lost.reservation),
            Self::Free(lost) if own(lost.account) => lost.account.not_freed(lost.block),
            // Those of the process that this one was forked from; and queries hold nothing.
            Self::Allocation(_) | Self::Free(_) | Self::Query(_) => {}
        }
    }
}

/// Reserves `bytes` on the current device. A request that the runtime must turn down (no place for the
/// result) or that takes nothing (0 bytes) is left to it.
pub(crate) fn before(thread: &Thread, api: Api, has_place: bool, bytes: usize) -> Verdict {
    if !has_place || bytes == 0 {
        return Verdict::Native;
    }
    // A membership that ended under our feet is renewed once.
    for _ in 0..2 {
        let account = match process::standing() {
            Standing::Inert => return Verdict::Native,
            Standing::Refusing(_) => match process::try_again() {
                Standing::Inert => return Verdict::Native,
                Standing::Refusing(_) => return Verdict::Refused,
                Standing::Booking(account) => account,
            },
            Standing::Booking(account) => account,
        };
        let device = runtime::current_device();
        let reserve = || {
            account
                .reserve(api, device, bytes as u64)
                .map(|reservation| {
                    thread.begin(Plan::Allocation(Allocation {
                        account,
                        reservation,
                    }));
                })
        };
        return match belt(reserve) {
            Some(Ok(())) => Verdict::Planned,
            Some(Err(NotReserved::Refused)) => Verdict::Refused,
            None | Some(Err(NotReserved::Uncounted)) => Verdict::Native,
            Some(Err(NotReserved::NotAMember)) => {
                process::begin_anew(account);
                continue;
            }
        };
    }
    Verdict::Refused
}

/// Books what was allocated, or gives the reservation back.
///
/// # Safety
/// `out` is the place where the runtime wrote the pointer if `error` is success; not null then.
pub(crate) unsafe fn after(plan: Plan, error: c_int, out: *const usize) {
    let Plan::Allocation(Allocation {
        account,
        reservation,
    }) = plan
    else {
        return;
    };
    let pointer = if error == hip::SUCCESS {
        // SAFETY: see above.
        unsafe { out.read_unaligned() }
    } else {
        0
    };
    belt(|| match pointer {
        0 => account.cancel(reservation),
        pointer => account.book(reservation, pointer),
    });
}

/// Takes the block out of the books. Pointers that are not ours are left to the runtime.
pub(crate) fn before_free(thread: &Thread, pointer: usize) -> Verdict {
    let Some(account) = process::account().filter(|_| pointer != 0) else {
        return Verdict::Native;
    };
    let take = || {
        let block = account.take(pointer)?;
        thread.begin(Plan::Free(Free { account, block }));
        Some(())
    };
    match belt(take).flatten() {
        Some(()) => Verdict::Planned,
        None => Verdict::Native,
    }
}

/// Gives the block's bytes back, or puts the block in the books again.
pub(crate) fn after_free(plan: Plan, error: c_int) {
    let Plan::Free(Free { account, block }) = plan else {
        return;
    };
    belt(|| match error {
        hip::SUCCESS => account.freed(block),
        _ => account.not_freed(block),
    });
}
