//! GUM, of Frida.

use core::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use frida_gum::interceptor::Interceptor;
use frida_gum::{Gum as Library, NativePointer};

use super::{Engine, EngineKind};
use crate::Refusal;

/// Makes trampolines by GUM's interceptor, and nothing else.
///
/// Its own writing is avoided: it leaves the pages writable, and the kernel places no uprobe in a writable page, and
/// does not say so. It writes when a transaction ends; so one is begun, and never ended. Calls then come by the
/// session's plain jump, as fast as by GUM's fast way of replacing. That one itself would want to overwrite 16
/// bytes, which many functions have not got before something that cannot be moved.
pub(super) struct Gum {
    /// Never dropped: with the last one GUM takes its trampolines away.
    interceptor: ManuallyDrop<Interceptor>,
}

impl Gum {
    pub(super) fn start() -> Result<Self, Refusal> {
        static TRANSACTION: Once = Once::new();
        if !has_writable_code() {
            let why = "it needs memory that is writable and executable at once";
            return Err(refusal(why.into()));
        }
        let begin = || {
            // There is one library, and one interceptor, for the whole process.
            let library: &'static Library = Box::leak(Box::new(Library::obtain()));
            let mut interceptor = Interceptor::obtain(library);
            TRANSACTION.call_once(|| interceptor.begin_transaction());
            ManuallyDrop::new(interceptor)
        };
        match catch_unwind(begin) {
            Ok(interceptor) => Ok(Self { interceptor }),
            Err(_) => Err(refusal("it panicked".into())),
        }
    }
}

impl Engine for Gum {
    unsafe fn prepare(&mut self, jump: usize, thunk: usize) -> Result<usize, Refusal> {
        let pointer = |address: usize| NativePointer(address as *mut _);
        let replace = || {
            self.interceptor
                .replace(pointer(jump), pointer(thunk), pointer(0))
        };
        let trampoline = match catch_unwind(AssertUnwindSafe(replace)) {
            Ok(Ok(original)) => original.0 as usize,
            Ok(Err(error)) => return Err(refusal(error.to_string())),
            Err(_) => return Err(refusal("it panicked".into())),
        };
        // It forgets the function, which could not be replaced a second time else, when the session is not
        // committed. What it made for it goes with the end of the transaction only: never.
        self.interceptor.revert(pointer(jump));
        Ok(trampoline)
    }
}

/// Whether memory can be writable and executable at once. GUM needs that, and ends the process where it cannot be had.
fn has_writable_code() -> bool {
    const PAGE: usize = 0x1000;
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where the kernel likes replaces nothing, and nobody knows of it.
    unsafe {
        let page = libc::mmap(core::ptr::null_mut(), PAGE, protection, flags, -1, 0);
        page != libc::MAP_FAILED && libc::munmap(page, PAGE) == 0
    }
}

fn refusal(why: String) -> Refusal {
    Refusal::Engine {
        engine: EngineKind::Gum,
        why,
    }
}
