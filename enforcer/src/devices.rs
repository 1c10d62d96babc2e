//! Which GPU a HIP device number means.
//!
//! HIP numbers the devices that `HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES` leave over; the account
//! knows GPUs by their PCI address. The runtime is asked for the address of a number once.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU16, Ordering};
use std::str::FromStr;

use hipflex_kfd::{Bdf, Root, Topology};

use crate::environment;
use crate::helpers;
use crate::process::Trouble;
use crate::runtime::{self, MOST_RUNTIMES};
use crate::settings::FailMode;
use crate::signals::uncancelled;
use crate::stderr::{say, say_once};

/// HIP device numbers whose GPU is remembered; higher ones are looked up every time.
const REMEMBERED: usize = 128;
/// In a remembered number's place: not asked yet.
const UNKNOWN: u16 = 0;
/// In a remembered number's place: none of our GPUs, as the user was told.
const UNPLACED: u16 = u16::MAX;

/// A GPU that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) bdf: Bdf,
    /// The driver's name for it, if the driver knows it.
    pub(crate) gpu_id: Option<u32>,
    /// VRAM in bytes, 0 when it is not known.
    pub(crate) board_bytes: u64,
}

/// The GPUs of this process, and which HIP number means which.
pub(crate) struct Devices {
    gpus: Vec<Gpu>,
    /// Who says that these are the GPUs, for messages.
    source: &'static str,
    /// What becomes of allocations on other devices.
    fail_mode: FailMode,
    /// Index into `gpus` plus 1, or one of the constants above.
    /// For each runtime: two copies may number them differently.
    by_number: [[AtomicU16; REMEMBERED]; MOST_RUNTIMES],
    /// How many devices HIP shows; 0: not asked yet.
    count: AtomicU16,
}

impl Devices {
    /// The GPUs that the driver shows, or those that `FH_VISIBLE_DEVICES` lists.
    pub(crate) fn find(fail_mode: FailMode) -> Result<Self, Trouble> {
        let (gpus, source) = match environment::var("FH_VISIBLE_DEVICES") {
            Some(list) => (
                listed(&list.to_string_lossy()).map_err(Trouble::Configuration)?,
                "that FH_VISIBLE_DEVICES lists",
            ),
            None => (
                // The driver may be loaded, and a device file made, at any time.
                shown_by_driver(&Root::system()).map_err(Trouble::Passing)?,
                "that the driver shows",
            ),
        };
        Ok(Self {
            gpus,
            source,
            fail_mode,
            by_number: [const { [const { AtomicU16::new(UNKNOWN) }; REMEMBERED] }; MOST_RUNTIMES],
            count: AtomicU16::new(0),
        })
    }

    /// The GPUs, in the order of their indices.
    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// What becomes of allocations on a device that is none of our GPUs.
    pub(crate) fn fail_mode(&self) -> FailMode {
        self.fail_mode
    }

    /// The index of the GPU that HIP calls `device`; `None` if it is none of ours (the user is told).
    #[inline]
    pub(crate) fn index(&self, device: c_int) -> Option<usize> {
        let runtime = runtime::of_this_call().map_or(0, |runtime| runtime.number());
        let place = usize::try_from(device)
            .ok()
            .and_then(|n| self.by_number.get(runtime)?.get(n));
        match place.map_or(UNKNOWN, |place| place.load(Ordering::Relaxed)) {
            UNPLACED => None,
            UNKNOWN => self.find_index(device, place),
            known => usize::from(known).checked_sub(1),
        }
    }

    /// Whether HIP shows more than one device, or does not say. A native call.
    pub(crate) fn are_several(&self) -> bool {
        let known = self.count.load(Ordering::Relaxed);
        if known != 0 {
            return known > 1;
        }
        let Ok(count) = uncancelled(helpers::device_count) else {
            return true;
        };
        let count = u16::try_from(count.max(1)).unwrap_or(u16::MAX);
        self.count.store(count, Ordering::Relaxed);
        count > 1
    }

    #[cold]
    fn find_index(&self, device: c_int, place: Option<&AtomicU16>) -> Option<usize> {
        // An error of the runtime says nothing of the GPU, so it is not remembered.
        let address = uncancelled(|| pci_address(device))?;
        let found = self.by_address(&address);
        let consequence = match self.fail_mode {
            FailMode::Closed => {
                "refused (FH_FAIL_MODE=open would let them through, without a limit)"
            }
            FailMode::Open => "NOT limited, because FH_FAIL_MODE=open",
        };
        match found {
            Placed::At(_) => {}
            Placed::Ambiguous => say!(
                "HIP device {device} has the PCI address {address}, and so have several partitions of that GPU: \
                 HIP does not tell which one it is. Allocations on it are {consequence}"
            ),
            Placed::Nowhere => say!(
                "HIP device {device} has the PCI address {address}, which is none of the GPUs {}. Allocations on \
                 it are {consequence}",
                self.source
            ),
        }
        let index = match found {
            Placed::At(index) => Some(index),
            Placed::Ambiguous | Placed::Nowhere => None,
        };
        if let Some(place) = place {
            let mark = index
                .and_then(|index| u16::try_from(index).ok()?.checked_add(1))
                .unwrap_or(UNPLACED);
            place.store(mark, Ordering::Relaxed);
        }
        index
    }

    /// HIP's addresses do not tell the partitions of a split board apart.
    fn by_address(&self, address: &str) -> Placed {
        let Ok(address) = Bdf::from_str(address) else {
            return Placed::Nowhere;
        };
        let mut found = (0..)
            .zip(&self.gpus)
            .filter(|(_, gpu)| gpu.bdf.board() == address);
        match (found.next(), found.next()) {
            (Some((index, _)), None) => Placed::At(index),
            (Some(_), Some(_)) => Placed::Ambiguous,
            (None, _) => Placed::Nowhere,
        }
    }
}

/// Which of our GPUs has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    /// This one.
    At(usize),
    /// More than one: partitions of a board.
    Ambiguous,
    /// None.
    Nowhere,
}

fn pci_address(device: c_int) -> Option<String> {
    let mut text = [0; 64];
    if let Err(error) = helpers::pci_bus_id(device, &mut text) {
        say_once!(
            "the HIP runtime does not tell the PCI address of device {device} (error {error}): it cannot be \
             found among the GPUs, so it is treated as none of them"
        );
        return None;
    }
    let text = CStr::from_bytes_until_nul(&text).ok()?;
    Some(text.to_string_lossy().into_owned())
}

/// The GPUs with a render node: HIP does not see others.
fn shown_by_driver(root: &Root) -> Result<Vec<Gpu>, String> {
    let topology =
        Topology::read(root).map_err(|error| format!("the GPUs cannot be told: {error}"))?;
    let present = topology.gpus.iter().filter(|gpu| gpu.render_node_present);
    let gpus: Vec<Gpu> = present
        .map(|gpu| Gpu {
            bdf: gpu.bdf,
            gpu_id: Some(gpu.gpu_id),
            board_bytes: gpu.vram_bytes.unwrap_or(0),
        })
        .collect();
    match (gpus.is_empty(), topology.gpus.first()) {
        (false, _) => Ok(gpus),
        (true, None) => Err(String::from(
            "the driver shows no GPU to this process; in a container, pass /dev/kfd and /dev/dri",
        )),
        (true, Some(gpu)) => Err(format!(
            "GPU {} has no render node in /dev/dri; in a container, pass /dev/dri",
            gpu.bdf
        )),
    }
}

/// `FH_VISIBLE_DEVICES`: GPUs by address, for runtimes without a driver underneath. The sizes of their
/// boards are not known.
fn listed(list: &str) -> Result<Vec<Gpu>, String> {
    list.split(',')
        .map(|entry| {
            let entry = entry.trim();
            let address = entry.strip_prefix("amd-gpu-").unwrap_or(entry);
            Bdf::from_str(address)
                .map(|bdf| Gpu {
                    bdf,
                    gpu_id: None,
                    board_bytes: 0,
                })
                .map_err(|error| format!("FH_VISIBLE_DEVICES: {error}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_addresses_is_read() {
        let gpus = listed("0000:03:00.0, amd-gpu-0000:83:00.0").unwrap();
        let addresses: Vec<_> = gpus.iter().map(|gpu| gpu.bdf.to_string()).collect();
        assert_eq!(addresses, ["0000:03:00.0", "0000:83:00.0"]);
        for bad in ["", "banana", "0000:03:00.0,,", "0"] {
            let error = listed(bad).unwrap_err();
            assert!(error.starts_with("FH_VISIBLE_DEVICES: "), "{bad}: {error}");
        }
    }

    #[test]
    fn an_address_means_a_gpu_only_if_it_means_one() {
        let devices = |list: &str| Devices {
            gpus: listed(list).unwrap(),
            source: "that this test lists",
            fail_mode: FailMode::Closed,
            by_number: [const { [const { AtomicU16::new(UNKNOWN) }; REMEMBERED] }; MOST_RUNTIMES],
            count: AtomicU16::new(0),
        };
        let two = devices("0000:03:00.0,0000:83:00.0");
        assert_eq!(two.by_address("0000:83:00.0"), Placed::At(1));
        assert_eq!(two.by_address("0000:84:00.0"), Placed::Nowhere);
        assert_eq!(two.by_address("nonsense"), Placed::Nowhere);
        let split = devices("0000:03:00.0,0000:03:00.0/1");
        assert_eq!(split.by_address("0000:03:00.0"), Placed::Ambiguous);
    }

    #[test]
    fn a_machine_without_the_driver_is_an_error_that_says_so() {
        let nothing = tempfile::tempdir().unwrap();
        let error = shown_by_driver(&Root::at(nothing.path())).unwrap_err();
        assert!(error.contains("amdgpu"), "{error}");
    }
}
