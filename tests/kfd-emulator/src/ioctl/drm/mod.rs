//! The ioctls of a render node: what libdrm_amdgpu, ROCr and the SMI libraries ask.

mod gem;
mod info;
mod prime;

use nix::errno::Errno;

use crate::abi::drm::number;
use crate::state::{BlockId, Driver, FileId};

use super::{Caller, Fields, Outcome, with};

/// One ioctl on an open render node.
pub struct Call<'a> {
    /// The driver.
    pub driver: &'a mut Driver,
    /// Who calls.
    pub caller: &'a dyn Caller,
    /// The open file description.
    pub file: FileId,
    /// Whose node it is.
    pub gpu_id: u32,
    /// For the trace.
    pub fields: &'a mut Fields,
}

impl Call<'_> {
    /// Runs it.
    pub fn run(&mut self, number: u8, argument: &mut [u8]) -> Outcome {
        match number {
            number::VERSION => with(argument, |a| self.version(a)),
            number::GET_CLIENT => with(argument, |a| self.get_client(a)),
            number::GET_CAP => with(argument, |a| self.get_cap(a)),
            number::INFO => with(argument, |a| self.info(a)),
            number::GEM_CREATE => with(argument, |a| self.gem_create(a)),
            number::GEM_MMAP => with(argument, |a| self.gem_mmap(a)),
            number::GEM_VA => with(argument, |a| self.gem_va(a)),
            number::GEM_METADATA => with(argument, |a| self.gem_metadata(a)),
            number::GEM_OP => with(argument, |a| self.gem_op(a)),
            number::GEM_CLOSE => with(argument, |a| self.gem_close(a)),
            number::PRIME_HANDLE_TO_FD => with(argument, |a| self.prime_handle_to_fd(a)),
            number::PRIME_FD_TO_HANDLE => with(argument, |a| self.prime_fd_to_handle(a)),
            _ => Outcome::Done(Err(Errno::ENOTTY)),
        }
    }

    /// The block that a GEM handle of this file names.
    fn block_of(&mut self, handle: u32) -> Result<BlockId, Errno> {
        self.fields.set("handle", handle);
        let handles = self.driver.handles(self.file).ok_or(Errno::EBADF)?;
        handles.get(handle).ok_or(Errno::ENOENT)
    }

    /// A new handle for a block, whose reference it takes over.
    fn add_handle(&mut self, block: BlockId) -> Result<u32, Errno> {
        let handles = self.driver.handles(self.file).ok_or(Errno::EBADF)?;
        let handle = handles.add(block).ok_or(Errno::ENOSPC)?;
        self.fields.set("handle", handle);
        Ok(handle)
    }
}
