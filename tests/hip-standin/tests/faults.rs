//! Faults that a test asks for.

mod common;

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::time::{Duration, Instant};

use common::{GIB, Instance, MIB, SUCCESS, UNTOUCHED, call, since};
use hip_standin::{Build, Settings};

#[test]
fn the_nth_call_fails() {
    for build in Build::ALL {
        let rules = "hipMalloc@2=2,hipMalloc@4-5=999,hipFree@%3=1;hipMemGetInfo@2+=700";
        let hip = Instance::with(build, &Settings::new().rules(rules), &[]);
        let mallocs: Vec<_> = (0..7).map(|_| hip.malloc(MIB).err().unwrap_or(0)).collect();
        assert_eq!(mallocs, [0, 2, 0, 999, 999, 0, 0], "{build}");
        assert_eq!(
            (hip.live(0), hip.errors("hipMalloc"), hip.calls("hipMalloc")),
            (4 * MIB, 3, 7)
        );
        let frees: Vec<_> = (0..6).map(|_| hip.free(std::ptr::null_mut())).collect();
        assert_eq!(frees, [0, 0, 1, 0, 0, 1]);
        let (mut a, mut b) = (0, 0);
        let infos: Vec<_> = (0..3)
            .map(|_| call!(&hip, hipMemGetInfo(&raw mut a => *mut usize, &raw mut b => *mut usize)))
            .collect();
        assert_eq!((infos, hip.last_error()), (vec![0, 700, 700], 700));
    }
}

#[test]
fn a_failed_free_leaves_the_memory() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let a = hip.malloc(MIB).unwrap();
        hip.set("RULES", "hipFree@1=1");
        assert_eq!((hip.free(a), hip.live(0), hip.bad_frees()), (1, MIB, 0));
        assert_eq!((hip.free(a), hip.live(0)), (SUCCESS, 0));
    }
}

/// What happens to a caller that is told of a failure when the work was done.
#[test]
fn an_error_after_the_work_leaves_the_work_done() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().rules("hipFree@1=1-after"), &[]);
        let a = hip.malloc(MIB).unwrap();
        assert_eq!((hip.free(a), hip.live(0), hip.errors("hipFree")), (1, 0, 1));
        // A failure of its own keeps its number.
        hip.set("RULES", "hipFree=999-after,hipMalloc=2-after");
        assert_eq!((hip.free(a), hip.last_error()), (1, 1));
        let mut pointer = UNTOUCHED;
        let error = call!(&hip, hipMalloc(&raw mut pointer => *mut *mut c_void, MIB => usize));
        assert_eq!((error, hip.live(0)), (2, MIB));
        assert_ne!(pointer, UNTOUCHED);
    }
}

thread_local! {
    /// What the program's own function was called with.
    static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

extern "C" fn told(name: *const c_char) {
    // SAFETY: the stand-in gives the name of one of its functions.
    let name = unsafe { CStr::from_ptr(name) };
    TOLD.with_borrow_mut(|told| told.push(name.to_str().unwrap().to_owned()));
}

#[test]
fn the_program_is_called_before_or_after_the_work() {
    type Told = extern "C" fn(*const c_char);
    for build in Build::ALL {
        let rules = "hipMalloc=call,hipFree@2=call-after";
        let hip = Instance::with(build, &Settings::new().rules(rules), &[]);
        // Without a function nothing is called.
        let a = hip.malloc(MIB).unwrap();
        // SAFETY: control.c has this signature.
        let on_call: unsafe extern "C" fn(Option<Told>) =
            unsafe { hip.function("hip_standin_on_call") };
        // SAFETY: the function is there as long as this test.
        unsafe { on_call(Some(told)) };
        let b = hip.malloc(MIB).unwrap();
        assert_eq!((hip.free(a), hip.free(b), hip.live(0)), (0, 0, 0));
        assert_eq!(TOLD.take(), ["hipMalloc", "hipFree"], "{build}");
        // SAFETY: as above.
        unsafe { on_call(None) };
        hip.malloc(MIB).unwrap();
        assert!(TOLD.take().is_empty());
    }
}

#[test]
fn every_function_can_fail() {
    let table = include_str!("../runtime/functions.h");
    for build in Build::ALL {
        let hip = Instance::new(build);
        hip.set("RULES", "*=719");
        let mut failed = 0;
        for row in table.split("FUNCTION(").skip(2) {
            let fields: Vec<_> = row.split(',').map(str::trim).collect();
            if since(fields[0]) > build.release() {
                continue;
            }
            // SAFETY: arguments are not looked at when a rule answers; six registers' worth are given.
            let error = unsafe {
                let function: unsafe extern "C" fn(
                    usize,
                    usize,
                    usize,
                    usize,
                    usize,
                    usize,
                ) -> c_int = hip.function(fields[3]);
                function(0, 0, 0, 0, 0, 0)
            };
            assert_eq!(error, 719, "{build}: {}", fields[3]);
            assert_eq!(
                (hip.errors(fields[3]), hip.calls(fields[3])),
                (1, 1),
                "{}",
                fields[3]
            );
            failed += 1;
        }
        assert!(failed > 70);
    }
}

#[test]
fn outputs_are_untouched_by_a_failure_or_poisoned() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().rules("*=2"), &[]);
        let pitched = || {
            let (mut pointer, mut pitch) = (UNTOUCHED, 77_usize);
            let error = call!(&hip, hipMallocPitch(&raw mut pointer => *mut *mut c_void, &raw mut pitch => *mut usize,
                16 => usize, 1 => usize));
            assert_eq!(error, 2);
            (pointer, pitch)
        };
        assert_eq!(pitched(), (UNTOUCHED, 77));
        hip.set("POISON", "1");
        let poison = usize::from_ne_bytes([0xa5; 8]);
        assert_eq!(pitched(), (poison as *mut c_void, poison));
        let mut structure = [0_u8; 800];
        let to = structure.as_mut_ptr().cast::<c_void>();
        assert_eq!(
            call!(&hip, hipGetDeviceProperties(to => *mut c_void, 0 => c_int)),
            2
        );
        assert!(structure[..792].iter().all(|byte| *byte == 0xa5) && structure[792..] == [0; 8]);
        // Also by the function's own failure.
        hip.set("RULES", "");
        let mut pointer = UNTOUCHED;
        let error = call!(&hip, hipExtMallocWithFlags(&raw mut pointer => *mut *mut c_void, 1 => usize, 99 => c_uint));
        assert_eq!((error, pointer as usize), (1, poison));
    }
}

#[test]
fn success_with_a_null_pointer() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().rules("hipMalloc@2=null"), &[]);
        assert!(!hip.malloc(MIB).unwrap().is_null());
        assert!(hip.malloc(MIB).unwrap().is_null());
        assert_eq!(hip.live(0), MIB);
    }
}

#[test]
fn calls_can_be_slow() {
    for build in Build::ALL {
        let hip = Instance::with(
            build,
            &Settings::new().rules("hipMalloc=wait:20us,hipFree@2=wait:30ms"),
            &[],
        );
        let begin = Instant::now();
        for _ in 0..100 {
            hip.malloc(1).unwrap();
        }
        assert!(begin.elapsed() >= Duration::from_millis(2));
        hip.free(std::ptr::null_mut());
        let begin = Instant::now();
        hip.free(std::ptr::null_mut());
        assert!(begin.elapsed() >= Duration::from_millis(30));
    }
}

unsafe extern "C" {
    safe fn pthread_self() -> libc::pthread_t;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
const CANCEL_DISABLE: c_int = 1;

/// The first call reads files, and so does one that looks for processes that died.
#[test]
fn calls_are_no_cancellation_points() {
    for build in Build::ALL {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::new().account(&directory.path().join("account"));
        let results = std::thread::spawn(move || {
            let hip = Instance::with_first_call(build, &settings, || {
                // SAFETY: nothing here, nor in the stand-in, is left by the cancellation if the test passes;
                // if not, the process ends.
                unsafe { pthread_cancel(pthread_self()) };
            });
            let results = (hip.malloc(MIB).is_ok(), hip.info().0);
            let mut before = -1;
            // SAFETY: a place for the former state.
            unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
            (results, before)
        });
        assert_eq!(results.join().unwrap(), ((true, 64 * GIB - MIB), 0));
    }
}

#[test]
fn rules_that_are_not_understood_are_refused() {
    let hip = Instance::new(Build::Six);
    for rule in [
        "hipNonsense=1",
        "hipMalloc",
        "hipMalloc=",
        "hipMalloc@=1",
        "hipMalloc@0=1",
        "hipMalloc=wait:5",
        "hipMalloc=0",
        "hipMalloc=1x",
        "hipMalloc=0-after",
        "hipMalloc=1-before",
        "hipMalloc=calls",
        "hipMalloc@%0=1",
    ] {
        let (name, value) = (c"RULES", std::ffi::CString::new(rule).unwrap());
        let result =
            call!(&hip, hip_standin_set(name.as_ptr() => *const i8, value.as_ptr() => *const i8));
        assert_eq!(result, 1, "{rule}");
    }
    assert!(hip.malloc(1).is_ok());
}
