use super::super::fake::{Call, Memory};
use super::*;

const SEGMENT: u64 = 0x7000_0000;
const SOURCE: u64 = 0x10_0000;
const DESTINATION: u64 = 0x1_0000_0000;
const PATTERN: u64 = 0x20_0000;

fn memory(call: &Call) -> Memory {
    Memory::new()
        .with(SEGMENT, &call.segment)
        .with(SOURCE, &(0..128).collect::<Vec<u8>>())
        .with(PATTERN, &[1, 2, 3, 4, 5, 6, 7, 8])
        .zeros(DESTINATION, 128)
}

/// The start of the destination after a call, and what the call said.
fn after<const N: usize>(call: &Call) -> ([u8; N], String) {
    let memory = memory(call);
    let said = run(&memory, &call.kernel, SEGMENT).unwrap();
    (memory.bytes(DESTINATION, N).try_into().unwrap(), said)
}

#[test]
fn copy_buffer_of_each_release() {
    let words = Call::new("__amd_rocclr_copyBuffer")
        .u64("srcI", SOURCE)
        .u64("dstI", DESTINATION)
        .u64("srcOrigin", 4)
        .u64("dstOrigin", 1)
        .u64("size", 2)
        .u32("remain", 3);
    let (bytes, said) = after(&words);
    assert_eq!(
        bytes,
        [0, 4, 5, 6, 7, 8, 9, 10, 0],
        "one word and three bytes: {said}"
    );

    let aligned = Call::new("__amd_rocclr_copyBufferAligned")
        .u64("src", SOURCE)
        .u64("dst", DESTINATION)
        .u64("srcOrigin", 1)
        .u64("dstOrigin", 0)
        .u64("size", 1)
        .u32("alignment", 4);
    let (bytes, said) = after(&aligned);
    assert_eq!(bytes, [4, 5, 6, 7, 0], "one element of four bytes: {said}");

    let newer = Call::new("__amd_rocclr_copyBuffer")
        .u64("src", SOURCE + 9)
        .u64("dst", DESTINATION)
        .u64("size", 3)
        .u32("remainder", 0);
    let (bytes, said) = after(&newer);
    assert_eq!(bytes, [9, 10, 11, 0], "bytes: {said}");
    assert_eq!(
        said,
        "__amd_rocclr_copyBuffer 0x100009 -> 0x100000000, 3 bytes"
    );
}

#[test]
fn copy_rectangle_in_bytes_and_in_words() {
    let call = |name| {
        Call::new(name)
            .u64("src", SOURCE)
            .u64("dst", DESTINATION)
            .ulong4("srcRect", [8, 32, 2, 0])
            .ulong4("dstRect", [4, 16, 1, 0])
            .ulong4("size", [2, 2, 1, 0])
    };
    let (bytes, said) = after(&call("__amd_rocclr_copyBufferRect"));
    assert_eq!(bytes, [0, 2, 3, 0, 0, 10, 11, 0], "{said}");

    let (bytes, said) = after(&call("__amd_rocclr_copyBufferRectAligned"));
    let row = |first: u8| (first..first + 8).collect::<Vec<_>>();
    let expected = [vec![0; 4], row(8), vec![0; 8], row(40), vec![0; 4]].concat();
    assert_eq!(<[u8; 32]>::as_slice(&bytes), expected, "{said}");
}

#[test]
fn fill_buffer_of_each_release() {
    let older = Call::new("__amd_rocclr_fillBufferAligned")
        .u64("bufUChar", 0)
        .u64("bufUShort", DESTINATION)
        .u64("bufUInt", 0)
        .u64("bufULong", 0)
        .u64("pattern", PATTERN)
        .u32("patternSize", 2)
        .u64("offset", 1)
        .u64("size", 2);
    let (bytes, said) = after(&older);
    assert_eq!(bytes, [0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 0], "{said}");

    let newer = Call::new("__amd_rocclr_fillBufferAligned")
        .u64("buf", DESTINATION)
        .u64("pattern", PATTERN)
        .u32("pattern_size", 1)
        .u32("alignment", 4)
        .u64("end_ptr", DESTINATION + 6);
    let (bytes, said) = after(&newer);
    assert_eq!(bytes, [1, 2, 3, 4, 1, 2, 0], "{said}");
}

#[test]
fn fill_rectangle_keeps_what_is_between_the_rows() {
    let call = Call::new("__amd_rocclr_fillBufferAligned2D")
        .u64("bufUChar", DESTINATION)
        .u64("pattern", PATTERN)
        .u32("patternSize", 1)
        .u64("offset", 1)
        .u64("width", 2)
        .u64("height", 2)
        .u64("pitch", 4);
    let (bytes, said) = after(&call);
    assert_eq!(bytes, [0, 1, 1, 0, 0, 1, 1, 0], "{said}");
}

#[test]
fn stream_write_of_both_widths() {
    let call = |int, ulong| {
        Call::new("__amd_rocclr_streamOpsWrite")
            .u64("ptrInt", int)
            .u64("ptrUlong", ulong)
            .u64("value", 0x0807_0605_0403_0201)
    };
    assert_eq!(after(&call(DESTINATION, 0)).0, [1, 2, 3, 4, 0, 0, 0, 0]);
    assert_eq!(after(&call(0, DESTINATION)).0, [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn stream_wait_of_each_condition_and_width() {
    const WIDE: u64 = 1 << 32;
    // condition, value in memory, mask, operand, whether it holds for 32 and for 64 bits
    for (condition, current, mask, operand, narrow, wide) in [
        (0, 6, u64::MAX, 5, true, true),
        (0, 4, u64::MAX, 5, false, false),
        (0, WIDE, u64::MAX, 5, false, true),
        (0, 0x17, 0xf, 8, false, false),
        (1, 5, u64::MAX, 5, true, true),
        (1, WIDE | 5, u64::MAX, 5, true, false),
        (2, 6, u64::MAX, 2, true, true),
        (2, 5, u64::MAX, 2, false, false),
        (3, 0xffff_0000, u64::MAX, 0xffff, false, true),
        (3, u64::MAX, u64::MAX, 0, false, false),
        (3, 0, u64::MAX, 1, true, true),
    ] {
        for (pointers, holds) in [([DESTINATION, 0], narrow), ([0, DESTINATION], wide)] {
            let call = Call::new("__amd_rocclr_streamOpsWait")
                .u64("ptrInt", pointers[0])
                .u64("ptrUlong", pointers[1])
                .u64("value", operand)
                .u64("flags", condition)
                .u64("mask", mask);
            let memory = memory(&call);
            memory
                .write(DESTINATION, &u64::to_le_bytes(current))
                .unwrap();
            let said = run(&memory, &call.kernel, SEGMENT);
            assert_eq!(
                said.is_some(),
                holds,
                "{condition}: {current:#x} & {mask:#x}, {operand}"
            );
        }
    }
}

#[test]
fn a_wait_that_can_never_end_is_not_waited_for() {
    let call = |va, condition| {
        Call::new("__amd_rocclr_streamOpsWait")
            .u64("ptrInt", va)
            .u64("value", 1)
            .u64("flags", condition)
            .u64("mask", 1)
    };
    for call in [call(0xdead_0000, 0), call(0, 0), call(DESTINATION, 4)] {
        assert!(after::<1>(&call).1.contains("failed: "));
    }
}

#[test]
fn other_kernels_have_no_effect() {
    let call = Call::new("saxpy").u64("dst", DESTINATION);
    assert_eq!(after(&call), ([0; 4], "saxpy (not executed)".to_owned()));
    let call = Call::new("__amd_rocclr_gwsInit").u32("value", 1);
    assert_eq!(after::<1>(&call).1, "__amd_rocclr_gwsInit (not executed)");
}

#[test]
fn a_signature_that_is_not_known_is_said() {
    let call = Call::new("__amd_rocclr_copyBuffer").u64("from", SOURCE);
    let said = after::<1>(&call).1;
    assert!(said.contains("no argument srcI"), "{said}");
    let said = after::<1>(&Call::new("__amd_rocclr_streamOpsWrite").u64("ptrInt", 0)).1;
    assert!(said.contains("contradict"), "{said}");
}

#[test]
fn wild_arguments_fail_without_effect() {
    let copy = |size, from| {
        Call::new("__amd_rocclr_copyBufferAligned")
            .u64("src", SOURCE)
            .u64("dst", DESTINATION)
            .u64("srcOrigin", from)
            .u64("dstOrigin", 0)
            .u64("size", size)
            .u64("alignment", 16)
    };
    let fill = |pattern_size, start: u64, end| {
        Call::new("__amd_rocclr_fillBufferAligned")
            .u64("buf", start)
            .u64("pattern", PATTERN)
            .u64("pattern_size", pattern_size)
            .u32("alignment", 1)
            .u64("end_ptr", end)
    };
    for call in [
        copy(u64::MAX, 0),
        copy(u64::MAX / 16, 0),
        copy(1, u64::MAX),
        copy(1, u64::MAX / 16),
        fill(1, DESTINATION, DESTINATION - 1),
        fill(0, DESTINATION, DESTINATION + 1),
        fill(LONGEST_PATTERN + 1, DESTINATION, DESTINATION + 1),
        fill(9, DESTINATION, DESTINATION + 1),
        fill(1, 0, u64::MAX),
    ] {
        let (bytes, said) = after(&call);
        assert!(said.contains("failed: "), "{said}");
        assert_eq!(bytes, [0; 16], "{said}");
    }
    let call = copy(1, 0);
    let said = run(&Memory::new(), &call.kernel, u64::MAX).unwrap();
    assert!(said.contains("failed: no memory at"), "{said}");
}
