//! Memory that crosses process borders: dma-bufs, and the DKMS driver's IPC handles.
//!
//! EXPORT_DMABUF and SMI_EVENTS give the caller a new descriptor, which a FUSE server cannot do.
//! Normally they never arrive here: [`crate::inject`] catches them before. When they do arrive and
//! a preloaded library stands by ([`crate::state::Options::preload`]), the answer is `EOPNOTSUPP` together
//! with the number of the block in the place of the descriptor; the library opens it.

use std::collections::BTreeSet;

use nix::errno::Errno;

use crate::abi::kfd::{
    ALLOC_VRAM, DmabufInfo, ExportDmabuf, ImportDmabuf, IpcExportHandle, IpcImportHandle, SmiEvents,
};
use crate::ioctl::Descriptor;
use crate::state::page_table::Place;
use crate::state::{BlockId, Buffer};

use super::Call;

/// The last words of an IPC share handle: it must have come from IPC_EXPORT_HANDLE.
const SHARE_MARK: [u32; 2] = [0x6b66_6465, 0x6d75_0001];

impl Call<'_> {
    fn block_of_fd(&self, fd: u32) -> Result<BlockId, Errno> {
        match self.caller.descriptor(fd) {
            Descriptor::Dmabuf(block) => Ok(block),
            Descriptor::Closed => Err(Errno::EBADF),
            _ => Err(Errno::EINVAL),
        }
    }

    /// The block of a buffer of the calling process.
    fn block_of_buffer(&mut self, handle: u64) -> Result<BlockId, Errno> {
        self.process()?
            .buffers
            .get(&handle)
            .and_then(|b| b.block)
            .ok_or(Errno::EINVAL)
    }

    pub(super) fn get_dmabuf_info(&mut self, args: &mut DmabufInfo) -> Result<(), Errno> {
        self.fields.set("fd", args.dmabuf_fd);
        let id = self.block_of_fd(args.dmabuf_fd)?;
        let block = self.driver.blocks.get(id).ok_or(Errno::EINVAL)?;
        (args.size, args.gpu_id, args.flags) = (block.size, block.gpu_id, block.flags);
        args.metadata_size = 0;
        self.fields.set("size", block.size);
        Ok(())
    }

    /// A buffer over a block that exists. It is not charged: `vram_GPUID` counts memory where it
    /// was allocated.
    fn add_import(&mut self, id: BlockId, gpu_id: u32, va: u64) -> Result<(u64, u64), Errno> {
        self.check_vm(gpu_id)?;
        let block = self.driver.blocks.get(id).ok_or(Errno::EINVAL)?;
        let (offset, size, flags) = (block.offset, block.size, block.flags & !ALLOC_VRAM);
        va.checked_add(size).ok_or(Errno::EINVAL)?;
        self.process()?;
        self.driver.blocks.acquire(id).ok_or(Errno::EINVAL)?;
        let buffer = Buffer {
            va,
            size,
            flags,
            gpu_id,
            block: Some(id),
            place: Some(Place::Backing(offset)),
            period: size,
            charged: 0,
            mapped: BTreeSet::new(),
        };
        let handle = self.process()?.add_buffer(buffer);
        self.fields.hex("va", va);
        self.fields.set("size", size);
        self.fields.hex("gpu_id", gpu_id);
        self.fields.hex("handle", handle);
        Ok((handle, offset))
    }

    pub(super) fn import_dmabuf(&mut self, args: &mut ImportDmabuf) -> Result<(), Errno> {
        let id = self.block_of_fd(args.dmabuf_fd)?;
        (args.handle, _) = self.add_import(id, args.gpu_id, args.va)?;
        Ok(())
    }

    pub(super) fn export_dmabuf(&mut self, args: &mut ExportDmabuf) -> Result<(), Errno> {
        self.fields.hex("handle", args.handle);
        let id = self.block_of_buffer(args.handle)?;
        if self.driver.options.preload {
            args.dmabuf_fd = id.0 as u32;
        }
        Err(Errno::EOPNOTSUPP)
    }

    pub(super) fn smi_events(&mut self, args: &mut SmiEvents) -> Result<(), Errno> {
        self.check_gpu(args.gpu_id)?;
        Err(Errno::EOPNOTSUPP)
    }

    pub(super) fn ipc_import(&mut self, args: &mut IpcImportHandle) -> Result<(), Errno> {
        let [low, high, mark @ ..] = args.share_handle;
        if mark != SHARE_MARK {
            return Err(Errno::EINVAL);
        }
        let id = BlockId(u64::from(high) << 32 | u64::from(low));
        (args.handle, args.mmap_offset) = self.add_import(id, args.gpu_id, args.va)?;
        Ok(())
    }

    pub(super) fn ipc_export(&mut self, args: &mut IpcExportHandle) -> Result<(), Errno> {
        self.fields.hex("handle", args.handle);
        let BlockId(id) = self.block_of_buffer(args.handle)?;
        args.share_handle = [id as u32, (id >> 32) as u32, SHARE_MARK[0], SHARE_MARK[1]];
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::kfd::{AllocMemory, FreeMemory, number};
    use crate::ioctl::testing::{Bench, PID};
    use crate::state::PAGE;
    use crate::sysfs::ProcessTable;

    fn exported(bench: &mut Bench) -> (u64, BlockId) {
        let mut args = AllocMemory {
            va: 0x1000_0000,
            size: PAGE,
            gpu_id: bench.gpu_id,
            flags: ALLOC_VRAM,
            ..Default::default()
        };
        bench.kfd(number::ALLOC_MEMORY_OF_GPU, &mut args).unwrap();
        let process = bench.driver.process_of_pid(PID).unwrap();
        (args.handle, process.buffers[&args.handle].block.unwrap())
    }

    #[test]
    fn an_imported_buffer_keeps_the_memory_and_is_not_charged() {
        let mut bench = Bench::new();
        let (handle, block) = exported(&mut bench);
        bench
            .caller
            .descriptors
            .insert(9, Descriptor::Dmabuf(block));
        let mut info = DmabufInfo {
            dmabuf_fd: 9,
            ..Default::default()
        };
        bench.kfd(number::GET_DMABUF_INFO, &mut info).unwrap();
        assert_eq!((info.size, info.gpu_id), (PAGE, bench.gpu_id));
        let gpu_id = bench.gpu_id;
        let mut import = ImportDmabuf {
            va: 0x2000_0000,
            gpu_id,
            dmabuf_fd: 9,
            handle: 0,
        };
        bench.kfd(number::IMPORT_DMABUF, &mut import).unwrap();
        assert_eq!(bench.driver.vram(PID, gpu_id), Some(PAGE));
        bench
            .kfd(number::FREE_MEMORY_OF_GPU, &mut FreeMemory { handle })
            .unwrap();
        assert_eq!(bench.driver.vram(PID, gpu_id), Some(0));
        assert_eq!(
            bench.driver.devices[0].vram_used, PAGE,
            "the import still holds it"
        );
        let mut free = FreeMemory {
            handle: import.handle,
        };
        bench.kfd(number::FREE_MEMORY_OF_GPU, &mut free).unwrap();
        assert_eq!(bench.driver.devices[0].vram_used, 0);
    }

    #[test]
    fn only_dmabufs_can_be_imported() {
        let mut bench = Bench::new();
        bench.caller.descriptors.insert(9, Descriptor::Other);
        let mut import = ImportDmabuf {
            gpu_id: bench.gpu_id,
            dmabuf_fd: 9,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::IMPORT_DMABUF, &mut import),
            Err(Errno::EINVAL)
        );
        import.dmabuf_fd = 10;
        assert_eq!(
            bench.kfd(number::IMPORT_DMABUF, &mut import),
            Err(Errno::EBADF)
        );
        bench
            .caller
            .descriptors
            .insert(9, Descriptor::Dmabuf(BlockId(12345)));
        import.dmabuf_fd = 9;
        assert_eq!(
            bench.kfd(number::IMPORT_DMABUF, &mut import),
            Err(Errno::EINVAL),
            "gone"
        );
    }

    #[test]
    fn with_a_preloaded_library_the_answer_names_the_block() {
        let mut bench = Bench::new();
        let (handle, block) = exported(&mut bench);
        let mut export = ExportDmabuf {
            handle,
            ..Default::default()
        };
        let result = bench.kfd(number::EXPORT_DMABUF, &mut export);
        assert_eq!((result, export.dmabuf_fd), (Err(Errno::EOPNOTSUPP), 0));
        bench.driver.options.preload = true;
        let result = bench.kfd(number::EXPORT_DMABUF, &mut export);
        assert_eq!(
            (result, export.dmabuf_fd),
            (Err(Errno::EOPNOTSUPP), block.0 as u32)
        );
        export.handle = 1;
        assert_eq!(
            bench.kfd(number::EXPORT_DMABUF, &mut export),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn ipc_handles_are_of_the_dkms_driver() {
        let mut bench = Bench::new();
        let (handle, _) = exported(&mut bench);
        let mut export = IpcExportHandle {
            handle,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::IPC_EXPORT_HANDLE, &mut export),
            Err(Errno::ENOTTY)
        );
        bench.driver.options.dkms_ipc = true;
        bench.kfd(number::IPC_EXPORT_HANDLE, &mut export).unwrap();
        let mut import = IpcImportHandle {
            va: 0x3000_0000,
            share_handle: export.share_handle,
            gpu_id: bench.gpu_id,
            ..Default::default()
        };
        bench.kfd(number::IPC_IMPORT_HANDLE, &mut import).unwrap();
        assert_ne!(import.mmap_offset, 0);
        import.share_handle[2] = 0;
        assert_eq!(
            bench.kfd(number::IPC_IMPORT_HANDLE, &mut import),
            Err(Errno::EINVAL)
        );
    }
}
