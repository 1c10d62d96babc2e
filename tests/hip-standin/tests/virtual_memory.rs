//! `hipMemCreate` and what goes with it: on which device, and how long it lives.

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;

use common::{
    GIB, INVALID_VALUE, Instance, MIB, OUT_OF_MEMORY, Properties, SUCCESS, UNTOUCHED, call,
};
use hip_standin::{Build, Kind, Settings};

fn release(hip: &Instance, handle: *mut c_void) -> c_int {
    call!(hip, hipMemRelease(handle => *mut c_void))
}

fn reserve(hip: &Instance, bytes: usize) -> *mut c_void {
    let mut at = UNTOUCHED;
    let error = call!(hip, hipMemAddressReserve(&raw mut at => *mut *mut c_void, bytes => usize, 0 => usize,
        ptr::null_mut() => *mut c_void, 0 => u64));
    assert_eq!(error, SUCCESS);
    at
}

fn map(hip: &Instance, at: *mut c_void, bytes: usize, handle: *mut c_void) -> c_int {
    call!(hip, hipMemMap(at => *mut c_void, bytes => usize, 0 => usize, handle => *mut c_void, 0 => u64))
}

fn unmap(hip: &Instance, at: *mut c_void, bytes: usize) -> c_int {
    call!(hip, hipMemUnmap(at => *mut c_void, bytes => usize))
}

#[test]
fn the_device_is_the_one_that_the_release_takes() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().devices("2"), &[]);
        let handle = hip.mem_create(MIB, &Properties::on_device(1)).unwrap();
        // 7.2 takes the thread's current device, 6.4 the one that is named.
        let expected = if build == Build::Seven {
            (MIB, 0)
        } else {
            (0, MIB)
        };
        assert_eq!((hip.live(0), hip.live(1)), expected, "{build}");
        assert_eq!(
            (release(&hip, handle), hip.live(0) + hip.live(1)),
            (SUCCESS, 0)
        );
        hip.set(
            "MEM_CREATE",
            if build == Build::Seven {
                "location"
            } else {
                "current"
            },
        );
        let handle = hip.mem_create(MIB, &Properties::on_device(1)).unwrap();
        assert_eq!((hip.live(1), hip.live(0)), expected, "{build}");
        assert_eq!(release(&hip, handle), SUCCESS);
        assert_eq!((release(&hip, handle), hip.bad_frees()), (INVALID_VALUE, 1));

        let far = hip.mem_create(MIB, &Properties::on_device(99));
        assert_eq!(
            far,
            Err(if build == Build::Seven {
                101
            } else {
                INVALID_VALUE
            })
        );
        let host = Properties {
            location_type: 2,
            ..Properties::on_device(0)
        };
        if build == Build::Seven {
            let handle = hip.mem_create(MIB, &host).unwrap();
            assert_eq!((hip.live(0), hip.held(0, Kind::Host)), (0, MIB));
            assert_eq!(
                (release(&hip, handle), hip.held(0, Kind::Host)),
                (SUCCESS, 0)
            );
        } else {
            assert_eq!(hip.mem_create(MIB, &host), Err(INVALID_VALUE));
        }
    }
}

#[test]
fn what_mem_create_refuses() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let device = Properties::on_device(0);
        for bytes in [0, 1000, MIB + 1] {
            assert_eq!(hip.mem_create(bytes, &device), Err(INVALID_VALUE));
        }
        assert_eq!(hip.mem_create(1 << 50, &device), Err(OUT_OF_MEMORY));
        assert_eq!(
            hip.mem_create(MIB, &Properties { kind: 0, ..device }),
            Err(INVALID_VALUE)
        );
        assert_eq!(
            hip.mem_create(
                MIB,
                &Properties {
                    location_type: 0,
                    ..device
                }
            ),
            Err(INVALID_VALUE)
        );
        let mut bytes = 0;
        let granularity = |bytes: &mut usize, option: c_int| {
            call!(&hip, hipMemGetAllocationGranularity(ptr::from_mut(bytes) => *mut usize,
                &raw const device => *const Properties, option => c_int))
        };
        assert_eq!((granularity(&mut bytes, 1), bytes), (SUCCESS, 4096));
        assert_eq!(granularity(&mut bytes, 2), INVALID_VALUE);
        assert_eq!(hip.live(0), 0);
    }
}

#[test]
fn memory_lives_until_its_last_reference_and_mapping_are_gone() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let at = reserve(&hip, 4 * MIB);
        assert_eq!(hip.live(0), 0, "addresses take nothing");
        let handle = hip.mem_create(2 * MIB, &Properties::on_device(0)).unwrap();
        let second = at.wrapping_byte_add(2 * MIB);
        assert_eq!(map(&hip, at, 2 * MIB, handle), SUCCESS);
        assert_eq!(
            map(&hip, at, 2 * MIB, handle),
            INVALID_VALUE,
            "there is something"
        );
        assert_eq!(map(&hip, second, 2 * MIB, handle), SUCCESS, "twice");
        assert_eq!(release(&hip, handle), SUCCESS);
        assert_eq!((unmap(&hip, at, 2 * MIB), hip.live(0)), (SUCCESS, 2 * MIB));
        let mut retained = UNTOUCHED;
        let error = call!(&hip, hipMemRetainAllocationHandle(&raw mut retained => *mut *mut c_void, second => *mut c_void));
        assert_eq!((error, retained), (SUCCESS, handle));
        let free = |bytes: usize| call!(&hip, hipMemAddressFree(at => *mut c_void, bytes => usize));
        assert_eq!(free(4 * MIB), 999, "mapped");
        // Neither that nor another release is a reference.
        assert_eq!((release(&hip, handle), hip.live(0)), (SUCCESS, 2 * MIB));
        assert_eq!((unmap(&hip, second, 2 * MIB), hip.live(0)), (SUCCESS, 0));
        assert_eq!(release(&hip, retained), INVALID_VALUE);
        assert_eq!(
            (unmap(&hip, second, 2 * MIB), free(MIB), free(4 * MIB)),
            (INVALID_VALUE, INVALID_VALUE, SUCCESS)
        );
    }
}

#[test]
fn a_range_that_is_not_one_mapping() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let at = reserve(&hip, 4 * MIB);
        for nth in 0..2 {
            let handle = hip.mem_create(MIB, &Properties::on_device(0)).unwrap();
            let place = at.wrapping_byte_add(nth * MIB);
            assert_eq!(map(&hip, place, MIB, handle), SUCCESS);
            assert_eq!(release(&hip, handle), SUCCESS);
        }
        let (said, left) = if build == Build::Seven {
            (INVALID_VALUE, 0)
        } else {
            (SUCCESS, 2 * MIB)
        };
        for bytes in [MIB / 2, 3 * MIB] {
            assert_eq!((unmap(&hip, at, bytes), hip.live(0)), (said, 2 * MIB));
        }
        assert_eq!((unmap(&hip, at, 2 * MIB), hip.live(0)), (SUCCESS, left));
        for nth in 0..2 {
            unmap(&hip, at.wrapping_byte_add(nth * MIB), MIB);
        }
        assert_eq!(hip.live(0), 0);
    }
}

#[test]
fn exported_memory_is_not_charged_again() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let handle = hip.mem_create(GIB, &Properties::on_device(0)).unwrap();
        let mut file: c_int = -1;
        let error = call!(&hip, hipMemExportToShareableHandle(&raw mut file => *mut c_int, handle => *mut c_void,
            1 => c_int, 0 => u64));
        assert_eq!(error, SUCCESS);
        // By its address up to 6.4, by its number in 7.2.
        let shareable = if build.generation() >= 7 {
            ptr::without_provenance_mut(file as usize)
        } else {
            (&raw mut file).cast::<c_void>()
        };
        let mut imported = UNTOUCHED;
        let error = call!(&hip, hipMemImportFromShareableHandle(&raw mut imported => *mut *mut c_void,
            shareable => *mut c_void, 1 => c_int));
        assert_eq!((error, hip.live(0)), (SUCCESS, GIB));
        assert_eq!((release(&hip, handle), hip.live(0)), (SUCCESS, 0));
        assert_eq!(hip.held(0, Kind::Imported), GIB);
        assert_eq!(release(&hip, imported), SUCCESS);
        assert_eq!(hip.held(0, Kind::Imported), 0);
        // SAFETY: the descriptor that the export made.
        assert_eq!(unsafe { libc::close(file) }, 0);
    }
}

#[test]
fn ipc_handles() {
    type Handle = [u64; 8];
    for build in Build::ALL {
        let hip = Instance::new(build);
        let pointer = hip.malloc(MIB).unwrap();
        let get = |handle: &mut Handle, pointer| call!(&hip, hipIpcGetMemHandle(ptr::from_mut(handle) => *mut Handle, pointer => *mut c_void));
        let mut handle = Handle::default();
        assert_eq!(get(&mut handle, UNTOUCHED), INVALID_VALUE);
        assert_eq!(get(&mut handle, pointer), SUCCESS);
        #[repr(C)]
        struct ByValue(Handle);
        let open = |handle: Handle, flags: u32| {
            let mut pointer = UNTOUCHED;
            let error = call!(&hip, hipIpcOpenMemHandle(&raw mut pointer => *mut *mut c_void, ByValue(handle) => ByValue,
                flags => u32));
            (error, pointer)
        };
        let right = u32::from(build.generation() >= 6);
        assert_eq!(open(handle, 1 - right).0, INVALID_VALUE);
        assert_eq!(open(handle, right).0, 201, "one's own memory");
        // As from another process: this one's parent.
        handle[1] = u64::from(std::os::unix::process::parent_id());
        let (error, imported) = open(handle, right);
        assert_eq!(
            (error, hip.live(0), hip.held(0, Kind::Imported)),
            (SUCCESS, MIB, MIB)
        );
        assert_eq!(hip.free(imported), INVALID_VALUE);
        let close = |pointer| call!(&hip, hipIpcCloseMemHandle(pointer => *mut c_void));
        assert_eq!(
            (close(imported), close(imported), close(pointer)),
            (SUCCESS, INVALID_VALUE, INVALID_VALUE)
        );
        assert_eq!(hip.held(0, Kind::Imported), 0);
    }
}
