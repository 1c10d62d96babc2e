//! The arguments of one kernel call, by name.

use super::code_object::{Argument, Kernel};
use super::copy::TransferError;
use super::memory::{Fault, GpuMemory, offset, u32_at, u64_at};

/// Why a blit kernel did not run, or not to its end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BlitError {
    #[error("it has no argument {0}: a signature that is not known")]
    NoArgument(&'static str),
    #[error("its arguments contradict each other")]
    Contradiction,
    #[error(transparent)]
    Transfer(#[from] TransferError),
}

impl From<Fault> for BlitError {
    fn from(fault: Fault) -> BlitError {
        BlitError::Transfer(TransferError::Fault(fault))
    }
}

/// The arguments of one call.
pub(super) struct Arguments<'a> {
    pub(super) memory: &'a dyn GpuMemory,
    pub(super) kernel: &'a Kernel,
    /// Address of the kernel argument segment.
    pub(super) segment: u64,
}

impl Arguments<'_> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.kernel.arguments.contains_key(name)
    }

    /// The first `N` bytes of an argument, with zeros behind a shorter one.
    fn bytes<const N: usize>(&self, name: &'static str) -> Result<[u8; N], BlitError> {
        let argument = self
            .kernel
            .arguments
            .get(name)
            .ok_or(BlitError::NoArgument(name))?;
        let Argument { offset: at, size } = *argument;
        let mut bytes = [0; N];
        let length = N.min(size as usize);
        self.memory
            .read(offset(self.segment, at.into())?, &mut bytes[..length])?;
        Ok(bytes)
    }

    /// An integer or a pointer.
    pub(super) fn number(&self, name: &'static str) -> Result<u64, BlitError> {
        self.bytes(name).map(u64::from_le_bytes)
    }

    /// The first of these that the kernel has.
    pub(super) fn either(&self, one: &'static str, other: &'static str) -> Result<u64, BlitError> {
        self.number(if self.has(one) { one } else { other })
    }

    /// A vector of four 64-bit integers.
    pub(super) fn ulong4(&self, name: &'static str) -> Result<[u64; 4], BlitError> {
        let bytes: [u8; 32] = self.bytes(name)?;
        Ok([0, 8, 16, 24].map(|at| u64_at(&bytes, at).unwrap_or(0)))
    }

    /// A vector of four 32-bit integers, which are not negative.
    pub(super) fn int4(&self, name: &'static str) -> Result<[u64; 4], BlitError> {
        let bytes: [u8; 16] = self.bytes(name)?;
        Ok([0, 4, 8, 12].map(|at| u32_at(&bytes, at).unwrap_or(0).into()))
    }

    /// Of several pointers the one that is set, with its size of an element.
    pub(super) fn typed_pointer(
        &self,
        candidates: &[(&'static str, u64)],
    ) -> Result<(u64, u64), BlitError> {
        for (name, element) in candidates {
            if !self.has(name) {
                continue;
            }
            let pointer = self.number(name)?;
            if pointer != 0 {
                return Ok((pointer, *element));
            }
        }
        Err(BlitError::Contradiction)
    }
}

pub(super) fn times(count: u64, element: u64) -> Result<u64, BlitError> {
    count.checked_mul(element).ok_or(BlitError::Contradiction)
}

pub(super) fn plus(one: u64, other: u64) -> Result<u64, BlitError> {
    one.checked_add(other).ok_or(BlitError::Contradiction)
}
