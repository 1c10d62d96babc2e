//! Copies and fills of GPU memory, in pieces.

use super::memory::{Fault, GpuMemory, offset};

/// The longest transfer: more than the VRAM of any card. A packet that asks for more is broken.
const MOST_BYTES: u64 = 512 << 30;
/// The most rows of a rectangle, so that one packet of empty strides cannot hold up the other queues for long.
const MOST_ROWS: u64 = 1 << 24;
/// Memory is moved in pieces of this size.
const PIECE: u64 = 1 << 20;

/// Why a transfer was not done, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TransferError {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(
        "a transfer that no card could do (length overflows or exceeds {MOST_BYTES} bytes or {MOST_ROWS} rows)"
    )]
    TooLong,
    #[error("an empty fill pattern")]
    NoPattern,
}

/// Copies `bytes`; ranges that overlap give what a copy in ascending pieces gives.
pub(super) fn linear(
    memory: &dyn GpuMemory,
    source: u64,
    destination: u64,
    bytes: u64,
) -> Result<(), TransferError> {
    if bytes > MOST_BYTES {
        return Err(TransferError::TooLong);
    }
    let mut buffer = vec![0; PIECE.min(bytes) as usize];
    Ok(through(&mut buffer, memory, source, destination, bytes)?)
}

/// Copies `bytes` in pieces of a buffer, which is not empty unless `bytes` is 0.
fn through(
    buffer: &mut [u8],
    memory: &dyn GpuMemory,
    source: u64,
    destination: u64,
    bytes: u64,
) -> Result<(), Fault> {
    let mut done = 0;
    while done < bytes {
        let length = (buffer.len() as u64).min(bytes - done);
        let piece = &mut buffer[..length as usize];
        memory.read(offset(source, done)?, piece)?;
        memory.write(offset(destination, done)?, piece)?;
        done += length;
    }
    Ok(())
}

/// Repeats a pattern over `bytes`; the last repetition may be cut.
pub(super) fn fill(
    memory: &dyn GpuMemory,
    destination: u64,
    bytes: u64,
    pattern: &[u8],
) -> Result<(), TransferError> {
    if bytes > MOST_BYTES {
        return Err(TransferError::TooLong);
    }
    if pattern.is_empty() {
        return Err(TransferError::NoPattern);
    }
    // Every piece starts with the start of the pattern if pieces are whole repetitions.
    let repetitions = (PIECE as usize / pattern.len()).max(1);
    let whole = pattern.repeat(repetitions.min((bytes as usize).div_ceil(pattern.len())));
    let mut done = 0;
    while done < bytes {
        let length = (whole.len() as u64).min(bytes - done);
        memory.write(offset(destination, done)?, &whole[..length as usize])?;
        done += length;
    }
    Ok(())
}

/// One side of a rectangular copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    /// Address of the first byte.
    pub(super) start: u64,
    /// Bytes from one row to the next.
    pub(super) row_pitch: u64,
    /// Bytes from one slice to the next.
    pub(super) slice_pitch: u64,
}

impl Side {
    fn row(&self, row: u64, slice: u64) -> Result<u64, TransferError> {
        let distance = |count: u64, pitch: u64| count.checked_mul(pitch);
        distance(slice, self.slice_pitch)
            .zip(distance(row, self.row_pitch))
            .and_then(|(slice, row)| self.start.checked_add(slice)?.checked_add(row))
            .ok_or(TransferError::Fault(Fault { va: self.start }))
    }
}

/// Size of a rectangle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes in a row.
    pub(super) row_bytes: u64,
    /// Rows in a slice.
    pub(super) rows: u64,
    /// Slices.
    pub(super) slices: u64,
}

impl Extent {
    fn check(&self) -> Result<(), TransferError> {
        let rows = self
            .rows
            .checked_mul(self.slices)
            .filter(|rows| *rows <= MOST_ROWS);
        rows.and_then(|rows| rows.checked_mul(self.row_bytes))
            .filter(|bytes| *bytes <= MOST_BYTES)
            .map(drop)
            .ok_or(TransferError::TooLong)
    }

    /// Row and slice numbers in the order of memory.
    fn positions(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.slices).flat_map(move |slice| (0..self.rows).map(move |row| (row, slice)))
    }
}

/// Copies a rectangle.
pub(super) fn rectangle(
    memory: &dyn GpuMemory,
    source: Side,
    destination: Side,
    extent: Extent,
) -> Result<(), TransferError> {
    extent.check()?;
    if extent.row_bytes == 0 {
        return Ok(());
    }
    let mut buffer = vec![0; PIECE.min(extent.row_bytes) as usize];
    extent.positions().try_for_each(|(row, slice)| {
        let (from, to) = (source.row(row, slice)?, destination.row(row, slice)?);
        Ok(through(&mut buffer, memory, from, to, extent.row_bytes)?)
    })
}

/// Fills a rectangle; each row starts with the start of the pattern.
pub(super) fn fill_rectangle(
    memory: &dyn GpuMemory,
    destination: Side,
    extent: Extent,
    pattern: &[u8],
) -> Result<(), TransferError> {
    extent.check()?;
    if extent.row_bytes == 0 {
        return Ok(());
    }
    extent.positions().try_for_each(|(row, slice)| {
        fill(
            memory,
            destination.row(row, slice)?,
            extent.row_bytes,
            pattern,
        )
    })
}

#[cfg(test)]
mod tests {
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
}
