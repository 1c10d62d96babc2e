//! Argument structs of the ioctls of `/dev/kfd`.

use zerocopy::{FromBytes, Immutable, IntoBytes};

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
