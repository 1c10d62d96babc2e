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
mod tests;
