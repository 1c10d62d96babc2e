//! Arrays and mipmapped arrays: sizes and what is refused.

mod common;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use common::{
    Descriptor, Descriptor3D, Extent, INVALID_VALUE, Instance, SUCCESS, UNTOUCHED, call, floats,
};
use hip_standin::{Build, Kind};

type Out = *mut *mut c_void;

/// Frees an array, and checks that it had this many bytes.
fn had(hip: &Instance, (error, array): (c_int, *mut c_void), bytes: usize, free: &str) {
    assert_eq!(
        (error, hip.live(0), hip.held(0, Kind::Array)),
        (SUCCESS, bytes, bytes),
        "{}",
        hip.build
    );
    // SAFETY: all four take one handle.
    let function: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { hip.function(free) };
    // SAFETY: a live handle, and then one that is gone, which is refused.
    let errors = unsafe { (function(array), function(array), function(ptr::null_mut())) };
    assert_eq!(errors, (SUCCESS, 709, INVALID_VALUE), "{free}");
    assert_eq!(hip.live(0), 0);
}

fn malloc_array(
    hip: &Instance,
    format: &[c_int; 5],
    width: usize,
    height: usize,
) -> (c_int, *mut c_void) {
    let mut array = UNTOUCHED;
    let error = call!(hip, hipMallocArray(&raw mut array => Out, format.as_ptr() => *const c_int,
        width => usize, height => usize, 0 => c_uint));
    (error, array)
}

#[test]
fn arrays_take_element_times_extent() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        had(
            &hip,
            malloc_array(&hip, &floats(1), 100, 10),
            4000,
            "hipFreeArray",
        );
        had(
            &hip,
            malloc_array(&hip, &floats(4), 64, 0),
            1024,
            "hipArrayDestroy",
        );
        had(
            &hip,
            malloc_array(&hip, &[8, 8, 0, 0, 1], 10, 10),
            200,
            "hipFreeArray",
        );

        let mut array = UNTOUCHED;
        let extent = Extent {
            width: 16,
            height: 16,
            depth: 4,
        };
        let format = floats(2);
        let error = call!(&hip, hipMalloc3DArray(&raw mut array => Out, format.as_ptr() => *const c_int,
            extent => Extent, 0 => c_uint));
        had(&hip, (error, array), 16 * 16 * 4 * 8, "hipFreeArray");

        let descriptor = Descriptor {
            width: 100,
            height: 10,
            format: 0x20,
            channels: 1,
        };
        let error = call!(&hip, hipArrayCreate(&raw mut array => Out, &raw const descriptor => *const Descriptor));
        had(&hip, (error, array), 4000, "hipArrayDestroy");
        let descriptor = Descriptor3D {
            extent,
            format: 0x10,
            channels: 4,
            flags: 0,
        };
        let error = call!(&hip, hipArray3DCreate(&raw mut array => Out, &raw const descriptor => *const Descriptor3D));
        had(&hip, (error, array), 16 * 16 * 4 * 8, "hipFreeArray");
    }
}

#[test]
fn formats_and_extents_that_no_array_has() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let refused = (INVALID_VALUE, UNTOUCHED);
        for format in [
            [7, 0, 0, 0, 2],
            [8, 8, 8, 0, 1],
            [32, 16, 0, 0, 1],
            [0, 0, 0, 0, 0],
            [0, 32, 0, 0, 2],
        ] {
            assert_eq!(malloc_array(&hip, &format, 64, 0), refused, "{format:?}");
        }
        for (width, height) in [
            (0, 10),
            (1 << 40, 1 << 20),
            (16385, 1),
            (1, 16385),
            (1 << 31, 0),
        ] {
            assert_eq!(
                malloc_array(&hip, &floats(1), width, height),
                refused,
                "{width} {height}"
            );
        }
        let mut array = UNTOUCHED;
        let flat = Extent {
            width: 16,
            height: 0,
            depth: 4,
        };
        let error = call!(&hip, hipMalloc3DArray(&raw mut array => Out, floats(1).as_ptr() => *const c_int,
            flat => Extent, 0 => c_uint));
        assert_eq!((error, array), refused);
        for (format, channels) in [(0x44, 1), (0x20, 3), (0x20, 0)] {
            let descriptor = Descriptor {
                width: 8,
                height: 8,
                format,
                channels,
            };
            let error = call!(&hip, hipArrayCreate(&raw mut array => Out, &raw const descriptor => *const Descriptor));
            assert_eq!((error, array), refused, "{format} {channels}");
        }
        assert_eq!(hip.live(0), 0);
    }
}

#[test]
fn mipmaps_take_the_sum_of_their_levels() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let ask = |extent: Extent, levels: c_uint| {
            let mut array = UNTOUCHED;
            let format = floats(1);
            let error = call!(&hip, hipMallocMipmappedArray(&raw mut array => Out, format.as_ptr() => *const c_int,
                extent => Extent, levels => c_uint, 0 => c_uint));
            (error, array)
        };
        let flat = Extent {
            width: 64,
            height: 64,
            depth: 0,
        };
        had(
            &hip,
            ask(flat, 3),
            4 * (64 * 64 + 32 * 32 + 16 * 16),
            "hipFreeMipmappedArray",
        );
        let odd = Extent {
            width: 5,
            height: 3,
            depth: 0,
        };
        had(
            &hip,
            ask(odd, 3),
            4 * (5 * 3 + 2 + 1),
            "hipMipmappedArrayDestroy",
        );
        for levels in [0, 8, 33] {
            assert_eq!(ask(flat, levels), (INVALID_VALUE, UNTOUCHED), "{levels}");
        }
        let descriptor = Descriptor3D {
            extent: flat,
            format: 0x20,
            channels: 1,
            flags: 0,
        };
        let mut array = UNTOUCHED;
        let error = call!(&hip, hipMipmappedArrayCreate(&raw mut array => Out,
            &raw const descriptor => *const Descriptor3D, 7 => c_uint));
        let bytes = (0..7).map(|level| 4 * (64_usize >> level).pow(2)).sum();
        had(&hip, (error, array), bytes, "hipFreeMipmappedArray");

        hip.set("MIPMAPS", "0");
        assert_eq!(ask(flat, 3), (801, UNTOUCHED));
    }
}

#[test]
fn an_array_is_no_mipmapped_array() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let (_, array) = malloc_array(&hip, &floats(1), 4, 4);
        assert_eq!(
            call!(&hip, hipFreeMipmappedArray(array => *mut c_void)),
            709
        );
        assert_eq!(hip.bad_frees(), 1);
        assert_eq!(call!(&hip, hipFreeArray(array => *mut c_void)), SUCCESS);
    }
}
