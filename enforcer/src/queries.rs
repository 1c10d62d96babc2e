//! The answers about memory and compute units: the runtime's own, less what limits do not leave to this process.
//!
//! Each runs after the runtime has answered with success and changes only what the program asked for.

use core::ffi::{c_int, c_void};

use hipflex_ledger::Limit;

use crate::account::{Account, Place};
use crate::compute_units;
use crate::entries::belt;
use crate::helpers;
use crate::hip::{PropertiesLayout, attribute};
use crate::process::{self, Standing};

/// How this process stands, if answers are to be adapted.
#[inline]
pub(crate) fn standing() -> Option<&'static Standing> {
    match process::standing() {
        Standing::Inert if !compute_units::are_limited() => None,
        standing => Some(standing),
    }
}

/// `hipMemGetInfo`: of the current device.
///
/// # Safety
/// Each pointer is null or one that the runtime has just written through.
pub(crate) unsafe fn memory_info(standing: &Standing, free: *mut usize, total: *mut usize) {
    let account = match standing {
        Standing::Booking(account) => account,
        // SAFETY: see above. What one allocation could get: nothing.
        Standing::Refusing(_) => return unsafe { adapt(free, |_| 0) },
        Standing::Inert => return,
    };
    let device = helpers::current_device();
    belt(|| match account.place(device) {
        // SAFETY: see above.
        Place::Gpu(gpu) => unsafe {
            let room = account.room(gpu, device);
            adapt(total, |board| room.limit.within(board));
            // What one allocation could get.
            adapt(free, |free| free.min(room.available));
        },
        // SAFETY: see above.
        Place::Refused => unsafe { adapt(free, |_| 0) },
        Place::Uncounted => {}
    });
}

/// `hipDeviceTotalMem`
///
/// # Safety
/// As for [`memory_info`].
pub(crate) unsafe fn total_memory(standing: &Standing, bytes: *mut usize, device: c_int) {
    // SAFETY: see above.
    belt(|| unsafe { adapt(bytes, |board| limit(standing, device).within(board)) });
}

/// `hipGetDeviceProperties` in its versions.
///
/// # Safety
/// `properties` is null or a structure of this layout that the runtime has just filled in.
pub(crate) unsafe fn properties(
    standing: &Standing,
    layout: PropertiesLayout,
    properties: *mut c_void,
    device: c_int,
) {
    if properties.is_null() {
        return;
    }
    // SAFETY: see above.
    unsafe {
        total_memory(standing, total_in(layout, properties), device);
        count(count_in(layout, properties), device);
    }
}

/// `hipDeviceGetAttribute`
///
/// # Safety
/// As for [`memory_info`].
#[inline]
pub(crate) unsafe fn attribute(
    standing: &Standing,
    value: *mut c_int,
    which: c_int,
    device: c_int,
) {
    match which {
        attribute::MULTIPROCESSOR_COUNT | attribute::PHYSICAL_MULTIPROCESSOR_COUNT => {
            // SAFETY: see above.
            unsafe { count(value, device) }
        }
        attribute::TOTAL_GLOBAL_MEM => {
            // SAFETY: see above. The native answer is that of the board, or less, and so the smaller of
            // both is right.
            belt(|| unsafe { adapt(value, |board| limit(standing, device).within(board)) });
        }
        _ => {}
    }
}

/// A number of compute units (or WGPs) of a device.
///
/// # Safety
/// As for [`memory_info`].
unsafe fn count(place: *mut c_int, device: c_int) {
    if compute_units::are_limited() {
        // SAFETY: see above.
        belt(|| unsafe { adapt(place, |native| compute_units::share(device, native)) });
    }
}

/// Where such a structure has the total.
///
/// # Safety
/// `properties` is a structure of this layout.
unsafe fn total_in(layout: PropertiesLayout, properties: *mut c_void) -> *mut usize {
    // SAFETY: the field lies inside of the structure.
    unsafe { properties.byte_add(layout.total_global_mem).cast() }
}

/// Where such a structure has the count of compute units.
///
/// # Safety
/// `properties` is a structure of this layout.
unsafe fn count_in(layout: PropertiesLayout, properties: *mut c_void) -> *mut c_int {
    // SAFETY: the field lies inside of the structure.
    unsafe { properties.byte_add(layout.multi_processor_count).cast() }
}

/// What a program is shown at most of a device's memory.
fn limit(standing: &Standing, device: c_int) -> Limit {
    let of = |account: &Account| match account.place(Ok(device)) {
        Place::Gpu(gpu) => account.limit(gpu),
        Place::Refused | Place::Uncounted => Limit::Unlimited,
    };
    match standing {
        Standing::Booking(account) => of(account),
        Standing::Inert | Standing::Refusing(_) => Limit::Unlimited,
    }
}

/// Replaces the number at `place`, if there is one.
///
/// # Safety
/// `place` is null or may be read and written. It need not be aligned.
unsafe fn adapt<T>(place: *mut T, answer: impl FnOnce(u64) -> u64)
where
    T: Copy + TryFrom<u64>,
    u64: TryFrom<T>,
{
    if place.is_null() {
        return;
    }
    // SAFETY: see above.
    unsafe {
        let native = place.read_unaligned();
        let Ok(number) = u64::try_from(native) else {
            return;
        };
        // An answer is never above the native one.
        let adapted = T::try_from(answer(number)).unwrap_or(native);
        place.write_unaligned(adapted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Refusal;

    fn refusing() -> Standing {
        Standing::Refusing(Refusal::default())
    }

    #[test]
    fn a_null_place_is_left_alone() {
        // SAFETY: null is allowed.
        unsafe { adapt(core::ptr::null_mut::<usize>(), |_| unreachable!()) };
    }

    #[test]
    fn only_the_bytes_of_the_number_change() {
        let mut bytes = [0xa5_u8; 24];
        // SAFETY: 8 bytes inside of the array, not aligned.
        unsafe {
            adapt(bytes.as_mut_ptr().add(3).cast::<usize>(), |native| {
                native & 0xff
            });
        };
        let mut expected = [0xa5_u8; 24];
        expected[3..11].copy_from_slice(&0xa5_u64.to_le_bytes());
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_program_that_is_refused_has_nothing_free() {
        let (mut free, mut total) = (5_usize, 7_usize);
        // SAFETY: two live numbers.
        unsafe { memory_info(&refusing(), &raw mut free, &raw mut total) };
        assert_eq!((free, total), (0, 7));
    }

    #[test]
    fn property_structures_keep_everything_but_the_total() {
        for layout in [PropertiesLayout::R0000, PropertiesLayout::R0600] {
            let mut structure = vec![0xa5_u8; layout.size + 64];
            // SAFETY: the buffer is longer than the structure.
            unsafe {
                properties(&refusing(), layout, structure.as_mut_ptr().cast(), 0);
                properties(&refusing(), layout, core::ptr::null_mut(), 0);
            }
            assert!(structure.iter().all(|byte| *byte == 0xa5));
            assert!(layout.total_global_mem + 8 <= layout.size);
            let start = structure.as_mut_ptr();
            // SAFETY: as above.
            let total = unsafe { total_in(layout, start.cast()) };
            assert_eq!(total.addr() - start.addr(), layout.total_global_mem);
            // SAFETY: as above.
            let count = unsafe { count_in(layout, start.cast()) };
            assert_eq!(count.addr() - start.addr(), layout.multi_processor_count);
        }
    }
}
