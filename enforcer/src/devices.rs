//! Which GPU a HIP device number means.
//!
//! HIP numbers the devices that `HIP_VISIBLE_DEVICES` and `ROCR_VISIBLE_DEVICES` leave over; the account
//! knows GPUs by their PCI address. The runtime is asked for the address of a number once.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicU16, Ordering};
use std::str::FromStr;

use hipflex_kfd::{Bdf, Root, Topology, cu};
use hipflex_ledger::{GpuKey, GpuSpec, LimitSpec};

use crate::by_number::ByNumber;
use crate::compute_units::variable_now;
use crate::environment;
use crate::helpers;
use crate::process::Trouble;
use crate::settings::FailMode;
use crate::signals::uncancelled;
use crate::stderr::{say, say_once};
use crate::which_gpu::{self, Identity, Placed, Runtime};

/// A GPU that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    pub(crate) bdf: Bdf,
    /// The driver's name for it, if the driver knows it.
    pub(crate) gpu_id: Option<u32>,
    /// VRAM in bytes, 0 when it is not known.
    pub(crate) board_bytes: u64,
    /// The number in its UUID; 0: it has none.
    pub(crate) unique_id: u64,
}

impl Identity for Gpu {
    fn bdf(&self) -> Bdf {
        self.bdf
    }

    fn unique_id(&self) -> u64 {
        self.unique_id
    }
}

/// The GPUs of this process, and which HIP number means which.
pub(crate) struct Devices {
    gpus: Vec<Gpu>,
    /// Who says that these are the GPUs, for messages.
    source: &'static str,
    /// What becomes of allocations on other devices.
    fail_mode: FailMode,
    by_number: ByNumber,
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
            by_number: ByNumber::new(),
            count: AtomicU16::new(0),
        })
    }

    /// The GPUs, in the order of their indices.
    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus
    }

    /// The limits of the GPUs, in the order of their indices.
    pub(crate) fn limits(&self, limit: &LimitSpec) -> Result<Vec<GpuSpec>, Trouble> {
        let gpus = self.gpus.iter().map(|gpu| {
            let key = GpuKey(gpu.bdf.to_u64());
            (key, gpu.bdf.to_string(), gpu.board_bytes)
        });
        limit
            .on(gpus)
            .map_err(|error| Trouble::Configuration(format!("FH_MEMORY_LIMIT: {error}")))
    }

    /// What becomes of allocations on a device that is none of our GPUs.
    pub(crate) fn fail_mode(&self) -> FailMode {
        self.fail_mode
    }

    /// The index of the GPU that HIP calls `device`; `None` if it is none of ours (the user is told).
    #[inline]
    pub(crate) fn index(&self, device: c_int) -> Option<usize> {
        self.by_number.index(device, || self.find_index(device))
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

    /// See [`ByNumber::index`].
    #[cold]
    fn find_index(&self, device: c_int) -> Option<Option<usize>> {
        // An error of the runtime says nothing of the GPU, so it is not remembered.
        let address = uncancelled(|| pci_address(device))?;
        let found = self.at_address(device, &address);
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
        Some(match found {
            Placed::At(index) => Some(index),
            Placed::Ambiguous | Placed::Nowhere => None,
        })
    }

    /// The GPU of a device at this address. Native calls.
    fn at_address(&self, device: c_int, address: &str) -> Placed {
        match Bdf::from_str(address) {
            Ok(address) => {
                which_gpu::place(&self.gpus, device, address, &Runtime, || shown(&self.gpus))
            }
            Err(_) => Placed::Nowhere,
        }
    }
}

/// Which of the driver's GPUs HIP shows, in its order; `None`: that is not certain.
fn shown(gpus: &[Gpu]) -> Option<Vec<usize>> {
    if !which_gpu::variables_are_certain() {
        return None;
    }
    let ids: Vec<u64> = gpus.iter().map(|gpu| gpu.unique_id).collect();
    let visible = variable_now("ROCR_VISIBLE_DEVICES");
    which_gpu::shown_by_hip(cu::shown(visible.as_deref(), &ids).collect())
}

/// Which of `gpus` has an address, with its partition, if it is told. Where that is the one of a board in partitions, the driver's name for the GPU
/// is asked for.
pub(crate) fn place(gpus: &[Gpu], address: Bdf, gpu_id: impl FnOnce() -> Option<u32>) -> Placed {
    let only = |is: &dyn Fn(&Gpu) -> bool| {
        let mut found = (0..).zip(gpus).filter(|(_, gpu)| is(gpu));
        match (found.next(), found.next()) {
            (Some((index, _)), None) => Placed::At(index),
            (Some(_), Some(_)) => Placed::Ambiguous,
            (None, _) => Placed::Nowhere,
        }
    };
    // The address of the first partition is the board's, too.
    if address.partition() != 0
        && let at @ Placed::At(_) = only(&|gpu| gpu.bdf == address)
    {
        return at;
    }
    match only(&|gpu| gpu.bdf.board() == address.board()) {
        Placed::Ambiguous => match gpu_id() {
            Some(id) if let at @ Placed::At(_) = only(&|gpu| gpu.gpu_id == Some(id)) => at,
            _ => Placed::Ambiguous,
        },
        placed => placed,
    }
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
            unique_id: gpu.unique_id.unwrap_or(0),
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

/// `FH_VISIBLE_DEVICES`: GPUs by address, in the driver's order, each perhaps with its UUID (`0000:03:00.0/1=GPU-0123456789abcdef`), for
/// runtimes without a driver underneath. The sizes of their boards are not known.
fn listed(list: &str) -> Result<Vec<Gpu>, String> {
    list.split(',')
        .map(|entry| {
            let entry = entry.trim();
            let (address, unique_id) = match entry.split_once("=GPU-") {
                None => (entry, 0),
                Some((address, digits)) => {
                    let id = u64::from_str_radix(digits, 16);
                    let id = id.map_err(|error| {
                        format!("FH_VISIBLE_DEVICES: GPU-{digits} is no UUID: {error}")
                    })?;
                    (address, id)
                }
            };
            let address = address.strip_prefix("amd-gpu-").unwrap_or(address);
            Bdf::from_str(address)
                .map(|bdf| Gpu {
                    bdf,
                    gpu_id: None,
                    board_bytes: 0,
                    unique_id,
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
        let with_uuid = listed("0000:03:00.0/1=GPU-5c0d93a17be24601").unwrap();
        assert_eq!(with_uuid[0].unique_id, 0x5c0d_93a1_7be2_4601);
        for bad in [
            "",
            "banana",
            "0000:03:00.0,,",
            "0",
            "0000:03:00.0=GPU-",
            "0000:03:00.0=7",
        ] {
            let error = listed(bad).unwrap_err();
            assert!(error.starts_with("FH_VISIBLE_DEVICES: "), "{bad}: {error}");
        }
    }

    #[test]
    fn partitions_are_told_apart_by_their_number_or_the_driver_s_name() {
        let mut gpus = listed("0000:03:00.0,0000:03:00.0/1,0000:83:00.0").unwrap();
        for (gpu, id) in gpus.iter_mut().zip([11, 12, 13]) {
            gpu.gpu_id = Some(id);
        }
        let placed = |address: &str, id| place(&gpus, address.parse().unwrap(), || id);
        assert_eq!(placed("0000:03:00.0/1", None), Placed::At(1));
        assert_eq!(placed("0000:03:00.0", None), Placed::Ambiguous);
        assert_eq!(placed("0000:03:00.0", Some(11)), Placed::At(0));
        assert_eq!(placed("0000:03:00.0", Some(12)), Placed::At(1));
        assert_eq!(placed("0000:03:00.0", Some(99)), Placed::Ambiguous);
        assert_eq!(placed("0000:83:00.0", Some(11)), Placed::At(2), "not asked");
        assert_eq!(placed("0000:84:00.0", Some(11)), Placed::Nowhere);
    }

    #[test]
    fn a_machine_without_the_driver_is_an_error_that_says_so() {
        let nothing = tempfile::tempdir().unwrap();
        let error = shown_by_driver(&Root::at(nothing.path())).unwrap_err();
        assert!(error.contains("amdgpu"), "{error}");
    }
}
