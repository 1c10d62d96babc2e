//! The outputs of the libraries' functions, adapted to what this process may use.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::transmute;

use super::device::{Asked, Device};
use super::share::{self, Share};
use super::{SUCCESS, library};
use crate::stderr::say_once;

/// `RSMI_MEM_TYPE_VRAM` and `RSMI_MEM_TYPE_VIS_VRAM` of `rocm_smi.h`, and as `AMDSMI_MEM_TYPE_...` of `amdsmi.h`: all
/// of VRAM, and what of it the CPU can reach. The third type, GTT, is memory of the host.
const VRAM: [c_uint; 2] = [0, 1];

const MIB_SHIFT: u32 = 20;

/// A total in bytes.
///
/// # Safety
/// `total` is null or a place that the library has just written to.
pub(crate) unsafe fn total(asked: &Asked, kind: c_uint, total: *mut u64) {
    if total.is_null() || !VRAM.contains(&kind) {
        return;
    }
    let share = share::of(asked);
    // SAFETY: see above.
    unsafe { adapt(total, |native| share.total(native)) }
}

/// A use in bytes.
///
/// # Safety
/// As for [`total`].
pub(crate) unsafe fn usage(asked: &Asked, kind: c_uint, used: *mut u64) {
    if used.is_null() || !VRAM.contains(&kind) {
        return;
    }
    let share = share::of(asked);
    if share != Share::Whole {
        let total = native_total(asked, kind);
        // SAFETY: see above.
        unsafe { adapt(used, |native| share.used(total, native)) }
    }
}

/// What the same library says of the total.
fn native_total(asked: &Asked, kind: c_uint) -> Option<u64> {
    let mut total = 0_u64;
    let at = &raw mut total;
    // SAFETY: the addresses are those of functions with the signatures of the table.
    let status = unsafe {
        match asked.device {
            Device::RocmSmi(index) => {
                let function = library::function(asked.function, c"rsmi_dev_memory_total_get")?;
                transmute::<usize, unsafe extern "C-unwind" fn(u32, c_uint, *mut u64) -> c_int>(
                    function,
                )(index, kind, at)
            }
            Device::AmdSmi(processor) => {
                let function = library::function(asked.function, c"amdsmi_get_gpu_memory_total")?;
                transmute::<
                    usize,
                    unsafe extern "C-unwind" fn(*mut c_void, c_uint, *mut u64) -> c_int,
                >(function)(processor, kind, at)
            }
        }
    };
    (status == SUCCESS).then_some(total)
}

/// `amdsmi_vram_usage_t` (in ROCm 5.7 named `amdsmi_vram_info_t`): total and use in MiB, 32 bits each, at bytes 0
/// and 4.
///
/// # Safety
/// `usage` is null or such a structure that the library has just filled in.
pub(crate) unsafe fn vram_usage(asked: &Asked, usage: *mut c_void) {
    if usage.is_null() {
        return;
    }
    let share = share::of(asked);
    let (total, used) = (usage.cast::<u32>(), usage.cast::<u32>().wrapping_add(1));
    // SAFETY: see above.
    unsafe {
        let native = u64::from(total.read_unaligned()) << MIB_SHIFT;
        adapt(used, |used| {
            share.used(Some(native), used << MIB_SHIFT) >> MIB_SHIFT
        });
        adapt(total, |total| share.total(total << MIB_SHIFT) >> MIB_SHIFT);
    }
}

/// `amdsmi_vram_info_t`, with the total in MiB.
///
/// # Safety
/// `info` is null or such a structure of the library's version that it has just filled in.
pub(crate) unsafe fn vram_info(asked: &Asked, info: *mut c_void) {
    if info.is_null() {
        return;
    }
    let share = share::of(asked);
    if share == Share::Whole {
        return;
    }
    let Some(offset) = version(asked).and_then(offset_of_size) else {
        say_once!(
            "this libamd_smi does not tell its version, so amdsmi_get_gpu_vram_info shows the board's \
             memory, not the limit"
        );
        return;
    };
    // SAFETY: in this version the field lies there.
    unsafe {
        let size = info.byte_add(offset).cast::<u64>();
        // In MiB no total is as large as this.
        adapt(size, |native| match native.checked_shl(MIB_SHIFT) {
            Some(bytes) if bytes >> MIB_SHIFT == native => share.total(bytes) >> MIB_SHIFT,
            _ => native,
        });
    }
}

/// Where `amdsmi_vram_info_t` has the size, by the first number of the library's version.
fn offset_of_size(version: u32) -> Option<usize> {
    match version {
        // Year of the release, amdsmi.h of ROCm 6.0 to 6.3; from 25 (6.4) on the major version:
        // type (4), vendor (4), size (8), and since 6.2 more behind.
        23..=25 => Some(8),
        // amdsmi.h of ROCm 7.0 (26.0) to 10.1 (27.1): type (4), name of the vendor (256), 4 bytes of padding, size (8).
        26.. => Some(264),
        _ => None,
    }
}

/// The first number that the library's own version begins with.
fn version(asked: &Asked) -> Option<u32> {
    let function = library::function(asked.function, c"amdsmi_get_lib_version")?;
    // `amdsmi_version_t`: three or four numbers of 32 bits and a pointer.
    let mut version = [0_u64; 8];
    // SAFETY: amdsmi_status_t amdsmi_get_lib_version(amdsmi_version_t *version); there is more room than it
    // needs in any version.
    let status = unsafe {
        transmute::<usize, unsafe extern "C-unwind" fn(*mut u64) -> c_int>(function)(
            version.as_mut_ptr(),
        )
    };
    let [first, ..] = version;
    (status == SUCCESS).then_some(first as u32)
}

/// Replaces the number at `place`.
///
/// # Safety
/// `place` may be read and written. It need not be aligned.
unsafe fn adapt<T: Copy + Into<u64> + TryFrom<u64>>(
    place: *mut T,
    answer: impl FnOnce(u64) -> u64,
) {
    // SAFETY: see above.
    unsafe {
        let native = place.read_unaligned();
        place.write_unaligned(T::try_from(answer(native.into())).unwrap_or(native));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_lies_where_the_version_has_it() {
        assert_eq!(offset_of_size(24), Some(8));
        assert_eq!(offset_of_size(25), Some(8));
        assert_eq!(offset_of_size(26), Some(264));
        assert_eq!(offset_of_size(27), Some(264));
        assert_eq!(offset_of_size(0), None);
        assert_eq!(offset_of_size(1), None);
    }
}
