//! Memory in the order of streams: what a pool keeps, and when it gives it back.

mod common;

use std::ffi::{c_int, c_void};
use std::ptr;

use common::{GIB, INVALID_VALUE, Instance, MIB, OUT_OF_MEMORY, SUCCESS, UNTOUCHED, call};
use hip_standin::{Build, Kind, Settings};

const NULL: *mut c_void = ptr::null_mut();
const THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const RESERVED_HIGH: c_int = 6;
const USED: c_int = 7;

fn synchronize(hip: &Instance) {
    assert_eq!(call!(hip, hipDeviceSynchronize()), SUCCESS);
}

fn default_pool(hip: &Instance, device: c_int) -> *mut c_void {
    let mut pool = UNTOUCHED;
    assert_eq!(
        call!(hip, hipDeviceGetDefaultMemPool(&raw mut pool => *mut *mut c_void, device => c_int)),
        SUCCESS
    );
    pool
}

fn attribute(hip: &Instance, pool: *mut c_void, which: c_int) -> usize {
    let mut value = 0_u64;
    let error = call!(hip, hipMemPoolGetAttribute(pool => *mut c_void, which => c_int, &raw mut value => *mut u64));
    assert_eq!(error, SUCCESS);
    value as usize
}

fn set_threshold(hip: &Instance, pool: *mut c_void, mut bytes: u64) {
    let error = call!(hip, hipMemPoolSetAttribute(pool => *mut c_void, THRESHOLD => c_int, &raw mut bytes => *mut u64));
    assert_eq!(error, SUCCESS);
}

#[test]
fn freed_memory_goes_back_when_the_stream_has_come_that_far() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let a = hip.malloc_async(GIB, NULL).unwrap();
        assert_eq!((hip.live(0), hip.held(0, Kind::Pool)), (GIB, GIB));
        assert_eq!((hip.free_async(a, NULL), hip.live(0)), (SUCCESS, GIB));
        let pool = default_pool(&hip, 0);
        assert_eq!(
            (attribute(&hip, pool, USED), attribute(&hip, pool, RESERVED)),
            (0, GIB)
        );
        assert_eq!(
            hip.malloc_async(GIB / 2, NULL),
            Ok(a),
            "the same stream may have it at once"
        );
        assert_eq!(hip.live(0), GIB);
        assert_eq!(hip.free_async(a, NULL), SUCCESS);
        synchronize(&hip);
        assert_eq!((hip.live(0), attribute(&hip, pool, RESERVED)), (0, 0));
        assert_eq!(attribute(&hip, pool, RESERVED_HIGH), GIB);
        assert_eq!(hip.free_async(a, NULL), INVALID_VALUE);
        assert_eq!(hip.bad_frees(), 1);
    }
}

#[test]
fn a_pool_keeps_what_its_threshold_allows() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let pool = default_pool(&hip, 0);
        set_threshold(&hip, pool, u64::MAX);
        let (a, b) = (
            hip.malloc_async(GIB, NULL).unwrap(),
            hip.malloc_async(GIB, NULL).unwrap(),
        );
        assert_eq!(
            (hip.free_async(a, NULL), hip.free_async(b, NULL)),
            (SUCCESS, SUCCESS)
        );
        synchronize(&hip);
        assert_eq!(hip.live(0), 2 * GIB);
        assert_eq!(
            call!(&hip, hipMemPoolTrimTo(pool => *mut c_void, GIB => usize)),
            SUCCESS
        );
        assert_eq!(hip.live(0), GIB);
        // Others do not get what a pool only keeps, as long as it does.
        assert_eq!(hip.malloc(64 * GIB), Err(OUT_OF_MEMORY));
        assert_eq!(attribute(&hip, pool, RESERVED), GIB);
        assert_eq!(
            call!(&hip, hipMemPoolTrimTo(pool => *mut c_void, 0 => usize)),
            SUCCESS
        );
        let rest = hip.malloc(64 * GIB).unwrap();
        assert_eq!(hip.malloc_async(1, NULL), Err(OUT_OF_MEMORY));
        assert_eq!(hip.free(rest), SUCCESS);
    }
}

#[test]
fn another_stream_waits_for_the_first() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let stream = || {
            let mut stream = UNTOUCHED;
            assert_eq!(
                call!(&hip, hipStreamCreate(&raw mut stream => *mut *mut c_void)),
                SUCCESS
            );
            stream
        };
        let (one, two) = (stream(), stream());
        set_threshold(&hip, default_pool(&hip, 0), u64::MAX);
        let a = hip.malloc_async(MIB, one).unwrap();
        assert_eq!(hip.free_async(a, one), SUCCESS);
        assert_ne!(hip.malloc_async(MIB, two), Ok(a));
        assert_eq!(
            call!(&hip, hipStreamSynchronize(one => *mut c_void)),
            SUCCESS
        );
        assert_eq!(hip.malloc_async(MIB, two), Ok(a));
        assert_eq!(call!(&hip, hipStreamDestroy(one => *mut c_void)), SUCCESS);
        assert_eq!(call!(&hip, hipStreamDestroy(two => *mut c_void)), SUCCESS);
    }
}

#[test]
fn the_two_ways_of_allocating_and_freeing_mix() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let a = hip.malloc_async(MIB, NULL).unwrap();
        assert_eq!((hip.free(a), hip.live(0)), (SUCCESS, 0), "hipFree waits");
        let b = hip.malloc(MIB).unwrap();
        assert_eq!((hip.free_async(b, NULL), hip.live(0)), (SUCCESS, 0));
        let expected = if build.generation() >= 7 {
            SUCCESS
        } else {
            INVALID_VALUE
        };
        assert_eq!(hip.free_async(NULL, NULL), expected);
        assert_eq!(hip.malloc_async(0, NULL), Ok(NULL));
        let mut out = UNTOUCHED;
        let error = call!(&hip, hipMallocAsync(&raw mut out => *mut *mut c_void, 1 << 50 => usize, NULL => *mut c_void));
        assert_eq!(
            (error, out),
            (OUT_OF_MEMORY, NULL),
            "written also on failure"
        );
    }
}

/// `hipMemPoolProps`
#[repr(C)]
struct PoolProperties {
    kind: c_int,
    handle_types: c_int,
    location: [c_int; 2],
    security: usize,
    most: usize,
    reserved: [u8; 56],
}

#[test]
fn pools_of_ones_own() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().devices("2"), &[]);
        let create = |device: c_int, most: usize| {
            let properties = PoolProperties {
                kind: 1,
                handle_types: 0,
                location: [1, device],
                security: 0,
                most,
                reserved: [0; 56],
            };
            let mut pool = UNTOUCHED;
            let error = call!(&hip, hipMemPoolCreate(&raw mut pool => *mut *mut c_void,
                &raw const properties => *const PoolProperties));
            (error, pool)
        };
        assert_eq!(create(2, 0).0, INVALID_VALUE);
        let (error, pool) = create(1, GIB);
        assert_eq!(error, SUCCESS);
        let from = |bytes: usize, pool: *mut c_void| {
            let mut pointer = UNTOUCHED;
            let error = call!(&hip, hipMallocFromPoolAsync(&raw mut pointer => *mut *mut c_void, bytes => usize,
                pool => *mut c_void, NULL => *mut c_void));
            (error, pointer)
        };
        // The current device is 0; the pool's is what counts.
        let (error, _) = from(GIB, pool);
        assert_eq!((error, hip.live(0), hip.live(1)), (SUCCESS, 0, GIB));
        assert_eq!(from(1, pool).0, OUT_OF_MEMORY, "above the pool's own bound");
        assert_eq!(from(1, NULL).0, INVALID_VALUE);
        assert_eq!(call!(&hip, hipMemPoolDestroy(pool => *mut c_void)), SUCCESS);
        assert_eq!(hip.live(1), 0);
        assert_eq!(
            call!(&hip, hipMemPoolDestroy(default_pool(&hip, 0) => *mut c_void)),
            INVALID_VALUE
        );
    }
}

fn stream(hip: &Instance) -> *mut c_void {
    let mut stream = UNTOUCHED;
    let error = call!(hip, hipStreamCreate(&raw mut stream => *mut *mut c_void));
    assert_eq!(error, SUCCESS);
    stream
}

#[test]
fn a_stream_knows_its_device_since_5_7() {
    for build in Build::ALL {
        let hip = Instance::with(
            build,
            &Settings::new().devices("3"),
            &[("HIP_VISIBLE_DEVICES", "2,1")],
        );
        assert_eq!(hip.set_device(1), SUCCESS);
        let of_1 = stream(&hip);
        assert_eq!(hip.set_device(0), SUCCESS);
        if build.release() < (5, 7) {
            assert_eq!(hip.address("hipStreamGetDevice"), None);
            continue;
        }
        for (stream, expected) in [
            (of_1, 1),
            (stream(&hip), 0),
            (NULL, 0),
            (2 as *mut c_void, 0),
        ] {
            let mut device = -1;
            let error = call!(&hip, hipStreamGetDevice(stream => *mut c_void, &raw mut device => *mut c_int));
            assert_eq!((error, device), (SUCCESS, expected), "{build}");
        }
        let nowhere = ptr::null_mut();
        let error = call!(&hip, hipStreamGetDevice(of_1 => *mut c_void, nowhere => *mut c_int));
        assert_eq!(error, INVALID_VALUE);
    }
}

#[test]
fn a_pool_is_for_its_own_device() {
    for build in Build::ALL {
        let devices = Settings::new().devices("3");
        let hip = Instance::with(build, &devices, &[("HIP_VISIBLE_DEVICES", "2,1")]);
        let access = |pool: *mut c_void, device: c_int| {
            let (mut flags, mut location) = (-1, [1, device]);
            let error = call!(&hip, hipMemPoolGetAccess(&raw mut flags => *mut c_int, pool => *mut c_void,
                location.as_mut_ptr() => *mut c_int));
            (error, flags)
        };
        for own in [0, 1] {
            let pool = default_pool(&hip, own);
            let answers = [access(pool, own), access(pool, 1 - own)];
            let expected = if build.release() < (5, 7) {
                [(SUCCESS, -1); 2]
            } else {
                [(SUCCESS, 3), (SUCCESS, 0)]
            };
            assert_eq!(answers, expected, "{build}");
        }
        assert_eq!(access(NULL, 0), (INVALID_VALUE, -1));
    }
}

/// Since 6 what is recorded has an address, and takes its memory when the graph runs; before, it takes it at once.
/// What is freed is there until the graph runs.
#[test]
fn a_stream_that_is_captured_takes_nothing() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let stream = stream(&hip);
        let capturing = |of: *mut c_void| {
            let mut status = -1;
            let error =
                call!(&hip, hipStreamIsCapturing(of => *mut c_void, &raw mut status => *mut c_int));
            assert_eq!(error, SUCCESS);
            status
        };
        let begin = |of| call!(&hip, hipStreamBeginCapture(of => *mut c_void, 0 => c_int));
        assert_eq!((begin(NULL), capturing(NULL)), (900, 0));
        assert_eq!((capturing(stream), begin(stream)), (0, SUCCESS));
        assert_eq!((begin(stream), capturing(stream)), (401, 1));
        let a = hip.malloc_async(GIB, stream).unwrap();
        assert!(!a.is_null());
        let taken = if build.generation() >= 6 { 0 } else { GIB };
        assert_eq!((hip.live(0), hip.free_async(a, stream)), (taken, SUCCESS));
        assert_eq!((hip.free_async(a, stream), hip.live(0)), (SUCCESS, taken));
        let mut graph = UNTOUCHED;
        let mut end = || call!(&hip, hipStreamEndCapture(stream => *mut c_void, &raw mut graph => *mut *mut c_void));
        assert_eq!((end(), end()), (SUCCESS, 401));
        assert_eq!(call!(&hip, hipGraphDestroy(graph => *mut c_void)), SUCCESS);
        assert_eq!(capturing(stream), 0);
        hip.malloc_async(MIB, stream).unwrap();
        assert_eq!(hip.live(0), taken + MIB);
    }
}
