//! The ioctls of `/dev/kfd`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Command;

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

/// Memory of ALLOC_MEMORY_OF_GPU (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const ALLOC_VRAM: u32 = 1 << 0;
/// Memory of ALLOC_MEMORY_OF_GPU (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const ALLOC_GTT: u32 = 1 << 1;
/// Memory of ALLOC_MEMORY_OF_GPU (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const ALLOC_USERPTR: u32 = 1 << 2;
/// Memory of ALLOC_MEMORY_OF_GPU (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const ALLOC_DOORBELL: u32 = 1 << 3;
/// Memory of ALLOC_MEMORY_OF_GPU (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const ALLOC_MMIO_REMAP: u32 = 1 << 4;
/// Memory of ALLOC_MEMORY_OF_GPU (`KFD_IOC_ALLOC_MEM_FLAGS_*`).
pub const ALLOC_AQL_QUEUE: u32 = 1 << 27;

/// Queue types (`KFD_IOC_QUEUE_TYPE_*`).
pub const QUEUE_TYPE_COMPUTE: u32 = 0;
/// Queue types (`KFD_IOC_QUEUE_TYPE_*`).
pub const QUEUE_TYPE_SDMA: u32 = 1;
/// Queue types (`KFD_IOC_QUEUE_TYPE_*`).
pub const QUEUE_TYPE_COMPUTE_AQL: u32 = 2;
/// Queue types (`KFD_IOC_QUEUE_TYPE_*`).
pub const QUEUE_TYPE_SDMA_XGMI: u32 = 3;
/// Queue types (`KFD_IOC_QUEUE_TYPE_*`).
pub const QUEUE_TYPE_SDMA_BY_ENGINE: u32 = 4;

/// Event types (`KFD_IOC_EVENT_*`).
pub const EVENT_SIGNAL: u32 = 0;
/// Event types (`KFD_IOC_EVENT_*`).
pub const EVENT_DEBUG: u32 = 5;
/// Event types (`KFD_IOC_EVENT_*`).
pub const EVENT_MEMORY: u32 = 8;

/// Results of WAIT_EVENTS (`KFD_IOC_WAIT_RESULT_*`).
pub const WAIT_COMPLETE: u32 = 0;
/// Results of WAIT_EVENTS (`KFD_IOC_WAIT_RESULT_*`).
pub const WAIT_TIMEOUT: u32 = 1;
/// Results of WAIT_EVENTS (`KFD_IOC_WAIT_RESULT_*`).
pub const WAIT_FAIL: u32 = 2;

/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_SET: u32 = 0;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_GET: u32 = 1;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_PREFERRED_LOC: u32 = 0;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_PREFETCH_LOC: u32 = 1;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_ACCESS: u32 = 2;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_ACCESS_IN_PLACE: u32 = 3;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_NO_ACCESS: u32 = 4;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_SET_FLAGS: u32 = 5;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_CLR_FLAGS: u32 = 6;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_ATTR_GRANULARITY: u32 = 7;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_LOCATION_UNDEFINED: u32 = u32::MAX;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_FLAG_HOST_ACCESS: u32 = 1 << 0;
/// SVM operations and attributes (`KFD_IOCTL_SVM_*`).
pub const SVM_FLAG_COHERENT: u32 = 1 << 1;

/// Argument of GET_VERSION.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GetVersion {
    /// Interface version, always 1.
    pub major: u32,
    /// Grows with every addition.
    pub minor: u32,
}

/// Argument of CREATE_QUEUE; 0x58 bytes up to KFD 1.16, 0x60 since.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct CreateQueue {
    /// GPU address of the ring.
    pub ring_base_address: u64,
    /// Where the user keeps its write pointer.
    pub write_pointer_address: u64,
    /// Where the GPU publishes its read pointer.
    pub read_pointer_address: u64,
    /// Out: mmap offset of the doorbell.
    pub doorbell_offset: u64,
    /// Bytes, a power of two.
    pub ring_size: u32,
    pub gpu_id: u32,
    /// One of `QUEUE_TYPE_*`.
    pub queue_type: u32,
    /// Bits 7:0: share of time, 0 to 100; bits 15:8: target XCC.
    pub queue_percentage: u32,
    /// 0 to 15.
    pub queue_priority: u32,
    /// Out.
    pub queue_id: u32,
    pub eop_buffer_address: u64,
    pub eop_buffer_size: u64,
    pub ctx_save_restore_address: u64,
    pub ctx_save_restore_size: u32,
    pub ctl_stack_size: u32,
    /// Engine of a `QUEUE_TYPE_SDMA_BY_ENGINE` queue (KFD 1.17).
    pub sdma_engine_id: u32,
    pub pad: u32,
}

/// Argument of DESTROY_QUEUE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct DestroyQueue {
    pub queue_id: u32,
    pub pad: u32,
}

/// Argument of UPDATE_QUEUE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct UpdateQueue {
    pub ring_base_address: u64,
    pub queue_id: u32,
    pub ring_size: u32,
    pub queue_percentage: u32,
    pub queue_priority: u32,
}

/// Argument of SET_CU_MASK.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SetCuMask {
    pub queue_id: u32,
    /// Bits in the mask, a multiple of 32.
    pub bits: u32,
    /// Array of 32-bit words in the caller.
    pub mask_pointer: u64,
}

/// Argument of AVAILABLE_MEMORY.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct AvailableMemory {
    /// Out: bytes.
    pub available: u64,
    pub gpu_id: u32,
    pub pad: u32,
}

/// Argument of SET_MEMORY_POLICY.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SetMemoryPolicy {
    pub alternate_aperture_base: u64,
    pub alternate_aperture_size: u64,
    pub gpu_id: u32,
    pub default_policy: u32,
    pub alternate_policy: u32,
    pub pad: u32,
}

/// Argument of GET_CLOCK_COUNTERS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct ClockCounters {
    /// Out: ticks of the GPU's clock.
    pub gpu_clock: u64,
    /// Out: nanoseconds, CLOCK_MONOTONIC_RAW.
    pub cpu_clock: u64,
    /// Out: nanoseconds, CLOCK_BOOTTIME.
    pub system_clock: u64,
    /// Out: ticks of the system clock per second.
    pub system_clock_frequency: u64,
    pub gpu_id: u32,
    pub pad: u32,
}

/// One entry of GET_PROCESS_APERTURES_NEW's array.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct ProcessApertures {
    pub lds_base: u64,
    pub lds_limit: u64,
    pub scratch_base: u64,
    pub scratch_limit: u64,
    pub gpuvm_base: u64,
    pub gpuvm_limit: u64,
    pub gpu_id: u32,
    pub pad: u32,
}

/// Argument of GET_PROCESS_APERTURES_NEW.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GetProcessAperturesNew {
    /// Array of [`ProcessApertures`] in the caller.
    pub apertures_pointer: u64,
    /// In: room in the array, 0 to ask for the count; out: entries.
    pub nodes: u32,
    pub pad: u32,
}

/// Argument of CREATE_EVENT.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct CreateEvent {
    /// In: handle of the event page; out: mmap offset of the event page.
    pub event_page_offset: u64,
    /// Out: what the GPU writes to raise it.
    pub trigger_data: u32,
    /// One of `EVENT_*`.
    pub event_type: u32,
    pub auto_reset: u32,
    pub node_id: u32,
    /// Out.
    pub event_id: u32,
    /// Out: slot in the event page.
    pub slot_index: u32,
}

/// Argument of DESTROY_EVENT, SET_EVENT, RESET_EVENT.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct EventId {
    pub event_id: u32,
    pub pad: u32,
}

/// `kfd_event_data`, one entry of WAIT_EVENTS' array.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct EventData {
    /// In and out for signal events: the age last seen, 0 for no age (KFD 1.14).
    pub last_event_age: u64,
    /// Out: what a memory or hardware exception event tells.
    pub data: [u64; 3],
    /// Pointer to an extension, unused.
    pub extension: u64,
    pub event_id: u32,
    pub pad: u32,
}

/// Argument of WAIT_EVENTS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct WaitEvents {
    /// Array of [`EventData`] in the caller.
    pub events_pointer: u64,
    pub events: u32,
    pub wait_for_all: u32,
    /// Milliseconds, `u32::MAX` for ever; out after EINTR: what is left.
    pub timeout: u32,
    /// Out: one of `WAIT_*`.
    pub result: u32,
}

/// Argument of SET_SCRATCH_BACKING_VA.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SetScratchBackingVa {
    pub va: u64,
    pub gpu_id: u32,
    pub pad: u32,
}

/// Argument of GET_TILE_CONFIG.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GetTileConfig {
    pub tile_config_pointer: u64,
    pub macro_tile_config_pointer: u64,
    pub tile_configs: u32,
    pub macro_tile_configs: u32,
    pub gpu_id: u32,
    pub gb_addr_config: u32,
    pub banks: u32,
    pub ranks: u32,
}

/// Argument of SET_TRAP_HANDLER.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SetTrapHandler {
    pub tba: u64,
    pub tma: u64,
    pub gpu_id: u32,
    pub pad: u32,
}

/// Argument of ACQUIRE_VM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct AcquireVm {
    /// The caller's descriptor of the GPU's render node.
    pub drm_fd: u32,
    pub gpu_id: u32,
}

/// Argument of ALLOC_MEMORY_OF_GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct AllocMemory {
    /// GPU address, 0 for memory without one.
    pub va: u64,
    /// Bytes.
    pub size: u64,
    /// Out.
    pub handle: u64,
    /// In for USERPTR: the CPU address; out: offset for mmap of the render node.
    pub mmap_offset: u64,
    pub gpu_id: u32,
    /// Bits of `ALLOC_*`.
    pub flags: u32,
}

/// Argument of FREE_MEMORY_OF_GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct FreeMemory {
    pub handle: u64,
}

/// Argument of MAP_MEMORY_TO_GPU and UNMAP_MEMORY_FROM_GPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct MapMemory {
    pub handle: u64,
    /// Array of `u32` in the caller.
    pub gpu_ids_pointer: u64,
    /// Entries of the array.
    pub gpus: u32,
    /// In: entries done by an earlier call; out: entries done.
    pub done: u32,
}

/// Argument of ALLOC_QUEUE_GWS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct AllocQueueGws {
    pub queue_id: u32,
    pub gws: u32,
    /// Out.
    pub first_gws: u32,
    pub pad: u32,
}

/// Argument of GET_DMABUF_INFO.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct DmabufInfo {
    /// Out: bytes.
    pub size: u64,
    pub metadata_pointer: u64,
    /// In: room; out: size.
    pub metadata_size: u32,
    /// Out.
    pub gpu_id: u32,
    /// Out: bits of `ALLOC_*`.
    pub flags: u32,
    pub dmabuf_fd: u32,
}

/// Argument of IMPORT_DMABUF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct ImportDmabuf {
    pub va: u64,
    /// Out.
    pub handle: u64,
    pub gpu_id: u32,
    pub dmabuf_fd: u32,
}

/// Argument of EXPORT_DMABUF (KFD 1.12).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct ExportDmabuf {
    pub handle: u64,
    /// O_CLOEXEC and the access mode.
    pub flags: u32,
    /// Out.
    pub dmabuf_fd: u32,
}

/// Argument of SMI_EVENTS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SmiEvents {
    pub gpu_id: u32,
    /// Out: a descriptor to read events from.
    pub fd: u32,
}

/// Argument of SVM, without its array of attributes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct Svm {
    pub start: u64,
    pub size: u64,
    /// One of `SVM_SET`, `SVM_GET`.
    pub operation: u32,
    /// Entries of [`SvmAttribute`] that follow.
    pub attributes: u32,
}

/// One attribute of SVM.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SvmAttribute {
    /// One of `SVM_ATTR_*`.
    pub kind: u32,
    pub value: u32,
}

/// Argument of SET_XNACK_MODE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct SetXnackMode {
    /// In: 1 on, 0 off, negative to ask; out: the mode.
    pub xnack_enabled: i32,
}

/// Argument of RUNTIME_ENABLE (KFD 1.13).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct RuntimeEnable {
    pub r_debug: u64,
    pub mode: u32,
    pub capabilities: u32,
}

/// Argument of IPC_IMPORT_HANDLE; `kfd_ioctl_ipc_import_handle_args` of the DKMS driver.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct IpcImportHandle {
    /// Out.
    pub handle: u64,
    pub va: u64,
    /// Out.
    pub mmap_offset: u64,
    pub share_handle: [u32; 4],
    pub gpu_id: u32,
    /// Out.
    pub flags: u32,
}

/// Argument of IPC_EXPORT_HANDLE; `kfd_ioctl_ipc_export_handle_args` of the DKMS driver.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct IpcExportHandle {
    pub handle: u64,
    /// Out.
    pub share_handle: [u32; 4],
    pub gpu_id: u32,
    pub flags: u32,
}

// A wrong size would shift every field behind it.
const _: () = assert!(size_of::<GetVersion>() == 8);
const _: () = assert!(size_of::<CreateQueue>() == 96);
const _: () = assert!(size_of::<DestroyQueue>() == 8);
const _: () = assert!(size_of::<UpdateQueue>() == 24);
const _: () = assert!(size_of::<SetCuMask>() == 16);
const _: () = assert!(size_of::<AvailableMemory>() == 16);
const _: () = assert!(size_of::<SetMemoryPolicy>() == 32);
const _: () = assert!(size_of::<ClockCounters>() == 40);
const _: () = assert!(size_of::<ProcessApertures>() == 56);
const _: () = assert!(size_of::<GetProcessAperturesNew>() == 16);
const _: () = assert!(size_of::<CreateEvent>() == 32);
const _: () = assert!(size_of::<EventId>() == 8);
const _: () = assert!(size_of::<EventData>() == 48);
const _: () = assert!(size_of::<WaitEvents>() == 24);
const _: () = assert!(size_of::<SetScratchBackingVa>() == 16);
const _: () = assert!(size_of::<GetTileConfig>() == 40);
const _: () = assert!(size_of::<SetTrapHandler>() == 24);
const _: () = assert!(size_of::<AcquireVm>() == 8);
const _: () = assert!(size_of::<AllocMemory>() == 40);
const _: () = assert!(size_of::<FreeMemory>() == 8);
const _: () = assert!(size_of::<MapMemory>() == 24);
const _: () = assert!(size_of::<AllocQueueGws>() == 16);
const _: () = assert!(size_of::<DmabufInfo>() == 32);
const _: () = assert!(size_of::<ImportDmabuf>() == 24);
const _: () = assert!(size_of::<ExportDmabuf>() == 16);
const _: () = assert!(size_of::<SmiEvents>() == 8);
const _: () = assert!(size_of::<Svm>() == 24);
const _: () = assert!(size_of::<SvmAttribute>() == 8);
const _: () = assert!(size_of::<SetXnackMode>() == 4);
const _: () = assert!(size_of::<RuntimeEnable>() == 16);
const _: () = assert!(size_of::<IpcImportHandle>() == 48);
const _: () = assert!(size_of::<IpcExportHandle>() == 32);
