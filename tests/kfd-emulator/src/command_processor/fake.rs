//! Memory and kernels for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Fault, GpuMemory, Kernel, KernelNames};

/// A few pieces of memory; everything else faults, as an unmapped page does.
#[derive(Default)]
pub(super) struct Memory {
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
}

impl Memory {
    pub(super) fn new() -> Memory {
        Memory::default()
    }

    pub(super) fn with(self, va: u64, bytes: &[u8]) -> Memory {
        self.pieces.borrow_mut().insert(va, bytes.to_vec());
        self
    }

    pub(super) fn zeros(self, va: u64, length: usize) -> Memory {
        self.with(va, &vec![0; length])
    }

    pub(super) fn bytes(&self, va: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.read(va, &mut bytes).unwrap();
        bytes
    }

    /// Calls `with` for each byte; the first byte without memory is the fault's address.
    fn access(
        &self,
        va: u64,
        length: usize,
        mut with: impl FnMut(usize, &mut u8),
    ) -> Result<(), Fault> {
        let mut pieces = self.pieces.borrow_mut();
        let mut at = 0;
        while at < length {
            let here = va.checked_add(at as u64).ok_or(Fault { va })?;
            let (start, piece) = pieces
                .range_mut(..=here)
                .next_back()
                .ok_or(Fault { va: here })?;
            let inside = usize::try_from(here - start).map_err(|_| Fault { va: here })?;
            let rest = piece.get_mut(inside..).filter(|rest| !rest.is_empty());
            for byte in rest.ok_or(Fault { va: here })?.iter_mut().take(length - at) {
                with(at, byte);
                at += 1;
            }
        }
        Ok(())
    }
}

impl GpuMemory for Memory {
    fn read(&self, va: u64, buf: &mut [u8]) -> Result<(), Fault> {
        self.access(va, buf.len(), |at, byte| buf[at] = *byte)
    }

    fn write(&self, va: u64, buf: &[u8]) -> Result<(), Fault> {
        self.access(va, buf.len(), |at, byte| *byte = buf[at])
    }
}

/// Kernels by their kernel object.
#[derive(Default)]
pub(super) struct Kernels(pub(super) BTreeMap<u64, Arc<Kernel>>);

impl KernelNames for Kernels {
    fn kernel(&self, kernel_object: u64) -> Option<Arc<Kernel>> {
        self.0.get(&kernel_object).cloned()
    }
}

/// A kernel argument segment and the kernel that has it: arguments are laid out as a compiler does.
pub(super) struct Call {
    pub(super) kernel: Kernel,
    pub(super) segment: Vec<u8>,
}

impl Call {
    pub(super) fn new(name: &str) -> Call {
        let kernel = Kernel {
            name: name.to_owned(),
            ..Kernel::default()
        };
        Call {
            kernel,
            segment: Vec::new(),
        }
    }

    pub(super) fn u64(self, name: &str, value: u64) -> Call {
        self.bytes(name, &value.to_le_bytes(), 8)
    }

    pub(super) fn u32(self, name: &str, value: u32) -> Call {
        self.bytes(name, &value.to_le_bytes(), 4)
    }

    pub(super) fn ulong4(self, name: &str, values: [u64; 4]) -> Call {
        self.bytes(name, values.map(u64::to_le_bytes).as_flattened(), 32)
    }

    pub(super) fn int4(self, name: &str, values: [u32; 4]) -> Call {
        self.bytes(name, values.map(u32::to_le_bytes).as_flattened(), 16)
    }

    fn bytes(mut self, name: &str, bytes: &[u8], alignment: usize) -> Call {
        self.segment
            .resize(self.segment.len().next_multiple_of(alignment), 0);
        let argument = super::Argument {
            offset: self.segment.len() as u32,
            size: bytes.len() as u32,
        };
        self.kernel.arguments.insert(name.to_owned(), argument);
        self.segment.extend(bytes);
        self
    }
}
