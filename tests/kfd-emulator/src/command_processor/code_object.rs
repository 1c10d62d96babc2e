//! Names of kernels.

use std::collections::BTreeMap;

use super::GpuMemory;

/// A kernel of a code object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, without the `.kd` of its descriptor.
    pub name: String,
    /// Its arguments by name.
    pub arguments: BTreeMap<String, Argument>,
}

/// Where a kernel argument is in the kernel argument segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Bytes from the start of the segment.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// The kernel whose descriptor is at `kernel_object`.
pub fn find(memory: &dyn GpuMemory, kernel_object: u64) -> Option<Kernel> {
    let _ = (memory, kernel_object);
    None
}
