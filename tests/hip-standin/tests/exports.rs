//! The outside of the libraries: symbol versions, dispatch slots, stubs. Compared with `golden/`, which was
//! read from the real ones.

mod common;

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_int, c_void};

use common::{Instance, call, since};
use hip_standin::Build;

/// A function of a real library: its symbol version, and its slot if its export is a stub.
struct Golden {
    version: &'static str,
    slot: Option<usize>,
}

fn golden(build: Build) -> BTreeMap<&'static str, Golden> {
    let text = match build.modelled_on() {
        "5.2.3" => include_str!("../golden/5.2.3.txt"),
        "5.7.1" => include_str!("../golden/5.7.1.txt"),
        "6.4.3" => include_str!("../golden/6.4.3.txt"),
        "7.2.4" => include_str!("../golden/7.2.4.txt"),
        other => panic!("no golden list of {other}"),
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let mut fields = line.split(' ');
            let (name, version) = (fields.next().unwrap(), fields.next().unwrap());
            let slot = fields.next().unwrap().parse().ok();
            (name, Golden { version, slot })
        })
        .collect()
}

/// The names in the table of functions, and since when each is there.
fn offered() -> Vec<((u32, u32), &'static str)> {
    let table = include_str!("../runtime/functions.h");
    let mut names = Vec::new();
    for (kind, at) in [("FUNCTION(", 3), ("DIRECT(", 3), ("SPECIAL(", 4)] {
        for row in table
            .split(kind)
            .skip(1)
            .filter(|row| row.starts_with(|c: char| c.is_ascii_digit()))
        {
            let fields: Vec<_> = row.split(',').map(str::trim).collect();
            names.push((since(fields[0]), fields[at]));
        }
    }
    names
}

#[test]
fn symbol_versions_are_those_of_the_real_libraries() {
    for build in Build::ALL {
        let (instance, golden) = (Instance::new(build), golden(build));
        let mut checked = 0;
        for (since, name) in offered() {
            if since > build.release() {
                assert_eq!(instance.address(name), None, "{build}: {name}");
                continue;
            }
            let real = golden
                .get(name)
                .unwrap_or_else(|| panic!("{build}: no real {name}"));
            let by_name = instance.address(name);
            assert!(by_name.is_some(), "{build}: {name}");
            assert_eq!(
                instance.versioned(name, real.version),
                by_name,
                "{build}: {name}"
            );
            let other = if real.version == "hip_4.2" {
                "hip_5.1"
            } else {
                "hip_4.2"
            };
            assert_eq!(
                instance.versioned(name, other),
                None,
                "{build}: {name}@{other}"
            );
            checked += 1;
        }
        assert!(checked > 80, "{build}: {checked}");
    }
}

#[test]
fn nothing_else_is_exported() {
    let build = Build::Six;
    let instance = Instance::new(build);
    for inner in [
        "do_hipMalloc",
        "entry_hipMalloc",
        "get_table",
        "account_take",
        "lock",
    ] {
        assert_eq!(instance.address(inner), None, "{inner}");
    }
}

/// The first 96 bytes of a function.
fn code(address: *mut c_void) -> [u8; 96] {
    // SAFETY: a function in the middle of a library's text, which goes on for longer than that.
    unsafe { address.cast::<[u8; 96]>().read() }
}

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

#[test]
fn functions_begin_as_those_of_the_release() {
    for build in Build::ALL {
        let instance = Instance::new(build);
        let begin = code(instance.address("hipMalloc").unwrap());
        match build {
            Build::FivePlain => assert_eq!(begin[0], 0x55, "push rbp"),
            Build::Five => assert_eq!(
                (&begin[..4], begin[4]),
                (&ENDBR64[..], 0x55),
                "endbr64; push rbp"
            ),
            // sub rsp, imm8
            _ => assert_eq!(
                (&begin[..4], &begin[4..7]),
                (&ENDBR64[..], &[0x48, 0x83, 0xec][..])
            ),
        }
        let properties = code(instance.address("hipGetDeviceProperties").unwrap());
        if build.has_table() {
            assert_eq!(
                (&properties[..4], properties[4]),
                (&ENDBR64[..], 0xe9),
                "endbr64; jmp"
            );
        }
    }
}

/// A stub's call target, and the offset in the table that it jumps through.
fn stub(address: *mut c_void) -> Option<(usize, usize)> {
    let code = code(address);
    let call = code.iter().position(|byte| *byte == 0xe8)?;
    let offset = i32::from_le_bytes(code[call + 1..call + 5].try_into().unwrap());
    let target = (address as usize + call + 5).wrapping_add_signed(offset as isize);
    // mov rax, [rax + disp32] or [rax + disp8], then add rsp, imm8; jmp rax
    let load = (call + 5..80).find(|at| {
        code[*at..].starts_with(&[0x48, 0x8b, 0x80]) || code[*at..].starts_with(&[0x48, 0x8b, 0x40])
    })?;
    let (displacement, after) = if code[load + 2] == 0x80 {
        (
            i32::from_le_bytes(code[load + 3..load + 7].try_into().unwrap()) as usize,
            load + 7,
        )
    } else {
        (usize::from(code[load + 3]), load + 4)
    };
    assert_eq!(&code[after..after + 3], [0x48, 0x83, 0xc4], "add rsp");
    assert_eq!(&code[after + 4..after + 6], [0xff, 0xe0], "jmp rax");
    Some((target, displacement))
}

#[test]
fn stubs_jump_through_the_slots_of_the_real_table() {
    for build in Build::ALL.into_iter().filter(|build| build.has_table()) {
        let (instance, golden) = (Instance::new(build), golden(build));
        let mut getters = Vec::new();
        for (_, name) in offered() {
            let Some(slot) = golden[name].slot else {
                assert_eq!(name, "hipGetDeviceProperties");
                continue;
            };
            let (getter, offset) =
                stub(instance.address(name).unwrap()).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(offset, 8 + 8 * slot, "{build}: {name}");
            getters.push(getter);
        }
        getters.dedup();
        assert_eq!(getters.len(), 1, "{build}: all stubs ask for one table");
    }
}

/// What stands before the library's function in the table: says a number that no real one says.
unsafe extern "C" fn swapped(_: *mut *mut c_void, _: usize) -> c_int {
    4711
}

#[test]
fn a_swapped_slot_is_what_callers_reach() {
    for (build, size) in [
        (Build::Six, 0xed8),
        (Build::SixRegistering, 0xed8),
        (Build::Seven, 0xfd8),
    ] {
        let instance = Instance::new(build);
        let (getter, offset) = stub(instance.address("hipMalloc").unwrap()).unwrap();
        // SAFETY: a function without arguments that returns the table, which lives as long as the library.
        let table = unsafe {
            let get: unsafe extern "C" fn() -> *mut usize = std::mem::transmute(getter);
            get()
        };
        // SAFETY: the table begins with its size in bytes, and every slot holds a function.
        unsafe {
            assert_eq!(*table, size, "{build}");
            assert!((1..size / 8).all(|slot| *table.add(slot) != 0), "{build}");
            let place = table.add(offset / 8);
            let before = place.replace(swapped as *const () as usize);
            assert_eq!(instance.malloc(16), Err(4711));
            place.write(before);
        }
        assert!(instance.malloc(16).is_ok());
        // A function that the stand-in does not have. (hipGraphCreate has a slot in both.)
        let slot = golden(build)["hipGraphCreate"].slot.unwrap();
        // SAFETY: as above; it takes nothing and returns an error.
        let error = unsafe {
            let function: unsafe extern "C" fn() -> c_int =
                std::mem::transmute(*table.add(1 + slot));
            function()
        };
        assert_eq!(error, 801, "{build}: not supported");
    }
}

#[test]
fn get_proc_address_answers_with_exports() {
    for build in Build::ALL.into_iter().filter(|build| build.has_table()) {
        let instance = Instance::new(build);
        let ask = |name: &str, version: c_int| {
            let name = CString::new(name).unwrap();
            let (mut function, mut status) = (std::ptr::null_mut(), -1);
            let error = call!(&instance, hipGetProcAddress(name.as_ptr() => *const c_char,
                &raw mut function => *mut *mut c_void, version => c_int, 0 => u64, &raw mut status => *mut c_int));
            (error, (!function.is_null()).then_some(function), status)
        };
        assert_eq!(
            ask("hipMalloc", 60_000),
            (0, instance.address("hipMalloc"), 0)
        );
        let (new, old) = ("hipGetDevicePropertiesR0600", "hipGetDeviceProperties");
        assert_eq!(ask(old, 600), (0, instance.address(new), 0));
        assert_eq!(ask(old, 500), (0, instance.address(old), 0));
        assert_eq!(ask("hipNonsense", 600), (1, None, 1));
        assert_eq!(ask("malloc", 600), (1, None, 1));
    }
}
