//! A process as amdkfd sees it.

use std::collections::{BTreeMap, BTreeSet};

use super::backing::{DOORBELL_STRIDE, DOORBELLS};
use super::blocks::BlockId;
use super::events::Events;
use super::page_table::{PageTable, Place};
use super::queue::Queue;
use super::svm::Ranges;

/// Names a process of the driver; never used again within a node, unlike a PID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey(pub u64);

/// Who opened a device: the thread group, as the emulator's PID namespace numbers it, and when it
/// started (field 22 of `/proc/PID/stat`), which tells it from an earlier one of that number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Thread-group id.
    pub pid: u32,
    /// Start in clock ticks since boot.
    pub start_time: u64,
}

/// A buffer object of a process.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// GPU address, 0 for memory without one.
    pub va: u64,
    /// Bytes of address space.
    pub size: u64,
    /// Bits of `ALLOC_*`.
    pub flags: u32,
    /// The GPU that it was made on.
    pub gpu_id: u32,
    /// The memory, unless it is the process's own, a doorbell or a register page.
    pub block: Option<BlockId>,
    /// Where its bytes are, unless the emulator never touches them.
    pub place: Option<Place>,
    /// Bytes after which the memory repeats: `size`, or half of it for an AQL queue's ring.
    pub period: u64,
    /// Bytes that `vram_GPUID` counts for it.
    pub charged: u64,
    /// The GPUs that it is mapped on.
    pub mapped: BTreeSet<u32>,
}

impl Buffer {
    /// Bytes of the process's own memory in it.
    pub fn user_memory(&self) -> u64 {
        match self.place {
            Some(Place::Process(_)) => self.period,
            _ => 0,
        }
    }
}

/// What the driver keeps for a process from its first open of `/dev/kfd` to the last close.
#[derive(Debug)]
pub struct Process {
    /// Its name in here.
    pub key: ProcessKey,
    /// Who it is outside.
    pub opener: Opener,
    /// Open file descriptions of `/dev/kfd`.
    pub opens: u32,
    /// Its place among the processes: gives its doorbell pages and its PASID.
    pub slot: u32,
    /// Buffers by handle.
    pub buffers: BTreeMap<u64, Buffer>,
    /// Queues by id.
    pub queues: BTreeMap<u32, Queue>,
    /// Events.
    pub events: Events,
    /// Bytes of VRAM by GPU: `vram_GPUID` in sysfs.
    pub vram: BTreeMap<u32, u64>,
    /// Bytes of its own memory that are buffers (`ALLOC_USERPTR`).
    pub user_memory: u64,
    /// The GPUs whose VM it has acquired.
    pub acquired: BTreeSet<u32>,
    /// The GPU page table.
    pub page_table: PageTable,
    /// Attributes of shared virtual memory.
    pub svm: Ranges,
    /// Changes when memory is freed: code that was found there may be other code now.
    pub code_epoch: u64,
    last_buffer: u64,
}

impl Process {
    /// A process that has just opened `/dev/kfd` for the first time.
    pub fn new(key: ProcessKey, opener: Opener, slot: u32) -> Self {
        Self {
            key,
            opener,
            opens: 0,
            slot,
            buffers: BTreeMap::new(),
            queues: BTreeMap::new(),
            events: Events::default(),
            vram: BTreeMap::new(),
            user_memory: 0,
            acquired: BTreeSet::new(),
            page_table: PageTable::default(),
            svm: Ranges::default(),
            code_epoch: 0,
            last_buffer: 0,
        }
    }

    /// Adds a buffer and returns its handle: the GPU in the high half, as `MAKE_HANDLE` of
    /// kfd_chardev.c makes it.
    pub fn add_buffer(&mut self, buffer: Buffer) -> u64 {
        self.last_buffer += 1;
        let handle = u64::from(buffer.gpu_id) << 32 | (self.last_buffer & 0xffff_ffff);
        if buffer.charged > 0 {
            *self.vram.entry(buffer.gpu_id).or_default() += buffer.charged;
        }
        self.user_memory = self.user_memory.saturating_add(buffer.user_memory());
        self.buffers.insert(handle, buffer);
        handle
    }

    /// Takes a buffer out. What it was charged is given back; its block is the caller's to release.
    pub fn remove_buffer(&mut self, handle: u64) -> Option<Buffer> {
        let buffer = self.buffers.remove(&handle)?;
        self.user_memory = self.user_memory.saturating_sub(buffer.user_memory());
        if let Some(vram) = self.vram.get_mut(&buffer.gpu_id) {
            *vram = vram.saturating_sub(buffer.charged);
        }
        if !buffer.mapped.is_empty() {
            self.page_table.unmap(buffer.va, buffer.size);
        }
        self.code_epoch += 1;
        Some(buffer)
    }

    /// Puts a buffer into the GPU page table.
    pub fn map_buffer(&mut self, handle: u64, gpu_ids: &[u32]) {
        let Some(buffer) = self.buffers.get_mut(&handle) else {
            return;
        };
        let first = buffer.mapped.is_empty();
        buffer.mapped.extend(gpu_ids);
        if !first || buffer.va == 0 {
            return;
        }
        if let Some(place) = buffer.place {
            let mut at = 0;
            while at < buffer.size && buffer.period > 0 {
                let length = buffer.period.min(buffer.size - at);
                self.page_table.map(buffer.va + at, length, place);
                at += length;
            }
        }
    }

    /// Takes a buffer out of the GPU page table once no GPU maps it any more.
    pub fn unmap_buffer(&mut self, handle: u64, gpu_ids: &[u32]) {
        let Some(buffer) = self.buffers.get_mut(&handle) else {
            return;
        };
        let was_mapped = !buffer.mapped.is_empty();
        gpu_ids.iter().for_each(|gpu_id| {
            buffer.mapped.remove(gpu_id);
        });
        if was_mapped && buffer.mapped.is_empty() && buffer.place.is_some() && buffer.va != 0 {
            self.page_table.unmap(buffer.va, buffer.size);
            self.code_epoch += 1;
        }
    }

    /// The start of its doorbell page on the GPU at `index` of a node with `gpus` GPUs.
    pub fn doorbell_page(&self, index: usize, gpus: usize) -> u64 {
        DOORBELLS + (u64::from(self.slot) * gpus as u64 + index as u64) * DOORBELL_STRIDE
    }

    /// The process's address-space id, as sysfs shows it.
    pub fn pasid(&self) -> u32 {
        0x8000 + self.slot
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(va: u64, size: u64, period: u64) -> Buffer {
        Buffer {
            va,
            size,
            flags: 1,
            gpu_id: 5,
            block: Some(BlockId(1)),
            place: Some(Place::Backing(0x10_0000)),
            period,
            charged: size,
            mapped: BTreeSet::new(),
        }
    }

    fn process() -> Process {
        Process::new(
            ProcessKey(1),
            Opener {
                pid: 10,
                start_time: 1,
            },
            2,
        )
    }

    #[test]
    fn handles_name_the_gpu_and_the_charge_follows_the_buffer() {
        let mut process = process();
        let handle = process.add_buffer(buffer(0x1000, 0x2000, 0x2000));
        assert_eq!(handle, 5 << 32 | 1);
        assert_eq!(process.vram[&5], 0x2000);
        assert!(process.remove_buffer(handle).is_some());
        assert_eq!(process.vram[&5], 0);
        assert!(process.remove_buffer(handle).is_none());
    }

    #[test]
    fn mapped_from_the_first_gpu_to_the_last() {
        let mut process = process();
        let handle = process.add_buffer(buffer(0x1000, 0x1000, 0x1000));
        assert_eq!(process.page_table.locate(0x1000).0, Place::Process(0x1000));
        process.map_buffer(handle, &[5]);
        process.map_buffer(handle, &[6]);
        process.unmap_buffer(handle, &[5]);
        assert_eq!(
            process.page_table.locate(0x1000).0,
            Place::Backing(0x10_0000)
        );
        process.unmap_buffer(handle, &[6]);
        assert_eq!(process.page_table.locate(0x1000).0, Place::Process(0x1000));
    }

    #[test]
    fn an_aql_ring_is_mapped_twice() {
        let mut process = process();
        let handle = process.add_buffer(buffer(0x1000, 0x2000, 0x1000));
        process.map_buffer(handle, &[5]);
        assert_eq!(
            process.page_table.locate(0x1010).0,
            Place::Backing(0x10_0010)
        );
        assert_eq!(
            process.page_table.locate(0x2010).0,
            Place::Backing(0x10_0010)
        );
    }

    #[test]
    fn doorbell_pages_of_processes_and_gpus_are_apart() {
        let process = process();
        assert_eq!(process.doorbell_page(0, 3), DOORBELLS + 6 * DOORBELL_STRIDE);
        assert_eq!(process.doorbell_page(2, 3), DOORBELLS + 8 * DOORBELL_STRIDE);
    }
}
