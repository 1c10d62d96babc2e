//! Which device a request is charged to: the one that the runtime uses.
//!
//! For most calls that is the current one. Others name a stream, a pool or a location, and what a release makes
//! of that is told by itself only afterwards. So a request is reserved where it is expected, and looked for once it
//! has been granted.

use core::ffi::{c_int, c_void};

use crate::account::Account;
use crate::helpers;
use crate::request::Home;

/// The first release that allocates physical memory on the current device, whatever location it was asked for
/// (seen in 7.2.4; 6.4.3 honours the location).
const IGNORES_LOCATION: c_int = 7;

/// Where a request is expected.
#[derive(Clone, Copy)]
pub(crate) struct Expected {
    /// The device, or what the runtime said instead of one.
    pub(crate) device: Result<c_int, c_int>,
    /// How to find out afterwards whether it was that one.
    pub(crate) proof: Proof,
}

/// How to find out on which device an allocation is.
#[derive(Clone, Copy)]
pub(crate) enum Proof {
    /// There is nothing to find out.
    Given,
    /// The runtime knows the device of a pointer.
    Pointer,
    /// By the driver's counters: it is one of two.
    Counters(Counters),
}

/// What the driver had given this process on two devices before an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    expected: c_int,
    other: c_int,
    given: [u64; 2],
}

/// Where a request is expected. A native call.
#[inline]
pub(crate) fn expect(account: &Account, home: Home) -> Expected {
    let device = helpers::current_device();
    let given = Expected {
        device,
        proof: Proof::Given,
    };
    match home {
        Home::Current => given,
        _ if !account.has_several_devices() => given,
        Home::Stream(stream) => Expected {
            device: of_stream(stream).or(device),
            proof: Proof::Pointer,
        },
        Home::Pool(_) => Expected {
            device,
            proof: Proof::Pointer,
        },
        Home::Location(location) => at_location(account, location, device),
    }
}

fn of_stream(stream: *mut c_void) -> Result<c_int, c_int> {
    /// `hipStreamLegacy` is 1, `hipStreamPerThread` 2: streams of the current device, as null is.
    const LAST_RESERVED: usize = 2;
    if stream as usize <= LAST_RESERVED {
        return helpers::current_device();
    }
    helpers::device_of_stream(stream)
}

#[cold]
fn at_location(account: &Account, location: c_int, current: Result<c_int, c_int>) -> Expected {
    let honours =
        !matches!(helpers::generation(), Ok(generation) if generation >= IGNORES_LOCATION);
    let (expected, other) = match current {
        Ok(current) if current == location => {
            return Expected {
                device: Ok(location),
                proof: Proof::Given,
            };
        }
        Ok(current) if honours => (location, current),
        Ok(current) => (current, location),
        Err(_) => (location, location),
    };
    let proof = match (account.given(expected), account.given(other)) {
        (Some(here), Some(there)) if expected != other => Proof::Counters(Counters {
            expected,
            other,
            given: [here, there],
        }),
        _ => Proof::Given,
    };
    Expected {
        device: Ok(expected),
        proof,
    }
}

/// The device that an allocation of `bytes` at `pointer` is on, if that can be told and may be another than
/// the expected one. A native call.
pub(crate) fn found(account: &Account, proof: Proof, pointer: usize, bytes: u64) -> Option<c_int> {
    match proof {
        Proof::Given => None,
        Proof::Pointer => helpers::device_of_pointer(pointer).ok(),
        Proof::Counters(before) => {
            let grew = |device, given: u64| {
                let now = account.given(device)?;
                Some(now.saturating_sub(given) >= bytes)
            };
            let [here, there] = before.given;
            let elsewhere = !grew(before.expected, here)? && grew(before.other, there)?;
            elsewhere.then_some(before.other)
        }
    }
}
