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
    /// The same; and it was not known which device to expect.
    PointerOnly,
    /// By the driver's counters: it is one of two.
    Counters(Counters),
    /// By the driver's counter, if there is one: it is the expected one, or none.
    Growth(Option<Growth>),
}

/// What the driver had given this process on a device before an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Growth {
    device: c_int,
    given: u64,
}

/// Where an allocation is.
#[derive(Clone, Copy)]
pub(crate) enum Found {
    /// Where it was expected, as far as can be told.
    AsExpected,
    /// On this device.
    On(c_int),
    /// On no device: it is memory of the host.
    OnNone,
}

/// What the driver had given this process on two devices before an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Counters {
    expected: Growth,
    other: Growth,
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
        Home::Host => on_host(account, device),
        Home::Location(location) => at_location(account, location, device),
        _ if !account.has_several_devices() => given,
        Home::Stream(stream) => by_pointer(of_stream(stream).ok(), device),
        // Null is left to the runtime.
        Home::Pool { pool, .. } if pool.is_null() => given,
        Home::Pool { pool, default_of } => {
            let known = default_of.or_else(|| helpers::device_of_own_pool(pool));
            by_pointer(known, device)
        }
    }
}

fn by_pointer(known: Option<c_int>, current: Result<c_int, c_int>) -> Expected {
    match known {
        Some(device) => Expected {
            device: Ok(device),
            proof: Proof::Pointer,
        },
        None => Expected {
            device: current,
            proof: Proof::PointerOnly,
        },
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
    let honours = !helpers::is_since(IGNORES_LOCATION);
    let (expected, other) = match current {
        // The runtime turns down a device that is not there.
        Ok(current)
            if current == location
                || !helpers::device_count().is_ok_and(|count| (0..count).contains(&location)) =>
        {
            return Expected {
                device: Ok(current),
                proof: Proof::Given,
            };
        }
        Ok(current) if honours => (location, current),
        Ok(current) => (current, location),
        Err(_) => (location, location),
    };
    let proof = match (
        Growth::begin(account, expected),
        Growth::begin(account, other),
    ) {
        (Some(expected), Some(other)) => Proof::Counters(Counters { expected, other }),
        _ => Proof::Given,
    };
    Expected {
        device: Ok(expected),
        proof,
    }
}

/// Memory of the host takes nothing of a device. But HIP 7.2.4 was seen to take it from the current one.
#[cold]
fn on_host(account: &Account, device: Result<c_int, c_int>) -> Expected {
    let growth = device
        .ok()
        .and_then(|device| Growth::begin(account, device));
    let proof = match growth {
        // Without the counter, it is counted where it may well be VRAM.
        None if helpers::is_since(IGNORES_LOCATION) => Proof::Given,
        growth => Proof::Growth(growth),
    };
    Expected { device, proof }
}

impl Growth {
    fn begin(account: &Account, device: c_int) -> Option<Self> {
        let given = account.given(device)?;
        Some(Self { device, given })
    }

    /// Whether the device has given `bytes` more since.
    fn is_by(&self, account: &Account, bytes: u64) -> bool {
        account
            .given(self.device)
            .is_some_and(|now| now.saturating_sub(self.given) >= bytes)
    }
}

/// Where an allocation of `bytes` at `pointer` is. A native call.
pub(crate) fn found(account: &Account, proof: Proof, pointer: usize, bytes: u64) -> Found {
    match proof {
        Proof::Given => Found::AsExpected,
        Proof::Pointer | Proof::PointerOnly => {
            helpers::device_of_pointer(pointer).map_or(Found::AsExpected, Found::On)
        }
        Proof::Counters(Counters { expected, other }) => {
            if !expected.is_by(account, bytes) && other.is_by(account, bytes) {
                Found::On(other.device)
            } else {
                Found::AsExpected
            }
        }
        Proof::Growth(Some(growth)) if growth.is_by(account, bytes) => Found::AsExpected,
        Proof::Growth(_) => Found::OnNone,
    }
}

/// Whether what is allocated on a stream is only recorded now, and had when a graph runs. (Releases before 6
/// take it at once.)
pub(crate) fn is_for_later(stream: *mut c_void) -> bool {
    /// The first release that allocates when the graph runs.
    const ALLOCATES_LATER: c_int = 6;
    helpers::is_capturing(stream)
        && !matches!(helpers::generation(), Ok(generation) if generation < ALLOCATES_LATER)
}
