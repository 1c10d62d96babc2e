//! The ioctls of `/dev/kfd` (kfd_chardev.c).

mod dmabuf;
mod events;
mod info;
mod memory;
mod queues;
mod svm;

use nix::errno::Errno;

pub use info::gpu_ticks;

use crate::abi::kfd::number;
use crate::state::{Driver, Process, ProcessKey};

use super::{Caller, Fields, Outcome, with};

/// The first minor version of the interface that has an ioctl.
fn since(number: u8) -> u32 {
    match number {
        number::SMI_EVENTS => 3,
        number::SVM | number::SET_XNACK_MODE => 5,
        number::AVAILABLE_MEMORY => 9,
        number::EXPORT_DMABUF => 12,
        number::RUNTIME_ENABLE => 13,
        _ => 0,
    }
}

/// One ioctl of a process.
pub struct Call<'a> {
    /// The driver.
    pub driver: &'a mut Driver,
    /// Who calls.
    pub caller: &'a dyn Caller,
    /// The process that the file belongs to.
    pub key: ProcessKey,
    /// For the trace.
    pub fields: &'a mut Fields,
}

impl Call<'_> {
    /// Runs it.
    pub fn run(&mut self, number: u8, argument: &mut [u8]) -> Outcome {
        if self.driver.options.kfd_minor < since(number) {
            return Outcome::Done(Err(Errno::ENOTTY));
        }
        match number {
            number::GET_VERSION => with(argument, |a| self.get_version(a)),
            number::GET_CLOCK_COUNTERS => with(argument, |a| self.get_clock_counters(a)),
            number::GET_PROCESS_APERTURES_NEW => with(argument, |a| self.get_apertures(a)),
            number::ACQUIRE_VM => with(argument, |a| self.acquire_vm(a)),
            number::SET_MEMORY_POLICY => with(argument, |a| self.set_memory_policy(a)),
            number::SET_SCRATCH_BACKING_VA => with(argument, |a| self.set_scratch_backing(a)),
            number::GET_TILE_CONFIG => with(argument, |a| self.get_tile_config(a)),
            number::SET_TRAP_HANDLER => with(argument, |a| self.set_trap_handler(a)),
            number::AVAILABLE_MEMORY => with(argument, |a| self.available_memory(a)),
            number::SET_XNACK_MODE => with(argument, |a| self.set_xnack_mode(a)),
            number::RUNTIME_ENABLE => with(argument, |a| self.runtime_enable(a)),
            number::ALLOC_MEMORY_OF_GPU => with(argument, |a| self.alloc_memory(a)),
            number::FREE_MEMORY_OF_GPU => with(argument, |a| self.free_memory(a)),
            number::MAP_MEMORY_TO_GPU => with(argument, |a| self.map_memory(a)),
            number::UNMAP_MEMORY_FROM_GPU => with(argument, |a| self.unmap_memory(a)),
            number::CREATE_QUEUE => with(argument, |a| self.create_queue(a)),
            number::DESTROY_QUEUE => with(argument, |a| self.destroy_queue(a)),
            number::UPDATE_QUEUE => with(argument, |a| self.update_queue(a)),
            number::SET_CU_MASK => with(argument, |a| self.set_cu_mask(a)),
            number::ALLOC_QUEUE_GWS => with(argument, |a| self.alloc_queue_gws(a)),
            number::CREATE_EVENT => with(argument, |a| self.create_event(a)),
            number::DESTROY_EVENT => with(argument, |a| self.destroy_event(a)),
            number::SET_EVENT => with(argument, |a| self.set_event(a)),
            number::RESET_EVENT => with(argument, |a| self.reset_event(a)),
            number::SVM => Outcome::Done(self.svm(argument)),
            number::GET_DMABUF_INFO => with(argument, |a| self.get_dmabuf_info(a)),
            number::IMPORT_DMABUF => with(argument, |a| self.import_dmabuf(a)),
            number::EXPORT_DMABUF => with(argument, |a| self.export_dmabuf(a)),
            number::SMI_EVENTS => with(argument, |a| self.smi_events(a)),
            number::IPC_IMPORT_HANDLE if self.driver.options.dkms_ipc => {
                with(argument, |a| self.ipc_import(a))
            }
            number::IPC_EXPORT_HANDLE if self.driver.options.dkms_ipc => {
                with(argument, |a| self.ipc_export(a))
            }
            _ => Outcome::Done(Err(Errno::ENOTTY)),
        }
    }

    fn process(&mut self) -> Result<&mut Process, Errno> {
        self.driver.process(self.key)
    }

    /// `EINVAL` for a GPU that does not exist.
    fn check_gpu(&self, gpu_id: u32) -> Result<(), Errno> {
        self.driver.device(gpu_id).map(|_| ()).ok_or(Errno::EINVAL)
    }

    /// `EINVAL` for a GPU that does not exist, `ENODEV` for one whose VM this process has not
    /// acquired (`kfd_process_device_init_vm`).
    fn check_vm(&mut self, gpu_id: u32) -> Result<(), Errno> {
        self.check_gpu(gpu_id)?;
        if self.process()?.acquired.contains(&gpu_id) {
            Ok(())
        } else {
            Err(Errno::ENODEV)
        }
    }
}
