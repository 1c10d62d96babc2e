//! The state as sysfs and the control socket show it.

use serde::{Deserialize, Serialize};

use crate::command_processor::QueueKind;
use crate::sysfs::{ProcessTable, QueueEntry};

use super::Driver;

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    /// The GPUs, in the order of the topology.
    pub gpus: Vec<GpuView>,
    /// Processes that have `/dev/kfd` open, oldest first.
    pub processes: Vec<ProcessView>,
    /// Blocks of memory that live.
    pub blocks: usize,
    /// WAIT_EVENTS that are not over.
    pub waits: usize,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuView {
    /// amdkfd's identifier.
    pub gpu_id: u32,
    /// Its PCI address, as sysfs writes it.
    pub bdf: String,
    /// Bytes of VRAM that can be allocated.
    pub vram_bytes: u64,
    /// Bytes of VRAM that are.
    pub vram_used: u64,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessView {
    /// Thread-group id, as the emulator's PID namespace numbers it.
    pub pid: u32,
    /// Bytes of VRAM per GPU, as `vram_GPUID` shows them.
    pub vram: Vec<VramView>,
    /// Buffers that it has not freed.
    pub buffers: usize,
    /// Events that it has not destroyed.
    pub events: usize,
    /// Its queues.
    pub queues: Vec<QueueView>,
}

/// A process's VRAM on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VramView {
    /// amdkfd's identifier of the GPU.
    pub gpu_id: u32,
    /// Bytes.
    pub bytes: u64,
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueView {
    /// Its id in the process.
    pub id: u32,
    /// The GPU that serves it.
    pub gpu_id: u32,
    /// `KFD_IOC_QUEUE_TYPE_*`.
    pub kind: u32,
    /// Compute units that it may use, 32 to a word; empty: all.
    pub cu_mask: Vec<u32>,
}

impl NodeView {
    /// The process with that PID.
    pub fn process(&self, pid: u32) -> Option<&ProcessView> {
        self.processes.iter().rev().find(|p| p.pid == pid)
    }
}

impl ProcessView {
    /// Bytes of VRAM on all GPUs.
    pub fn vram_bytes(&self) -> u64 {
        self.vram.iter().map(|v| v.bytes).sum()
    }
}

impl Driver {
    /// A copy of what there is.
    pub fn view(&self) -> NodeView {
        let gpus = self.devices.iter().map(|device| GpuView {
            gpu_id: device.gpu.gpu_id,
            bdf: device.gpu.bdf.to_string(),
            vram_bytes: device.vram_limit,
            vram_used: device.vram_used,
        });
        let processes = self.processes.values().map(|process| ProcessView {
            pid: process.opener.pid,
            vram: process
                .vram
                .iter()
                .map(|(&gpu_id, &bytes)| VramView { gpu_id, bytes })
                .collect(),
            buffers: process.buffers.len(),
            events: process.events.len(),
            queues: process
                .queues
                .iter()
                .map(|(&id, queue)| QueueView {
                    id,
                    gpu_id: queue.gpu_id,
                    kind: queue.kind,
                    cu_mask: queue.cu_mask.clone(),
                })
                .collect(),
        });
        NodeView {
            gpus: gpus.collect(),
            processes: processes.collect(),
            blocks: self.blocks.len(),
            waits: self.waits.iter().count(),
        }
    }

    /// Whether a GPU has a queue: what `gpu_busy_percent` goes by.
    pub fn is_busy(&self, gpu_id: u32) -> bool {
        self.processes
            .values()
            .flat_map(|p| p.queues.values())
            .any(|q| q.gpu_id == gpu_id)
    }
}

impl ProcessTable for Driver {
    fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = self.processes.values().map(|p| p.opener.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn gpu_ids(&self) -> Vec<u32> {
        self.devices.iter().map(|d| d.gpu.gpu_id).collect()
    }

    fn pasid(&self, pid: u32) -> Option<u32> {
        self.process_of_pid(pid).map(super::Process::pasid)
    }

    fn vram(&self, pid: u32, gpu_id: u32) -> Option<u64> {
        self.device(gpu_id)?;
        Some(
            self.process_of_pid(pid)?
                .vram
                .get(&gpu_id)
                .copied()
                .unwrap_or(0),
        )
    }

    fn queues(&self, pid: u32) -> Vec<QueueEntry> {
        let queues = self.process_of_pid(pid).into_iter().flat_map(|p| &p.queues);
        queues
            .filter_map(|(&id, queue)| {
                let kind = QueueKind::from_ioctl(queue.kind)?;
                Some(QueueEntry {
                    id,
                    gpu_id: queue.gpu_id,
                    bytes: queue.ring_bytes,
                    kind,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::driver;
    use super::super::{Domain, Opener, PAGE};
    use super::*;

    #[test]
    fn processes_and_gpus() {
        let (mut driver, _) = driver();
        driver.open_kfd(Opener {
            pid: 42,
            start_time: 1,
        });
        let gpu_id = driver.devices[0].gpu.gpu_id;
        driver.allocate(gpu_id, Domain::Vram, PAGE, 0).unwrap();
        let view = driver.view();
        assert_eq!(view.gpus[0].vram_used, PAGE);
        assert_eq!(view.process(42).map(ProcessView::vram_bytes), Some(0));
        assert_eq!(view.process(43), None);
        assert_eq!(driver.pids(), [42]);
        assert_eq!(driver.vram(42, gpu_id), Some(0));
        assert_eq!(driver.vram(42, 1), None);
        assert_eq!(driver.vram(41, gpu_id), None);
        assert!(!driver.is_busy(gpu_id));
    }
}
