//! GEM objects: memory that a render node's handles name.

use nix::errno::Errno;
use zerocopy::IntoBytes;

use crate::abi::drm::{
    DOMAIN_GTT, DOMAIN_VRAM, GemClose, GemCreate, GemMetadata, GemMmap, GemOp, GemVa, METADATA_GET,
    METADATA_SET, OP_GET_CREATE_INFO, VA_CLEAR, VA_MAP, VA_REPLACE, VA_UNMAP,
};
use crate::state::page_table::Place;
use crate::state::{Domain, PAGE, ProcessKey, page_align};

use super::Call;

impl Call<'_> {
    pub(super) fn gem_create(&mut self, args: &mut GemCreate) -> Result<(), Errno> {
        self.fields.set("size", args.size);
        self.fields.hex("domains", args.domains);
        if args.size == 0 || args.domains == 0 {
            return Err(Errno::EINVAL);
        }
        let size = page_align(args.size).ok_or(Errno::ENOMEM)?;
        let vram = args.domains & DOMAIN_VRAM != 0;
        let domain = if vram { Domain::Vram } else { Domain::Gtt };
        let (block, _) = self.driver.allocate(self.gpu_id, domain, size, 0)?;
        match self.add_handle(block) {
            Ok(handle) => {
                args.size = u64::from(handle);
                Ok(())
            }
            Err(errno) => {
                self.driver.release_block(block);
                Err(errno)
            }
        }
    }

    pub(super) fn gem_mmap(&mut self, args: &mut GemMmap) -> Result<(), Errno> {
        let block = self.block_of(args.handle_or_offset as u32)?;
        args.handle_or_offset = self.driver.blocks.get(block).ok_or(Errno::ENOENT)?.offset;
        Ok(())
    }

    pub(super) fn gem_close(&mut self, args: &mut GemClose) -> Result<(), Errno> {
        self.fields.set("handle", args.handle);
        let handles = self.driver.handles(self.file).ok_or(Errno::EBADF)?;
        let block = handles.remove(args.handle).ok_or(Errno::EINVAL)?;
        self.driver.release_block(block);
        Ok(())
    }

    pub(super) fn gem_metadata(&mut self, args: &mut GemMetadata) -> Result<(), Errno> {
        let id = self.block_of(args.handle)?;
        let block = self.driver.blocks.get_mut(id).ok_or(Errno::ENOENT)?;
        match args.operation {
            METADATA_GET => args.data = block.metadata,
            METADATA_SET if args.data.size as usize <= size_of_val(&args.data.words) => {
                block.metadata = args.data;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    pub(super) fn gem_op(&mut self, args: &mut GemOp) -> Result<(), Errno> {
        let id = self.block_of(args.handle)?;
        if args.operation != OP_GET_CREATE_INFO {
            return Err(Errno::EINVAL);
        }
        let block = self.driver.blocks.get(id).ok_or(Errno::ENOENT)?;
        let domains = match block.domain {
            Domain::Vram => DOMAIN_VRAM,
            Domain::Gtt => DOMAIN_GTT,
        };
        let info = GemCreate {
            size: block.size,
            alignment: PAGE,
            domains,
            flags: 0,
        };
        self.caller.write(args.value, info.as_bytes())
    }

    /// Maps memory into the address space that KFD shares with this file (ACQUIRE_VM).
    pub(super) fn gem_va(&mut self, args: &mut GemVa) -> Result<(), Errno> {
        self.fields.set("operation", args.operation);
        self.fields.hex("va", args.va);
        self.fields.set("size", args.size);
        args.va.checked_add(args.size).ok_or(Errno::EINVAL)?;
        let key = self.address_space()?;
        match args.operation {
            VA_MAP | VA_REPLACE => {
                let id = self.block_of(args.handle)?;
                let block = self.driver.blocks.get(id).ok_or(Errno::ENOENT)?;
                let end = args
                    .offset_in_bo
                    .checked_add(args.size)
                    .ok_or(Errno::EINVAL)?;
                if args.size == 0 || end > block.size {
                    return Err(Errno::EINVAL);
                }
                let place = Place::Backing(block.offset + args.offset_in_bo);
                self.driver
                    .process(key)?
                    .page_table
                    .map(args.va, args.size, place);
            }
            VA_UNMAP | VA_CLEAR => {
                let process = self.driver.process(key)?;
                process.page_table.unmap(args.va, args.size);
                process.code_epoch += 1;
            }
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn address_space(&self) -> Result<ProcessKey, Errno> {
        let pid = self
            .driver
            .file(self.file)
            .map(|f| f.pid)
            .ok_or(Errno::EBADF)?;
        self.driver
            .process_of_pid(pid)
            .map(|p| p.key)
            .ok_or(Errno::EINVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::drm::number;
    use crate::ioctl::testing::{Bench, PID};
    use crate::state::testing::VRAM;

    fn create(bench: &mut Bench, size: u64, domains: u64) -> Result<u32, Errno> {
        let mut args = GemCreate {
            size,
            domains,
            ..Default::default()
        };
        bench
            .drm(number::GEM_CREATE, &mut args)
            .map(|()| args.size as u32)
    }

    #[test]
    fn memory_lives_as_long_as_its_handle() {
        let mut bench = Bench::new();
        let handle = create(&mut bench, 100, DOMAIN_VRAM).unwrap();
        assert_eq!(bench.driver.devices[0].vram_used, PAGE);
        let mut mmap = GemMmap {
            handle_or_offset: u64::from(handle),
        };
        bench.drm(number::GEM_MMAP, &mut mmap).unwrap();
        assert!(mmap.handle_or_offset >= crate::state::backing::BUFFERS);
        let mut close = GemClose { handle, pad: 0 };
        bench.drm(number::GEM_CLOSE, &mut close).unwrap();
        assert_eq!(bench.driver.devices[0].vram_used, 0);
        assert_eq!(bench.drm(number::GEM_CLOSE, &mut close), Err(Errno::EINVAL));
        mmap.handle_or_offset = u64::from(handle);
        assert_eq!(bench.drm(number::GEM_MMAP, &mut mmap), Err(Errno::ENOENT));
    }

    #[test]
    fn too_much_and_nothing() {
        let mut bench = Bench::new();
        assert_eq!(
            create(&mut bench, VRAM + 1, DOMAIN_VRAM),
            Err(Errno::ENOMEM)
        );
        assert_eq!(
            create(&mut bench, u64::MAX, DOMAIN_VRAM),
            Err(Errno::ENOMEM)
        );
        assert_eq!(create(&mut bench, 0, DOMAIN_VRAM), Err(Errno::EINVAL));
        assert!(create(&mut bench, PAGE, DOMAIN_GTT).is_ok());
        assert_eq!(bench.driver.devices[0].vram_used, 0);
    }

    #[test]
    fn a_mapping_lies_inside_the_object() {
        let mut bench = Bench::new();
        let handle = create(&mut bench, 2 * PAGE, DOMAIN_VRAM).unwrap();
        let mut va = GemVa {
            handle,
            operation: VA_MAP,
            va: 0x5000_0000,
            offset_in_bo: PAGE,
            size: PAGE,
            ..Default::default()
        };
        bench.drm(number::GEM_VA, &mut va).unwrap();
        let process = bench.driver.process_of_pid(PID).unwrap();
        assert!(matches!(
            process.page_table.locate(0x5000_0010).0,
            Place::Backing(_)
        ));
        va.size = 2 * PAGE;
        assert_eq!(bench.drm(number::GEM_VA, &mut va), Err(Errno::EINVAL));
        va.operation = VA_UNMAP;
        bench.drm(number::GEM_VA, &mut va).unwrap();
        let process = bench.driver.process_of_pid(PID).unwrap();
        assert!(matches!(
            process.page_table.locate(0x5000_0010).0,
            Place::Process(_)
        ));
    }

    #[test]
    fn metadata_stays_with_the_object() {
        let mut bench = Bench::new();
        let handle = create(&mut bench, PAGE, DOMAIN_VRAM).unwrap();
        let mut set: GemMetadata = zerocopy::FromZeros::new_zeroed();
        (set.handle, set.operation, set.data.size, set.data.words[0]) =
            (handle, METADATA_SET, 4, 77);
        bench.drm(number::GEM_METADATA, &mut set).unwrap();
        let mut get: GemMetadata = zerocopy::FromZeros::new_zeroed();
        (get.handle, get.operation) = (handle, METADATA_GET);
        bench.drm(number::GEM_METADATA, &mut get).unwrap();
        assert_eq!((get.data.size, get.data.words[0]), (4, 77));
        set.data.size = 257;
        assert_eq!(
            bench.drm(number::GEM_METADATA, &mut set),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn how_an_object_was_created() {
        let mut bench = Bench::new();
        let handle = create(&mut bench, 100, DOMAIN_GTT).unwrap();
        let value = bench.caller.put(0x8000, &[0; size_of::<GemCreate>()]);
        let mut op = GemOp {
            handle,
            operation: OP_GET_CREATE_INFO,
            value,
        };
        bench.drm(number::GEM_OP, &mut op).unwrap();
        let info: GemCreate = bench.caller.get(0x8000);
        assert_eq!((info.size, info.domains), (PAGE, DOMAIN_GTT));
        op.value = 0;
        assert_eq!(bench.drm(number::GEM_OP, &mut op), Err(Errno::EFAULT));
    }
}
