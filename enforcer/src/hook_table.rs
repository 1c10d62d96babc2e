//! The hooked functions, one row each. Everything else about them is generated from here.
//!
//! `name (its arguments) => what it does to the account, slot its place in the dispatch table;`
//!
//! * `allocates { out, bytes }`: on success a block of `bytes` lies at `*out`, on the device that is
//!   current in the calling thread;
//! * `frees { pointer }`: on success the block at `pointer` is gone;
//! * `answers { query }`: a question whose answer `query` adapts.
//!
//! Slots: `HipDispatchTable` of `hip/amd_detail/hip_api_trace.hpp`; their order is frozen, new ones are
//! added at the end. Signatures: `hip_runtime_api.h`; `hipDevice_t` is an int.

use core::ffi::{c_int, c_void};

use crate::entries::define_hooks;
use crate::hip::PropertiesLayout;
use crate::queries;

define_hooks! {
    /// `hipError_t hipMalloc(void **ptr, size_t size)`
    hipMalloc (pointer: *mut *mut c_void, size: usize)
        => allocates { out: pointer, bytes: size }, slot 215;
    /// `hipError_t hipFree(void *ptr)`
    hipFree (pointer: *mut c_void)
        => frees { pointer: pointer }, slot 90;
    /// `hipError_t hipMemGetInfo(size_t *free, size_t *total)`
    hipMemGetInfo (free: *mut usize, total: *mut usize)
        => answers { queries::memory_info(free, total) }, slot 236;
    /// `hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device)`
    hipDeviceTotalMem (bytes: *mut usize, device: c_int)
        => answers { queries::total_memory(bytes, device) }, slot 67;
    /// `hipError_t hipGetDeviceProperties(hipDeviceProp_tR0000 *prop, int deviceId)`
    hipGetDeviceProperties (properties: *mut c_void, device: c_int)
        => answers { queries::properties(PropertiesLayout::R0000, properties, device) }, slot none;
    /// `hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600 *prop, int deviceId)`
    hipGetDevicePropertiesR0600 (properties: *mut c_void, device: c_int)
        => answers { queries::properties(PropertiesLayout::R0600, properties, device) }, slot 105;
    /// `hipError_t hipGetDevicePropertiesR0000(hipDeviceProp_tR0000 *prop, int deviceId)`
    hipGetDevicePropertiesR0000 (properties: *mut c_void, device: c_int)
        => answers { queries::properties(PropertiesLayout::R0000, properties, device) }, slot 106;
}
