//! GUM, of Frida.

use core::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use frida_gum::interceptor::Interceptor;
use frida_gum::{Gum as Library, NativePointer};

use super::{Engine, EngineKind};
use crate::Refusal;
use crate::maps::Maps;

/// Makes trampolines by GUM's interceptor, and nothing else.
///
/// Its own writing is avoided: it leaves the pages writable, and the kernel places no uprobe in a writable page, and
/// does not say so. It writes when a transaction ends; so one is begun, and never ended. The fast way of replacing
/// is a plain jump, without GUM's own bookkeeping of calls.
pub(super) struct Gum {
    /// Never dropped: with the last one GUM takes its trampolines away.
    interceptor: ManuallyDrop<Interceptor>,
}

impl Gum {
    pub(super) fn start() -> Result<Self, Refusal> {
        static TRANSACTION: Once = Once::new();
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
        let replace = || self.interceptor.replace_fast(pointer(jump), pointer(thunk));
        let trampoline = match catch_unwind(AssertUnwindSafe(replace)) {
            Ok(Ok(original)) => original.0 as usize,
            Ok(Err(error)) => return Err(refusal(error.to_string())),
            Err(_) => return Err(refusal("it panicked".into())),
        };
        // Where memory cannot be writable and executable, trampolines become executable with the end of the
        // transaction only.
        let executable = Maps::read()?.at(trampoline).is_some_and(|m| m.executable);
        if executable {
            Ok(trampoline)
        } else {
            Err(refusal("its code is not executable".into()))
        }
    }
}

fn refusal(why: String) -> Refusal {
    Refusal::Engine {
        engine: EngineKind::Gum,
        why,
    }
}
