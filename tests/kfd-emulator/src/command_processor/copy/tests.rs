use super::super::fake::Memory;
use super::*;

#[test]
fn a_copy_longer_than_a_piece_arrives_whole() {
    let bytes: Vec<u8> = (0..PIECE as u32 * 2 + 77).map(|i| (i * 31) as u8).collect();
    let memory = Memory::new()
        .with(0x1000, &bytes)
        .zeros(0x1000_0000, bytes.len());
    linear(&memory, 0x1000, 0x1000_0000, bytes.len() as u64).unwrap();
    assert!(memory.bytes(0x1000_0000, bytes.len()) == bytes);
}

#[test]
fn a_copy_ends_at_the_first_address_without_memory() {
    let memory = Memory::new().with(0x1000, &[7; 32]).zeros(0x2000, 16);
    let fault = linear(&memory, 0x1000, 0x2000, 32).unwrap_err();
    assert_eq!(fault, TransferError::Fault(Fault { va: 0x2010 }));
    assert!(linear(&memory, u64::MAX, 0x2000, 16).is_err());
    assert!(linear(&memory, 0x1000, u64::MAX - 4, 16).is_err());
    linear(&memory, 0, 0, 0).unwrap();
}

#[test]
fn lengths_are_bounded_before_anything_is_touched() {
    let memory = Memory::new();
    let side = Side {
        start: 0,
        row_pitch: 0,
        slice_pitch: 0,
    };
    let extent = |row_bytes, rows, slices| Extent {
        row_bytes,
        rows,
        slices,
    };
    assert_eq!(linear(&memory, 0, 0, u64::MAX), Err(TransferError::TooLong));
    assert_eq!(
        fill(&memory, 0, MOST_BYTES + 1, &[1]),
        Err(TransferError::TooLong)
    );
    for extent in [
        extent(1, u64::MAX, u64::MAX),
        extent(u64::MAX, 2, 1),
        extent(0, MOST_ROWS, 2),
        extent(MOST_BYTES, 2, 1),
    ] {
        assert_eq!(
            rectangle(&memory, side, side, extent),
            Err(TransferError::TooLong)
        );
        let filled = fill_rectangle(&memory, side, extent, &[1]);
        assert_eq!(filled, Err(TransferError::TooLong));
    }
    rectangle(&memory, side, side, extent(0, MOST_ROWS, 1)).unwrap();
}

#[test]
fn a_fill_repeats_its_pattern_and_cuts_the_last() {
    let memory = Memory::new().zeros(0x1000, 8);
    fill(&memory, 0x1000, 7, &[1, 2, 3]).unwrap();
    assert_eq!(memory.bytes(0x1000, 8), [1, 2, 3, 1, 2, 3, 1, 0]);
    assert_eq!(fill(&memory, 0x1000, 4, &[]), Err(TransferError::NoPattern));
}

#[test]
fn a_long_fill_keeps_the_pattern_across_pieces() {
    let bytes = PIECE as usize * 2 + 5;
    let memory = Memory::new().zeros(0x1000, bytes);
    fill(&memory, 0x1000, bytes as u64, &[1, 2, 3]).unwrap();
    let filled = memory.bytes(0x1000, bytes);
    assert!(
        filled
            .iter()
            .zip([1u8, 2, 3].iter().cycle())
            .all(|(is, wanted)| is == wanted)
    );
}

#[test]
fn a_rectangle_leaves_what_is_between_its_rows() {
    let memory = Memory::new()
        .with(0x1000, &(0..64).collect::<Vec<u8>>())
        .zeros(0x2000, 64);
    let source = Side {
        start: 0x1001,
        row_pitch: 8,
        slice_pitch: 32,
    };
    let destination = Side {
        start: 0x2000,
        row_pitch: 4,
        slice_pitch: 16,
    };
    let extent = Extent {
        row_bytes: 3,
        rows: 2,
        slices: 2,
    };
    rectangle(&memory, source, destination, extent).unwrap();
    let expected = [
        [1, 2, 3, 0, 9, 10, 11, 0],
        [0; 8],
        [33, 34, 35, 0, 41, 42, 43, 0],
    ]
    .concat();
    assert_eq!(memory.bytes(0x2000, 24), expected);

    fill_rectangle(&memory, destination, extent, &[5, 6]).unwrap();
    assert_eq!(memory.bytes(0x2000, 8), [5, 6, 5, 0, 5, 6, 5, 0]);
}

#[test]
fn strides_that_wrap_around_are_a_fault() {
    let memory = Memory::new().zeros(0x1000, 64);
    let wild = Side {
        start: 0x1000,
        row_pitch: u64::MAX,
        slice_pitch: u64::MAX,
    };
    let extent = Extent {
        row_bytes: 1,
        rows: 3,
        slices: 1,
    };
    let error = rectangle(&memory, wild, wild, extent).unwrap_err();
    assert_eq!(error, TransferError::Fault(Fault { va: 0x1000 }));
}
