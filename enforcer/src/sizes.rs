//! How many bytes a request is counted with, before the runtime has answered it.
//!
//! 0 means that nothing can come of the request: it takes nothing, or the runtime must turn it down.
//! A product that does not fit is [`TOO_LARGE`], which no account grants. Where the runtime
//! decides about the true size (the pitch of rows), the sizes here are the least it can be.

use core::ffi::c_int;

use crate::hip::{ArrayDescriptor, ChannelFormat, Extent};

/// More than any account grants.
pub(crate) const TOO_LARGE: u64 = u64::MAX;

/// More levels than any mipmapped array has: each halves what is at most 64 bits wide.
const MOST_LEVELS: u32 = 64;

/// `a * b`, or [`TOO_LARGE`].
pub(crate) fn product(a: u64, b: u64) -> u64 {
    a.checked_mul(b).unwrap_or(TOO_LARGE)
}

/// Linear memory of rows and slices: all three extents count as they are.
pub(crate) fn volume(extent: Extent) -> u64 {
    // A zero takes nothing, whatever the others are.
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return 0;
    }
    let rows = product(extent.height as u64, extent.depth as u64);
    product(extent.width as u64, rows)
}

/// An array of `element` bytes each; a height or depth of 0 stands for an array without that
/// dimension.
fn array(element: u64, extent: Extent) -> u64 {
    volume(Extent {
        width: extent.width,
        height: extent.height.max(1),
        depth: extent.depth.max(1),
    })
    .checked_mul(element)
    .unwrap_or(TOO_LARGE)
}

/// The levels of a mipmapped array: each half as wide, high and deep as the one before, and no dimension
/// less than one.
fn levels(element: u64, extent: Extent, levels: u32) -> u64 {
    // HIP 5.2 makes an array of no level one of one level; others turn it down.
    let sum = (0..levels.clamp(1, MOST_LEVELS)).try_fold(0_u64, |sum, level| {
        let half = |size: usize| size.checked_shr(level).unwrap_or(0).max(1);
        let size = array(
            element,
            Extent {
                width: half(extent.width),
                height: half(extent.height),
                depth: half(extent.depth),
            },
        );
        sum.checked_add(size)
    });
    match sum {
        _ if extent.width == 0 => 0,
        Some(sum) => sum,
        None => TOO_LARGE,
    }
}

/// Bytes of an element with channels of these widths; 0 where a width is negative, which is none.
fn element_of_channels(format: ChannelFormat) -> u64 {
    let widths = [format.x, format.y, format.z, format.w];
    let bits = widths.into_iter().try_fold(0_u64, |sum, bits: c_int| {
        sum.checked_add(u64::try_from(bits).ok()?)
    });
    bits.map_or(0, |bits| bits.div_ceil(8))
}

/// Bytes of an element of a descriptor's format: `hipArray_Format` of `driver_types.h`. A format that is
/// not known is taken for the widest there is, so that too much is counted rather than too little; the
/// runtime turns it down if it does not know it either.
fn element_of_format(format: u32, channels: u32) -> u64 {
    let bytes = match format {
        // UNSIGNED_INT8, SIGNED_INT8
        0x01 | 0x08 => 1,
        // UNSIGNED_INT16, SIGNED_INT16, HALF
        0x02 | 0x09 | 0x10 => 2,
        // UNSIGNED_INT32, SIGNED_INT32, FLOAT, and unknown ones
        _ => 4,
    };
    product(bytes, u64::from(channels))
}

/// `hipMallocArray`, `hipMalloc3DArray`.
pub(crate) fn array_of_channels(format: ChannelFormat, extent: Extent) -> u64 {
    array(element_of_channels(format), extent)
}

/// `hipMallocMipmappedArray`.
pub(crate) fn mipmaps_of_channels(format: ChannelFormat, extent: Extent, count: u32) -> u64 {
    levels(element_of_channels(format), extent, count)
}

/// `hipArrayCreate`, `hipArray3DCreate`.
pub(crate) fn array_of_descriptor(array_is: ArrayDescriptor) -> u64 {
    array(
        element_of_format(array_is.format, array_is.channels),
        array_is.extent,
    )
}

/// `hipMipmappedArrayCreate`.
pub(crate) fn mipmaps_of_descriptor(array_is: ArrayDescriptor, count: u32) -> u64 {
    levels(
        element_of_format(array_is.format, array_is.channels),
        array_is.extent,
        count,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn extent(width: usize, height: usize, depth: usize) -> Extent {
        Extent {
            width,
            height,
            depth,
        }
    }

    fn channels(x: c_int, y: c_int, z: c_int, w: c_int) -> ChannelFormat {
        ChannelFormat {
            x,
            y,
            z,
            w,
            kind: 0,
        }
    }

    #[test]
    fn linear_memory_counts_all_its_extents() {
        assert_eq!(volume(extent(100, 7, 3)), 2100);
        for nothing in [
            extent(0, 7, 3),
            extent(100, 0, 3),
            extent(usize::MAX, usize::MAX, 0),
        ] {
            assert_eq!(volume(nothing), 0);
        }
    }

    #[test]
    fn arrays_lack_the_dimensions_that_are_zero() {
        let rgba = channels(8, 8, 8, 8);
        assert_eq!(array_of_channels(rgba, extent(10, 0, 0)), 40);
        assert_eq!(array_of_channels(rgba, extent(10, 5, 0)), 200);
        assert_eq!(array_of_channels(rgba, extent(10, 5, 2)), 400);
        assert_eq!(array_of_channels(rgba, extent(0, 5, 2)), 0);
        assert_eq!(
            array_of_channels(channels(32, 0, 0, 0), extent(3, 1, 1)),
            12
        );
        assert_eq!(array_of_channels(channels(-8, 8, 8, 8), extent(3, 1, 1)), 0);
        assert_eq!(array_of_channels(channels(0, 0, 0, 0), extent(3, 1, 1)), 0);
    }

    #[test]
    fn descriptors_count_by_format_and_channels() {
        let bytes = |format, channels| {
            array_of_descriptor(ArrayDescriptor {
                extent: extent(10, 2, 0),
                format,
                channels,
            })
        };
        for (format, each) in [
            (1, 1),
            (8, 1),
            (2, 2),
            (9, 2),
            (16, 2),
            (3, 4),
            (10, 4),
            (32, 4),
        ] {
            assert_eq!(bytes(format, 4), 20 * 4 * each, "format {format}");
        }
        assert_eq!(
            bytes(0x77, 2),
            20 * 2 * 4,
            "an unknown format counts as the widest"
        );
        assert_eq!(bytes(1, 0), 0);
    }

    #[test]
    fn levels_are_halved_down_to_one() {
        let byte = channels(8, 0, 0, 0);
        assert_eq!(mipmaps_of_channels(byte, extent(8, 4, 0), 1), 32);
        assert_eq!(
            mipmaps_of_channels(byte, extent(8, 4, 0), 4),
            32 + 8 + 2 + 1
        );
        assert_eq!(mipmaps_of_channels(byte, extent(8, 8, 8), 3), 512 + 64 + 8);
        assert_eq!(mipmaps_of_channels(byte, extent(1, 1, 1), u32::MAX), 64);
        assert_eq!(mipmaps_of_channels(byte, extent(8, 4, 0), 0), 32);
        assert_eq!(mipmaps_of_channels(byte, extent(0, 4, 4), 3), 0);
    }

    proptest! {
        #[test]
        fn no_size_wraps(width: usize, height: usize, depth: usize, count: u32, bits: [c_int; 4], format: u32, channel: u32) {
            let extent = extent(width, height, depth);
            let wide = |size: usize| size as u128;
            let exact = wide(width).checked_mul(wide(height)).and_then(|area| area.checked_mul(wide(depth)));
            let expected = exact.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(TOO_LARGE);
            prop_assert_eq!(volume(extent), expected);
            let [x, y, z, w] = bits;
            let flat = array_of_channels(channels(x, y, z, w), extent);
            prop_assert!(count == 0 || mipmaps_of_channels(channels(x, y, z, w), extent, count) >= flat || width == 0);
            let described = ArrayDescriptor { extent, format, channels: channel };
            prop_assert!(count == 0 || mipmaps_of_descriptor(described, count) >= array_of_descriptor(described) || width == 0);
        }
    }
}
