//! GUM, of Frida.

use core::mem::ManuallyDrop;

use frida_gum::interceptor::Interceptor;
use frida_gum::{Gum as Library, NativePointer};

use super::{Engine, EngineKind};
use crate::Refusal;

/// GUM's interceptor, by its fast replacing: a plain jump, without GUM's own bookkeeping of calls.
///
/// It writes its jumps itself, all at once, and leaves the pages writable: the session puts that right.
pub(super) struct Gum {
    /// Never dropped: that would take its hooks away.
    interceptor: ManuallyDrop<Interceptor>,
}

impl Gum {
    pub(super) fn start() -> Self {
        let library: &'static Library = Box::leak(Box::new(Library::obtain()));
        let mut interceptor = Interceptor::obtain(library);
        interceptor.begin_transaction();
        Self {
            interceptor: ManuallyDrop::new(interceptor),
        }
    }
}

impl Engine for Gum {
    unsafe fn prepare(&mut self, jump: usize, thunk: usize) -> Result<usize, Refusal> {
        let pointer = |address: usize| NativePointer(address as *mut _);
        self.interceptor
            .replace_fast(pointer(jump), pointer(thunk))
            .map(|original| original.0 as usize)
            .map_err(|error| Refusal::Engine {
                engine: EngineKind::Gum,
                why: error.to_string(),
            })
    }

    fn writes(&self) -> bool {
        true
    }

    unsafe fn activate(&mut self) -> Result<(), Refusal> {
        self.interceptor.end_transaction();
        Ok(())
    }
}
