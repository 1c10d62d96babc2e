//! The ioctls of the render node: those of DRM's core, and amdgpu's.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Command;

/// The ioctl type of DRM (`DRM_IOCTL_BASE`).
pub const TYPE: u8 = b'd';

/// Numbers of the ioctls. From 0x40 on (`DRM_COMMAND_BASE`) they are amdgpu's.
pub mod number {
    /// `VERSION`.
    pub const VERSION: u8 = 0x00;
    /// `GET_CLIENT`.
    pub const GET_CLIENT: u8 = 0x05;
    /// `GEM_CLOSE`.
    pub const GEM_CLOSE: u8 = 0x09;
    /// `GET_CAP`.
    pub const GET_CAP: u8 = 0x0c;
    /// `PRIME_HANDLE_TO_FD`.
    pub const PRIME_HANDLE_TO_FD: u8 = 0x2d;
    /// `PRIME_FD_TO_HANDLE`.
    pub const PRIME_FD_TO_HANDLE: u8 = 0x2e;
    /// `GEM_CREATE`.
    pub const GEM_CREATE: u8 = 0x40;
    /// `GEM_MMAP`.
    pub const GEM_MMAP: u8 = 0x41;
    /// `CTX`.
    pub const CTX: u8 = 0x42;
    /// `BO_LIST`.
    pub const BO_LIST: u8 = 0x43;
    /// `CS`.
    pub const CS: u8 = 0x44;
    /// `INFO`.
    pub const INFO: u8 = 0x45;
    /// `GEM_METADATA`.
    pub const GEM_METADATA: u8 = 0x46;
    /// `GEM_WAIT_IDLE`.
    pub const GEM_WAIT_IDLE: u8 = 0x47;
    /// `GEM_VA`.
    pub const GEM_VA: u8 = 0x48;
    /// `WAIT_CS`.
    pub const WAIT_CS: u8 = 0x49;
    /// `GEM_OP`.
    pub const GEM_OP: u8 = 0x50;
    /// `GEM_USERPTR`.
    pub const GEM_USERPTR: u8 = 0x51;
}

/// The name of a render-node ioctl, for traces.
pub fn name(command: Command) -> &'static str {
    match command.number() {
        number::VERSION => "VERSION",
        number::GET_CLIENT => "GET_CLIENT",
        number::GEM_CLOSE => "GEM_CLOSE",
        number::GET_CAP => "GET_CAP",
        number::PRIME_HANDLE_TO_FD => "PRIME_HANDLE_TO_FD",
        number::PRIME_FD_TO_HANDLE => "PRIME_FD_TO_HANDLE",
        number::GEM_CREATE => "GEM_CREATE",
        number::GEM_MMAP => "GEM_MMAP",
        number::CTX => "CTX",
        number::BO_LIST => "BO_LIST",
        number::CS => "CS",
        number::INFO => "INFO",
        number::GEM_METADATA => "GEM_METADATA",
        number::GEM_WAIT_IDLE => "GEM_WAIT_IDLE",
        number::GEM_VA => "GEM_VA",
        number::WAIT_CS => "WAIT_CS",
        number::GEM_OP => "GEM_OP",
        number::GEM_USERPTR => "GEM_USERPTR",
        _ => "UNKNOWN",
    }
}

/// System memory. `AMDGPU_GEM_DOMAIN_*`, as all `DOMAIN_*`.
pub const DOMAIN_GTT: u64 = 2;
/// Memory on the board.
pub const DOMAIN_VRAM: u64 = 4;

/// Operation of GEM_METADATA: keep this (`AMDGPU_GEM_METADATA_OP_SET_METADATA`).
pub const METADATA_SET: u32 = 1;
/// Operation of GEM_METADATA: give it back (`AMDGPU_GEM_METADATA_OP_GET_METADATA`).
pub const METADATA_GET: u32 = 2;

/// Operation of GEM_OP: how was it created (`AMDGPU_GEM_OP_GET_GEM_CREATE_INFO`).
pub const OP_GET_CREATE_INFO: u32 = 0;

/// Operation of GEM_VA: map. `AMDGPU_VA_OP_*`, as all `VA_*`.
pub const VA_MAP: u32 = 1;
/// Operation of GEM_VA: remove one mapping.
pub const VA_UNMAP: u32 = 2;
/// Operation of GEM_VA: remove every mapping of a range.
pub const VA_CLEAR: u32 = 3;
/// Operation of GEM_VA: map in place of what is there.
pub const VA_REPLACE: u32 = 4;

/// dma-bufs in and out. `DRM_CAP_*`, as all `CAP_*`.
pub const CAP_PRIME: u64 = 5;
/// Sync objects.
pub const CAP_SYNCOBJ: u64 = 0x13;
/// Sync objects with timelines.
pub const CAP_SYNCOBJ_TIMELINE: u64 = 0x14;

/// Query of INFO: does the device work (`AMDGPU_INFO_ACCEL_WORKING`).
pub const INFO_ACCEL_WORKING: u32 = 0x00;

/// Argument of VERSION; `drm_version`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct Version {
    pub major: i32,
    pub minor: i32,
    pub patch: i32,
    pub pad: u32,
    /// In: room; out: length.
    pub name_length: u64,
    pub name_pointer: u64,
    pub date_length: u64,
    pub date_pointer: u64,
    pub description_length: u64,
    pub description_pointer: u64,
}

/// Argument of GET_CLIENT; `drm_client`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct Client {
    pub index: i32,
    pub authenticated: i32,
    pub pid: u64,
    pub uid: u64,
    pub magic: u64,
    pub iocs: u64,
}

/// Argument of GET_CAP; `drm_get_cap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GetCap {
    pub capability: u64,
    /// Out.
    pub value: u64,
}

/// Argument of GEM_CLOSE; `drm_gem_close`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GemClose {
    pub handle: u32,
    pub pad: u32,
}

/// Argument of PRIME_HANDLE_TO_FD and PRIME_FD_TO_HANDLE; `drm_prime_handle`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct PrimeHandle {
    pub handle: u32,
    pub flags: u32,
    pub fd: u32,
}

/// Argument of GEM_CREATE; union `drm_amdgpu_gem_create`. The handle comes back in the low half of `size`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GemCreate {
    /// In: bytes; out: the handle.
    pub size: u64,
    pub alignment: u64,
    /// Bits of `DOMAIN_*`.
    pub domains: u64,
    pub flags: u64,
}

/// Argument of GEM_MMAP; union `drm_amdgpu_gem_mmap`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GemMmap {
    /// In: the handle (low half); out: offset for mmap.
    pub handle_or_offset: u64,
}

/// Argument of GEM_METADATA; `drm_amdgpu_gem_metadata`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GemMetadata {
    pub handle: u32,
    /// `METADATA_SET` or `METADATA_GET`.
    pub operation: u32,
    pub data: Metadata,
}

/// What GEM_METADATA keeps for a buffer: tiling and up to 256 bytes that belong to user space.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct Metadata {
    pub flags: u64,
    pub tiling: u64,
    pub size: u32,
    pub words: [u32; 64],
    pub pad: u32,
}

/// Argument of GEM_OP; `drm_amdgpu_gem_op`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GemOp {
    pub handle: u32,
    pub operation: u32,
    /// For `OP_GET_CREATE_INFO`: pointer to a [`GemCreate`] in the caller.
    pub value: u64,
}

/// Argument of GEM_VA; `drm_amdgpu_gem_va`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct GemVa {
    pub handle: u32,
    pub pad: u32,
    /// One of `VA_*`.
    pub operation: u32,
    pub flags: u32,
    pub va: u64,
    pub offset_in_bo: u64,
    pub size: u64,
}

/// Argument of INFO; `drm_amdgpu_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[allow(
    missing_docs,
    reason = "fields without a comment are named as in the kernel's header"
)]
pub struct Info {
    pub return_pointer: u64,
    pub return_size: u32,
    /// One of `AMDGPU_INFO_*`.
    pub query: u32,
    /// Which block, sensor, ...; depends on the query.
    pub selector: u32,
    pub selector_more: [u32; 3],
}

// A wrong size would shift every field behind it.
const _: () = assert!(size_of::<Version>() == 64);
const _: () = assert!(size_of::<Client>() == 40);
const _: () = assert!(size_of::<GetCap>() == 16);
const _: () = assert!(size_of::<GemClose>() == 8);
const _: () = assert!(size_of::<PrimeHandle>() == 12);
const _: () = assert!(size_of::<GemCreate>() == 32);
const _: () = assert!(size_of::<GemMmap>() == 8);
const _: () = assert!(size_of::<GemMetadata>() == 288);
const _: () = assert!(size_of::<Metadata>() == 280);
const _: () = assert!(size_of::<GemOp>() == 16);
const _: () = assert!(size_of::<GemVa>() == 40);
const _: () = assert!(size_of::<Info>() == 32);
