//! Answers of the render node's `AMDGPU_INFO`, computed from a GPU.

use crate::profile::Gpu;

/// The answer to a query.
pub fn answer(gpu: &Gpu, query: u32, sub: u32, used: u64) -> Option<Vec<u8>> {
    let _ = (gpu, query, sub, used);
    None
}
