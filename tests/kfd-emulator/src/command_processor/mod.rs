//! The part of a GPU that reads queues: enough of it that copies, fills and synchronisation of the ROCm
//! runtimes work on real memory.
//!
//! Everything here is computed from [`GpuMemory`]. Rings, packets and kernel arguments are the client's and are
//! not trusted: an address without memory ends the packet with a note, lengths are bounded, and one call of
//! [`service`] takes a bounded number of packets.
//!
//! What runs: the AQL packets of the HSA specification with AMD's barrier-value packet, SDMA packets, the blit
//! kernels of ROCclr and of ROCr. Any other kernel completes without effect.

mod aql;
mod blit_image;
mod blit_rocclr;
mod blit_rocr;
pub mod code_object;
mod copy;
mod kernel_arguments;
mod memory;
mod sdma;

#[cfg(test)]
mod fake;
#[cfg(test)]
mod random_tests;

use std::fmt;
use std::sync::Arc;

pub use code_object::{Argument, Kernel};
pub use memory::{Fault, GpuMemory};

/// Packets that one call of [`service`] takes before it lets others have their turn.
const PACKETS_PER_PASS: usize = 1024;

/// Finds kernels by their kernel object. The implementor caches what [`code_object::find`] found, and that it
/// found nothing: a look-up reads megabytes.
pub trait KernelNames {
    /// The kernel, or `None` if the kernel object is not part of a code object.
    fn kernel(&self, kernel_object: u64) -> Option<Arc<Kernel>>;
}

/// What a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// PM4 packets, which are not executed here.
    Compute,
    /// SDMA packets, on an engine for PCIe.
    Sdma,
    /// AQL packets.
    Aql,
    /// SDMA packets, on an engine for XGMI.
    SdmaXgmi,
    /// SDMA packets, on an engine that the client named.
    SdmaByEngine,
}

impl QueueKind {
    /// From `queue_type` of `AMDKFD_IOC_CREATE_QUEUE` (`KFD_IOC_QUEUE_TYPE_*` in Linux's kfd_ioctl.h).
    pub fn from_ioctl(queue_type: u32) -> Option<QueueKind> {
        Some(match queue_type {
            0 => QueueKind::Compute,
            1 => QueueKind::Sdma,
            2 => QueueKind::Aql,
            3 => QueueKind::SdmaXgmi,
            4 => QueueKind::SdmaByEngine,
            _ => return None,
        })
    }

    /// The driver's own number (`enum kfd_queue_type` in kfd_priv.h of Linux 6.12), which sysfs shows:
    /// AQL is a compute queue there.
    pub fn driver_type(self) -> u32 {
        match self {
            QueueKind::Compute | QueueKind::Aql => 0,
            QueueKind::Sdma => 1,
            QueueKind::SdmaXgmi => 4,
            QueueKind::SdmaByEngine => 5,
        }
    }
}

/// A queue's ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// What the queue takes.
    pub kind: QueueKind,
    /// Address of the ring.
    pub base: u64,
    /// Its length.
    pub bytes: u64,
    /// Where the client wants to read how far the queue is.
    pub read_pointer_va: u64,
    /// How far the queue is: in packets for AQL, in bytes for SDMA. Never wraps.
    pub consumed: u64,
}

/// What one call of [`service`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Whether packets were consumed.
    pub progressed: bool,
    /// Whether only a new doorbell value needs another pass. Not idle: a packet waits for memory to change,
    /// or there is more than one pass takes.
    pub idle: bool,
    /// Events to signal, in order.
    pub events: Vec<u32>,
    /// What was done and what went wrong, for the trace.
    pub notes: Vec<String>,
}

impl Pass {
    fn note(&mut self, note: impl fmt::Display) {
        self.notes.push(note.to_string());
    }

    /// Notes a fault where the packet goes on without the access.
    fn note_fault<T>(&mut self, what: &str, result: Result<T, Fault>) -> Option<T> {
        result
            .map_err(|fault| self.note(format_args!("{what}: {fault}")))
            .ok()
    }
}

/// Takes packets of a ring up to its doorbell.
///
/// `doorbell` is the value that the client wrote: the last packet's number for AQL, the write pointer in bytes for
/// SDMA, all ones as long as nothing was written. `now_ticks` is the GPU clock, for the timestamps of signals.
pub fn service(
    memory: &dyn GpuMemory,
    kernels: &dyn KernelNames,
    ring: &mut Ring,
    doorbell: u64,
    now_ticks: &dyn Fn() -> u64,
) -> Pass {
    const NOTHING_WRITTEN: u64 = u64::MAX;
    let mut pass = Pass {
        idle: true,
        ..Pass::default()
    };
    if doorbell == NOTHING_WRITTEN {
        return pass;
    }
    let before = ring.consumed;
    match ring.kind {
        QueueKind::Aql => aql::run(memory, kernels, ring, doorbell, now_ticks, &mut pass),
        QueueKind::Sdma | QueueKind::SdmaXgmi | QueueKind::SdmaByEngine => {
            sdma::run(memory, ring, doorbell, now_ticks, &mut pass);
        }
        QueueKind::Compute => pass.note("PM4 queues are not executed"),
    }
    pass.progressed = ring.consumed != before;
    pass
}
