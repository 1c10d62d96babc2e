//! The ioctls of `/dev/kfd`.

mod arguments;

use super::Command;

pub use arguments::*;

/// The ioctl type of KFD (`AMDKFD_IOCTL_BASE`).
pub const TYPE: u8 = b'K';

/// Numbers of the ioctls. From 0x80 on they exist only in AMD's DKMS driver.
pub mod number {
    /// `GET_VERSION`.
    pub const GET_VERSION: u8 = 0x01;
    /// `CREATE_QUEUE`.
    pub const CREATE_QUEUE: u8 = 0x02;
    /// `DESTROY_QUEUE`.
    pub const DESTROY_QUEUE: u8 = 0x03;
    /// `SET_MEMORY_POLICY`.
    pub const SET_MEMORY_POLICY: u8 = 0x04;
    /// `GET_CLOCK_COUNTERS`.
    pub const GET_CLOCK_COUNTERS: u8 = 0x05;
    /// `GET_PROCESS_APERTURES`.
    pub const GET_PROCESS_APERTURES: u8 = 0x06;
    /// `UPDATE_QUEUE`.
    pub const UPDATE_QUEUE: u8 = 0x07;
    /// `CREATE_EVENT`.
    pub const CREATE_EVENT: u8 = 0x08;
    /// `DESTROY_EVENT`.
    pub const DESTROY_EVENT: u8 = 0x09;
    /// `SET_EVENT`.
    pub const SET_EVENT: u8 = 0x0a;
    /// `RESET_EVENT`.
    pub const RESET_EVENT: u8 = 0x0b;
    /// `WAIT_EVENTS`.
    pub const WAIT_EVENTS: u8 = 0x0c;
    /// `SET_SCRATCH_BACKING_VA`.
    pub const SET_SCRATCH_BACKING_VA: u8 = 0x11;
    /// `GET_TILE_CONFIG`.
    pub const GET_TILE_CONFIG: u8 = 0x12;
    /// `SET_TRAP_HANDLER`.
    pub const SET_TRAP_HANDLER: u8 = 0x13;
    /// `GET_PROCESS_APERTURES_NEW`.
    pub const GET_PROCESS_APERTURES_NEW: u8 = 0x14;
    /// `ACQUIRE_VM`.
    pub const ACQUIRE_VM: u8 = 0x15;
    /// `ALLOC_MEMORY_OF_GPU`.
    pub const ALLOC_MEMORY_OF_GPU: u8 = 0x16;
    /// `FREE_MEMORY_OF_GPU`.
    pub const FREE_MEMORY_OF_GPU: u8 = 0x17;
    /// `MAP_MEMORY_TO_GPU`.
    pub const MAP_MEMORY_TO_GPU: u8 = 0x18;
    /// `UNMAP_MEMORY_FROM_GPU`.
    pub const UNMAP_MEMORY_FROM_GPU: u8 = 0x19;
    /// `SET_CU_MASK`.
    pub const SET_CU_MASK: u8 = 0x1a;
    /// `GET_QUEUE_WAVE_STATE`.
    pub const GET_QUEUE_WAVE_STATE: u8 = 0x1b;
    /// `GET_DMABUF_INFO`.
    pub const GET_DMABUF_INFO: u8 = 0x1c;
    /// `IMPORT_DMABUF`.
    pub const IMPORT_DMABUF: u8 = 0x1d;
    /// `ALLOC_QUEUE_GWS`.
    pub const ALLOC_QUEUE_GWS: u8 = 0x1e;
    /// `SMI_EVENTS`.
    pub const SMI_EVENTS: u8 = 0x1f;
    /// `SVM`.
    pub const SVM: u8 = 0x20;
    /// `SET_XNACK_MODE`.
    pub const SET_XNACK_MODE: u8 = 0x21;
    /// `CRIU_OP`.
    pub const CRIU_OP: u8 = 0x22;
    /// `AVAILABLE_MEMORY`.
    pub const AVAILABLE_MEMORY: u8 = 0x23;
    /// `EXPORT_DMABUF`.
    pub const EXPORT_DMABUF: u8 = 0x24;
    /// `RUNTIME_ENABLE`.
    pub const RUNTIME_ENABLE: u8 = 0x25;
    /// `DBG_TRAP`.
    pub const DBG_TRAP: u8 = 0x26;
    /// `IPC_IMPORT_HANDLE`.
    pub const IPC_IMPORT_HANDLE: u8 = 0x80;
    /// `IPC_EXPORT_HANDLE`.
    pub const IPC_EXPORT_HANDLE: u8 = 0x81;
}

/// The name of a KFD ioctl, for traces.
pub fn name(command: Command) -> &'static str {
    match command.number() {
        number::GET_VERSION => "GET_VERSION",
        number::CREATE_QUEUE => "CREATE_QUEUE",
        number::DESTROY_QUEUE => "DESTROY_QUEUE",
        number::SET_MEMORY_POLICY => "SET_MEMORY_POLICY",
        number::GET_CLOCK_COUNTERS => "GET_CLOCK_COUNTERS",
        number::GET_PROCESS_APERTURES => "GET_PROCESS_APERTURES",
        number::UPDATE_QUEUE => "UPDATE_QUEUE",
        number::CREATE_EVENT => "CREATE_EVENT",
        number::DESTROY_EVENT => "DESTROY_EVENT",
        number::SET_EVENT => "SET_EVENT",
        number::RESET_EVENT => "RESET_EVENT",
        number::WAIT_EVENTS => "WAIT_EVENTS",
        number::SET_SCRATCH_BACKING_VA => "SET_SCRATCH_BACKING_VA",
        number::GET_TILE_CONFIG => "GET_TILE_CONFIG",
        number::SET_TRAP_HANDLER => "SET_TRAP_HANDLER",
        number::GET_PROCESS_APERTURES_NEW => "GET_PROCESS_APERTURES_NEW",
        number::ACQUIRE_VM => "ACQUIRE_VM",
        number::ALLOC_MEMORY_OF_GPU => "ALLOC_MEMORY_OF_GPU",
        number::FREE_MEMORY_OF_GPU => "FREE_MEMORY_OF_GPU",
        number::MAP_MEMORY_TO_GPU => "MAP_MEMORY_TO_GPU",
        number::UNMAP_MEMORY_FROM_GPU => "UNMAP_MEMORY_FROM_GPU",
        number::SET_CU_MASK => "SET_CU_MASK",
        number::GET_QUEUE_WAVE_STATE => "GET_QUEUE_WAVE_STATE",
        number::GET_DMABUF_INFO => "GET_DMABUF_INFO",
        number::IMPORT_DMABUF => "IMPORT_DMABUF",
        number::ALLOC_QUEUE_GWS => "ALLOC_QUEUE_GWS",
        number::SMI_EVENTS => "SMI_EVENTS",
        number::SVM => "SVM",
        number::SET_XNACK_MODE => "SET_XNACK_MODE",
        number::CRIU_OP => "CRIU_OP",
        number::AVAILABLE_MEMORY => "AVAILABLE_MEMORY",
        number::EXPORT_DMABUF => "EXPORT_DMABUF",
        number::RUNTIME_ENABLE => "RUNTIME_ENABLE",
        number::DBG_TRAP => "DBG_TRAP",
        number::IPC_IMPORT_HANDLE => "IPC_IMPORT_HANDLE",
        number::IPC_EXPORT_HANDLE => "IPC_EXPORT_HANDLE",
        _ => "UNKNOWN",
    }
}

/// Memory on the board. Bits of `KFD_IOC_ALLOC_MEM_FLAGS_*`, as all `ALLOC_*`.
pub const ALLOC_VRAM: u32 = 1 << 0;
/// System memory that the kernel allocates.
pub const ALLOC_GTT: u32 = 1 << 1;
/// The caller's own memory.
pub const ALLOC_USERPTR: u32 = 1 << 2;
/// The doorbell page.
pub const ALLOC_DOORBELL: u32 = 1 << 3;
/// The page of remapped registers.
pub const ALLOC_MMIO_REMAP: u32 = 1 << 4;
/// Memory of a ring that is mapped twice in a row.
pub const ALLOC_AQL_QUEUE: u32 = 1 << 27;

/// PM4 packets. `KFD_IOC_QUEUE_TYPE_*`, as all `QUEUE_TYPE_*`.
pub const QUEUE_TYPE_COMPUTE: u32 = 0;
/// SDMA packets, on an engine for PCIe.
pub const QUEUE_TYPE_SDMA: u32 = 1;
/// AQL packets.
pub const QUEUE_TYPE_COMPUTE_AQL: u32 = 2;
/// SDMA packets, on an engine for XGMI.
pub const QUEUE_TYPE_SDMA_XGMI: u32 = 3;
/// SDMA packets, on the engine that the caller names (KFD 1.17).
pub const QUEUE_TYPE_SDMA_BY_ENGINE: u32 = 4;

/// Raised by the GPU or by SET_EVENT. `KFD_IOC_EVENT_*`, as all `EVENT_*`.
pub const EVENT_SIGNAL: u32 = 0;
/// For a debugger.
pub const EVENT_DEBUG: u32 = 5;
/// A memory access went wrong.
pub const EVENT_MEMORY: u32 = 8;

/// The events came. `KFD_IOC_WAIT_RESULT_*`, as all `WAIT_*`.
pub const WAIT_COMPLETE: u32 = 0;
/// The time was over first.
pub const WAIT_TIMEOUT: u32 = 1;
/// An event was destroyed meanwhile.
pub const WAIT_FAIL: u32 = 2;

/// Operation of SVM: set attributes. `KFD_IOCTL_SVM_*`, as all `SVM_*`.
pub const SVM_SET: u32 = 0;
/// Operation of SVM: ask for attributes.
pub const SVM_GET: u32 = 1;
/// Where the range should be: a gpu_id, or 0 for system memory.
pub const SVM_ATTR_PREFERRED_LOC: u32 = 0;
/// Where the range should be moved now.
pub const SVM_ATTR_PREFETCH_LOC: u32 = 1;
/// The GPU in the value has access, after moving the range.
pub const SVM_ATTR_ACCESS: u32 = 2;
/// The GPU in the value has access where the range is.
pub const SVM_ATTR_ACCESS_IN_PLACE: u32 = 3;
/// The GPU in the value has no access.
pub const SVM_ATTR_NO_ACCESS: u32 = 4;
/// Bits of `SVM_FLAG_*` to set.
pub const SVM_ATTR_SET_FLAGS: u32 = 5;
/// Bits of `SVM_FLAG_*` to clear.
pub const SVM_ATTR_CLR_FLAGS: u32 = 6;
/// Log2 of the pages that move together.
pub const SVM_ATTR_GRANULARITY: u32 = 7;
/// No particular location.
pub const SVM_LOCATION_UNDEFINED: u32 = u32::MAX;
/// The CPU has access.
pub const SVM_FLAG_HOST_ACCESS: u32 = 1 << 0;
/// Fine-grained coherence.
pub const SVM_FLAG_COHERENT: u32 = 1 << 1;
