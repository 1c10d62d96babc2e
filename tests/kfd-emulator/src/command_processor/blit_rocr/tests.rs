use super::super::fake::Memory;
use super::*;

const OBJECT: u64 = 0x1_0000;
const ARGUMENTS_AT: u64 = 0x2_0000;
const SOURCE: u64 = 0x3_0000;
const DESTINATION: u64 = 0x4_0000;

/// An `amd_kernel_code_t` and the loads at the start of a shader: encodings of gfx9 and of gfx10.
fn shader(encoding: u8, offsets: &[u32]) -> Vec<u8> {
    let mut code = vec![0; CODE_OFFSET];
    code[16..24].copy_from_slice(&(CODE_OFFSET as u64).to_le_bytes());
    for offset in offsets {
        code.extend([0, 0, 0, encoding]);
        code.extend(offset.to_le_bytes());
    }
    // s_waitcnt ends the loads, whatever follows.
    code.extend([0x7f, 0xc0, 0x8c, 0xbf, 0xff, 0xff, 0xff, 0xff]);
    code.resize(CODE_OFFSET + PROLOGUE, 0);
    code
}

fn memory(code: &[u8], arguments: &[u64]) -> Memory {
    let mut bytes: Vec<u8> = arguments
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    bytes.resize(ARGUMENTS, 0);
    Memory::new()
        .with(OBJECT, code)
        .with(ARGUMENTS_AT, &bytes)
        .with(SOURCE, &(0..64).collect::<Vec<u8>>())
        .zeros(DESTINATION, 64)
}

const FILL: &[u32] = &[0, 0x10];
const MISALIGNED: &[u32] = &[0, 0x10, 0x20, 0x30];
const ALIGNED: &[u32] = &[0, 0x10, 0x20, 0x30, 0x40, 0x50];

#[test]
fn each_shader_is_recognised_on_old_and_new_isas() {
    for encoding in [0xc0, 0xf4] {
        let fill = [DESTINATION, DESTINATION + 4, DESTINATION + 6, 0x0403_0201];
        let memory_of_fill = memory(&shader(encoding, FILL), &fill);
        let said = run(&memory_of_fill, OBJECT, ARGUMENTS_AT);
        assert_eq!(
            memory_of_fill.bytes(DESTINATION, 7),
            [1, 2, 3, 4, 1, 2, 0],
            "{said}"
        );

        // phase 1 and phase 2 starts, ends
        let copy = [
            SOURCE + 1,
            DESTINATION,
            SOURCE + 3,
            DESTINATION + 2,
            SOURCE + 4,
            DESTINATION + 3,
        ];
        let memory_of_copy = memory(&shader(encoding, MISALIGNED), &copy);
        let said = run(&memory_of_copy, OBJECT, ARGUMENTS_AT);
        assert_eq!(memory_of_copy.bytes(DESTINATION, 4), [1, 2, 3, 0], "{said}");

        // four phases of starts, ends
        let mut copy = [0; 10];
        (copy[0], copy[1], copy[8]) = (SOURCE + 1, DESTINATION, SOURCE + 5);
        let memory_of_copy = memory(&shader(encoding, ALIGNED), &copy);
        let said = run(&memory_of_copy, OBJECT, ARGUMENTS_AT);
        assert_eq!(
            memory_of_copy.bytes(DESTINATION, 5),
            [1, 2, 3, 4, 0],
            "{said}"
        );
    }
}

#[test]
fn what_is_no_such_shader_has_no_effect() {
    let arguments = [DESTINATION, DESTINATION, DESTINATION + 8, 0xff];
    let mut moved = shader(0xf4, FILL);
    moved[16] = 1;
    for code in [
        vec![0; 320],
        shader(0xf4, &[0, 0x18]),
        shader(0xf4, &[]),
        moved,
    ] {
        let memory = memory(&code, &arguments);
        let said = run(&memory, OBJECT, ARGUMENTS_AT);
        assert_eq!(memory.bytes(DESTINATION, 8), [0; 8]);
        assert_eq!(said, "kernel 0x10000 without a code object (not executed)");
    }
    assert!(run(&Memory::new(), u64::MAX, 0).contains("not executed"));
}

#[test]
fn wild_arguments_fail() {
    let backwards = memory(&shader(0xf4, FILL), &[DESTINATION, DESTINATION, SOURCE, 0]);
    let said = run(&backwards, OBJECT, ARGUMENTS_AT);
    assert!(
        said.contains("failed: a transfer that no card could do"),
        "{said}"
    );
    let said = run(&backwards, OBJECT, u64::MAX);
    assert!(said.contains("failed: no memory at"), "{said}");
}
