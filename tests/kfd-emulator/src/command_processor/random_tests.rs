//! Whatever a client puts into memory: no panic, and every pass ends.

use proptest::prelude::*;

use super::fake::{Call, Kernels, Memory};
use super::{QueueKind, Ring, code_object, service};

/// All of a small memory is here, so that random pointers often hit something.
const BASE: u64 = 0x1000;
const BYTES: usize = 0x2000;

fn any_kind() -> impl Strategy<Value = QueueKind> {
    (0u32..5).prop_map(|number| QueueKind::from_ioctl(number).unwrap())
}

/// Mostly addresses in memory, sometimes any number.
fn any_va() -> impl Strategy<Value = u64> {
    prop_oneof![4 => BASE..BASE + BYTES as u64, 1 => any::<u64>()]
}

/// Makes random words look like packets and pointers more often than they do.
fn likely_word(random: u64) -> u64 {
    let (choice, rest) = (random % 8, random >> 3);
    match choice {
        0..3 => BASE + rest % BYTES as u64,
        3..5 => rest % 20,
        // an operation of SDMA, with any flags
        5..7 => rest << 16 | rest >> 16 & 0x1f,
        _ => random.rotate_right(3),
    }
}

fn any_words() -> impl Strategy<Value = Vec<u64>> {
    proptest::collection::vec(any::<u64>(), BYTES / 8)
        .prop_map(|words| words.into_iter().map(likely_word).collect())
}

fn memory(words: &[u64]) -> Memory {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    Memory::new().with(BASE, &bytes)
}

/// An AQL packet that is mostly a dispatch of a kernel that is executed, with its arguments in memory.
fn likely_aql(random: &[u64]) -> [u64; 8] {
    let mut packet = [0; 8];
    for (word, random) in packet.iter_mut().zip(random) {
        *word = likely_word(*random);
    }
    // header: dispatch, barriers, barrier-value, or anything
    packet[0] = [2, 2, 2, 3, 5, 2 << 16, packet[0]][random[0] as usize % 7];
    if packet[0] == 2 {
        packet[4] = random[4] % 20;
        packet[5] = BASE + random[5] % (BYTES as u64 / 8) * 8;
    }
    packet
}

/// The words of an SDMA packet that is known, its fields mostly addresses in memory or zero.
fn likely_sdma(random: &[u64]) -> Vec<u32> {
    const KNOWN: [u32; 11] = [0, 1, 0x401, 2, 5, 6, 8, 10, 11, 13, 17];
    let header = KNOWN[random[0] as usize % KNOWN.len()] | (random[0] >> 32) as u32 & 0xfe00_0000;
    let field = |random: u64| match random % 8 {
        0..3 => (BASE + (random >> 3) % BYTES as u64) as u32,
        3..6 => 0,
        6 => (random >> 3) as u32 & 0xff,
        _ => (random >> 32) as u32,
    };
    [header]
        .into_iter()
        .chain(random[1..13].iter().copied().map(field))
        .collect()
}

/// A kernel by every name that is executed, each with the arguments of all of them.
fn kernels() -> Kernels {
    let names = [
        "copyBuffer",
        "copyBufferAligned",
        "copyBufferRect",
        "copyBufferRectAligned",
        "fillBufferAligned",
        "fillBufferAligned2D",
        "copyBufferToImage",
        "copyImageToBuffer",
        "copyImage",
        "streamOpsWrite",
        "streamOpsWait",
        "unknown",
    ];
    let kernel = |name: &str| {
        Call::new(&format!("__amd_rocclr_{name}"))
            .u64("src", 0)
            .u64("dst", 0)
            .u64("size", 0)
            .u64("srcOrigin", 0)
            .u64("dstOrigin", 0)
            .u32("remain", 0)
            .ulong4("srcRect", [0; 4])
            .ulong4("dstRect", [0; 4])
            .u64("bufUInt", 0)
            .u64("ptrInt", 0)
            .u64("value", 0)
            .u64("pattern", 0)
            .u32("patternSize", 0)
            .u64("offset", 0)
            .u64("width", 0)
            .u64("height", 0)
            .u64("pitch", 0)
            .u64("dstUInt", 0)
            .u64("flags", 0)
            .u64("mask", 0)
            .int4("format", [0; 4])
            .kernel
    };
    // every kernel object below 20 is one of them
    Kernels(
        (0..20)
            .map(|at| (at, kernel(names[at as usize % names.len()]).into()))
            .collect(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(512) })]

    #[test]
    fn random_rings_never_panic_and_always_end(
        words in any_words(),
        kind in any_kind(),
        base in any_va(),
        bytes in prop_oneof![Just(4096u64), Just(256), 0u64..8192, any::<u64>()],
        read_pointer_va in any_va(),
        consumed in prop_oneof![Just(0u64), 0u64..10_000, any::<u64>()],
        ahead in prop_oneof![0u64..64, 0u64..4096, any::<u64>()],
    ) {
        let mut ring = Ring { kind, base, bytes, read_pointer_va, consumed };
        let doorbell = consumed.wrapping_add(ahead);
        let (memory, kernels) = (memory(&words), kernels());
        for _ in 0..3 {
            let before = ring.clone();
            let pass = service(&memory, &kernels, &mut ring, doorbell, &|| 1);
            prop_assert_eq!(pass.progressed, ring.consumed != before.consumed);
            prop_assert!(pass.events.len() <= super::PACKETS_PER_PASS);
            // Nothing but the position is the engine's to change.
            prop_assert_eq!(Ring { consumed: before.consumed, ..ring.clone() }, before);
        }
    }

    #[test]
    fn likely_packets_never_panic_and_always_end(
        random in proptest::collection::vec(any::<u64>(), BYTES / 8),
        is_aql: bool,
        wrapped in 0u64..3,
    ) {
        const PACKETS: usize = 16;
        let mut words: Vec<u64> = random.iter().copied().map(likely_word).collect();
        let (kind, doorbell) = if is_aql {
            let (places, _) = words.as_chunks_mut::<8>();
            for (place, random) in places.iter_mut().zip(random.chunks_exact(8)).take(PACKETS) {
                *place = likely_aql(random);
            }
            (QueueKind::Aql, PACKETS as u64 - 1)
        } else {
            let packets: Vec<u32> =
                random.chunks_exact(13).take(PACKETS).flat_map(likely_sdma).collect();
            for (word, pair) in words.iter_mut().zip(packets.chunks_exact(2)) {
                *word = u64::from(pair[0]) | u64::from(pair[1]) << 32;
            }
            (QueueKind::Sdma, packets.len() as u64 * 4)
        };
        let (memory, kernels) = (memory(&words), kernels());
        let bytes = PACKETS as u64 * 64;
        let unit = if is_aql { PACKETS as u64 } else { bytes };
        let consumed = wrapped * unit;
        let mut ring = Ring { kind, base: BASE, bytes, read_pointer_va: BASE, consumed };
        for _ in 0..3 {
            service(&memory, &kernels, &mut ring, consumed + doorbell, &|| 1);
        }
        prop_assert!(ring.consumed <= consumed + unit);
    }

    #[test]
    fn a_likely_blit_never_panics(random in proptest::collection::vec(any::<u64>(), 64), which in 0u64..12) {
        let kernels = kernels();
        let words: Vec<u64> = random.iter().copied().map(likely_word).collect();
        let kernel = super::KernelNames::kernel(&kernels, which);
        let kernel = kernel.expect("a kernel for each number");
        let said = super::blit_rocclr::run(&memory(&words), &kernel, BASE);
        // Only a kernel that waits says nothing.
        let waits = kernel.name.ends_with("streamOpsWait");
        prop_assert!(said.map_or(waits, |said| said.starts_with("__amd_rocclr_")));
    }

    #[test]
    fn a_random_code_object_never_panics(
        mut words in any_words(),
        kernel_object in any_va(),
        table in 0u64..256,
        count in 0u16..8,
    ) {
        // A header that is good enough for the search to look further.
        words[0] = u64::from_le_bytes(*b"\x7fELF\x02\x01\x01\x40");
        words[2] = 224 << 16;
        words[4] = table;
        words[6] = 56 << 48;
        words[7] = u64::from(count);
        let memory = memory(&words);
        let found = code_object::find(&memory, kernel_object);
        prop_assert!(found.is_none_or(|kernel| kernel.name.len() < BYTES));
    }
}
