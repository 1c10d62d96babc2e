//! Which GPU a HIP device is.
//!
//! HIP tells a device's PCI address and its UUID. The partitions of a board (CPX and the like) share the address, and
//! drivers tell them apart in three ways, one after the other in time (`kfd_topology.c` of amdkfd):
//!
//! * by the function of the address: HIP tells that, but for releases before 6, which always say 0;
//! * by bits of the location that HIP does not tell: nothing is left but the order of the devices;
//! * by the same bits and a UUID for each partition, which HIP tells.
//!
//! So a GPU is looked for by its address, by its UUID among those of that address, and at last by its place among
//! all. The last is believed only if nothing speaks against it: the variables that choose and order devices are
//! understood and the same as when the program started, and with them there are as many devices as HIP shows, at the
//! addresses that HIP tells.

use core::ffi::{CStr, c_int};
use std::str::FromStr;

use hipflex_kfd::Bdf;

use crate::compute_units::variable_now;
use crate::environment;
use crate::helpers;
use crate::signals::uncancelled;

/// Which of our GPUs a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// This one.
    At(usize),
    /// More than one: partitions of a board.
    Ambiguous,
    /// None.
    Nowhere,
}

/// By what a GPU is known.
pub(crate) trait Identity {
    fn bdf(&self) -> Bdf;
    /// The number in its UUID; 0: it has none.
    fn unique_id(&self) -> u64;
}

/// What the runtime tells of its devices.
pub(crate) trait Told {
    fn count(&self) -> Option<usize>;
    fn address(&self, device: c_int) -> Option<Bdf>;
    /// Whether addresses have the function.
    fn has_functions(&self) -> bool;
    /// The number in the UUID.
    fn unique_id(&self, device: c_int) -> Option<u64>;
}

/// The runtime of the present call. Native calls.
pub(crate) struct Runtime;

impl Told for Runtime {
    fn count(&self) -> Option<usize> {
        usize::try_from(uncancelled(helpers::device_count).ok()?).ok()
    }

    fn address(&self, device: c_int) -> Option<Bdf> {
        let mut text = [0; 64];
        uncancelled(|| helpers::pci_bus_id(device, &mut text)).ok()?;
        let text = CStr::from_bytes_until_nul(&text).ok()?;
        Bdf::from_str(text.to_str().ok()?).ok()
    }

    fn has_functions(&self) -> bool {
        /// The first release whose addresses do (seen in 6.4.3; 5.7.1 says 0).
        const TELLS_FUNCTIONS: c_int = 6;
        uncancelled(|| helpers::is_since(TELLS_FUNCTIONS))
    }

    fn unique_id(&self, device: c_int) -> Option<u64> {
        let text = uncancelled(|| helpers::uuid(device)).ok()?;
        number_in(&text)
    }
}

/// The number in a UUID as HIP tells it: ROCr's without `GPU-`, 16 hexadecimal digits (seen in 5.7.1, 6.4.3 and 7.2.4). A GPU
/// without one has `XX`.
fn number_in(uuid: &[u8; 16]) -> Option<u64> {
    if !uuid.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let number = u64::from_str_radix(str::from_utf8(uuid).ok()?, 16).ok()?;
    (number != 0).then_some(number)
}

/// Which of `gpus` a device at `address` is. `shown` has those that HIP shows, in its order; `None`: that is not certain.
pub(crate) fn place<T: Identity>(
    gpus: &[T],
    device: c_int,
    address: Bdf,
    told: &impl Told,
    shown: impl FnOnce() -> Option<Vec<usize>>,
) -> Placed {
    let has_functions = told.has_functions();
    let is_there = |gpu: &T, address: Bdf| is_same(gpu.bdf(), address, has_functions);
    let mut there = (0..).zip(gpus).filter(|(_, gpu)| is_there(gpu, address));
    let first = match (there.next(), there.next()) {
        (None, _) => return Placed::Nowhere,
        (Some((index, _)), None) => return Placed::At(index),
        (Some((index, _)), Some(_)) => index,
    };
    let uuid = told.unique_id(device);
    if let Some(uuid) = uuid {
        let of_that = |(_, gpu): &(usize, &T)| is_there(gpu, address) && gpu.unique_id() == uuid;
        let mut found = (first..).zip(gpus.iter().skip(first)).filter(of_that);
        if let (Some((index, _)), None) = (found.next(), found.next()) {
            return Placed::At(index);
        }
    }
    let by_order = || {
        let shown = shown()?;
        let gpu = |place: usize| gpus.get(*shown.get(place)?);
        if told.count()? != shown.len() {
            return None;
        }
        for (number, place) in (0..).zip(0..shown.len()) {
            let agrees = is_there(gpu(place)?, told.address(number)?);
            if !agrees {
                return None;
            }
        }
        let index = *shown.get(usize::try_from(device).ok()?)?;
        let speaks_against = |uuid| gpus.get(index).is_none_or(|gpu| gpu.unique_id() != uuid);
        (!uuid.is_some_and(speaks_against)).then_some(index)
    };
    by_order().map_or(Placed::Ambiguous, Placed::At)
}

/// Whether a GPU has an address as HIP tells it, which has no partition, and perhaps no function.
pub(crate) fn is_same(gpu: Bdf, told: Bdf, has_functions: bool) -> bool {
    let place = |bdf: Bdf| (bdf.domain(), bdf.bus(), bdf.device());
    place(gpu) == place(told) && (!has_functions || gpu.function() == told.function())
}

/// The GPUs that HIP shows, of those that `ROCR_VISIBLE_DEVICES` leaves over; `None`: that is not certain.
pub(crate) fn shown_by_hip(by_rocr: Vec<usize>) -> Option<Vec<usize>> {
    let hip = variable_now("HIP_VISIBLE_DEVICES");
    let cuda = variable_now("CUDA_VISIBLE_DEVICES");
    match (hip, cuda) {
        (None, None) => Some(by_rocr),
        // Whichever the runtime reads.
        (Some(hip), Some(cuda)) if hip != cuda => None,
        (Some(list), _) | (None, Some(list)) => picked(&list, &by_rocr),
    }
}

/// What a list of numbers picks. UUIDs and lists that end at a mistake are left to the runtime.
fn picked(list: &[u8], from: &[usize]) -> Option<Vec<usize>> {
    let mut picked: Vec<usize> = Vec::new();
    for token in list.split(|byte| *byte == b',') {
        if !token.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let number: usize = str::from_utf8(token).ok()?.parse().ok()?;
        let index = *from.get(number)?;
        if picked.contains(&index) {
            return None;
        }
        picked.push(index);
    }
    Some(picked)
}

/// Whether the variables that choose devices are what they were when the program started. They may have been changed before
/// the runtime read them, or after.
pub(crate) fn variables_are_certain() -> bool {
    [
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
    ]
    .iter()
    .all(|name| {
        environment::runtime_at_start(name)
            .is_some_and(|then| then == variable_now(name).as_deref())
    })
}

#[cfg(test)]
mod tests;
