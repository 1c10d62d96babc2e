//! The answers about memory: the runtime's own, less what the account does not leave to this process.
//!
//! Each runs after the runtime has answered with success and changes only what the program asked for.

use core::ffi::{c_int, c_void};

use hipflex_ledger::{GpuView, Limit};

use crate::account::Account;
use crate::entries::Verdict;
use crate::hip::PropertiesLayout;
use crate::process::{self, Standing};

/// Whether answers are to be adapted.
pub(crate) fn before() -> Verdict<&'static Standing> {
    match process::standing() {
        Standing::Inert => Verdict::Native,
        standing => Verdict::Planned(standing),
    }
}

/// `hipMemGetInfo`: of the current device.
///
/// # Safety
/// Each pointer is null or one that the runtime has just written through.
pub(crate) unsafe fn memory_info(standing: &Standing, free: *mut usize, total: *mut usize) {
    let view = view(standing, Account::view_of_current_device);
    // SAFETY: see above.
    unsafe {
        adapt(total, |board| total_of(view.as_ref(), board));
        // What one allocation could get. Nothing, if allocations are refused.
        adapt(free, |free| {
            view.map_or(0, |view| free.min(view.available()))
        });
    }
}

/// `hipDeviceTotalMem`
///
/// # Safety
/// As for [`memory_info`].
pub(crate) unsafe fn total_memory(standing: &Standing, bytes: *mut usize, device: c_int) {
    let view = view(standing, |account| account.view_of_device(device));
    // SAFETY: see above.
    unsafe { adapt(bytes, |board| total_of(view.as_ref(), board)) }
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
    let view = view(standing, |account| account.view_of_device(device));
    // SAFETY: the field lies inside of the structure.
    unsafe {
        let total = properties.byte_add(layout.total_global_mem).cast();
        adapt(total, |board| total_of(view.as_ref(), board));
    }
}

/// The view, or none if allocations are refused.
fn view(standing: &Standing, of: impl FnOnce(&Account) -> Option<GpuView>) -> Option<GpuView> {
    match standing {
        Standing::Booking(account) => of(account),
        Standing::Inert | Standing::Refusing => None,
    }
}

/// The total that a program is shown of a board.
fn total_of(view: Option<&GpuView>, board: u64) -> u64 {
    view.map_or(Limit::Unlimited, |view| view.limit)
        .within(board)
}

/// Replaces the number at `place`, if there is one.
///
/// # Safety
/// `place` is null or may be read and written. It need not be aligned.
unsafe fn adapt(place: *mut usize, answer: impl FnOnce(u64) -> u64) {
    if place.is_null() {
        return;
    }
    // SAFETY: see above.
    unsafe {
        let native = place.read_unaligned();
        // An answer is never above the native one.
        let adapted = usize::try_from(answer(native as u64)).unwrap_or(native);
        place.write_unaligned(adapted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hipflex_ledger::{CellView, GpuKey};

    const GIB: u64 = 1 << 30;

    fn account(limit: Limit, charged: u64) -> GpuView {
        GpuView {
            key: GpuKey(0x300),
            limit,
            charged,
            mine: CellView::default(),
            others: charged,
        }
    }

    #[test]
    fn the_total_is_the_limit_or_the_board_whichever_is_less() {
        let total = |limit| total_of(Some(&account(limit, 0)), 64 * GIB);
        assert_eq!(total(Limit::Bytes(4 * GIB)), 4 * GIB);
        assert_eq!(total(Limit::Bytes(128 * GIB)), 64 * GIB);
        assert_eq!(total(Limit::Unlimited), 64 * GIB);
        assert_eq!(total_of(None, 64 * GIB), 64 * GIB);
    }

    #[test]
    fn a_null_place_is_left_alone() {
        // SAFETY: null is allowed.
        unsafe { adapt(core::ptr::null_mut(), |_| unreachable!()) };
    }

    #[test]
    fn only_the_bytes_of_the_number_change() {
        let mut bytes = [0xa5_u8; 24];
        // SAFETY: 8 bytes inside of the array, not aligned.
        unsafe { adapt(bytes.as_mut_ptr().add(3).cast(), |native| native & 0xff) };
        let mut expected = [0xa5_u8; 24];
        expected[3..11].copy_from_slice(&0xa5_u64.to_le_bytes());
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_program_that_is_refused_has_nothing_free() {
        let (mut free, mut total) = (5_usize, 7_usize);
        // SAFETY: two live numbers.
        unsafe { memory_info(&Standing::Refusing, &raw mut free, &raw mut total) };
        assert_eq!((free, total), (0, 7));
    }

    #[test]
    fn property_structures_keep_everything_but_the_total() {
        for layout in [PropertiesLayout::R0000, PropertiesLayout::R0600] {
            let mut structure = vec![0xa5_u8; layout.size + 64];
            // SAFETY: the buffer is longer than the structure.
            unsafe {
                properties(
                    &Standing::Refusing,
                    layout,
                    structure.as_mut_ptr().cast(),
                    0,
                );
                properties(&Standing::Refusing, layout, core::ptr::null_mut(), 0);
            }
            assert!(structure.iter().all(|byte| *byte == 0xa5));
            assert!(layout.total_global_mem + 8 <= layout.size);
        }
    }
}
