//! Facts of the HIP ABI that the hooks rely on.
//!
//! Error numbers: `hipError_t` of `hip_runtime_api.h`, the same in ROCm 5.2 to 7.2. Structure layouts were
//! read from the runtimes 5.2.3, 5.7.1, 6.4.3 and 7.2.4 themselves, by calling them with a patterned
//! buffer and looking for what they wrote.

use core::ffi::c_int;

/// `hipSuccess`
pub(crate) const SUCCESS: c_int = 0;
/// `hipErrorInvalidValue`
pub(crate) const ERROR_INVALID_VALUE: c_int = 1;
/// `hipErrorOutOfMemory`
pub(crate) const ERROR_OUT_OF_MEMORY: c_int = 2;
/// `hipErrorNotInitialized`
pub(crate) const ERROR_NOT_INITIALIZED: c_int = 3;

/// A size that no runtime can allocate and none miscalculates: more than any address space holds, and
/// far from overflow when it is rounded up.
pub(crate) const IMPOSSIBLE_SIZE: usize = 1 << 62;

/// A layout of `hipDeviceProp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PropertiesLayout {
    /// Bytes from the start to `size_t totalGlobalMem`.
    pub(crate) total_global_mem: usize,
    /// Bytes of the whole structure: nothing behind it may be touched.
    pub(crate) size: usize,
}

impl PropertiesLayout {
    /// `hipDeviceProp_tR0000`: `char name[256]; size_t totalGlobalMem; ...`. It is what
    /// `hipGetDevicePropertiesR0000` fills in, and in every release also the plain
    /// `hipGetDeviceProperties@hip_4.2` (headers since 6.0 rename the call to ...R0600).
    pub(crate) const R0000: Self = Self {
        total_global_mem: 256,
        size: 792,
    };
    /// `hipDeviceProp_tR0600`, since ROCm 6.0: `char name[256]; hipUUID uuid; char luid[8]; unsigned
    /// luidDeviceNodeMask; size_t totalGlobalMem; ...`.
    pub(crate) const R0600: Self = Self {
        total_global_mem: 288,
        size: 1472,
    };
}
