//! Linear memory: each function by its rule, in every build.

mod common;

use std::ffi::{c_int, c_uint, c_void};
use std::ptr;

use common::{
    Extent, GIB, INVALID_VALUE, Instance, MIB, OUT_OF_MEMORY, Pitched, SUCCESS, UNTOUCHED, call,
};
use hip_standin::{Build, Kind, Settings};

fn each(test: impl Fn(&Instance)) {
    for build in Build::ALL {
        test(&Instance::new(build));
    }
}

#[test]
fn malloc_takes_and_free_gives_back() {
    each(|hip| {
        let (a, b) = (hip.malloc(GIB).unwrap(), hip.malloc(1).unwrap());
        assert_ne!(a, b);
        assert_eq!(hip.live(0), GIB + 1);
        assert_eq!(hip.info(), (63 * GIB - 1, 64 * GIB));
        assert_eq!(hip.free(a), SUCCESS);
        assert_eq!(hip.live(0), 1);
        assert_eq!(hip.malloc(GIB), Ok(a), "a freed address is used again");
        assert_eq!(
            (hip.free(a), hip.free(b), hip.live(0)),
            (SUCCESS, SUCCESS, 0)
        );
        assert_eq!(
            (
                hip.calls("hipMalloc"),
                hip.calls("hipFree"),
                hip.bad_frees()
            ),
            (3, 3, 0)
        );
    });
}

#[test]
fn edges_of_malloc_and_free() {
    each(|hip| {
        assert_eq!(hip.malloc(0), Ok(ptr::null_mut()));
        for huge in [64 * GIB + 1, 1 << 62, usize::MAX] {
            assert_eq!(hip.malloc(huge), Err(OUT_OF_MEMORY));
        }
        let null: *mut *mut c_void = ptr::null_mut();
        assert_eq!(
            call!(hip, hipMalloc(null => *mut *mut c_void, 16 => usize)),
            INVALID_VALUE
        );
        assert_eq!(hip.free(ptr::null_mut()), SUCCESS);
        assert_eq!(hip.free(UNTOUCHED), INVALID_VALUE);
        let a = hip.malloc(4096).unwrap();
        assert_eq!(
            hip.free(a.wrapping_byte_add(100)),
            SUCCESS,
            "the real ones free by an inner address"
        );
        assert_eq!(hip.free(a), INVALID_VALUE);
        assert_eq!(
            (hip.bad_frees(), hip.live(0), hip.errors("hipMalloc")),
            (2, 0, 4)
        );
    });
}

#[test]
fn the_whole_board_and_not_a_byte_more() {
    each(|hip| {
        let all = hip.malloc(64 * GIB).unwrap();
        assert_eq!(hip.malloc(1), Err(OUT_OF_MEMORY));
        assert_eq!(hip.info(), (0, 64 * GIB));
        assert_eq!(hip.free(all), SUCCESS);
        let many: Vec<_> = (0..1000).map(|_| hip.malloc(MIB + 7).unwrap()).collect();
        let mut sorted = many.clone();
        sorted.sort_unstable();
        assert!(
            sorted
                .windows(2)
                .all(|pair| pair[1] as usize - pair[0] as usize >= MIB + 7),
            "blocks overlap"
        );
        for pointer in many {
            assert_eq!(hip.free(pointer), SUCCESS);
        }
        assert_eq!(hip.live(0), 0);
    });
}

fn pitched(hip: &Instance, width: usize, height: usize) -> (c_int, *mut c_void, usize) {
    let (mut pointer, mut pitch) = (UNTOUCHED, 77);
    let error = call!(hip, hipMallocPitch(&raw mut pointer => *mut *mut c_void, &raw mut pitch => *mut usize,
        width => usize, height => usize));
    (error, pointer, pitch)
}

#[test]
fn pitched_memory_has_padded_rows() {
    each(|hip| {
        let (error, pointer, pitch) = pitched(hip, 1000, 10);
        assert_eq!((error, pitch, hip.live(0)), (SUCCESS, 1024, 10240));
        assert_eq!(hip.free(pointer), SUCCESS);
        hip.set("PITCH", "128");
        assert_eq!(pitched(hip, 129, 1).2, 256);
        assert_eq!(pitched(hip, 128, 1).2, 128);
        assert_eq!(pitched(hip, 0, 10), (SUCCESS, ptr::null_mut(), 77));
        assert_eq!(pitched(hip, 10, 0), (SUCCESS, ptr::null_mut(), 77));
        // The pitch is written also when the memory is not to be had.
        assert_eq!(
            pitched(hip, 1 << 40, 1 << 20),
            (OUT_OF_MEMORY, UNTOUCHED, 1 << 40)
        );
        assert_eq!(
            pitched(hip, 1 << 40, 1 << 30),
            (OUT_OF_MEMORY, ptr::null_mut(), 1 << 40)
        );
        assert_eq!(pitched(hip, usize::MAX, 1), (OUT_OF_MEMORY, UNTOUCHED, 77));
        assert_eq!(hip.live(0), 256 + 128);
    });
}

#[test]
fn mem_alloc_pitch_wants_an_element_of_4_8_or_16() {
    each(|hip| {
        for element in 1..=32 {
            let (mut pointer, mut pitch) = (UNTOUCHED, 77);
            let error = call!(hip, hipMemAllocPitch(&raw mut pointer => *mut *mut c_void,
                &raw mut pitch => *mut usize, 1000 => usize, 2 => usize, element => c_uint));
            if [4, 8, 16].contains(&element) {
                assert_eq!((error, pitch, hip.live(0)), (SUCCESS, 1024, 2048));
                assert_eq!(hip.free(pointer), SUCCESS);
            } else {
                assert_eq!(
                    (error, pointer, pitch),
                    (INVALID_VALUE, UNTOUCHED, 77),
                    "{element}"
                );
            }
        }
        assert_eq!(hip.calls("hipMallocPitch"), 3, "it calls hipMallocPitch");
    });
}

#[test]
fn three_dimensions() {
    let malloc = |hip: &Instance, width, height, depth| {
        let mut out = Pitched {
            pointer: UNTOUCHED,
            pitch: 77,
            width: 78,
            height: 79,
        };
        let extent = Extent {
            width,
            height,
            depth,
        };
        let error = call!(hip, hipMalloc3D(&raw mut out => *mut Pitched, extent => Extent));
        (error, out)
    };
    each(|hip| {
        let (error, out) = malloc(hip, 1000, 10, 3);
        assert_eq!(
            (error, out.pitch, out.width, out.height),
            (SUCCESS, 1024, 1000, 10)
        );
        assert_eq!(hip.live(0), 1024 * 10 * 3);
        assert_eq!(hip.free(out.pointer), SUCCESS);
        let (error, out) = malloc(hip, 1000, 10, 0);
        assert_eq!(
            (error, out),
            (
                SUCCESS,
                Pitched {
                    pointer: ptr::null_mut(),
                    pitch: 0,
                    width: 1000,
                    height: 10
                }
            )
        );
        let (error, out) = malloc(hip, 1 << 40, 1 << 20, 1);
        assert_eq!(
            (error, out.pointer, out.pitch),
            (OUT_OF_MEMORY, UNTOUCHED, 77)
        );
        let (error, out) = malloc(hip, 1 << 40, 1 << 20, 1 << 10);
        assert_eq!(
            (error, out.pointer, out.pitch),
            (OUT_OF_MEMORY, ptr::null_mut(), 77)
        );
    });
}

#[test]
fn flags_of_ext_malloc_and_managed() {
    each(|hip| {
        let ask = |name: &str, bytes: usize, flags: c_uint| {
            let mut pointer = UNTOUCHED;
            // SAFETY: both have this signature.
            let error = unsafe {
                let function: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int =
                    hip.function(name);
                function(&raw mut pointer, bytes, flags)
            };
            (error, pointer)
        };
        for flags in [0, 1, 3, 4] {
            let (error, pointer) = ask("hipExtMallocWithFlags", 100, flags);
            assert_eq!((error, hip.live(0)), (SUCCESS, 100));
            assert_eq!(hip.free(pointer), SUCCESS);
        }
        assert_eq!(
            ask("hipExtMallocWithFlags", 100, 2),
            (INVALID_VALUE, UNTOUCHED)
        );
        assert_eq!(
            ask("hipExtMallocWithFlags", 100, 8),
            (INVALID_VALUE, UNTOUCHED)
        );

        let (error, pointer) = ask("hipMallocManaged", GIB, 1);
        assert_eq!(
            (error, hip.live(0), hip.held(0, Kind::Managed)),
            (SUCCESS, 0, GIB)
        );
        assert_eq!(
            hip.info().0,
            64 * GIB,
            "managed memory is not in the driver's count"
        );
        assert_eq!(
            (hip.free(pointer), hip.held(0, Kind::Managed)),
            (SUCCESS, 0)
        );
        for (bytes, flags) in [(GIB, 0), (GIB, 7), (0, 1)] {
            assert_eq!(
                ask("hipMallocManaged", bytes, flags),
                (INVALID_VALUE, UNTOUCHED)
            );
        }

        let (error, pointer) = ask("hipHostMalloc", 4096, 0);
        assert_eq!(
            (error, hip.live(0), hip.held(0, Kind::Host)),
            (SUCCESS, 0, 4096)
        );
        assert_eq!(call!(hip, hipHostFree(pointer => *mut c_void)), SUCCESS);
        assert_eq!(
            call!(hip, hipHostFree(UNTOUCHED => *mut c_void)),
            INVALID_VALUE
        );
    });
}

#[test]
fn memory_can_be_written_and_copied() {
    each(|hip| {
        let (a, b) = (hip.malloc(4096).unwrap(), hip.malloc(4096).unwrap());
        let (from, mut to) = (*b"bytes that go to a device and back", [0_u8; 34]);
        let copy = |to: *mut c_void, from: *const c_void, bytes: usize| call!(hip, hipMemcpy(to => *mut c_void, from => *const c_void, bytes => usize, 4 => c_int));
        assert_eq!(copy(a, from.as_ptr().cast(), from.len()), SUCCESS);
        assert_eq!(copy(b, a, from.len()), SUCCESS);
        assert_eq!(copy(to.as_mut_ptr().cast(), b, from.len()), SUCCESS);
        assert_eq!(to, from);
        assert_eq!(
            call!(hip, hipMemset(b => *mut c_void, 7 => c_int, 34 => usize)),
            SUCCESS
        );
        assert_eq!(copy(to.as_mut_ptr().cast(), b, from.len()), SUCCESS);
        assert_eq!(to, [7; 34]);
    });
}

#[test]
fn a_pointers_block_can_be_asked_for() {
    each(|hip| {
        let a = hip.malloc(5000).unwrap();
        let inner = a.wrapping_byte_add(4999);
        let (mut base, mut bytes) = (UNTOUCHED, 0);
        let range = |base: *mut *mut c_void, bytes: *mut usize, pointer: *mut c_void| call!(hip, hipMemGetAddressRange(base => *mut *mut c_void, bytes => *mut usize, pointer => *mut c_void));
        assert_eq!(range(&raw mut base, &raw mut bytes, inner), SUCCESS);
        assert_eq!((base, bytes), (a, 5000));
        assert_eq!(
            range(&raw mut base, &raw mut bytes, a.wrapping_byte_add(5000)),
            500
        );
        assert_eq!(
            call!(hip, hipMemPtrGetInfo(a => *mut c_void, &raw mut bytes => *mut usize)),
            SUCCESS
        );
        assert_eq!(bytes, 5000);
    });
}

#[test]
fn sizes_and_answers_can_be_rounded() {
    for build in Build::ALL {
        let settings = Settings::new()
            .set("ROUND", "4KiB")
            .set("INFO_STEP", "2MiB");
        let hip = Instance::with(build, &settings, &[]);
        let a = hip.malloc(1).unwrap();
        assert_eq!((hip.live(0), hip.info().0), (4096, 64 * GIB - 2 * MIB));
        assert_eq!((hip.free(a), hip.live(0)), (SUCCESS, 0));
    }
}

/// Also with every allocation and free made by a second, nested call.
#[test]
fn nested_calls_change_no_result() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().set("NESTED", "1"), &[]);
        let a = hip.malloc(100).unwrap();
        let (error, b, _) = pitched(&hip, 100, 1);
        assert_eq!((error, hip.live(0)), (SUCCESS, 356));
        assert_eq!(
            hip.calls("hipMalloc"),
            3,
            "one of them twice, and one for the pitched memory"
        );
        assert_eq!(
            (hip.free(a), hip.free(b), hip.live(0)),
            (SUCCESS, SUCCESS, 0)
        );
        assert_eq!(hip.calls("hipFree"), 4);
    }
}
