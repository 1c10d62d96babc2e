//! Who sees the calls that the library makes of its own exports. In a process of its own: the first
//! instance comes into the global scope, before all others.

mod common;

use std::ffi::{c_uint, c_void};

use common::{Instance, SUCCESS, UNTOUCHED, call};
use hip_standin::{Build, Settings};

fn mem_alloc_pitch(hip: &Instance) {
    let (mut pointer, mut pitch) = (UNTOUCHED, 0);
    let error = call!(hip, hipMemAllocPitch(&raw mut pointer => *mut *mut c_void, &raw mut pitch => *mut usize,
        100 => usize, 1 => usize, 4 => c_uint));
    assert_eq!(error, SUCCESS);
}

#[test]
fn calls_inside_of_5_go_through_the_plt_and_those_inside_of_6_do_not() {
    let first = Instance::new(Build::Five);
    first.make_global();
    for build in Build::ALL {
        let seen = first.calls("hipMallocPitch");
        let hip = Instance::new(build);
        mem_alloc_pitch(&hip);
        let (by_first, by_itself) = (
            first.calls("hipMallocPitch") - seen,
            hip.calls("hipMallocPitch"),
        );
        let expected = if build.has_table() { (0, 1) } else { (1, 0) };
        assert_eq!((by_first, by_itself), expected, "{build}");
    }
    // Unless the test wants it so.
    let hip = Instance::with(Build::Six, &Settings::new().set("NESTED", "1"), &[]);
    let seen = first.calls("hipMallocPitch");
    mem_alloc_pitch(&hip);
    assert_eq!(
        (
            first.calls("hipMallocPitch") - seen,
            hip.calls("hipMallocPitch")
        ),
        (1, 0)
    );
}
