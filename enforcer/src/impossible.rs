//! The error for a refused allocation, from the runtime itself: it is asked for more than can exist.
//!
//! So `hipGetLastError` knows of it in the way of the runtime at hand (how long an error is remembered differs
//! between releases), and on a machine where nothing
//! can be allocated anyway the program gets the runtime's own reason. Runtimes check this
//! before they touch the device.
//!
//! The function that was called is not asked itself: with a size like this some crash (hipMallocAsync in 5.2.3), some
//! succeed with a null pointer (hipMallocFromPoolAsync in 5.x), and some have another error for it
//! (arrays).

use core::ffi::{c_int, c_ulonglong, c_void};
use core::ptr;

use crate::entries::Api;
use crate::helpers;
use crate::hip::{self, AllocationProperties};
use crate::runtime;
use crate::signals::uncancelled;

/// The error of a call of `api` that is refused. A native call.
pub(crate) fn error(api: Api) -> c_int {
    uncancelled(|| match api {
        // While a stream is recorded, these may be called and hipMalloc must not: it would spoil the recording.
        Api::hipMallocAsync
        | Api::hipMallocFromPoolAsync
        | Api::hipMallocManaged
        | Api::hipMemCreate => physical().unwrap_or_else(linear),
        _ => linear(),
    })
}

/// From `hipMalloc`.
fn linear() -> c_int {
    let function = |api| runtime::of_this_call()?.original(api);
    let (Some(malloc), Some(free)) = (function(Api::hipMalloc), function(Api::hipFree)) else {
        return hip::ERROR_OUT_OF_MEMORY;
    };
    let mut nothing: *mut c_void = ptr::null_mut();
    // SAFETY: the addresses are the runtime's hipMalloc and hipFree; `nothing` outlives the calls.
    unsafe {
        let malloc: unsafe extern "C-unwind" fn(*mut *mut c_void, usize) -> c_int =
            core::mem::transmute(malloc);
        let error = malloc(&raw mut nothing, hip::IMPOSSIBLE_SIZE);
        match error {
            hip::SUCCESS => {
                let free: unsafe extern "C-unwind" fn(*mut c_void) -> c_int =
                    core::mem::transmute(free);
                free(nothing);
                hip::ERROR_OUT_OF_MEMORY
            }
            // Not an answer to a request that is merely too large.
            hip::ERROR_INVALID_VALUE => hip::ERROR_OUT_OF_MEMORY,
            error => error,
        }
    }
}

/// `hipMemAllocationProp`, with room for what newer releases add.
#[repr(C)]
struct Properties {
    known: AllocationProperties,
    rest: [u64; 14],
}

/// From `hipMemCreate`; `None` where it does not answer that there is too little memory.
fn physical() -> Option<c_int> {
    /// `hipMemAllocationTypePinned`, the only one there is.
    const PINNED: c_int = 1;
    let create = runtime::of_this_call()?.original(Api::hipMemCreate)?;
    let properties = Properties {
        known: AllocationProperties {
            allocation_type: PINNED,
            handle_types: 0,
            location_type: hip::LOCATION_DEVICE,
            location_id: helpers::current_device().ok()?,
        },
        rest: [0; 14],
    };
    let mut nothing: *mut c_void = ptr::null_mut();
    // SAFETY: the address is the runtime's hipMemCreate; result and properties outlive the call.
    let error = unsafe {
        let create: unsafe extern "C-unwind" fn(
            *mut *mut c_void,
            usize,
            *const Properties,
            c_ulonglong,
        ) -> c_int = core::mem::transmute(create);
        create(
            &raw mut nothing,
            hip::IMPOSSIBLE_SIZE,
            &raw const properties,
            0,
        )
    };
    (error == hip::ERROR_OUT_OF_MEMORY).then_some(error)
}
