use super::super::fake::{Call, Memory};
use super::super::{GpuMemory, blit_rocclr};

const SEGMENT: u64 = 0x7000_0000;
const BUFFER: u64 = 0x10_0000;
/// An address with bits in both words of the descriptor.
const IMAGE: u64 = 0x7f16_bc51_f000;
const DESCRIPTOR: u64 = 0x20_0000;
const OTHER_IMAGE: u64 = 0x1_0000_0000;
const OTHER_DESCRIPTOR: u64 = 0x21_0000;
const UNSIGNED_INT16: u32 = 12;
const RG: u32 = 3;

/// An image of 5 x 4 pixels, in the words that gfx9 and later have in common.
fn descriptor(va: u64, channel_type: u32, channel_order: u32) -> Vec<u8> {
    let mut words = [0u32; 12];
    words[0] = (va >> 8) as u32;
    // The bits above the address are format and mip levels.
    words[1] = 0xc05_0000 | (va >> 40) as u32;
    words[2] = 3 << 14 | 1;
    (words[8], words[9], words[10]) = (channel_type, channel_order, 5);
    words.map(u32::to_le_bytes).concat()
}

fn memory(call: &Call) -> Memory {
    Memory::new()
        .with(SEGMENT, &call.segment)
        .with(BUFFER, &(0..=255).collect::<Vec<u8>>())
        .with(DESCRIPTOR, &descriptor(IMAGE, UNSIGNED_INT16, RG))
        .zeros(IMAGE, 512)
        .with(
            OTHER_DESCRIPTOR,
            &descriptor(OTHER_IMAGE, UNSIGNED_INT16, RG),
        )
        .zeros(OTHER_IMAGE, 512)
}

/// `channels` of `bytes` each, copied to pixel (1, 2, 1): 2 pixels, 2 rows.
fn to_image(channels: u32, bytes: u32) -> Call {
    Call::new("__amd_rocclr_copyBufferToImage")
        .u64("src", BUFFER)
        .u64("dst", DESCRIPTOR)
        .ulong4("srcOrigin", [2, 0, 0, 0])
        .int4("dstOrigin", [1, 2, 1, 0])
        .int4("size", [2, 2, 1, 0])
        .int4("format", [channels, bytes, 1, 0])
        .ulong4("pitch", [6, 24, 0, 0])
}

fn run(memory: &Memory, call: &Call) -> String {
    blit_rocclr::run(memory, &call.kernel, SEGMENT).unwrap()
}

#[test]
fn a_buffer_goes_into_an_image_pixel_by_pixel() {
    // channels, bytes of each; bytes of a pixel and of a load
    for (channels, bytes, pixel, load) in [(1, 1, 1, 1), (1, 2, 2, 2), (2, 2, 4, 4), (2, 4, 8, 4)] {
        let call = to_image(channels, bytes);
        let memory = memory(&call);
        let said = run(&memory, &call);
        let slice = 5 * 4 * pixel;
        for row in 0..2 {
            let at = IMAGE + slice + (2 + row) * 5 * pixel + pixel;
            let first = (2 * load + row * 6 * pixel) as u8;
            let expected: Vec<u8> = (first..first + 2 * pixel as u8).collect();
            assert_eq!(memory.bytes(at, 2 * pixel as usize), expected, "{said}");
            assert_eq!(memory.bytes(at - 1, 1), [0], "{said}");
        }
    }
}

#[test]
fn what_comes_back_is_what_went_in() {
    let into = to_image(2, 2);
    let memory = memory(&into);
    run(&memory, &into);
    let back = Call::new("__amd_rocclr_copyImageToBuffer")
        .u64("src", DESCRIPTOR)
        .u64("dstUInt", OTHER_IMAGE)
        .u64("dstUShort", OTHER_IMAGE)
        .u64("dstUChar", OTHER_IMAGE)
        .int4("srcOrigin", [1, 2, 1, 0])
        .ulong4("dstOrigin", [1, 0, 0, 0])
        .int4("size", [2, 2, 1, 0])
        .int4("format", [2, 2, 1, 0])
        .ulong4("pitch", [2, 4, 0, 0]);
    let memory = memory.with(SEGMENT, &back.segment);
    let said = run(&memory, &back);
    let expected: Vec<u8> = [0..4u8, 8..16, 32..40].into_iter().flatten().collect();
    assert_eq!(memory.bytes(OTHER_IMAGE, 20)[4..], expected[4..], "{said}");
    assert_eq!(memory.bytes(OTHER_IMAGE, 4), [0; 4], "{said}");
}

fn image_to_image() -> Call {
    Call::new("__amd_rocclr_copyImage")
        .u64("src", DESCRIPTOR)
        .u64("dst", OTHER_DESCRIPTOR)
        .int4("srcOrigin", [1, 0, 0, 0])
        .int4("dstOrigin", [0, 1, 0, 0])
        .int4("size", [1, 1, 1, 0])
}

#[test]
fn an_image_is_copied_in_pixels_of_its_format() {
    let call = image_to_image();
    let memory = memory(&call);
    memory.write(IMAGE, &[1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
    let said = run(&memory, &call);
    assert_eq!(memory.bytes(OTHER_IMAGE + 20, 5), [5, 6, 7, 8, 0], "{said}");
}

#[test]
fn images_of_different_or_unknown_pixels_are_not_copied() {
    for (channel_type, channel_order) in [(13, RG), (12, 1), (99, RG), (12, 99)] {
        let call = image_to_image();
        let other = descriptor(OTHER_IMAGE, channel_type, channel_order);
        let memory = memory(&call).with(OTHER_DESCRIPTOR, &other);
        assert!(
            run(&memory, &call).contains("failed: "),
            "{channel_type} {channel_order}"
        );
    }
}

#[test]
fn wild_arguments_fail() {
    let nowhere = Call::new("__amd_rocclr_copyImage")
        .u64("src", 0xdead_0000)
        .u64("dst", u64::MAX);
    for call in [
        to_image(0, 4),
        to_image(3, 1),
        to_image(u32::MAX, u32::MAX),
        nowhere,
    ] {
        assert!(run(&memory(&call), &call).contains("failed: "));
    }
    let call = to_image(1, 1)
        .int4("size", [u32::MAX; 4])
        .int4("dstOrigin", [u32::MAX; 4]);
    assert!(run(&memory(&call), &call).contains("failed: "));
    let call = to_image(1, 1)
        .ulong4("srcOrigin", [u64::MAX; 4])
        .ulong4("pitch", [u64::MAX; 4]);
    assert!(run(&memory(&call), &call).contains("failed: "));
}
