//! Taking back an allocation that the runtime has granted and the account cannot.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use crate::entries::Api;
use crate::hip;
use crate::live::Sort;
use crate::request::Request;
use crate::runtime;

/// How to take an allocation back, and what stood where its results are.
#[derive(Clone, Copy)]
pub(crate) struct Undo {
    sort: Sort,
    stream: Option<*mut c_void>,
    outputs: [Option<Output>; MOST_OUTPUTS],
}

/// `hipPitchedPtr` has four: pointer, pitch, width and height.
const MOST_OUTPUTS: usize = 4;

/// A place where the runtime writes a result, and what was there before.
#[derive(Clone, Copy)]
struct Output {
    place: NonNull<usize>,
    before: usize,
}

impl Undo {
    /// To be made before the call.
    ///
    /// # Safety
    /// `out`, of as many words as the request says, and the pitch of the request, if it has one, can be read
    /// and written.
    pub(crate) unsafe fn new(sort: Sort, out: *mut usize, request: &Request) -> Self {
        let words = (0..request.result_words).map(|word| NonNull::new(out.wrapping_add(word)));
        let mut places = words.chain([request.pitch]).flatten();
        let outputs = [(); MOST_OUTPUTS].map(|()| {
            let place = places.next()?;
            // SAFETY: see above. They need not be aligned.
            let before = unsafe { place.read_unaligned() };
            Some(Output { place, before })
        });
        Self {
            sort,
            stream: request.stream,
            outputs,
        }
    }

    /// Frees what the runtime has granted under `name`, and puts the outputs back. False if the runtime does
    /// not take it; then nothing was done. A native call.
    ///
    /// # Safety
    /// The runtime has just granted it, in the call that this was made for, and the program does not know of
    /// it yet.
    pub(crate) unsafe fn run(&self, name: usize) -> bool {
        let api = match (self.sort, self.stream) {
            (Sort::Physical, _) => Api::hipMemRelease,
            (Sort::Object, _) => Api::hipFreeArray,
            (Sort::Memory, Some(_)) => Api::hipFreeAsync,
            (Sort::Memory, None) => Api::hipFree,
        };
        let Some(function) = runtime::of_this_call().and_then(|runtime| runtime.original(api))
        else {
            return false;
        };
        // SAFETY: the functions of these names have these signatures (see the table of hooks); the name is one
        // that they take.
        let error = unsafe {
            match self.stream {
                Some(stream) => {
                    let free: unsafe extern "C-unwind" fn(usize, *mut c_void) -> c_int =
                        core::mem::transmute(function);
                    free(name, stream)
                }
                None => {
                    let free: unsafe extern "C-unwind" fn(usize) -> c_int =
                        core::mem::transmute(function);
                    free(name)
                }
            }
        };
        if error != hip::SUCCESS {
            return false;
        }
        for output in self.outputs.into_iter().flatten() {
            // SAFETY: the runtime has just written there.
            unsafe { output.place.write_unaligned(output.before) };
        }
        true
    }
}
