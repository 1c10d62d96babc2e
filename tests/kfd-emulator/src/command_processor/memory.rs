//! Memory as a queue sees it.

/// The memory of one process as its GPU queues see it.
pub trait GpuMemory {
    /// Fills `buf` from `va`.
    ///
    /// # Errors
    /// A part of the range is not mapped.
    fn read(&self, va: u64, buf: &mut [u8]) -> Result<(), Fault>;

    /// Writes `buf` at `va`.
    ///
    /// # Errors
    /// A part of the range is not mapped.
    fn write(&self, va: u64, buf: &[u8]) -> Result<(), Fault>;
}

/// An access to an address at which there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory at {va:#x}")]
pub struct Fault {
    /// The address.
    pub va: u64,
}

impl dyn GpuMemory + '_ {
    pub(super) fn read_array<const N: usize>(&self, va: u64) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.read(va, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read_u32(&self, va: u64) -> Result<u32, Fault> {
        self.read_array(va).map(u32::from_le_bytes)
    }

    pub(super) fn read_u64(&self, va: u64) -> Result<u64, Fault> {
        self.read_array(va).map(u64::from_le_bytes)
    }

    pub(super) fn write_u32(&self, va: u64, value: u32) -> Result<(), Fault> {
        self.write(va, &value.to_le_bytes())
    }

    pub(super) fn write_u64(&self, va: u64, value: u64) -> Result<(), Fault> {
        self.write(va, &value.to_le_bytes())
    }
}

/// The address `offset` above `base`; one that wraps around is a fault.
pub(super) fn offset(base: u64, offset: u64) -> Result<u64, Fault> {
    base.checked_add(offset).ok_or(Fault { va: base })
}

/// The little-endian field at `at`, or `None` if it is not inside `bytes`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The little-endian field at `at`, or `None` if it is not inside `bytes`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The little-endian field at `at`, or `None` if it is not inside `bytes`.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
