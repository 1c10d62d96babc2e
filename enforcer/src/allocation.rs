//! The steps of a call that allocates or frees: reserve, native call, book or cancel.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use crate::account::{Account, NotReserved, Reserved};
use crate::entries::{Api, Verdict, belt};
use crate::guard::{self, Thread};
use crate::helpers;
use crate::hip;
use crate::home::{self, Expected, Found, Proof};
use crate::live::{Block, Class, Sort};
use crate::mapping::MappingCall;
use crate::process::{self, Standing};
use crate::request::Request;
use crate::reset::ResetCall;
use crate::sizes;
use crate::undo::Undo;

/// What a call has to finish when the runtime's function has returned.
pub(crate) enum Plan {
    /// Book what was reserved, or give it back.
    Allocation(Allocation),
    /// Give a block's bytes back, or put it in the books again.
    Free(Free),
    /// Let the books follow what a call has made of physical memory.
    Mapping(MappingCall),
    /// Give the bytes of all that a reset frees back, or put it in the books again.
    Reset(ResetCall),
    /// Look at what a call has made.
    Look(&'static Account),
    /// Nothing: for tests of what is around the steps.
    #[cfg(test)]
    Nothing,
}

/// An allocation under way.
pub(crate) struct Allocation {
    account: &'static Account,
    reserved: Reserved,
    /// Something of it is only known when the runtime has answered: [`Unsettled`], kept beside this.
    unsettled: bool,
}

/// What is not known of an allocation before the runtime has answered, and how to take it back should it turn
/// out to be too much.
#[derive(Clone, Copy)]
pub(crate) struct Unsettled {
    /// On which device it is.
    proof: Proof,
    bytes: u64,
    /// Where the runtime writes the length of a row, and how many rows there are.
    rows: Option<(NonNull<usize>, u64)>,
    undo: Undo,
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
            Self::Allocation(lost) if own(lost.account) => {
                lost.account.cancel(lost.reserved);
                if lost.unsettled {
                    lost.account.settled();
                }
            }
            Self::Free(lost) if own(lost.account) => lost.account.not_freed(lost.block),
            Self::Mapping(lost) if own(lost.account()) => lost.abandon(),
            Self::Reset(lost) if own(lost.account()) => lost.abandon(),
            // Those of the process that this one was forked from; and a look holds nothing.
            Self::Allocation(_)
            | Self::Free(_)
            | Self::Mapping(_)
            | Self::Reset(_)
            | Self::Look(_) => {}
            #[cfg(test)]
            Self::Nothing => {}
        }
    }
}

/// Reserves what is asked for. A request that the runtime must turn down (no place for the
/// result) or that takes nothing (0 bytes) is left to it.
///
/// # Safety
/// `out` is null or where the runtime will write the result, and `request` is that of the call.
#[inline]
pub(crate) unsafe fn before(
    thread: &Thread,
    api: Api,
    sort: Sort,
    out: *mut usize,
    request: &Request,
) -> Verdict {
    if out.is_null() || request.bytes == 0 {
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
        if request.stream.is_some_and(home::is_for_later) {
            account.graphs_allocate();
            return Verdict::Native;
        }
        let Expected { device, proof } = home::expect(account, request.home);
        let bytes = match proof {
            // Perhaps it will be on no device.
            Proof::Growth(_) => 0,
            // It is not known yet on which. What none has room for is refused before the runtime grants it.
            Proof::PointerOnly if account.may_fit(request.bytes) => 0,
            _ => request.bytes,
        };
        let unsettled = if matches!(proof, Proof::Given) && request.pitch.is_none() {
            None
        } else {
            Some(Unsettled {
                proof,
                bytes: request.bytes,
                rows: request.pitch.map(|pitch| (pitch, request.rows)),
                // SAFETY: the runtime will write there, so it can be read.
                undo: unsafe { Undo::new(sort, out, request) },
            })
        };
        let reserve = || {
            account
                .reserve(api, device, bytes, request.class)
                .map(|reserved| {
                    if let Some(unsettled) = unsettled {
                        account.begin_unsettled();
                        thread.keep(unsettled);
                    }
                    thread.begin(Plan::Allocation(Allocation {
                        account,
                        reserved,
                        unsettled: unsettled.is_some(),
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

/// Books what was allocated, or gives the reservation back. What the program gets: the runtime's result, or an
/// error if what the runtime made of the request exceeds the limit.
///
/// # Safety
/// `out` is the place where the runtime wrote the name if `error` is success; not null then.
#[inline]
pub(crate) unsafe fn after(
    api: Api,
    plan: Plan,
    error: c_int,
    sort: Sort,
    out: *const usize,
) -> c_int {
    let Plan::Allocation(Allocation {
        account,
        reserved,
        unsettled,
    }) = plan
    else {
        return error;
    };
    let name = if error == hip::SUCCESS {
        // SAFETY: see above.
        unsafe { out.read_unaligned() }
    } else {
        0
    };
    if unsettled {
        // SAFETY: it stays here.
        let unsettled = unsafe { guard::this_thread() }.take_kept();
        let result = match unsettled {
            // SAFETY: see above.
            Some(unsettled) if name != 0 => unsafe {
                settle(api, account, reserved, unsettled, sort, name)
            },
            _ => {
                belt(|| account.cancel(reserved));
                error
            }
        };
        account.settled();
        return result;
    }
    belt(|| match name {
        0 => account.cancel(reserved),
        name => account.book(reserved, sort, name),
    });
    error
}

/// Books an allocation by what the runtime has made of it. If there is no room for that, it is taken back.
///
/// # Safety
/// The runtime has just granted the allocation of this name, and `unsettled` is that of the call.
#[cold]
unsafe fn settle(
    api: Api,
    account: &'static Account,
    mut reserved: Reserved,
    unsettled: Unsettled,
    sort: Sort,
    name: usize,
) -> c_int {
    let bytes = unsettled.rows.map_or(unsettled.bytes, |(pitch, rows)| {
        // SAFETY: the runtime has written it. It need not be aligned.
        sizes::product(unsafe { pitch.read_unaligned() } as u64, rows)
    });
    let device = match home::found(account, unsettled.proof, name, bytes) {
        Found::AsExpected => None,
        Found::On(device) => Some(device),
        Found::OnNone => {
            belt(|| {
                account.cancel(reserved);
                account.physical(|physical, tell| physical.forget_name(name, tell));
            });
            return hip::SUCCESS;
        }
    };
    let room = belt(|| account.fit(api, &mut reserved, device, bytes)).unwrap_or(Ok(()));
    match room {
        // A membership that ended meanwhile has no books to keep right.
        Ok(()) | Err(NotReserved::NotAMember) => {
            belt(|| account.book(reserved, sort, name));
        }
        Err(NotReserved::Uncounted) => {
            belt(|| account.cancel(reserved));
        }
        Err(NotReserved::Refused) => {
            // SAFETY: see above.
            if unsafe { unsettled.undo.run(name) } {
                belt(|| account.cancel(reserved));
                return crate::impossible::error(api);
            }
            // It could not be taken back: it is there, and counts.
            belt(|| account.book_beyond(reserved, sort, name, bytes));
        }
    }
    hip::SUCCESS
}

/// Takes the block out of the books. What is not in them is left to the runtime, and so is what is only
/// recorded on a stream: that frees nothing now.
pub(crate) fn before_free(
    thread: &Thread,
    sort: Sort,
    name: usize,
    stream: Option<*mut c_void>,
) -> Verdict {
    let Some(account) = process::account().filter(|_| name != 0) else {
        return Verdict::Native;
    };
    if stream.is_some_and(helpers::is_capturing) {
        return Verdict::Native;
    }
    let take = || {
        let block = account.take(sort, name)?;
        thread.begin(Plan::Free(Free { account, block }));
        Some(())
    };
    match belt(take).flatten() {
        Some(()) => Verdict::Planned,
        None => Verdict::Native,
    }
}

/// Gives the block's bytes back, or puts the block in the books again. A native call for a block of a pool.
pub(crate) fn after_free(plan: Plan, error: c_int) -> c_int {
    if let Plan::Free(Free { account, block }) = plan {
        belt(|| match error {
            hip::SUCCESS => account.freed(block),
            _ => account.not_freed(block),
        });
        if matches!(block.class, Class::Pooled | Class::OwnPool) {
            // The pool may have given it back at once.
            account.settle_pools_of(block.gpu as usize);
        }
    }
    error
}
