//! Buffers: ALLOC, FREE, MAP, UNMAP.

use std::collections::BTreeSet;

use nix::errno::Errno;

use crate::abi::kfd::{
    ALLOC_AQL_QUEUE, ALLOC_DOORBELL, ALLOC_GTT, ALLOC_MMIO_REMAP, ALLOC_USERPTR, ALLOC_VRAM,
    AllocMemory, FreeMemory, MapMemory,
};
use crate::ioctl::read_array;
use crate::state::backing::DOORBELLS;
use crate::state::page_table::Place;
use crate::state::{Buffer, Domain, page_align};

use super::Call;

const KINDS: u32 = ALLOC_VRAM | ALLOC_GTT | ALLOC_USERPTR | ALLOC_DOORBELL | ALLOC_MMIO_REMAP;

impl Call<'_> {
    pub(super) fn alloc_memory(&mut self, args: &mut AllocMemory) -> Result<(), Errno> {
        let AllocMemory {
            va,
            size,
            gpu_id,
            flags,
            ..
        } = *args;
        self.fields.hex("va", va);
        self.fields.set("size", size);
        self.fields.hex("gpu_id", gpu_id);
        self.fields.hex("flags", flags);
        if size == 0 || flags & KINDS == 0 {
            return Err(Errno::EINVAL);
        }
        self.check_vm(gpu_id)?;
        let vram = flags & ALLOC_VRAM != 0;
        if let Some(errno) = self.driver.injected_failure(vram) {
            self.fields.set("injected", true);
            return Err(errno);
        }
        let aligned = page_align(size).ok_or(Errno::ENOMEM)?;
        va.checked_add(aligned).ok_or(Errno::EINVAL)?;
        // The ring of an AQL queue is half the memory, mapped twice in a row, so that packets
        // never wrap (amdgpu_amdkfd_gpuvm_alloc_memory_of_gpu).
        let memory = if flags & ALLOC_AQL_QUEUE != 0 {
            page_align(aligned / 2).ok_or(Errno::EINVAL)?
        } else {
            aligned
        };
        let (mut block, mut place, mut offset) = (None, None, 0);
        if flags & (ALLOC_VRAM | ALLOC_GTT) != 0 {
            let domain = if vram { Domain::Vram } else { Domain::Gtt };
            let (id, at) = self.driver.allocate(gpu_id, domain, memory, flags)?;
            (block, place, offset) = (Some(id), Some(Place::Backing(at)), at);
        } else if flags & ALLOC_USERPTR != 0 {
            self.driver.check_system_memory(memory)?;
            place = Some(Place::Process(args.mmap_offset));
        } else if flags & ALLOC_DOORBELL != 0 {
            // Only to have a handle: what is mapped is the offset that CREATE_QUEUE returns.
            offset = DOORBELLS;
        }
        let buffer = Buffer {
            va,
            size: aligned,
            flags,
            gpu_id,
            block,
            place,
            period: memory,
            charged: if vram { memory } else { 0 },
            mapped: BTreeSet::new(),
        };
        args.handle = self.process()?.add_buffer(buffer);
        if flags & ALLOC_USERPTR == 0 {
            args.mmap_offset = offset;
        }
        self.fields.hex("handle", args.handle);
        Ok(())
    }

    pub(super) fn free_memory(&mut self, args: &mut FreeMemory) -> Result<(), Errno> {
        self.fields.hex("handle", args.handle);
        let process = self.process()?;
        let buffer = process.buffers.get(&args.handle).ok_or(Errno::EINVAL)?;
        let size = buffer.size;
        if !buffer.mapped.is_empty() {
            return Err(Errno::EBUSY);
        }
        let block = process.remove_buffer(args.handle).and_then(|b| b.block);
        self.fields.set("size", size);
        if let Some(block) = block {
            self.driver.release_block(block);
        }
        Ok(())
    }

    pub(super) fn map_memory(&mut self, args: &mut MapMemory) -> Result<(), Errno> {
        let gpu_ids = self.devices_of(args)?;
        for &gpu_id in &gpu_ids {
            self.check_vm(gpu_id)?;
        }
        self.process()?.map_buffer(args.handle, &gpu_ids);
        args.done = args.gpus;
        Ok(())
    }

    pub(super) fn unmap_memory(&mut self, args: &mut MapMemory) -> Result<(), Errno> {
        let gpu_ids = self.devices_of(args)?;
        self.process()?.unmap_buffer(args.handle, &gpu_ids);
        args.done = args.gpus;
        Ok(())
    }

    /// The GPUs that a MAP or UNMAP names.
    fn devices_of(&mut self, args: &MapMemory) -> Result<Vec<u32>, Errno> {
        self.fields.hex("handle", args.handle);
        if args.gpus == 0 || args.done > args.gpus {
            return Err(Errno::EINVAL);
        }
        let buffer = self
            .process()?
            .buffers
            .get(&args.handle)
            .ok_or(Errno::EINVAL)?;
        let size = buffer.size;
        self.fields.set("size", size);
        let gpu_ids: Vec<u32> = read_array(self.caller, args.gpu_ids_pointer, args.gpus)?;
        self.fields.list("gpus", gpu_ids.iter().copied());
        for &gpu_id in &gpu_ids {
            self.check_gpu(gpu_id)?;
        }
        Ok(gpu_ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::kfd::number;
    use crate::ioctl::testing::{Bench, PID};
    use crate::state::testing::VRAM;
    use crate::state::{AVAILABILITY_STEP, FailAllocs, PAGE, ProcessKey};
    use crate::sysfs::ProcessTable;

    const VA: u64 = 0x10_0000_0000;

    fn alloc(bench: &mut Bench, size: u64, flags: u32) -> Result<AllocMemory, Errno> {
        let gpu_id = bench.gpu_id;
        let mut args = AllocMemory {
            va: VA,
            size,
            gpu_id,
            flags,
            ..Default::default()
        };
        bench
            .kfd(number::ALLOC_MEMORY_OF_GPU, &mut args)
            .map(|()| args)
    }

    fn free(bench: &mut Bench, handle: u64) -> Result<(), Errno> {
        bench.kfd(number::FREE_MEMORY_OF_GPU, &mut FreeMemory { handle })
    }

    fn map(bench: &mut Bench, number: u8, handle: u64) -> Result<MapMemory, Errno> {
        let gpu_ids_pointer = bench.caller.put(0x1000, &bench.gpu_id.to_ne_bytes());
        let mut args = MapMemory {
            handle,
            gpu_ids_pointer,
            gpus: 1,
            done: 0,
        };
        bench.kfd(number, &mut args).map(|()| args)
    }

    fn vram(bench: &Bench) -> u64 {
        bench.driver.vram(PID, bench.gpu_id).unwrap()
    }

    #[test]
    fn vram_is_counted_in_pages_until_it_is_freed() {
        let mut bench = Bench::new();
        let args = alloc(&mut bench, 5000, ALLOC_VRAM).unwrap();
        assert_eq!(vram(&bench), 2 * PAGE);
        assert_ne!(args.mmap_offset, 0);
        assert_eq!(
            bench.driver.devices[0].available(),
            VRAM - AVAILABILITY_STEP
        );
        free(&mut bench, args.handle).unwrap();
        assert_eq!(vram(&bench), 0);
        assert_eq!(bench.driver.devices[0].available(), VRAM);
        assert_eq!(
            free(&mut bench, args.handle),
            Err(Errno::EINVAL),
            "only once"
        );
    }

    #[test]
    fn gtt_and_host_memory_are_not_vram() {
        let mut bench = Bench::new();
        alloc(&mut bench, PAGE, ALLOC_GTT).unwrap();
        let args = AllocMemory {
            va: VA,
            size: PAGE,
            gpu_id: bench.gpu_id,
            flags: ALLOC_USERPTR,
            mmap_offset: 0x7f12_0000,
            handle: 0,
        };
        let mut back = args;
        bench.kfd(number::ALLOC_MEMORY_OF_GPU, &mut back).unwrap();
        assert_eq!(back.mmap_offset, args.mmap_offset, "the CPU address stays");
        assert_eq!(vram(&bench), 0);
    }

    #[test]
    fn a_full_gpu_says_enomem() {
        let mut bench = Bench::new();
        assert_eq!(
            alloc(&mut bench, VRAM + 1, ALLOC_VRAM).unwrap_err(),
            Errno::ENOMEM
        );
        assert_eq!(
            alloc(&mut bench, u64::MAX, ALLOC_VRAM).unwrap_err(),
            Errno::ENOMEM
        );
        let all = alloc(&mut bench, VRAM, ALLOC_VRAM).unwrap();
        assert_eq!(alloc(&mut bench, 1, ALLOC_VRAM).unwrap_err(), Errno::ENOMEM);
        free(&mut bench, all.handle).unwrap();
        assert!(alloc(&mut bench, 1, ALLOC_VRAM).is_ok());
    }

    #[test]
    fn requests_that_make_no_sense() {
        let mut bench = Bench::new();
        assert_eq!(alloc(&mut bench, 0, ALLOC_VRAM).unwrap_err(), Errno::EINVAL);
        assert_eq!(alloc(&mut bench, PAGE, 0).unwrap_err(), Errno::EINVAL);
        let mut args = AllocMemory {
            size: PAGE,
            gpu_id: 1,
            flags: ALLOC_VRAM,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::ALLOC_MEMORY_OF_GPU, &mut args),
            Err(Errno::EINVAL)
        );
        args.gpu_id = bench.gpu_id;
        args.va = u64::MAX;
        assert_eq!(
            bench.kfd(number::ALLOC_MEMORY_OF_GPU, &mut args),
            Err(Errno::EINVAL)
        );
        bench
            .driver
            .process(ProcessKey(1))
            .unwrap()
            .acquired
            .clear();
        assert_eq!(
            alloc(&mut bench, PAGE, ALLOC_VRAM).unwrap_err(),
            Errno::ENODEV
        );
        assert!(bench.driver.blocks.is_empty());
    }

    #[test]
    fn mapped_memory_cannot_be_freed() {
        let mut bench = Bench::new();
        let handle = alloc(&mut bench, PAGE, ALLOC_VRAM).unwrap().handle;
        assert_eq!(
            map(&mut bench, number::MAP_MEMORY_TO_GPU, handle)
                .unwrap()
                .done,
            1
        );
        assert_eq!(free(&mut bench, handle), Err(Errno::EBUSY));
        map(&mut bench, number::UNMAP_MEMORY_FROM_GPU, handle).unwrap();
        assert_eq!(free(&mut bench, handle), Ok(()));
        let result = map(&mut bench, number::MAP_MEMORY_TO_GPU, handle);
        assert_eq!(result.unwrap_err(), Errno::EINVAL);
    }

    #[test]
    fn mapping_names_gpus_that_exist() {
        let mut bench = Bench::new();
        let handle = alloc(&mut bench, PAGE, ALLOC_VRAM).unwrap().handle;
        let mut args = MapMemory {
            handle,
            gpu_ids_pointer: 0x9000,
            gpus: 1,
            done: 0,
        };
        assert_eq!(
            bench.kfd(number::MAP_MEMORY_TO_GPU, &mut args),
            Err(Errno::EFAULT)
        );
        args.gpu_ids_pointer = bench.caller.put(0x9000, &7_u32.to_ne_bytes());
        assert_eq!(
            bench.kfd(number::MAP_MEMORY_TO_GPU, &mut args),
            Err(Errno::EINVAL)
        );
        args.gpus = 0;
        assert_eq!(
            bench.kfd(number::MAP_MEMORY_TO_GPU, &mut args),
            Err(Errno::EINVAL)
        );
    }

    #[test]
    fn the_ring_of_an_aql_queue_is_half_the_memory() {
        let mut bench = Bench::new();
        alloc(&mut bench, 4 * PAGE, ALLOC_VRAM | ALLOC_AQL_QUEUE).unwrap();
        assert_eq!(vram(&bench), 2 * PAGE);
        assert_eq!(bench.driver.devices[0].vram_used, 2 * PAGE);
    }

    #[test]
    fn closing_the_device_frees_everything() {
        let mut bench = Bench::new();
        for _ in 0..3 {
            let handle = alloc(&mut bench, PAGE, ALLOC_VRAM).unwrap().handle;
            map(&mut bench, number::MAP_MEMORY_TO_GPU, handle).unwrap();
        }
        bench.driver.close(bench.kfd);
        assert!(bench.driver.blocks.is_empty());
        assert_eq!(bench.driver.devices[0].vram_used, 0);
    }

    #[test]
    fn an_ordered_failure_takes_no_memory() {
        let mut bench = Bench::new();
        bench.driver.fail_allocs = Some(FailAllocs {
            skip: 0,
            count: 1,
            errno: Errno::EIO,
            vram_only: false,
        });
        assert_eq!(alloc(&mut bench, PAGE, ALLOC_VRAM).unwrap_err(), Errno::EIO);
        assert_eq!(vram(&bench), 0);
        assert!(alloc(&mut bench, PAGE, ALLOC_VRAM).is_ok());
    }
}
