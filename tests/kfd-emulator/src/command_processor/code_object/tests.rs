use rmpv::Value;

use super::super::fake::Memory;
use super::*;

const BASE: u64 = 0x7f00_0000_0000;
/// Where the parts of the small code object are, from its start.
const DYNAMIC: u64 = 0x200;
const HASH: u64 = 0x300;
const SYMBOLS: u64 = 0x400;
const STRINGS: u64 = 0x500;
const NOTE: u64 = 0x1000;
const DESCRIPTOR: u64 = 0x3040;

fn metadata() -> Vec<u8> {
    let argument = |name: &str, offset: u64, size: u64| {
        Value::Map(vec![
            (".name".into(), name.into()),
            (".offset".into(), offset.into()),
            (".size".into(), size.into()),
            (".value_kind".into(), "by_value".into()),
        ])
    };
    let hidden = Value::Map(vec![
        (".offset".into(), 16.into()),
        (".size".into(), 8.into()),
    ]);
    let kernel = |symbol: &str, list: Vec<Value>| {
        Value::Map(vec![
            (".name".into(), "any".into()),
            (".symbol".into(), symbol.into()),
            (".args".into(), Value::Array(list)),
        ])
    };
    let root = Value::Map(vec![
        (
            "amdhsa.version".into(),
            Value::Array(vec![1.into(), 2.into()]),
        ),
        (
            "amdhsa.kernels".into(),
            Value::Array(vec![
                kernel("other.kd", vec![argument("x", 0, 1)]),
                kernel(
                    "copy.kd",
                    vec![argument("src", 0, 8), argument("n", 8, 4), hidden],
                ),
            ]),
        ),
    ]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &root).unwrap();
    bytes
}

fn note(content: &[u8]) -> Vec<u8> {
    let header = [7u32, content.len() as u32, 32].map(u32::to_le_bytes);
    [header.as_flattened(), b"AMDGPU\0\0", content].concat()
}

/// A code object with one kernel, as it is in memory.
fn image(note: &[u8]) -> Vec<u8> {
    let mut image = vec![0; 0x4000];
    let mut put = |at: u64, bytes: &[u8]| {
        image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    put(0, b"\x7fELF");
    put(18, &224u16.to_le_bytes());
    put(32, &64u64.to_le_bytes());
    put(54, &56u16.to_le_bytes());
    put(56, &2u16.to_le_bytes());
    for (index, kind, va, size) in [
        (0, elf::PT_DYNAMIC, DYNAMIC, 64),
        (1, elf::PT_NOTE, NOTE, note.len() as u64),
    ] {
        let header = 64 + index * 56;
        put(header, &kind.to_le_bytes());
        put(header + 16, &va.to_le_bytes());
        put(header + 40, &size.to_le_bytes());
    }
    let strings = b"\0other.kd\0copy.kd\0copy\0";
    for (index, tag, value) in [
        (0, elf::DT_HASH, HASH),
        (1, elf::DT_SYMTAB, SYMBOLS),
        (2, elf::DT_STRTAB, STRINGS),
        (3, elf::DT_STRSZ, strings.len() as u64),
    ] {
        put(DYNAMIC + index * 16, &tag.to_le_bytes());
        put(DYNAMIC + index * 16 + 8, &value.to_le_bytes());
    }
    put(HASH, &[1u32, 3].map(u32::to_le_bytes).concat());
    put(STRINGS, strings);
    for (index, name, value) in [(1, 10u32, DESCRIPTOR), (2, 18, DESCRIPTOR + 0x100)] {
        put(SYMBOLS + index * 24, &name.to_le_bytes());
        put(SYMBOLS + index * 24 + 8, &value.to_le_bytes());
    }
    put(NOTE, note);
    image
}

fn memory() -> Memory {
    Memory::new().with(BASE, &image(&note(&metadata())))
}

#[test]
fn a_kernel_has_its_name_and_named_arguments() {
    let kernel = find(&memory(), BASE + DESCRIPTOR).unwrap();
    assert_eq!(kernel.name, "copy");
    let expected = [
        ("n".to_owned(), Argument { offset: 8, size: 4 }),
        ("src".to_owned(), Argument { offset: 0, size: 8 }),
    ];
    assert_eq!(kernel.arguments, expected.into());
}

#[test]
fn addresses_that_are_no_kernel_descriptor_are_none() {
    // beside the descriptor; a symbol that is no descriptor; outside; nowhere
    for va in [
        BASE + DESCRIPTOR + 64,
        BASE + DESCRIPTOR + 0x100,
        BASE + 0x4000,
        0,
        u64::MAX,
    ] {
        assert_eq!(find(&memory(), va), None, "{va:#x}");
    }
}

#[test]
fn the_search_ends_where_memory_or_patience_ends() {
    let far = BASE + SEARCH_BACK + PAGE * 2;
    let zeros = vec![0; (SEARCH_BACK + PAGE * 4) as usize];
    let memory = Memory::new().with(BASE, &zeros);
    memory.write(BASE, &image(&[])[..64]).unwrap();
    assert!(Elf::around(&memory, BASE + PAGE).is_some());
    assert!(Elf::around(&memory, far).is_none());
}

#[test]
fn a_kernel_without_readable_metadata_still_has_its_name() {
    let mut wrong_kind = note(&metadata());
    wrong_kind[8] = 1;
    let mut long = note(&metadata());
    long[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    let deep = note(&vec![0x91; 10_000]);
    let huge_list = note(&[0xdd, 0xff, 0xff, 0xff, 0xff]);
    for note in [vec![], vec![0; 11], wrong_kind, long, deep, huge_list] {
        let memory = Memory::new().with(BASE, &image(&note));
        let kernel = find(&memory, BASE + DESCRIPTOR).unwrap();
        assert_eq!((kernel.name.as_str(), kernel.arguments.len()), ("copy", 0));
    }
}

#[test]
fn damaged_tables_are_no_code_object() {
    for (at, value) in [
        (DYNAMIC + 8, u64::MAX),          // hash table
        (DYNAMIC + 24, u64::MAX),         // symbols
        (DYNAMIC + 40, 0x1_0000_0000),    // strings
        (DYNAMIC + 56, u64::MAX),         // length of the strings
        (HASH, 0xffff_ffff_0000_0001),    // number of symbols
        (32, u64::MAX),                   // program headers
        (64 + 40, LARGEST_TABLE + 1),     // length of the dynamic section
        (64 + 16, u64::MAX - BASE - 100), // its address
        (SYMBOLS + 24, 0xffff_ffff),      // name of the symbol
    ] {
        let memory = memory();
        memory.write(BASE + at, &value.to_le_bytes()).unwrap();
        assert_eq!(
            find(&memory, BASE + DESCRIPTOR),
            None,
            "{value:#x} at {at:#x}"
        );
    }
}
