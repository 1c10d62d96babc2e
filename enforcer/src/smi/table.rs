//! The functions that tell the size or the use of a GPU's memory.
//!
//! `name (its arguments) => which device it is about, how its answer is adapted;`
//!
//! Signatures: `rocm_smi.h` of rocm_smi 5.2 to 7.8, `amdsmi.h` of amdsmi 23.2 (ROCm 5.7) to 27.1, the same in
//! all of them. Statuses and memory types are C enumerations, an `amdsmi_processor_handle` is a pointer.
//! Other functions of theirs tell memory of processes, not of boards, or how busy it is.

use core::ffi::{c_uint, c_void};

use super::answers;
use super::device::Device;
use super::entries::define_smi;

define_smi! {
    /// `rsmi_status_t rsmi_dev_memory_total_get(uint32_t dv_ind, rsmi_memory_type_t mem_type, uint64_t *total)`
    rsmi_dev_memory_total_get (device: u32, kind: c_uint, total: *mut u64)
        => Device::RocmSmi(device), answers::total(kind, total);
    /// `rsmi_status_t rsmi_dev_memory_usage_get(uint32_t dv_ind, rsmi_memory_type_t mem_type, uint64_t *used)`
    rsmi_dev_memory_usage_get (device: u32, kind: c_uint, used: *mut u64)
        => Device::RocmSmi(device), answers::usage(kind, used);
    /// `amdsmi_status_t amdsmi_get_gpu_memory_total(amdsmi_processor_handle, amdsmi_memory_type_t mem_type,
    /// uint64_t *total)`
    amdsmi_get_gpu_memory_total (processor: *mut c_void, kind: c_uint, total: *mut u64)
        => Device::AmdSmi(processor), answers::total(kind, total);
    /// `amdsmi_status_t amdsmi_get_gpu_memory_usage(amdsmi_processor_handle, amdsmi_memory_type_t mem_type,
    /// uint64_t *used)`
    amdsmi_get_gpu_memory_usage (processor: *mut c_void, kind: c_uint, used: *mut u64)
        => Device::AmdSmi(processor), answers::usage(kind, used);
    /// `amdsmi_status_t amdsmi_get_gpu_vram_usage(amdsmi_processor_handle, amdsmi_vram_usage_t *info)`
    amdsmi_get_gpu_vram_usage (processor: *mut c_void, usage: *mut c_void)
        => Device::AmdSmi(processor), answers::vram_usage(usage);
    /// `amdsmi_status_t amdsmi_get_gpu_vram_info(amdsmi_processor_handle, amdsmi_vram_info_t *info)`
    amdsmi_get_gpu_vram_info (processor: *mut c_void, info: *mut c_void)
        => Device::AmdSmi(processor), answers::vram_info(info);
}
