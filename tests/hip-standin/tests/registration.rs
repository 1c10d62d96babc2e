//! The registering build hands its table to rocprofiler-register, if that is there.

mod common;

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use common::Instance;
use hip_standin::{Build, profiler_register};

unsafe extern "C" fn denied(_: *mut *mut c_void, _: usize) -> c_int {
    4711
}

/// In one test, since what is loaded into the global scope stays there.
#[test]
fn the_table_is_registered_where_it_can_be() {
    let without = Instance::new(Build::SixRegistering);
    assert!(without.malloc(16).is_ok(), "nobody there to register with");

    let path = CString::new(profiler_register().as_os_str().as_bytes()).unwrap();
    // SAFETY: C strings, and functions with the signatures that profiler/register.c has.
    let (count, registered) = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!handle.is_null());
        let count = libc::dlsym(handle, c"standin_registrations".as_ptr());
        let registered = libc::dlsym(handle, c"standin_registered".as_ptr());
        assert!(!count.is_null() && !registered.is_null());
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> c_int>(count),
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> *mut usize>(
                registered,
            ),
        )
    };
    let six = Instance::new(Build::Six);
    assert!(six.malloc(16).is_ok());
    // SAFETY: as above.
    assert_eq!(unsafe { count() }, 0, "only the registering build does so");

    let hip = Instance::new(Build::SixRegistering);
    // SAFETY: as above.
    assert_eq!(unsafe { count() }, 0, "not before the first call of HIP");
    assert!(hip.malloc(16).is_ok());
    // SAFETY: as above; the table begins with its size, and hipMalloc has slot 215.
    unsafe {
        assert_eq!(count(), 2);
        assert!(!registered(c"hip_compiler".as_ptr()).is_null());
        let table = registered(c"hip".as_ptr());
        assert_eq!(*table, 0xed8);
        table.add(1 + 215).write(denied as *const () as usize);
    }
    assert_eq!(hip.malloc(16), Err(4711));
    assert!(without.malloc(16).is_ok() && six.malloc(16).is_ok());
}
