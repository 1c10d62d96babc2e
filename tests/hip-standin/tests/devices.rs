//! Devices: how many, which, in what order, and what is said of them.

mod common;

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use common::{
    GIB, INVALID_DEVICE, INVALID_VALUE, Instance, MIB, NO_DEVICE, SUCCESS, UNTOUCHED, call,
};
use hip_standin::{Build, Settings};

/// The PCI addresses that a process sees, of four devices, under these variables.
fn seen(build: Build, variables: &[(&str, &str)]) -> Vec<String> {
    let hip = Instance::with(build, &Settings::new().devices("4"), variables);
    let (error, count) = hip.device_count();
    assert_eq!(error, if count == 0 { NO_DEVICE } else { SUCCESS });
    (0..count)
        .map(|device| hip.bus_id(device).unwrap())
        .collect()
}

/// Variables, and the devices that are then seen.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [usize]);

/// As seen on 5.7.1, 6.4.3 and 7.2.4 with four GPUs.
#[test]
fn visible_devices_choose_and_order() {
    let all = [
        "0000:03:00.0",
        "0000:06:00.0",
        "0000:09:00.0",
        "0000:0c:00.0",
    ];
    let cases: [Case<'_>; 20] = [
        (&[], &[0, 1, 2, 3]),
        (&[("HIP_VISIBLE_DEVICES", "")], &[]),
        (&[("HIP_VISIBLE_DEVICES", "-1")], &[]),
        (&[("HIP_VISIBLE_DEVICES", "2,0")], &[2, 0]),
        (&[("HIP_VISIBLE_DEVICES", "0,7,1")], &[0]),
        (&[("HIP_VISIBLE_DEVICES", "7")], &[]),
        (&[("HIP_VISIBLE_DEVICES", "1,1")], &[1]),
        (&[("HIP_VISIBLE_DEVICES", "abc")], &[]),
        (&[("HIP_VISIBLE_DEVICES", "1, 0")], &[1]),
        (&[("ROCR_VISIBLE_DEVICES", "")], &[]),
        (&[("ROCR_VISIBLE_DEVICES", "-1")], &[]),
        (&[("ROCR_VISIBLE_DEVICES", "2,0")], &[2, 0]),
        (&[("ROCR_VISIBLE_DEVICES", "2,7,0")], &[2]),
        (&[("ROCR_VISIBLE_DEVICES", "1,1")], &[1]),
        (&[("ROCR_VISIBLE_DEVICES", "1, 0")], &[1, 0]),
        (&[("ROCR_VISIBLE_DEVICES", "abc")], &[]),
        (
            &[
                ("ROCR_VISIBLE_DEVICES", "3,1"),
                ("HIP_VISIBLE_DEVICES", "1"),
            ],
            &[1],
        ),
        (
            &[
                ("ROCR_VISIBLE_DEVICES", "3,1"),
                ("HIP_VISIBLE_DEVICES", "1,0"),
            ],
            &[1, 3],
        ),
        (&[("CUDA_VISIBLE_DEVICES", "2")], &[2]),
        (
            &[("CUDA_VISIBLE_DEVICES", "2"), ("HIP_VISIBLE_DEVICES", "1")],
            &[1],
        ),
    ];
    for build in [Build::Five, Build::Six, Build::Seven] {
        for (variables, expected) in cases {
            let expected: Vec<_> = expected.iter().map(|index| all[*index]).collect();
            assert_eq!(seen(build, variables), expected, "{build}: {variables:?}");
        }
    }
}

#[test]
fn memory_belongs_to_the_current_device_of_the_thread() {
    for build in Build::ALL {
        let settings = Settings::new().devices("0000:03:00.0=8GiB,0000:83:00.0=24GiB");
        let hip = Instance::with(build, &settings, &[("HIP_VISIBLE_DEVICES", "1,0")]);
        assert_eq!(hip.set_device(1), SUCCESS);
        let a = hip.malloc(MIB).unwrap();
        std::thread::scope(|scope| {
            let address = hip.address("hipMemGetInfo").unwrap() as usize;
            let other = scope.spawn(move || {
                let (mut free, mut total) = (0, 0);
                // SAFETY: hipMemGetInfo with its signature.
                let error = unsafe {
                    let info: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int =
                        std::mem::transmute(address);
                    info(&raw mut free, &raw mut total)
                };
                (error, free, total)
            });
            assert_eq!(
                other.join().unwrap(),
                (SUCCESS, 24 * GIB, 24 * GIB),
                "device 0 of a new thread"
            );
        });
        assert_eq!(hip.info(), (8 * GIB - MIB, 8 * GIB));
        assert_eq!((hip.live(0), hip.live(1)), (0, MIB));
        assert_eq!(
            (hip.set_device(2), hip.set_device(-1)),
            (INVALID_DEVICE, INVALID_DEVICE)
        );
        assert_eq!(hip.set_device(0), SUCCESS);
        assert_eq!(
            (hip.free(a), hip.live(1)),
            (SUCCESS, 0),
            "freed from another device"
        );
    }
}

#[test]
fn sixty_four_devices() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().devices("64"), &[]);
        assert_eq!(hip.device_count(), (SUCCESS, 64));
        let mut ids: Vec<_> = (0..64).map(|device| hip.bus_id(device).unwrap()).collect();
        for device in 0..64 {
            assert_eq!(hip.set_device(device), SUCCESS);
            hip.malloc(device as usize + 1).unwrap();
        }
        assert!((0..64).all(|device| hip.live(device) == device as usize + 1));
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 64);
    }
}

#[test]
fn partitions_share_an_address() {
    for build in Build::ALL {
        let settings = Settings::new().devices("0000:c1:00.0*8=24GiB,0001:03:05.1/3=1GiB");
        let hip = Instance::with(build, &settings, &[]);
        assert_eq!(hip.device_count(), (SUCCESS, 9));
        assert!((0..8).all(|device| hip.bus_id(device).unwrap() == "0000:c1:00.0"));
        let last = if build.generation() == 5 {
            "0001:03:05.0"
        } else {
            "0001:03:05.1"
        };
        assert_eq!(hip.bus_id(8).unwrap(), last);
        assert_eq!(hip.set_device(7), SUCCESS);
        hip.malloc(GIB).unwrap();
        assert_eq!((hip.live(6), hip.live(7)), (0, GIB));
    }
}

#[test]
fn uuids_are_those_of_rocr() {
    for build in Build::ALL {
        let list = "0000:c1:00.0*3=24GiB+GPU-5c0d93a17be24609,0000:c2:00.0*2@GPU-1a2b3c4d5e6f7000,0000:c3:00.0";
        let hip = Instance::with(build, &Settings::new().devices(list), &[]);
        let uuid = |device: c_int| {
            let mut bytes = [b'#'; 18];
            let place = bytes.as_mut_ptr();
            let error = call!(&hip, hipDeviceGetUuid(place => *mut u8, device => c_int));
            (error, String::from_utf8(bytes.to_vec()).unwrap())
        };
        let expected = [
            "5c0d93a17be24609##",
            "5c0d93a17be2460a##",
            "5c0d93a17be2460b##",
            "1a2b3c4d5e6f7000##",
            "1a2b3c4d5e6f7000##",
            "XX\0\0\0\0\0\0\0\0\0\0\0\0\0\0##",
        ];
        for (device, text) in (0..).zip(expected) {
            assert_eq!(uuid(device), (SUCCESS, text.to_string()));
        }
        assert_eq!(uuid(6).0, INVALID_DEVICE);
    }
}

#[test]
fn pci_addresses_in_short_buffers() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let ask = |length: c_int, device: c_int| {
            let mut text = [b'#'; 16];
            let error = call!(&hip, hipDeviceGetPCIBusId(text.as_mut_ptr().cast() => *mut c_char, length => c_int,
                device => c_int));
            (error, String::from_utf8(text.to_vec()).unwrap())
        };
        assert_eq!(ask(13, 0), (SUCCESS, "0000:03:00.0\0###".into()));
        assert_eq!(ask(12, 0), (INVALID_VALUE, "0000:03:00.\0####".into()));
        assert_eq!(ask(0, 0), (INVALID_VALUE, "#".repeat(16)));
        assert_eq!(ask(16, 1), (INVALID_DEVICE, "#".repeat(16)));
        let mut device = -5;
        let by_id = |device: &mut c_int, id: &std::ffi::CStr| call!(&hip, hipDeviceGetByPCIBusId(ptr::from_mut(device) => *mut c_int, id.as_ptr() => *const c_char));
        assert_eq!((by_id(&mut device, c"0000:03:00.0"), device), (SUCCESS, 0));
        assert_eq!(by_id(&mut device, c"0000:99:00.0"), INVALID_VALUE);
    }
}

#[test]
fn totals() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().vram(5 << 30), &[]);
        let ask = |bytes: *mut usize, device: c_int| call!(&hip, hipDeviceTotalMem(bytes => *mut usize, device => c_int));
        let mut bytes = 0;
        assert_eq!((ask(&raw mut bytes, 0), bytes), (SUCCESS, 5 * GIB));
        assert_eq!(
            (ask(&raw mut bytes, 1), ask(&raw mut bytes, -1)),
            (INVALID_DEVICE, INVALID_DEVICE)
        );
        assert_eq!(ask(ptr::null_mut(), 0), INVALID_VALUE);
        let null: *mut usize = ptr::null_mut();
        assert_eq!(
            call!(&hip, hipMemGetInfo(null => *mut usize, null => *mut usize)),
            SUCCESS
        );
    }
}

/// Fills a guarded buffer with properties, and gives what is in it if nothing outside of `size` bytes was written.
fn properties(hip: &Instance, name: &str, size: usize) -> Vec<u8> {
    const GUARD: usize = 512;
    let filled: Vec<Vec<u8>> = [0xab, 0x54]
        .into_iter()
        .map(|pattern: u8| {
            let mut buffer = vec![pattern; size + 2 * GUARD];
            // SAFETY: all have this signature; the structure lies in the middle of the buffer.
            let error = unsafe {
                let function: unsafe extern "C" fn(*mut c_void, c_int) -> c_int =
                    hip.function(name);
                function(buffer.as_mut_ptr().add(GUARD).cast(), 0)
            };
            assert_eq!(error, SUCCESS);
            let (before, rest) = buffer.split_at(GUARD);
            let (inside, behind) = rest.split_at(size);
            assert!(
                before.iter().chain(behind).all(|byte| *byte == pattern),
                "{name}: guard bytes"
            );
            inside.to_vec()
        })
        .collect();
    assert_eq!(filled[0], filled[1], "{name}: every byte is written");
    filled[0].clone()
}

fn number_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn int_at(bytes: &[u8], at: usize) -> i32 {
    i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

#[test]
fn properties_have_the_layout_of_the_named_function() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().devices("0001:83:05.0=3GiB"), &[]);
        let mut old = vec!["hipGetDeviceProperties"];
        if build.has_table() {
            old.push("hipGetDevicePropertiesR0000");
            let new = properties(&hip, "hipGetDevicePropertiesR0600", 1472);
            assert_eq!((number_at(&new, 288), int_at(&new, 388)), (3 << 30, 104));
            assert_eq!(
                (int_at(&new, 584), int_at(&new, 588), int_at(&new, 592)),
                (0x83, 5, 1)
            );
            assert!(new[1160..].starts_with(b"gfx90a"));
        }
        for name in old {
            let bytes = properties(&hip, name, 792);
            assert_eq!(
                (number_at(&bytes, 256), int_at(&bytes, 336)),
                (3 << 30, 104),
                "{name}"
            );
            assert_eq!(
                (
                    int_at(&bytes, 364),
                    int_at(&bytes, 368),
                    int_at(&bytes, 372)
                ),
                (1, 0x83, 5)
            );
            assert!(bytes.starts_with(b"Stand-in GPU\0") && bytes[396..].starts_with(b"gfx90a"));
        }
        let null: *mut c_void = ptr::null_mut();
        assert_eq!(
            call!(&hip, hipGetDeviceProperties(null => *mut c_void, 99 => c_int)),
            INVALID_VALUE
        );
        let mut room = [0_u8; 2048];
        let there: *mut c_void = room.as_mut_ptr().cast();
        assert_eq!(
            call!(&hip, hipGetDeviceProperties(there => *mut c_void, 99 => c_int)),
            INVALID_DEVICE
        );
        let mut units = 0;
        let ask = call!(&hip, hipDeviceGetAttribute(&raw mut units => *mut c_int, 63 => c_int, 0 => c_int));
        assert_eq!((ask, units), (SUCCESS, 104));
    }
}

#[test]
fn a_machine_without_devices() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().devices("0"), &[]);
        assert_eq!(hip.device_count(), (NO_DEVICE, 0));
        assert_eq!(hip.malloc(16), Err(NO_DEVICE));
        assert_eq!(
            (hip.free(UNTOUCHED), hip.last_error(), hip.bad_frees()),
            (NO_DEVICE, NO_DEVICE, 0)
        );
    }
}

#[test]
fn reset_frees_the_device_and_only_that() {
    for build in Build::ALL {
        let hip = Instance::with(build, &Settings::new().devices("2"), &[]);
        let unmapped = hip
            .mem_create(MIB, &common::Properties::on_device(0))
            .unwrap();
        let a = hip.malloc(GIB).unwrap();
        hip.malloc_async(GIB, ptr::null_mut()).unwrap();
        assert_eq!(hip.set_device(1), SUCCESS);
        let b = hip.malloc(3).unwrap();
        assert_eq!(hip.set_device(0), SUCCESS);
        assert_eq!(hip.live(0), 2 * GIB + MIB);
        assert_eq!(call!(&hip, hipDeviceReset()), SUCCESS);
        // 5.2 forgets the pointers and keeps the memory.
        let forgets = build == Build::FivePlain;
        let left = if forgets { 2 * GIB + MIB } else { 0 };
        assert_eq!((hip.live(0), hip.live(1)), (left, 3));
        assert_eq!((hip.free(a), hip.free(b)), (INVALID_VALUE, SUCCESS));
        let said = call!(&hip, hipMemRelease(unmapped => *mut c_void));
        assert_eq!(said == SUCCESS, forgets);
    }
}

/// Up to 6 it tells how the last call ended, so a success hides an error; since 7 it tells the last error.
#[test]
fn the_last_error() {
    for build in Build::ALL {
        let hip = Instance::new(build);
        let peek = || call!(&hip, hipPeekAtLastError());
        let fail = || assert_eq!(hip.malloc(usize::MAX), Err(2));
        fail();
        assert_eq!(
            (peek(), peek(), hip.last_error(), hip.last_error()),
            (2, 2, 2, 0)
        );
        fail();
        hip.info();
        let kept = if build == Build::Seven { 2 } else { 0 };
        assert_eq!(
            (peek(), hip.last_error(), hip.last_error()),
            (kept, kept, 0),
            "{build}"
        );
        hip.set("LAST_ERROR", if kept == 0 { "sticky" } else { "last-call" });
        fail();
        hip.info();
        assert_eq!(
            (peek(), hip.last_error()),
            (2 - kept, 2 - kept),
            "{build}, the other way"
        );
        if build.has_table() {
            fail();
            assert_eq!(call!(&hip, hipExtGetLastError()), 2);
        }
    }
}
