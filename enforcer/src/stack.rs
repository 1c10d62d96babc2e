//! Looks for a frame of ours on the stack of the calling thread, with the unwinder that is linked into this
//! library. It reads the tables that every compiler writes for exceptions and profilers, and calls nothing
//! of the program.
//!
//! Functions: the unwinding part of the Itanium C++ ABI, `unwind.h`.

use core::ffi::{c_int, c_void};
use core::ptr;

use crate::elf;
use crate::runtime;

/// `struct _Unwind_Context`, known to the unwinder only.
#[repr(C)]
struct Context {
    _private: [u8; 0],
}

/// `_URC_NO_REASON`: go on.
const GO_ON: c_int = 0;
/// Any other answer ends the walk.
const STOP: c_int = 4;

unsafe extern "C" {
    fn _Unwind_Backtrace(
        step: unsafe extern "C" fn(*mut Context, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(context: *mut Context) -> usize;
    fn _Unwind_GetCFA(context: *mut Context) -> usize;
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It is on the stack, behind a function that is not ours.
    Alive,
    /// The stack was walked to its end, and it is not there.
    Gone,
    /// Not seen, but the walk met code without tables before the end; and who called us is not the HIP
    /// runtime.
    Unknown,
}

/// Looks for the frame of ours that holds the address `frame`. The innermost frames, those of the call that
/// asks, do not count: they may cover the place where a lost one was.
#[cold]
#[inline(never)]
pub(crate) fn find(frame: usize) -> Found {
    let us = find as *const () as usize;
    let Some(us) = elf::find_object(|object| object.contains(us).then(|| object.extent())) else {
        return Found::Alive;
    };
    let mut walk = Walk {
        frame,
        us,
        inner: None,
        caller: 0,
        alive: false,
        complete: false,
    };
    // SAFETY: `step` gets a pointer to `walk` back, which outlives the call.
    unsafe { _Unwind_Backtrace(step, (&raw mut walk).cast()) };
    match walk {
        Walk { alive: true, .. } => Found::Alive,
        Walk { complete: true, .. } => Found::Gone,
        Walk { caller, .. } if runtime::contains(caller) => Found::Alive,
        _ => Found::Unknown,
    }
}

struct Walk {
    frame: usize,
    /// Where this library is loaded: first address, and first one behind.
    us: (usize, usize),
    /// The frame before, seen from outside: whether it is one of ours that counts, and its lowest address.
    inner: Option<(bool, usize)>,
    /// The first address outside of this library; 0 before it was seen.
    caller: usize,
    alive: bool,
    complete: bool,
}

impl Walk {
    fn step(&mut self, address: usize, lowest: usize) -> c_int {
        // A frame ends where its caller's begins.
        if let Some((true, start)) = self.inner
            && (start..lowest).contains(&self.frame)
        {
            self.alive = true;
            return STOP;
        }
        if address == 0 {
            // The outermost function of a thread is marked so.
            self.complete = true;
            return STOP;
        }
        let ours = (self.us.0..self.us.1).contains(&address);
        if !ours && self.caller == 0 {
            self.caller = address;
        }
        self.inner = Some((ours && self.caller != 0, lowest));
        GO_ON
    }
}

unsafe extern "C" fn step(context: *mut Context, data: *mut c_void) -> c_int {
    // SAFETY: the unwinder passes a valid context, and `data` is the walk of `find`.
    unsafe {
        let (address, lowest) = (_Unwind_GetIP(context), _Unwind_GetCFA(context));
        ptr::NonNull::new(data.cast::<Walk>())
            .map_or(STOP, |mut walk| walk.as_mut().step(address, lowest))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::cell::Cell;

    /// Calls `step` from a function of libc.
    pub(crate) fn from_outside(step: &mut dyn FnMut()) {
        extern "C" fn compare(_: *const c_void, _: *const c_void, step: *mut c_void) -> c_int {
            // SAFETY: qsort_r hands on the pointer that it got below.
            unsafe { (*step.cast::<&mut dyn FnMut()>())() };
            0
        }
        unsafe extern "C" {
            fn qsort_r(
                base: *mut c_void,
                number: usize,
                size: usize,
                compare: extern "C" fn(*const c_void, *const c_void, *mut c_void) -> c_int,
                data: *mut c_void,
            );
        }
        let mut step: &mut dyn FnMut() = step;
        let mut two = [0_u8; 2];
        // SAFETY: two elements of a byte each; `step` outlives the call.
        unsafe {
            qsort_r(
                two.as_mut_ptr().cast(),
                2,
                1,
                compare,
                (&raw mut step).cast(),
            );
        };
    }

    #[test]
    fn a_frame_is_found_as_long_as_it_is_there() {
        #[inline(never)]
        fn outer(look: &dyn Fn(usize) -> Found) -> (usize, Found) {
            let mark = Cell::new(0_u8);
            let address = mark.as_ptr() as usize;
            let mut found = Found::Unknown;
            from_outside(&mut || found = look(address));
            (address, found)
        }
        let (address, found) = outer(&find);
        assert_eq!(found, Found::Alive);
        assert_eq!(
            outer(&|_| find(address.wrapping_sub(1 << 20))).1,
            Found::Gone
        );
        assert_eq!(find(address), Found::Gone);
    }

    #[test]
    fn the_frames_of_the_one_who_asks_do_not_count() {
        let mark = Cell::new(0_u8);
        assert_eq!(find(mark.as_ptr() as usize), Found::Gone);
    }
}
