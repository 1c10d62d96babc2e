//! PRIME: dma-bufs in and out of GEM handles.

use nix::errno::Errno;

use crate::abi::drm::PrimeHandle;
use crate::ioctl::Descriptor;

use super::Call;

impl Call<'_> {
    /// The same dma-buf always has the same handle in one file, as
    /// `drm_gem_prime_fd_to_handle` sees to it.
    pub(super) fn prime_fd_to_handle(&mut self, args: &mut PrimeHandle) -> Result<(), Errno> {
        self.fields.set("fd", args.fd);
        let Descriptor::Dmabuf(block) = self.caller.descriptor(args.fd) else {
            return Err(Errno::EBADF);
        };
        let handles = self.driver.handles(self.file).ok_or(Errno::EBADF)?;
        if let Some(handle) = handles.of(block) {
            args.handle = handle;
            self.fields.set("handle", handle);
            return Ok(());
        }
        self.driver.blocks.acquire(block).ok_or(Errno::ENOENT)?;
        match self.add_handle(block) {
            Ok(handle) => {
                args.handle = handle;
                Ok(())
            }
            Err(errno) => {
                self.driver.release_block(block);
                Err(errno)
            }
        }
    }

    /// A new descriptor: see [`crate::inject`]. With a preloaded library the answer is
    /// `EOPNOTSUPP` and the number of the block.
    pub(super) fn prime_handle_to_fd(&mut self, args: &mut PrimeHandle) -> Result<(), Errno> {
        let block = self.block_of(args.handle)?;
        if self.driver.options.preload {
            args.fd = block.0 as u32;
        }
        Err(Errno::EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::drm::number;
    use crate::ioctl::testing::Bench;
    use crate::state::{BlockId, Domain, PAGE};

    #[test]
    fn one_handle_for_one_dmabuf() {
        let mut bench = Bench::new();
        let (block, _) = bench
            .driver
            .allocate(bench.gpu_id, Domain::Vram, PAGE, 0)
            .unwrap();
        bench
            .caller
            .descriptors
            .insert(9, Descriptor::Dmabuf(block));
        bench
            .caller
            .descriptors
            .insert(10, Descriptor::Dmabuf(block));
        let handles: Vec<u32> = [9, 10]
            .into_iter()
            .map(|fd| {
                let mut args = PrimeHandle {
                    handle: 0,
                    flags: 0,
                    fd,
                };
                bench.drm(number::PRIME_FD_TO_HANDLE, &mut args).unwrap();
                args.handle
            })
            .collect();
        assert_eq!(handles, [1, 1]);
        bench.driver.release_block(block);
        assert_eq!(
            bench.driver.devices[0].vram_used, PAGE,
            "the handle holds it"
        );
        bench.driver.close(bench.render);
        assert_eq!(bench.driver.devices[0].vram_used, 0);
    }

    #[test]
    fn what_is_no_dmabuf() {
        let mut bench = Bench::new();
        bench.caller.descriptors.insert(9, Descriptor::Other);
        bench
            .caller
            .descriptors
            .insert(10, Descriptor::Dmabuf(BlockId(999)));
        let mut args = PrimeHandle {
            handle: 0,
            flags: 0,
            fd: 9,
        };
        assert_eq!(
            bench.drm(number::PRIME_FD_TO_HANDLE, &mut args),
            Err(Errno::EBADF)
        );
        args.fd = 10;
        assert_eq!(
            bench.drm(number::PRIME_FD_TO_HANDLE, &mut args),
            Err(Errno::ENOENT)
        );
        args.handle = 4;
        assert_eq!(
            bench.drm(number::PRIME_HANDLE_TO_FD, &mut args),
            Err(Errno::ENOENT)
        );
    }
}
