//! Functions of the HIP runtime that hooks call on their own behalf.
//!
//! Native calls: they may not come back (see [`crate::entries::call`]). Signatures are those of
//! `hip_runtime_api.h`, the same from ROCm 5.2 to 7.2; where a release lacks a function, it is said. Errors
//! are the runtime's own.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

use crate::hip;
use crate::runtime;

/// Makes [`Helper`] from the list of names.
macro_rules! helpers {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A function that hooks call.
        #[derive(Clone, Copy)]
        pub(crate) enum Helper { $($(#[$doc])* $variant,)* }

        impl Helper {
            /// How many there are.
            pub(crate) const COUNT: usize = Self::ALL.len();
            /// All of them, in the order of their numbers.
            pub(crate) const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];

            pub(crate) const fn name(self) -> &'static CStr {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

helpers! {
    /// `hipError_t hipGetDevice(int *deviceId)`
    GetDevice = c"hipGetDevice",
    /// `hipError_t hipGetDeviceCount(int *count)`
    GetDeviceCount = c"hipGetDeviceCount",
    /// `hipError_t hipRuntimeGetVersion(int *runtimeVersion)`
    RuntimeGetVersion = c"hipRuntimeGetVersion",
    /// `hipError_t hipDeviceGetPCIBusId(char *pciBusId, int len, int device)`
    DeviceGetPciBusId = c"hipDeviceGetPCIBusId",
    /// `hipError_t hipDeviceGetUuid(hipUUID *uuid, hipDevice_t device)`
    DeviceGetUuid = c"hipDeviceGetUuid",
    /// `hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *ptr)`
    PointerGetAttributes = c"hipPointerGetAttributes",
    /// `hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t *device)`, since ROCm 5.6.
    StreamGetDevice = c"hipStreamGetDevice",
    /// `hipError_t hipStreamIsCapturing(hipStream_t stream, hipStreamCaptureStatus *pCaptureStatus)`
    StreamIsCapturing = c"hipStreamIsCapturing",
    /// `hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t *mem_pool, int device)`
    DeviceGetDefaultMemPool = c"hipDeviceGetDefaultMemPool",
    /// `hipError_t hipDeviceGetMemPool(hipMemPool_t *mem_pool, int device)`
    DeviceGetMemPool = c"hipDeviceGetMemPool",
    /// `hipError_t hipMemPoolGetAccess(hipMemAccessFlags *flags, hipMemPool_t mem_pool,
    /// hipMemLocation *location)`. 5.2 has it, and it does nothing.
    MemPoolGetAccess = c"hipMemPoolGetAccess",
    /// `hipError_t hipMemPoolGetAttribute(hipMemPool_t mem_pool, hipMemPoolAttr attr, void *value)`
    MemPoolGetAttribute = c"hipMemPoolGetAttribute",
}

/// Calls a helper with arguments of these types.
///
/// In an `unsafe` block: the types are those of the helper's signature, and the arguments are what it allows.
macro_rules! ask {
    ($helper:ident($($argument:expr => $type:ty),*)) => {
        match runtime::of_this_call().and_then(|runtime| runtime.helper(Helper::$helper)) {
            None => hip::ERROR_NOT_INITIALIZED,
            Some(address) => {
                let function: unsafe extern "C-unwind" fn($($type),*) -> c_int =
                    core::mem::transmute(address);
                function($($argument),*)
            }
        }
    };
}

fn success<T>(error: c_int, value: T) -> Result<T, c_int> {
    match error {
        hip::SUCCESS => Ok(value),
        error => Err(error),
    }
}

/// The device that is current in this thread.
#[inline]
pub(crate) fn current_device() -> Result<c_int, c_int> {
    let mut device = -1;
    // SAFETY: the signature of `hipGetDevice`; the result outlives the call.
    let error = unsafe { ask!(GetDevice(&raw mut device => *mut c_int)) };
    success(error, device)
}

/// How many devices the program can use.
pub(crate) fn device_count() -> Result<c_int, c_int> {
    let mut count = 0;
    // SAFETY: the signature of `hipGetDeviceCount`; the result outlives the call.
    let error = unsafe { ask!(GetDeviceCount(&raw mut count => *mut c_int)) };
    success(error, count)
}

/// The first part of the runtime's version: 5, 6, 7.
pub(crate) fn generation() -> Result<c_int, c_int> {
    release().map(|release| release / 100)
}

/// The first two parts of it: 502, 507, 604.
pub(crate) fn release() -> Result<c_int, c_int> {
    /// `HIP_VERSION`: generation * 10,000,000 + minor * 100,000 + patch.
    const MINOR: c_int = 100_000;
    let mut version = 0;
    // SAFETY: the signature of `hipRuntimeGetVersion`; the result outlives the call.
    let error = unsafe { ask!(RuntimeGetVersion(&raw mut version => *mut c_int)) };
    success(error, version / MINOR)
}

/// Whether the runtime is of this generation or a later one. (If it does not say: no.)
pub(crate) fn is_since(first: c_int) -> bool {
    generation().is_ok_and(|generation| generation >= first)
}

/// Writes the PCI address of a device into `text` (`0000:03:00.0`, with a terminator).
pub(crate) fn pci_bus_id(device: c_int, text: &mut [u8; 64]) -> Result<(), c_int> {
    let place = text.as_mut_ptr().cast();
    // SAFETY: the signature of `hipDeviceGetPCIBusId`, which writes at most the 64 bytes that it is told of.
    let error =
        unsafe { ask!(DeviceGetPciBusId(place => *mut c_char, 64 => c_int, device => c_int)) };
    success(error, ())
}

/// The UUID of a device: a `hipUUID`, 16 bytes.
pub(crate) fn uuid(device: c_int) -> Result<[u8; 16], c_int> {
    let mut uuid = [0; 16];
    let place = uuid.as_mut_ptr();
    // SAFETY: the signature of `hipDeviceGetUuid`, which writes those 16 bytes.
    let error = unsafe { ask!(DeviceGetUuid(place => *mut u8, device => c_int)) };
    success(error, uuid)
}

/// The device on which the memory at a pointer lies. The pointer must be one of the runtime: for others, an error
/// would be left for `hipGetLastError`.
pub(crate) fn device_of_pointer(pointer: usize) -> Result<c_int, c_int> {
    /// `hipPointerAttribute_t` has 32 bytes in all releases so far; the device is its second int.
    const INTS: usize = 32;
    let mut attributes = [-1; INTS];
    let place = attributes.as_mut_ptr();
    // SAFETY: the signature of `hipPointerGetAttributes`; the place is four times as large as it needs.
    let error = unsafe { ask!(PointerGetAttributes(place => *mut c_int, pointer => usize)) };
    let [_, device, ..] = attributes;
    success(error, device)
}

/// The device of a stream.
pub(crate) fn device_of_stream(stream: *mut c_void) -> Result<c_int, c_int> {
    let mut device = -1;
    // SAFETY: the signature of `hipStreamGetDevice`; the stream is the program's, for a call that needs it.
    let error =
        unsafe { ask!(StreamGetDevice(stream => *mut c_void, &raw mut device => *mut c_int)) };
    success(error, device)
}

/// The device of a memory pool that the program has made, if that can be told: no other device may use what is
/// in it, unless the program has allowed that.
pub(crate) fn device_of_own_pool(pool: *mut c_void) -> Option<c_int> {
    let count = device_count().ok()?;
    let mut users = (0..count).filter(|device| may_use(*device, pool));
    let first = users.next();
    first.filter(|_| users.next().is_none())
}

/// The device whose default pool this is.
pub(crate) fn device_of_default_pool(pool: *mut c_void) -> Option<c_int> {
    let is_it = |device: &c_int| default_pool(*device) == Some(pool);
    // Most often it is that of the current device.
    let current = current_device().ok().filter(is_it);
    current.or_else(|| (0..device_count().ok()?).find(is_it))
}

fn may_use(device: c_int, pool: *mut c_void) -> bool {
    /// `hipMemAccessFlagsProtReadWrite`
    const READ_AND_WRITE: c_int = 3;
    let mut flags = 0;
    // A hipMemLocation.
    let mut location = [hip::LOCATION_DEVICE, device];
    let place = location.as_mut_ptr();
    // SAFETY: the signature of `hipMemPoolGetAccess`; the pool is the program's, for a call that needs it,
    // and the places outlive this one.
    let error = unsafe {
        ask!(MemPoolGetAccess(&raw mut flags => *mut c_int, pool => *mut c_void, place => *mut c_int))
    };
    error == hip::SUCCESS && flags == READ_AND_WRITE
}

/// Whether calls on a stream are recorded in a graph at present, and not done.
pub(crate) fn is_capturing(stream: *mut c_void) -> bool {
    /// `hipStreamCaptureStatusNone`
    const NONE: c_int = 0;
    /// `hipStreamLegacy`, which as null cannot be recorded, and which releases do not take everywhere.
    const LEGACY: usize = 1;
    if stream as usize <= LEGACY {
        return false;
    }
    let mut status = NONE;
    // SAFETY: the signature of `hipStreamIsCapturing`; the stream is the program's, for a call that needs it.
    let error =
        unsafe { ask!(StreamIsCapturing(stream => *mut c_void, &raw mut status => *mut c_int)) };
    error == hip::SUCCESS && status != NONE
}

/// What pools have taken from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// In bytes, as the pools count.
    pub(crate) bytes: u64,
    /// The part of it that is not in use: what they keep for the next blocks.
    pub(crate) unused: u64,
    /// They count whole buffers that blocks share; others count the blocks, each of which is a buffer.
    pub(crate) buffers: bool,
}

/// What the default pool of a device has taken from the driver. (Another one, which the program made, could be
/// destroyed by the program while it is asked.)
pub(crate) fn reserved_by_default_pool(device: c_int) -> Option<Reserved> {
    /// The first release whose pools share buffers (seen in 7.2.4; not so in 6.4.3).
    const SHARES_BUFFERS: c_int = 7;
    /// `hipMemPoolAttrReservedMemCurrent` and `hipMemPoolAttrUsedMemCurrent`: `uint64_t`s.
    const RESERVED: c_int = 5;
    const USED: c_int = 7;
    let pool = default_pool(device)?;
    let (bytes, used) = (attribute(pool, RESERVED)?, attribute(pool, USED)?);
    Some(Reserved {
        bytes,
        unused: bytes.saturating_sub(used),
        buffers: is_since(SHARES_BUFFERS),
    })
}

fn default_pool(device: c_int) -> Option<*mut c_void> {
    let mut pool: *mut c_void = ptr::null_mut();
    // SAFETY: the signature of `hipDeviceGetDefaultMemPool`; the result outlives the call.
    let error = unsafe {
        ask!(DeviceGetDefaultMemPool(&raw mut pool => *mut *mut c_void, device => c_int))
    };
    success(error, pool).ok()
}

/// Whether a device uses its default pool, and not one that the program has set in its place.
pub(crate) fn uses_default_pool(device: c_int) -> bool {
    let mut pool: *mut c_void = ptr::null_mut();
    // SAFETY: the signature of `hipDeviceGetMemPool`; the result outlives the call.
    let error =
        unsafe { ask!(DeviceGetMemPool(&raw mut pool => *mut *mut c_void, device => c_int)) };
    error == hip::SUCCESS && default_pool(device) == Some(pool)
}

fn attribute(pool: *mut c_void, number: c_int) -> Option<u64> {
    let mut value = 0_u64;
    // SAFETY: the signature of `hipMemPoolGetAttribute`; a pool that the runtime has just named, and a place
    // for the attribute.
    let error = unsafe {
        ask!(MemPoolGetAttribute(pool => *mut c_void, number => c_int, &raw mut value => *mut u64))
    };
    success(error, value).ok()
}
