//! What a call asks for: how many bytes, of what sort, and on which device.
//!
//! Made from the arguments of the call, one function for each sort of call.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::NonNull;

use crate::helpers;
use crate::hip::{self, AllocationProperties, ChannelFormat, Extent, PitchedPtr};
use crate::live::Class;
use crate::sizes;

/// A request for memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The bytes that it is counted with, by the rules of [`crate::sizes`]. 0: the runtime is asked as if
    /// nobody counted.
    pub(crate) bytes: u64,
    pub(crate) class: Class,
    pub(crate) home: Home,
    /// Where the runtime writes the pitch, if it makes rows of its own length.
    pub(crate) pitch: Option<NonNull<usize>>,
    /// How many rows there are then.
    pub(crate) rows: u64,
    /// How many words the runtime writes as its result.
    pub(crate) result_words: usize,
    /// The stream in whose order it is had, and given back.
    pub(crate) stream: Option<*mut c_void>,
}

/// Which device a request is for, by its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The one that is current in the calling thread.
    Current,
    /// That of a stream.
    Stream(*mut c_void),
    /// That of a memory pool, which may be the default one of a device.
    Pool {
        pool: *mut c_void,
        default_of: Option<c_int>,
    },
    /// The one of this number or the current one: releases differ.
    Location(c_int),
    /// None: it is memory of the host. Releases differ in that, too.
    Host,
}

impl Request {
    const NOTHING: Self = Self::memory(0);

    /// Linear memory on the current device.
    pub(crate) const fn memory(bytes: u64) -> Self {
        Self {
            bytes,
            class: Class::Buffer,
            home: Home::Current,
            pitch: None,
            rows: 0,
            result_words: 1,
            stream: None,
        }
    }
}

/// `hipMalloc`
pub(crate) fn linear(bytes: usize) -> Request {
    Request::memory(bytes as u64)
}

/// `hipExtMallocWithFlags`
pub(crate) fn flagged(bytes: usize, flags: c_uint) -> Request {
    if flags == hip::MALLOC_SIGNAL_MEMORY {
        return Request::NOTHING;
    }
    linear(bytes)
}

/// `hipMallocManaged`
pub(crate) fn managed(bytes: usize) -> Request {
    Request {
        class: Class::Managed,
        ..linear(bytes)
    }
}

/// `hipMallocAsync`
pub(crate) fn in_order(bytes: usize, stream: *mut c_void) -> Request {
    Request {
        class: Class::Pooled,
        home: Home::Stream(stream),
        stream: Some(stream),
        ..linear(bytes)
    }
}

/// `hipMallocFromPoolAsync`. A native call.
pub(crate) fn from_pool(bytes: usize, pool: *mut c_void, stream: *mut c_void) -> Request {
    let default_of = helpers::device_of_default_pool(pool);
    Request {
        class: default_of.map_or(Class::OwnPool, |_| Class::Pooled),
        home: Home::Pool { pool, default_of },
        stream: Some(stream),
        ..linear(bytes)
    }
}

/// `hipMemCreate`: memory that lies at no address yet.
///
/// # Safety
/// `properties` is null or points to a `hipMemAllocationProp`.
pub(crate) unsafe fn physical(bytes: usize, properties: *const AllocationProperties) -> Request {
    // SAFETY: see above.
    match unsafe { properties.as_ref() } {
        Some(properties) if properties.location_type == hip::LOCATION_DEVICE => Request {
            home: Home::Location(properties.location_id),
            ..linear(bytes)
        },
        Some(_) => Request {
            home: Home::Host,
            ..linear(bytes)
        },
        None => Request::NOTHING,
    }
}

/// `hipMallocPitch`, `hipMemAllocPitch`: the runtime decides how long a row is.
pub(crate) fn rows(width: usize, height: usize, pitch: *mut usize) -> Request {
    let extent = Extent {
        width,
        height,
        depth: 1,
    };
    Request {
        pitch: NonNull::new(pitch),
        rows: height as u64,
        ..Request::memory(sizes::volume(extent))
    }
}

/// `hipMalloc3D`
pub(crate) fn slices(extent: Extent, result: *mut PitchedPtr) -> Request {
    let pitch = result.cast::<usize>().wrapping_add(1);
    Request {
        pitch: NonNull::new(pitch),
        rows: sizes::product(extent.height as u64, extent.depth as u64),
        result_words: PitchedPtr::WORDS,
        ..Request::memory(sizes::volume(extent))
    }
}

/// `hipMallocArray`, `hipMalloc3DArray`
///
/// # Safety
/// `format` is null or points to a `hipChannelFormatDesc`.
pub(crate) unsafe fn array(format: *const ChannelFormat, extent: Extent) -> Request {
    // SAFETY: see above.
    let format = unsafe { format.as_ref() };
    counted(format.map(|format| sizes::array_of_channels(*format, extent)))
}

/// `hipArrayCreate`, `hipArray3DCreate`
///
/// # Safety
/// `descriptor` is null or points to a descriptor.
pub(crate) unsafe fn described_array<D>(descriptor: *const D) -> Request
where
    D: Copy + Into<hip::ArrayDescriptor>,
{
    // SAFETY: see above.
    let descriptor = unsafe { descriptor.as_ref() };
    counted(descriptor.map(|array| sizes::array_of_descriptor((*array).into())))
}

/// `hipMallocMipmappedArray`
///
/// # Safety
/// As for [`array()`].
pub(crate) unsafe fn mipmaps(
    format: *const ChannelFormat,
    extent: Extent,
    levels: c_uint,
) -> Request {
    // SAFETY: see above.
    let format = unsafe { format.as_ref() };
    counted(format.map(|format| sizes::mipmaps_of_channels(*format, extent, levels)))
}

/// `hipMipmappedArrayCreate`
///
/// # Safety
/// As for [`described_array`].
pub(crate) unsafe fn described_mipmaps(
    descriptor: *const hip::Array3dDescriptor,
    levels: c_uint,
) -> Request {
    // SAFETY: see above.
    let descriptor = unsafe { descriptor.as_ref() };
    counted(descriptor.map(|array| sizes::mipmaps_of_descriptor((*array).into(), levels)))
}

fn counted(bytes: Option<u64>) -> Request {
    Request::memory(bytes.unwrap_or(0))
}
