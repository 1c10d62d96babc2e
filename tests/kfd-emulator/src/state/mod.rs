//! What the driver knows: GPUs, processes, buffers, queues, events, and the memory behind them.
//!
//! Nothing in here does I/O except through [`Backing`], and nothing trusts a number that a client
//! has sent.

pub mod backing;
pub mod blocks;
pub mod events;
pub mod extents;
pub mod files;
pub mod page_table;
pub mod process;
pub mod queue;
pub mod svm;
pub mod view;
pub mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use nix::errno::Errno;

pub use backing::{Backing, MemoryFile};
pub use blocks::{Block, BlockId, Blocks, Domain};
pub use files::{FileId, FileKind, OpenFile};
pub use process::{Buffer, Opener, Process, ProcessKey};
pub use waits::{WaitClient, Waiter, Waits};

use crate::profile::Gpu;

/// Bytes of a page; sizes are whole pages.
pub const PAGE: u64 = 4096;
/// `VRAM_AVAILABILITY_ALIGN` of amdgpu_amdkfd.h: each VRAM buffer counts in steps of this size
/// against what AVAILABLE_MEMORY reports.
pub const AVAILABILITY_STEP: u64 = 2 << 20;

/// Rounds up to whole pages; `None` when that overflows.
pub fn page_align(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(PAGE)
}

/// How a node's driver behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// The minor version of the KFD interface; the major one is 1.
    pub kfd_minor: u32,
    /// Whether the ioctls of AMD's DKMS driver exist that share memory without a dma-buf.
    pub dkms_ipc: bool,
    /// Whether a preloaded library opens the descriptors that ioctls return; see
    /// [`crate::inject`].
    pub preload: bool,
    /// Bytes of system memory, of which GPUs get a share; see [`SystemShare`].
    pub system_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kfd_minor: 17,
            dkms_ipc: false,
            preload: false,
            system_bytes: u64::MAX,
        }
    }
}

/// How much system memory all GPUs together may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemShare {
    /// GTT and user memory: all but 1/64, and but what amdgpu keeps free
    /// (`amdgpu_amdkfd_gpuvm_init_mem_limits` and `AMDGPU_RESERVE_MEM_LIMIT` of
    /// amdgpu_amdkfd_gpuvm.c, Linux 6.x).
    pub all: u64,
    /// GTT alone: half (`ttm_global_init`, the default of `ttm.pages_limit`).
    pub gtt: u64,
}

impl SystemShare {
    /// That of a machine with so many bytes of memory.
    pub fn of(system_bytes: u64) -> Self {
        const RESERVE: u64 = 3 << 29;
        let most = system_bytes - (system_bytes >> 6);
        let all = if most < 2 * RESERVE {
            most / 2
        } else {
            most - RESERVE
        };
        Self {
            all,
            gtt: system_bytes / 2,
        }
    }
}

/// A GPU and what is used of it.
#[derive(Clone, Debug)]
pub struct Device {
    /// What it is.
    pub gpu: Gpu,
    /// Bytes of VRAM that can be allocated. Starts as the board's; can be changed while it runs.
    pub vram_limit: u64,
    /// Bytes of VRAM in blocks.
    pub vram_used: u64,
    /// The same, each block rounded up to [`AVAILABILITY_STEP`].
    vram_used_steps: u64,
}

impl Device {
    /// Bytes that AVAILABLE_MEMORY reports (`amdgpu_amdkfd_get_available_memory`).
    pub fn available(&self) -> u64 {
        let free = self.vram_limit.saturating_sub(self.vram_used_steps);
        free - free % AVAILABILITY_STEP
    }
}

/// An order to fail allocations, given over the control socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailAllocs {
    /// ALLOC_MEMORY_OF_GPU ioctls to let pass first.
    pub skip: u32,
    /// Ioctls to fail after that.
    pub count: u32,
    /// What they fail with.
    pub errno: Errno,
    /// Whether only requests for VRAM are counted and failed.
    pub vram_only: bool,
}

/// The driver of a node.
pub struct Driver {
    /// How it behaves.
    pub options: Options,
    /// The GPUs, in the order of the topology.
    pub devices: Vec<Device>,
    /// Processes that have `/dev/kfd` open.
    pub processes: BTreeMap<ProcessKey, Process>,
    /// Memory.
    pub blocks: Blocks,
    /// WAIT_EVENTS that are not over.
    pub waits: Waits,
    /// Bytes of GTT in blocks.
    pub gtt_used: u64,
    /// Allocations to fail.
    pub fail_allocs: Option<FailAllocs>,
    /// Changes whenever a queue comes, goes or changes.
    pub queues_serial: u64,
    files: BTreeMap<FileId, OpenFile>,
    slots: Vec<bool>,
    last: u64,
    backing: Arc<dyn Backing>,
}

impl Driver {
    /// A driver with these GPUs, and no process yet.
    pub fn new(gpus: Vec<Gpu>, options: Options, backing: Arc<dyn Backing>) -> Self {
        let device = |gpu: Gpu| Device {
            vram_limit: gpu.vram_bytes,
            vram_used: 0,
            vram_used_steps: 0,
            gpu,
        };
        Self {
            options,
            devices: gpus.into_iter().map(device).collect(),
            processes: BTreeMap::new(),
            blocks: Blocks::default(),
            waits: Waits::default(),
            gtt_used: 0,
            fail_allocs: None,
            queues_serial: 0,
            files: BTreeMap::new(),
            slots: Vec::new(),
            last: 0,
            backing,
        }
    }

    /// The GPU with that id.
    pub fn device(&self, gpu_id: u32) -> Option<&Device> {
        self.devices.iter().find(|d| d.gpu.gpu_id == gpu_id)
    }

    /// Bytes of VRAM in use on the board of the GPU with that id: its partitions share the memory.
    pub fn board_vram_used(&self, gpu_id: u32) -> u64 {
        let board = self.device(gpu_id).map(|d| d.gpu.board.index);
        let parts = self.devices.iter();
        let parts = parts.filter(|d| Some(d.gpu.board.index) == board);
        parts.map(|d| d.vram_used).sum()
    }

    fn device_mut(&mut self, gpu_id: u32) -> Option<&mut Device> {
        self.devices.iter_mut().find(|d| d.gpu.gpu_id == gpu_id)
    }

    /// A process.
    ///
    /// # Errors
    /// `EBADF` when it is gone: its descriptor is no longer good for anything.
    pub fn process(&mut self, key: ProcessKey) -> Result<&mut Process, Errno> {
        self.processes.get_mut(&key).ok_or(Errno::EBADF)
    }

    /// The process with that PID, as the emulator numbers it. Should an ended process's memory be
    /// kept by a descendant while its PID is in use again, the newer one is meant.
    pub fn process_of_pid(&self, pid: u32) -> Option<&Process> {
        self.processes.values().rev().find(|p| p.opener.pid == pid)
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// `ENOMEM` when the GPU has not that much left; `EINVAL` for an unknown GPU.
    pub fn allocate(
        &mut self,
        gpu_id: u32,
        domain: Domain,
        size: u64,
        flags: u32,
    ) -> Result<(BlockId, u64), Errno> {
        let device = self.device(gpu_id).ok_or(Errno::EINVAL)?;
        if domain == Domain::Vram && size > device.vram_limit.saturating_sub(device.vram_used) {
            return Err(Errno::ENOMEM);
        }
        if domain == Domain::Gtt {
            let share = SystemShare::of(self.options.system_bytes);
            if size > share.gtt.saturating_sub(self.gtt_used) {
                return Err(Errno::ENOMEM);
            }
            self.check_system_memory(size)?;
        }
        let (id, block) = self
            .blocks
            .create(gpu_id, domain, size, flags)
            .ok_or(Errno::ENOMEM)?;
        let offset = block.offset;
        if domain == Domain::Gtt {
            self.gtt_used += size;
        }
        if domain == Domain::Vram
            && let Some(device) = self.device_mut(gpu_id)
        {
            device.vram_used += size;
            device.vram_used_steps += size.next_multiple_of(AVAILABILITY_STEP);
        }
        Ok((id, offset))
    }

    /// Whether GPUs may use so much more system memory, GTT or user memory.
    ///
    /// # Errors
    /// `ENOMEM` when not.
    pub fn check_system_memory(&self, bytes: u64) -> Result<(), Errno> {
        let user = self.processes.values().map(|p| p.user_memory);
        let used = user.fold(self.gtt_used, u64::saturating_add);
        let share = SystemShare::of(self.options.system_bytes);
        if bytes > share.all.saturating_sub(used) {
            return Err(Errno::ENOMEM);
        }
        Ok(())
    }

    /// Drops a reference to a block; the last one gives its memory back.
    pub fn release_block(&mut self, id: BlockId) {
        let Some(block) = self.blocks.release(id) else {
            return;
        };
        self.backing.discard(block.offset, block.size);
        if block.domain == Domain::Gtt {
            self.gtt_used = self.gtt_used.saturating_sub(block.size);
        }
        if block.domain == Domain::Vram
            && let Some(device) = self.device_mut(block.gpu_id)
        {
            device.vram_used = device.vram_used.saturating_sub(block.size);
            device.vram_used_steps = device
                .vram_used_steps
                .saturating_sub(block.size.next_multiple_of(AVAILABILITY_STEP));
        }
    }

    /// Whether this allocation is one to fail, and with what. Counts it.
    pub fn injected_failure(&mut self, vram: bool) -> Option<Errno> {
        let order = self.fail_allocs.as_mut()?;
        if order.vram_only && !vram {
            return None;
        }
        if order.skip > 0 {
            order.skip -= 1;
            return None;
        }
        let errno = order.errno;
        order.count = order.count.saturating_sub(1);
        if order.count == 0 {
            self.fail_allocs = None;
        }
        Some(errno)
    }

    /// Sets a doorbell to what it holds before the first ring.
    pub fn reset_doorbell(&self, offset: u64) {
        self.backing.set_doorbell(offset, backing::DOORBELL_UNRUNG);
    }

    /// Raises an event of a process.
    ///
    /// # Errors
    /// `EINVAL` when there is no such event, `EBADF` when the process is gone.
    pub fn raise_event(&mut self, key: ProcessKey, id: u32) -> Result<(), Errno> {
        let process = self.processes.get_mut(&key).ok_or(Errno::EBADF)?;
        self.waits.raise(key, &mut process.events, id)
    }

    /// Answers every wait that is over at `now`.
    pub fn finish_waits(&mut self, now: Instant) -> usize {
        let processes = &self.processes;
        self.waits
            .finish(now, |key| processes.get(&key).map(|p| &p.events))
    }

    /// Ends the waits that `pick` names with `EINTR`.
    pub fn interrupt_waits(&mut self, now: Instant, pick: impl Fn(&Waiter) -> bool) -> usize {
        let processes = &mut self.processes;
        self.waits.interrupt(now, pick, |key, id| {
            let events = processes.get_mut(&key).map(|process| &mut process.events);
            if let Some(event) = events.and_then(|events| events.get_mut(id)) {
                event.raised = true;
            }
        })
    }

    /// Ends a process: everything that it still has goes.
    fn end_process(&mut self, key: ProcessKey) {
        let Some(process) = self.processes.remove(&key) else {
            return;
        };
        if let Some(slot) = self.slots.get_mut(process.slot as usize) {
            *slot = false;
        }
        for block in process.buffers.values().filter_map(|b| b.block) {
            self.release_block(block);
        }
        if !process.queues.is_empty() {
            self.queues_serial += 1;
        }
        self.finish_waits(Instant::now());
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A driver for unit tests.

    use super::backing::fake::FakeBacking;
    use super::*;
    use crate::profile::{Profile, gpus};

    pub(crate) const VRAM: u64 = 1 << 30;

    /// A driver with `count` GPUs of 1 GiB, and what was given back to the host.
    pub(crate) fn driver_of(profile: &str, count: usize) -> (Driver, FakeBacking) {
        let backing = FakeBacking::default();
        let profile = Profile::by_name(profile).unwrap();
        let gpus = gpus(profile, count, &[VRAM]).unwrap();
        (
            Driver::new(gpus, Options::default(), Arc::new(backing.clone())),
            backing,
        )
    }

    /// The same with one MI210.
    pub(crate) fn driver() -> (Driver, FakeBacking) {
        driver_of("mi210", 1)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{VRAM, driver};
    use super::*;

    #[test]
    fn vram_is_full_when_it_is_full() {
        let (mut driver, backing) = driver();
        let gpu_id = driver.devices[0].gpu.gpu_id;
        let (all, offset) = driver.allocate(gpu_id, Domain::Vram, VRAM, 0).unwrap();
        assert_eq!(
            driver.allocate(gpu_id, Domain::Vram, PAGE, 0),
            Err(Errno::ENOMEM)
        );
        assert!(
            driver.allocate(gpu_id, Domain::Gtt, PAGE, 0).is_ok(),
            "GTT is not VRAM"
        );
        driver.release_block(all);
        assert_eq!(*backing.0.lock().unwrap(), [(offset, VRAM)]);
        assert_eq!(driver.devices[0].vram_used, 0);
        assert!(driver.allocate(gpu_id, Domain::Vram, PAGE, 0).is_ok());
    }

    #[test]
    fn gpus_get_a_share_of_system_memory() {
        const GIB: u64 = 1 << 30;
        let share = SystemShare::of(64 * GIB);
        assert_eq!((share.all, share.gtt), (63 * GIB - (3 << 29), 32 * GIB));
        assert_eq!(SystemShare::of(GIB).all, (GIB - GIB / 64) / 2);
        let (mut driver, _) = driver();
        driver.options.system_bytes = 64 * GIB;
        let gpu_id = driver.devices[0].gpu.gpu_id;
        let (block, _) = driver.allocate(gpu_id, Domain::Gtt, 32 * GIB, 0).unwrap();
        assert_eq!(
            driver.allocate(gpu_id, Domain::Gtt, PAGE, 0),
            Err(Errno::ENOMEM)
        );
        assert_eq!(driver.check_system_memory(29 * GIB), Ok(()));
        assert_eq!(driver.check_system_memory(30 * GIB), Err(Errno::ENOMEM));
        driver.release_block(block);
        assert!(driver.allocate(gpu_id, Domain::Gtt, PAGE, 0).is_ok());
    }

    #[test]
    fn available_memory_moves_in_steps_of_2_mib() {
        let (mut driver, _) = driver();
        let gpu_id = driver.devices[0].gpu.gpu_id;
        driver.allocate(gpu_id, Domain::Vram, PAGE, 0).unwrap();
        assert_eq!(driver.devices[0].available(), VRAM - AVAILABILITY_STEP);
        driver.devices[0].vram_limit = AVAILABILITY_STEP / 2;
        assert_eq!(
            driver.devices[0].available(),
            0,
            "a limit below what is used"
        );
    }

    #[test]
    fn the_nth_allocation_fails() {
        let (mut driver, _) = driver();
        let order = FailAllocs {
            skip: 1,
            count: 2,
            errno: Errno::ENOMEM,
            vram_only: true,
        };
        driver.fail_allocs = Some(order);
        assert_eq!(
            driver.injected_failure(false),
            None,
            "not VRAM: not counted"
        );
        let results: Vec<_> = (0..4).map(|_| driver.injected_failure(true)).collect();
        assert_eq!(
            results,
            [None, Some(Errno::ENOMEM), Some(Errno::ENOMEM), None]
        );
        assert_eq!(driver.fail_allocs, None);
    }
}
