//! Gives programs in an emulated node the descriptors that some ioctls return, without seccomp.
//!
//! A FUSE server cannot put a descriptor into another process. It answers such an ioctl with
//! `EOPNOTSUPP` and the number of the memory block where the descriptor should be; this library,
//! preloaded, then opens the block's file in the node. All other ioctls pass.

use std::ffi::{c_int, c_ulong, c_void};
use std::mem::offset_of;

/// Where the node's dma-bufs are files (`NODE_DIRECTORY` of the emulator, and its `dmabuf`).
const DMABUFS: &[u8] = b"/dev/kfd-emulator/dmabuf/";
/// Digits of the largest `u32`.
const DIGITS: usize = 10;

/// `struct kfd_ioctl_export_dmabuf_args` of linux/kfd_ioctl.h.
#[repr(C)]
struct ExportDmabuf {
    handle: u64,
    flags: u32,
    fd: u32,
}

/// `struct drm_prime_handle` of drm/drm.h.
#[repr(C)]
struct PrimeHandle {
    handle: u32,
    flags: u32,
    fd: u32,
}

/// `struct kfd_ioctl_smi_events_args` of linux/kfd_ioctl.h.
#[repr(C)]
struct SmiEvents {
    gpu_id: u32,
    fd: u32,
}

/// What an ioctl returns a descriptor of, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returns {
    /// A dma-buf: places of the flags and of the descriptor in the argument.
    Dmabuf { flags: usize, fd: usize },
    /// A stream of events: place of the descriptor.
    Events { fd: usize },
}

/// By type and number of the command; its size does not matter.
fn returns(request: c_ulong) -> Option<Returns> {
    match ((request >> 8) as u8, request as u8) {
        (b'K', 0x24) => Some(Returns::Dmabuf {
            flags: offset_of!(ExportDmabuf, flags),
            fd: offset_of!(ExportDmabuf, fd),
        }),
        (b'd', 0x2d) => Some(Returns::Dmabuf {
            flags: offset_of!(PrimeHandle, flags),
            fd: offset_of!(PrimeHandle, fd),
        }),
        (b'K', 0x1f) => Some(Returns::Events {
            fd: offset_of!(SmiEvents, fd),
        }),
        _ => None,
    }
}

/// The path of a block's file, as a C string.
fn path_of(block: u32) -> [u8; DMABUFS.len() + DIGITS + 1] {
    let mut path = [0; DMABUFS.len() + DIGITS + 1];
    let (directory, name) = path.split_at_mut(DMABUFS.len());
    directory.copy_from_slice(DMABUFS);
    let count = (1..DIGITS)
        .find(|&n| block < 10_u32.pow(n as u32))
        .unwrap_or(DIGITS);
    let mut rest = block;
    for digit in name[..count].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    path
}

fn errno() -> c_int {
    // SAFETY: the location is this thread's own, valid for its whole life.
    unsafe { *libc::__errno_location() }
}

/// libc's `ioctl`. Variadic there; on x86-64 the third argument is passed the same way.
///
/// # Safety
/// As for ioctl(2): `argument` must be what the request wants.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: passed on as the caller gave it.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) } as c_int;
    if result != -1 {
        return result;
    }
    let Some(returns) = returns(request) else {
        return result;
    };
    if errno() != libc::EOPNOTSUPP || argument.is_null() {
        return result;
    }
    let field = |place: usize| argument.cast::<u8>().wrapping_add(place).cast::<u32>();
    let (opened, place) = match returns {
        Returns::Dmabuf { flags, fd } => {
            // SAFETY: the request says that the argument is a struct with these fields.
            let (flags, block) =
                unsafe { (field(flags).read_unaligned(), field(fd).read_unaligned()) };
            let close_on_exec = flags as c_int & libc::O_CLOEXEC;
            // SAFETY: the path ends with a zero byte.
            let opened =
                unsafe { libc::open(path_of(block).as_ptr().cast(), libc::O_RDWR | close_on_exec) };
            (opened, fd)
        }
        // The emulator has no events: a descriptor that is never readable.
        // SAFETY: plain system call.
        Returns::Events { fd } => (
            unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) },
            fd,
        ),
    };
    if opened < 0 {
        return -1;
    }
    // SAFETY: as above; the kernel would have written the descriptor there.
    unsafe { field(place).write_unaligned(opened as u32) };
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_any_size() {
        for request in [0xc010_4b24, 0xc020_4b24] {
            assert_eq!(returns(request), Some(Returns::Dmabuf { flags: 8, fd: 12 }));
        }
        assert_eq!(
            returns(0xc00c_642d),
            Some(Returns::Dmabuf { flags: 4, fd: 8 })
        );
        assert_eq!(returns(0xc008_4b1f), Some(Returns::Events { fd: 4 }));
        assert_eq!(returns(0xc028_4b16), None);
        assert_eq!(returns(0x2424), None);
    }

    #[test]
    fn paths() {
        let text = |block| {
            let path = path_of(block);
            std::ffi::CStr::from_bytes_until_nul(&path)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        };
        for block in [0, 9, 10, 4_000_000_000, u32::MAX] {
            assert_eq!(text(block), format!("/dev/kfd-emulator/dmabuf/{block}"));
        }
    }
}
