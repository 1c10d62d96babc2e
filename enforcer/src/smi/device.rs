//! Which GPU a call is about: by its PCI address, since the libraries number all GPUs of the machine and HIP
//! those that the program may use.

use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;

use hipflex_kfd::Bdf;

use super::{SUCCESS, library};
use crate::devices::{Gpu, place};
use crate::which_gpu::Placed;

/// How a library names a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Device {
    /// rocm_smi: by an index.
    RocmSmi(u32),
    /// amdsmi: by an `amdsmi_processor_handle`.
    AmdSmi(*mut c_void),
}

/// What was asked, and whom.
pub(crate) struct Asked {
    /// The library's function that answered.
    pub(crate) function: usize,
    pub(crate) device: Device,
}

/// `amdsmi_kfd_info_t` of `amdsmi.h` (24.6 to 27.1: 64 bytes), with room for more.
#[repr(C)]
struct KfdInfo {
    kfd_id: u64,
    others: [u64; 31],
}

impl Asked {
    /// The index in `gpus` of the GPU that was asked for.
    pub(crate) fn place(&self, gpus: &[Gpu]) -> Placed {
        let addresses = match self.device {
            Device::RocmSmi(_) => [self.pci_id(), None],
            // The one of ROCm 6.1 says 0 where it does not find the address.
            Device::AmdSmi(_) => [self.bdf(), self.pci_id()],
        };
        let mut found = Placed::Ambiguous;
        for address in addresses.into_iter().flatten() {
            found = place(gpus, address, || self.gpu_id());
            if found != Placed::Nowhere {
                return found;
            }
        }
        match gpus {
            // It does not say which, and there is one only.
            [_] if found == Placed::Ambiguous => Placed::At(0),
            _ => found,
        }
    }

    /// Packed as the driver does: domain 63:32, partition 31:28, bus 15:8, device 7:3, function 2:0.
    fn pci_id(&self) -> Option<Bdf> {
        let id = self.ask_number(
            // rsmi_status_t rsmi_dev_pci_id_get(uint32_t dv_ind, uint64_t *bdfid)
            c"rsmi_dev_pci_id_get",
            // amdsmi_status_t amdsmi_get_gpu_bdf_id(amdsmi_processor_handle, uint64_t *bdfid)
            c"amdsmi_get_gpu_bdf_id",
        )?;
        Some(Bdf::from_u64(id))
    }

    fn bdf(&self) -> Option<Bdf> {
        // amdsmi_status_t amdsmi_get_gpu_device_bdf(amdsmi_processor_handle, amdsmi_bdf_t *bdf)
        let bdf = self.ask_number(c"", c"amdsmi_get_gpu_device_bdf")?;
        Some(of_amdsmi(bdf))
    }

    /// The driver's name for the GPU, by which partitions of a board can be told apart.
    fn gpu_id(&self) -> Option<u32> {
        let id = match self.device {
            // rsmi_status_t rsmi_dev_guid_get(uint32_t dv_ind, uint64_t *guid), since 5.7
            Device::RocmSmi(_) => self.ask_number(c"rsmi_dev_guid_get", c"")?,
            // amdsmi_status_t amdsmi_get_gpu_kfd_info(amdsmi_processor_handle, amdsmi_kfd_info_t *info), since 24.6
            Device::AmdSmi(_) => {
                let mut info = KfdInfo {
                    kfd_id: 0,
                    others: [0; 31],
                };
                let info_at = (&raw mut info).cast();
                // SAFETY: the function fills such a structure in.
                unsafe { self.ask(c"", c"amdsmi_get_gpu_kfd_info", info_at) }?;
                info.kfd_id
            }
        };
        u32::try_from(id).ok().filter(|id| *id != 0)
    }

    /// Calls the function of the library in question that answers with a number of 64 bits.
    fn ask_number(&self, of_rocm_smi: &CStr, of_amdsmi: &CStr) -> Option<u64> {
        let mut answer = 0_u64;
        // SAFETY: the functions that are asked so write a number of 64 bits.
        unsafe { self.ask(of_rocm_smi, of_amdsmi, (&raw mut answer).cast()) }?;
        Some(answer)
    }

    /// Calls a function that takes a device and a place for the answer; `None` if there is none, or it fails.
    ///
    /// # Safety
    /// At `answer` there is what the function writes.
    unsafe fn ask(&self, of_rocm_smi: &CStr, of_amdsmi: &CStr, answer: *mut c_void) -> Option<()> {
        // SAFETY: the addresses are those of functions with these signatures in the library that the device
        // is named for; the caller answers for the place.
        let status = unsafe {
            match self.device {
                Device::RocmSmi(index) => {
                    let function = library::function(self.function, of_rocm_smi)?;
                    transmute::<usize, unsafe extern "C-unwind" fn(u32, *mut c_void) -> c_int>(
                        function,
                    )(index, answer)
                }
                Device::AmdSmi(processor) => {
                    let function = library::function(self.function, of_amdsmi)?;
                    transmute::<usize, unsafe extern "C-unwind" fn(*mut c_void, *mut c_void) -> c_int>(
                        function,
                    )(processor, answer)
                }
            }
        };
        (status == SUCCESS).then_some(())
    }
}

/// `amdsmi_bdf_t` of `amdsmi.h`: function 2:0, device 7:3, bus 15:8, domain 63:16.
fn of_amdsmi(bdf: u64) -> Bdf {
    let [_, _, d0, d1, d2, d3, bus, device] = bdf.to_be_bytes();
    Bdf::from_kfd(
        u32::from_be_bytes([d0, d1, d2, d3]),
        u32::from_be_bytes([0, 0, bus, device]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_amdsmi_has_the_domain_elsewhere() {
        let packed = |domain: u64, bus: u64, device: u64, function: u64| {
            domain << 16 | bus << 8 | device << 3 | function
        };
        let text = |bdf| of_amdsmi(bdf).to_string();
        assert_eq!(text(packed(0, 3, 0, 0)), "0000:03:00.0");
        assert_eq!(text(packed(0x1_0002, 0x83, 31, 6)), "10002:83:1f.6");
    }
}
