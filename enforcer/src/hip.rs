//! Facts of the HIP ABI that the hooks rely on.
//!
//! Error numbers: `hipError_t` of `hip_runtime_api.h`, the same in ROCm 5.2 to 7.2. Structure layouts were
//! read from the runtimes 5.2.3, 5.7.1, 6.4.3 and 7.2.4 themselves, by calling them with a patterned
//! buffer and looking for what they wrote.

use core::ffi::{c_int, c_uint, c_void};

/// `hipSuccess`
pub(crate) const SUCCESS: c_int = 0;
/// `hipErrorInvalidValue`
pub(crate) const ERROR_INVALID_VALUE: c_int = 1;
/// `hipErrorOutOfMemory`
pub(crate) const ERROR_OUT_OF_MEMORY: c_int = 2;
/// `hipErrorNotInitialized`
pub(crate) const ERROR_NOT_INITIALIZED: c_int = 3;

/// `hipExtent`: of linear memory in bytes, rows and slices; of arrays in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Extent {
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `hipPitchedPtr`
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PitchedPtr {
    pub(crate) pointer: *mut c_void,
    pub(crate) pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl PitchedPtr {
    /// Of which it is made.
    pub(crate) const WORDS: usize = 4;
}
const _: () = assert!(size_of::<PitchedPtr>() == PitchedPtr::WORDS * size_of::<usize>());

/// `hipChannelFormatDesc`: bits of each channel, and how they are read.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct ChannelFormat {
    pub(crate) x: c_int,
    pub(crate) y: c_int,
    pub(crate) z: c_int,
    pub(crate) w: c_int,
    pub(crate) kind: c_int,
}

/// `HIP_ARRAY_DESCRIPTOR`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PlainArrayDescriptor {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// `HIP_ARRAY3D_DESCRIPTOR`
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Array3dDescriptor {
    extent: Extent,
    format: u32,
    channels: u32,
    flags: u32,
}

/// What both descriptors of arrays say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrayDescriptor {
    pub(crate) extent: Extent,
    /// `hipArray_Format`
    pub(crate) format: u32,
    pub(crate) channels: u32,
}

impl From<PlainArrayDescriptor> for ArrayDescriptor {
    fn from(plain: PlainArrayDescriptor) -> Self {
        Self {
            extent: Extent {
                width: plain.width,
                height: plain.height,
                depth: 0,
            },
            format: plain.format,
            channels: plain.channels,
        }
    }
}

impl From<Array3dDescriptor> for ArrayDescriptor {
    fn from(array: Array3dDescriptor) -> Self {
        Self {
            extent: array.extent,
            format: array.format,
            channels: array.channels,
        }
    }
}

/// The beginning of `hipMemAllocationProp`, which is the same in all releases.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProperties {
    pub(crate) allocation_type: c_int,
    pub(crate) handle_types: c_int,
    /// `hipMemLocation`
    pub(crate) location_type: c_int,
    pub(crate) location_id: c_int,
}

/// `hipMemLocationTypeDevice`. The others that a release knows are of the host.
pub(crate) const LOCATION_DEVICE: c_int = 1;

/// `hipMallocSignalMemory`: 8 bytes of host memory. (`hipDeviceMallocUncached` is 3: these are no bits.)
pub(crate) const MALLOC_SIGNAL_MEMORY: c_uint = 0x2;

/// A size that no runtime can allocate and none miscalculates: more than any address space holds, and
/// far from overflow when it is rounded up.
pub(crate) const IMPOSSIBLE_SIZE: usize = 1 << 62;

/// A layout of `hipDeviceProp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PropertiesLayout {
    /// Bytes from the start to `size_t totalGlobalMem`.
    pub(crate) total_global_mem: usize,
    /// Bytes from the start to `int multiProcessorCount`.
    pub(crate) multi_processor_count: usize,
    /// Bytes of the whole structure: nothing behind it may be touched.
    pub(crate) size: usize,
}

impl PropertiesLayout {
    /// `hipDeviceProp_tR0000`: `char name[256]; size_t totalGlobalMem; ...`. It is what
    /// `hipGetDevicePropertiesR0000` fills in, and in every release also the plain
    /// `hipGetDeviceProperties@hip_4.2` (headers since 6.0 rename the call to ...R0600).
    pub(crate) const R0000: Self = Self {
        total_global_mem: 256,
        multi_processor_count: 336,
        size: 792,
    };
    /// `hipDeviceProp_tR0600`, since ROCm 6.0: `char name[256]; hipUUID uuid; char luid[8]; unsigned
    /// luidDeviceNodeMask; size_t totalGlobalMem; ...`.
    pub(crate) const R0600: Self = Self {
        total_global_mem: 288,
        multi_processor_count: 388,
        size: 1472,
    };
}

/// Numbers of `hipDeviceAttribute_t`, the same in all releases (seen in 5.2.3, 5.7.1, 6.4.3 and 7.2.4, by asking for each number).
/// On RDNA both counts are of WGPs.
pub(crate) mod attribute {
    use core::ffi::c_int;

    /// `hipDeviceAttributeMultiprocessorCount`
    pub(crate) const MULTIPROCESSOR_COUNT: c_int = 63;
    /// `hipDeviceAttributePhysicalMultiProcessorCount`
    pub(crate) const PHYSICAL_MULTIPROCESSOR_COUNT: c_int = 10_015;
    /// `hipDeviceAttributeTotalGlobalMem`, which is at most `INT_MAX`. 5.x does not answer it.
    pub(crate) const TOTAL_GLOBAL_MEM: c_int = 84;
}
