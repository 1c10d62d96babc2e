//! What this process is to see of a GPU's memory.

use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use hipflex_ledger::{GpuSpec, Ledger, Limit, OpenError, Prospect};

use super::device::Asked;
use crate::account::Account;
use crate::devices::Devices;
use crate::process::{self, Standing, Trouble};
use crate::settings::{self, Budget, FailMode, Wish};
use crate::stderr::say_once;
use crate::which_gpu::Placed;

/// A part of a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    /// There is no limit here: what the library says.
    Whole,
    /// Nothing can be had here, since the limit cannot be kept.
    Nothing,
    /// A limit, and what counts against it, in bytes.
    Limited { limit: u64, charged: u64 },
}

impl Share {
    fn of(limit: Limit, charged: u64) -> Self {
        match limit {
            Limit::Unlimited => Self::Whole,
            Limit::Bytes(limit) => Self::Limited { limit, charged },
        }
    }

    /// The total that is shown, of `native` bytes.
    pub(crate) fn total(self, native: u64) -> u64 {
        match self {
            Self::Whole | Self::Nothing => native,
            Self::Limited { limit, .. } => limit.min(native),
        }
    }

    /// The use that is shown: the total less what HIP would say is free. `total` is the library's own total, if
    /// it tells one.
    pub(crate) fn used(self, total: Option<u64>, used: u64) -> u64 {
        match (self, total) {
            (Self::Whole, _) => used,
            (Self::Nothing, total) => total.unwrap_or(used),
            (Self::Limited { limit, charged }, None) => charged.min(limit),
            (Self::Limited { limit, charged }, Some(total)) => {
                let here = limit.saturating_sub(charged);
                let free = here.min(total.saturating_sub(used));
                self.total(total).saturating_sub(free)
            }
        }
    }
}

/// What this process is to see of the GPU that was asked for. Nothing of HIP is called for it, and no place in
/// the ledger is taken.
pub(crate) fn of(asked: &Asked) -> Share {
    match process::known_standing() {
        Some(Standing::Inert) => Share::Whole,
        Some(Standing::Refusing(_)) => Share::Nothing,
        Some(Standing::Booking(account)) => of_member(account, asked),
        None => match settings::read() {
            Wish::Inert | Wish::Limits { memory: None, .. } => Share::Whole,
            Wish::Limits {
                memory: Some(budget),
                ..
            } => {
                let budget = budget.map_err(Trouble::Configuration);
                let share = budget.and_then(|budget| of_onlooker(&budget, asked));
                share.unwrap_or_else(|trouble| closed(&trouble))
            }
        },
    }
}

fn of_member(account: &Account, asked: &Asked) -> Share {
    match asked.place(account.devices().gpus()) {
        Placed::At(gpu) => Share::of(account.limit(gpu), account.charged(gpu)),
        other => elsewhere(other, account.devices().fail_mode()),
    }
}

/// As a process would find it that joins now.
fn of_onlooker(budget: &Budget, asked: &Asked) -> Result<Share, Trouble> {
    let devices = devices(budget)?;
    let specs = devices.limits(&budget.limit)?;
    let spec = match asked.place(devices.gpus()) {
        Placed::At(gpu) => specs.get(gpu),
        other => return Ok(elsewhere(other, budget.fail_mode)),
    };
    let Some(spec) = spec else {
        return Ok(Share::Whole);
    };
    let found = prospect(budget, spec)?;
    Ok(Share::of(found.limit, found.charged))
}

fn prospect(budget: &Budget, spec: &GpuSpec) -> Result<Prospect, Trouble> {
    match Ledger::open_read_only(&budget.place.ledger_path(&budget.name)) {
        Ok(ledger) => Ok(ledger.prospect(spec)),
        Err(OpenError::Missing(_)) => Ok(Prospect::unused(spec)),
        Err(error) => Err(Trouble::Passing(error.to_string())),
    }
}

/// A GPU that HIP does not show is shown as it is; in a partition that HIP cannot tell from others nothing can be had.
fn elsewhere(place: Placed, fail_mode: FailMode) -> Share {
    match (place, fail_mode) {
        (Placed::Ambiguous, FailMode::Closed) => Share::Nothing,
        _ => Share::Whole,
    }
}

fn closed(trouble: &Trouble) -> Share {
    let (Trouble::Configuration(why) | Trouble::Passing(why)) = trouble;
    match settings::fail_mode() {
        FailMode::Open => Share::Whole,
        FailMode::Closed => {
            say_once!(
                "{why}. HIP allocations would be refused here, so no memory is shown as free \
                 (FH_FAIL_MODE=open would let programs run without a limit)"
            );
            Share::Nothing
        }
    }
}

/// The GPUs of this machine, found once. Leaked: they stay the same in forked children.
fn devices(budget: &Budget) -> Result<&'static Devices, Trouble> {
    static DEVICES: AtomicPtr<Devices> = AtomicPtr::new(ptr::null_mut());
    // SAFETY: null or a leaked box that nobody changes.
    if let Some(known) = unsafe { DEVICES.load(Ordering::Acquire).as_ref() } {
        return Ok(known);
    }
    let found = Box::into_raw(Box::new(Devices::find(budget.fail_mode)?));
    let published =
        DEVICES.compare_exchange(ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire);
    let known = match published {
        Ok(_) => found,
        Err(known) => {
            // SAFETY: it came from `into_raw` above and was not published.
            drop(unsafe { Box::from_raw(found) });
            known
        }
    };
    // SAFETY: as above.
    Ok(unsafe { &*known })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn limited(limit: u64, charged: u64) -> Share {
        Share::Limited {
            limit: limit * GIB,
            charged: charged * GIB,
        }
    }

    /// Total, use, of a board with 64 GiB of which `used` are in use.
    fn shown(share: Share, used: u64) -> (u64, u64) {
        let board = 64 * GIB;
        let used = share.used(Some(board), used * GIB);
        (share.total(board) / GIB, used / GIB)
    }

    #[test]
    fn the_limit_and_what_counts_against_it() {
        assert_eq!(shown(limited(4, 0), 1), (4, 0));
        assert_eq!(shown(limited(4, 3), 3), (4, 3));
        assert_eq!(shown(limited(4, 9), 9), (4, 4), "never above the total");
        assert_eq!(shown(limited(128, 3), 1), (64, 1), "the board is less");
        assert_eq!(shown(limited(65, 3), 1), (64, 2));
        assert_eq!(shown(Share::Whole, 7), (64, 7));
        assert_eq!(shown(Share::Nothing, 7), (64, 64));
    }

    #[test]
    fn what_others_use_of_the_board_is_not_free() {
        assert_eq!(shown(limited(4, 1), 62), (4, 2));
        assert_eq!(shown(limited(4, 1), 64), (4, 4));
        assert_eq!(shown(limited(4, 1), 99), (4, 4));
    }

    #[test]
    fn a_library_that_tells_no_total_has_the_use_of_the_account() {
        assert_eq!(limited(4, 3).used(None, 9 * GIB), 3 * GIB);
        assert_eq!(limited(4, 5).used(None, 0), 4 * GIB);
        assert_eq!(Share::Nothing.used(None, 9), 9);
    }

    /// The libraries call each other, and an outer call gets what an inner one was told.
    #[test]
    fn what_was_adapted_stays_as_it_is() {
        for share in [
            limited(4, 3),
            limited(4, 9),
            limited(128, 3),
            Share::Nothing,
        ] {
            for used in [0, 1, 3, 62, 64] {
                let (total, used) = (
                    share.total(64 * GIB),
                    share.used(Some(64 * GIB), used * GIB),
                );
                assert_eq!(share.total(total), total);
                assert_eq!(share.used(Some(total), used), used);
                assert!(used <= total);
            }
        }
    }

    #[test]
    fn only_a_partition_that_cannot_be_told_from_others_is_closed() {
        assert_eq!(
            elsewhere(Placed::Ambiguous, FailMode::Closed),
            Share::Nothing
        );
        assert_eq!(elsewhere(Placed::Ambiguous, FailMode::Open), Share::Whole);
        assert_eq!(elsewhere(Placed::Nowhere, FailMode::Closed), Share::Whole);
    }
}
