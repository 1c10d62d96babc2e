//! The builds differ in shape, not in what they do: the same random calls have the same results.

mod common;

use std::ffi::{c_int, c_uint, c_void};

use common::{GIB, INVALID_VALUE, Instance, MIB, UNTOUCHED, call, floats};
use hip_standin::{Build, Settings};

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

/// What a program can see of a call, and what the account says then: error, pitch, live bytes of both devices, free bytes.
type Step = (c_int, usize, usize, usize, usize);

fn run(build: Build, seed: u64) -> Vec<Step> {
    let settings = Settings::new()
        .devices("2")
        .vram(GIB as u64)
        .rules("hipMalloc@%17=2,hipFree@%23=1");
    let hip = Instance::with(build, &settings, &[]);
    let mut random = Random(seed);
    let mut pointers = vec![UNTOUCHED];
    let mut arrays = vec![];
    let mut steps = Vec::new();
    let null = std::ptr::null_mut::<c_void>();
    for _ in 0..600 {
        let bytes = 1 + random.below(200 * MIB);
        let (mut out, mut pitch) = (UNTOUCHED, 0);
        let place = &raw mut out;
        let pick = random.below(pointers.len());
        let error = match random.below(11) {
            0 | 1 => call!(&hip, hipMalloc(place => *mut *mut c_void, bytes => usize)),
            2 => {
                call!(&hip, hipMallocPitch(place => *mut *mut c_void, &raw mut pitch => *mut usize,
                bytes => usize, 1 + bytes % 3 => usize))
            }
            3 => {
                call!(&hip, hipMallocManaged(place => *mut *mut c_void, bytes => usize, 1 => c_uint))
            }
            4 => {
                call!(&hip, hipMallocAsync(place => *mut *mut c_void, bytes => usize, null => *mut c_void))
            }
            5 => {
                let mut array = UNTOUCHED;
                let format = floats(1);
                let error = call!(&hip, hipMallocArray(&raw mut array => *mut *mut c_void,
                    format.as_ptr() => *const c_int, 1 + bytes % 20000 => usize, bytes % 1000 => usize, 0 => c_uint));
                if error == 0 {
                    arrays.push(array);
                }
                error
            }
            6 if !arrays.is_empty() => {
                let array = arrays.swap_remove(random.below(arrays.len()));
                call!(&hip, hipFreeArray(array => *mut c_void))
            }
            7 => hip.set_device((bytes % 3) as c_int),
            8 => call!(&hip, hipDeviceSynchronize()),
            9 => call!(&hip, hipFreeAsync(pointers[pick] => *mut c_void, null => *mut c_void)),
            _ => hip.free(pointers[pick]),
        };
        if out != UNTOUCHED && !out.is_null() {
            pointers.push(out);
        }
        steps.push((error, pitch, hip.live(0), hip.live(1), hip.info().0));
    }
    steps
}

#[test]
fn random_calls_have_the_same_results_in_every_build() {
    for seed in [0x1234_5678_9abc_def1, 42, 0xdead_beef] {
        let expected = run(Build::Five, seed);
        for error in [0, INVALID_VALUE, 2, 101] {
            assert!(
                expected.iter().any(|step| step.0 == error),
                "{error} does not occur"
            );
        }
        for build in Build::ALL {
            let steps = run(build, seed);
            let first = expected.iter().zip(&steps).position(|(a, b)| a != b);
            assert_eq!(
                first,
                None,
                "{build}, seed {seed}: {:?}",
                first.map(|at| (expected[at], steps[at]))
            );
        }
    }
}

/// Many threads at once: the account is right when they are done.
#[test]
fn threads() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let (malloc, free) = (
            hip.address("hipMalloc").unwrap() as usize,
            hip.address("hipFree").unwrap() as usize,
        );
        std::thread::scope(|scope| {
            for worker in 0..4 {
                scope.spawn(move || {
                    // SAFETY: the two functions by their signatures.
                    let (malloc, free) = unsafe {
                        (
                            std::mem::transmute::<usize, unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int>(malloc),
                            std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void) -> c_int>(free),
                        )
                    };
                    let mut random = Random(worker + 1);
                    for _ in 0..2000 {
                        let mut pointer = UNTOUCHED;
                        // SAFETY: a place for a pointer, and then that pointer.
                        unsafe {
                            assert_eq!(malloc(&raw mut pointer, 1 + random.below(MIB)), 0);
                            assert_eq!(free(pointer), 0);
                        }
                    }
                });
            }
        });
        assert_eq!(
            (
                hip.live(0),
                hip.bad_frees(),
                hip.calls("hipMalloc"),
                hip.calls("hipFree")
            ),
            (0, 0, 8000, 8000)
        );
    }
}
