use super::*;
use crate::profile::{Profile, gpus};

fn first(name: &str) -> Gpu {
    gpus(Profile::by_name(name).unwrap(), 1, &[])
        .unwrap()
        .remove(0)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn the_device_is_that_of_the_profile() {
    let info = answer(&first("rx7900xtx"), query::DEV_INFO, 0, 0).unwrap();
    assert_eq!(u32_at(&info, 0), 0x744c);
    assert_eq!(u32_at(&info, 12), 0xc8);
    assert_eq!(
        (u32_at(&info, 16), u32_at(&info, 20), u32_at(&info, 24)),
        (145, 6, 2)
    );
    assert_eq!(
        (u64_at(&info, 32), u64_at(&info, 40)),
        (2_482_000, 1_249_000)
    );
    assert_eq!((u32_at(&info, 176), u32_at(&info, 180)), (9, 384));
    assert_eq!(u32_at(&info, 240), 32);
    // two arrays of eight CUs in each of the first four engines
    let bitmap: Vec<_> = (0..16).map(|cell| u32_at(&info, 56 + 4 * cell)).collect();
    assert_eq!(bitmap, [[0xff, 0xff, 0, 0]; 4].concat());
}

#[test]
fn every_profile_answers_what_libdrm_asks_when_it_opens_a_device() {
    for profile in Profile::all().unwrap() {
        let gpu = gpus(profile, 1, &[]).unwrap().remove(0);
        for (query, size) in [
            (query::ACCEL_WORKING, 4),
            (query::DEV_INFO, 440),
            (query::VRAM_GTT, 24),
            (query::MEMORY, 96),
            (query::READ_MMR_REG, 512),
            (query::HW_IP_INFO, 32),
            (query::FW_VERSION, 8),
            (query::GDS_CONFIG, 32),
        ] {
            let answer = answer(&gpu, query, 0, 0).unwrap();
            assert_eq!(answer.len(), size, "{}: query {query:#x}", profile.name);
        }
    }
}

#[test]
fn used_vram_is_told_on_top_of_the_drivers_own() {
    let gpu = first("mi210");
    let expected = VRAM_USED_BY_DRIVER + 4096;
    assert_eq!(
        answer(&gpu, query::VRAM_USAGE, 0, 4096).unwrap(),
        expected.to_le_bytes()
    );
    let memory = answer(&gpu, query::MEMORY, 0, 4096).unwrap();
    let vram: Vec<_> = (0..4).map(|word| u64_at(&memory, word * 8)).collect();
    let total = gpu.vram_bytes;
    assert_eq!(vram, [total, total, expected, total / 4 * 3]);
    assert_eq!(u64_at(&memory, 64), GTT_BYTES);
    assert_eq!(
        answer(&gpu, query::VRAM_USAGE, 0, u64::MAX).unwrap(),
        u64::MAX.to_le_bytes()
    );
}

#[test]
fn the_vbios_carries_name_and_part_number() {
    let info = answer(&first("mi300x"), query::VBIOS, 3, 0).unwrap();
    assert_eq!(info.len(), 200);
    let text = |at: usize| {
        let field = &info[at..at + 32];
        std::str::from_utf8(field.split(|byte| *byte == 0).next().unwrap()).unwrap()
    };
    assert_eq!(
        (text(0), text(64)),
        ("AMD Instinct MI300X", "113-M3000100-103")
    );
    assert_eq!(text(168), "2024/01/15 12:00");
    let size = answer(&first("mi300x"), query::VBIOS, 1, 0).unwrap();
    let image = answer(&first("mi300x"), query::VBIOS, 2, 0).unwrap();
    assert_eq!(u32_at(&size, 0) as usize, image.len());
}

#[test]
fn what_the_driver_refuses_has_no_answer() {
    let gpu = first("mi210");
    for (query, sub) in [
        (0xffff, 0),
        (query::VBIOS, 4),
        (query::VBIOS, 0),
        (query::SENSOR, 0xff),
        (query::HW_IP_INFO, 10),
    ] {
        assert_eq!(answer(&gpu, query, sub, 0), None, "query {query:#x}, {sub}");
    }
    assert_eq!(answer(&gpu, query::HW_IP_COUNT, 99, 0).unwrap(), [0; 4]);
}

#[test]
fn a_text_is_cut_to_its_field() {
    assert_eq!(Structure::new(4).text(0, 4, "abcdef").bytes, *b"abc\0");
}
