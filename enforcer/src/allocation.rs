//! The steps of a call that allocates or frees: reserve, native call, book or cancel.

use core::ffi::c_int;

use hipflex_ledger::Reservation;

use crate::account::{Account, NotReserved};
use crate::entries::{Api, Verdict};
use crate::hip;
use crate::live::Block;
use crate::process::{self, Standing};

/// An allocation under way.
pub(crate) struct Allocation {
    account: &'static Account,
    reservation: Reservation,
}

/// Reserves `bytes` on the current device. A request that the runtime must turn down (no place for the
/// result) or that takes nothing (0 bytes) is left to it.
pub(crate) fn before(api: Api, has_place: bool, bytes: usize) -> Verdict<Allocation> {
    if !has_place || bytes == 0 {
        return Verdict::Native;
    }
    // A membership that ended under our feet is renewed once.
    for _ in 0..2 {
        let account = match process::standing() {
            Standing::Inert => return Verdict::Native,
            Standing::Refusing => return Verdict::Refused,
            Standing::Booking(account) => account,
        };
        match account.reserve_on_current_device(api, bytes as u64) {
            Ok(reservation) => {
                return Verdict::Planned(Allocation {
                    account,
                    reservation,
                });
            }
            Err(NotReserved::Refused) => return Verdict::Refused,
            Err(NotReserved::NotAMember) => process::begin_anew(account),
        }
    }
    Verdict::Refused
}

/// Books what was allocated, or gives the reservation back.
///
/// # Safety
/// `out` is the place where the runtime wrote the pointer if `error` is success; not null then.
pub(crate) unsafe fn after(allocation: Allocation, error: c_int, out: *const usize) {
    let Allocation {
        account,
        reservation,
    } = allocation;
    let pointer = if error == hip::SUCCESS {
        // SAFETY: see above.
        unsafe { out.read_unaligned() }
    } else {
        0
    };
    if pointer == 0 {
        account.cancel(reservation);
    } else {
        account.book(reservation, pointer);
    }
}

/// A free under way.
pub(crate) struct Free {
    account: &'static Account,
    block: Block,
}

/// Takes the block out of the books. Pointers that are not ours are left to the runtime.
pub(crate) fn before_free(pointer: usize) -> Verdict<Free> {
    let planned = || {
        let account = process::account().filter(|_| pointer != 0)?;
        let block = account.take(pointer)?;
        Some(Verdict::Planned(Free { account, block }))
    };
    planned().unwrap_or(Verdict::Native)
}

/// Gives the block's bytes back, or puts the block in the books again.
pub(crate) fn after_free(free: Free, error: c_int) {
    if error == hip::SUCCESS {
        free.account.freed(free.block);
    } else {
        free.account.not_freed(free.block);
    }
}
