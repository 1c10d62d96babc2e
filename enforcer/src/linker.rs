//! The dynamic linker's real look-up functions: libc's own, for our questions, and the next ones behind our
//! overrides, for everybody else's.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::elf;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// libc's own functions, for our questions.
static LIBC_DLSYM: AtomicUsize = AtomicUsize::new(0);
static LIBC_DLVSYM: AtomicUsize = AtomicUsize::new(0);
/// What the overrides jump to: the next definition behind us.
static NEXT_DLSYM: AtomicUsize = AtomicUsize::new(0);
static NEXT_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// The handle of the program itself.
pub(crate) fn program() -> *mut c_void {
    // SAFETY: a null name asks for the program, which is always loaded.
    unsafe { libc::dlopen(core::ptr::null(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) }
}

/// The address of `name` behind this library in the linker's order, where a linked program would
/// reach if we were not there.
pub(crate) fn after_us(name: &CStr, version: Option<&CStr>) -> Option<usize> {
    match find(libc::RTLD_NEXT, name, version) {
        0 => None,
        address => Some(address),
    }
}

/// The address of `name` by a handle (and in a version), 0 if there is none. The caller that libc sees is
/// this library.
pub(crate) fn find(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> usize {
    let function = loaded(if version.is_some() {
        &LIBC_DLVSYM
    } else {
        &LIBC_DLSYM
    });
    if function == 0 {
        return 0;
    }
    // SAFETY: the address is that of libc's dlsym or dlvsym; the handle comes from the program or from
    // dlopen, the strings are C strings.
    let address = unsafe {
        match version {
            None => transmute::<usize, Dlsym>(function)(handle, name.as_ptr()),
            Some(version) => {
                transmute::<usize, Dlvsym>(function)(handle, name.as_ptr(), version.as_ptr())
            }
        }
    };
    address as usize
}

/// The address of `name` in the scope of the library that `caller` lies in, beyond the global one: a library that was
/// loaded with RTLD_LOCAL sees its own dependencies too. `None` if there is none, or that is the program.
pub(crate) fn in_scope_of(caller: usize, name: &CStr, version: Option<&CStr>) -> Option<usize> {
    let path =
        elf::find_object(|object| object.contains(caller).then(|| object.path().to_owned()))?;
    if path.is_empty() {
        return None;
    }
    // SAFETY: a C string; with RTLD_NOLOAD nothing is loaded, only counted once more. The count
    // is given back below.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if handle.is_null() {
        return None;
    }
    let found = find(handle, name, version);
    // SAFETY: the handle was opened above, and the caller's library stays loaded while it calls.
    unsafe { libc::dlclose(handle) };
    (found != 0).then_some(found)
}

/// Whether another copy of this library comes before this one: an image may preload one, and `hipflex run`
/// another. Then that one counts, and this one does nothing.
pub(crate) fn another_copy_counts() -> bool {
    if ANOTHER_COPY.load(Ordering::Relaxed) != UNKNOWN {
        return another_copy_was_found();
    }
    // RTLD_DEFAULT would begin with this library, which is linked with -Bsymbolic.
    let first = find(program(), c"hipflex_version", None);
    forget_error();
    let ours = &raw const crate::EXPORTED_VERSION as usize;
    let another = first != 0 && first != ours;
    ANOTHER_COPY.store(if another { YES } else { NO }, Ordering::Relaxed);
    another
}

/// What [`another_copy_counts`] found, which is asked before the first HIP call goes on. The linker is not
/// called: another thread may have its lock, and wait for this one.
pub(crate) fn another_copy_was_found() -> bool {
    ANOTHER_COPY.load(Ordering::Relaxed) == YES
}

static ANOTHER_COPY: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const NO: u8 = 1;
const YES: u8 = 2;

/// The text of the last error of the dynamic linker in this thread.
pub(crate) fn last_error() -> String {
    // SAFETY: dlerror answers null or a C string that stays valid until the next call in this thread.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            String::from("no reason given")
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// Clears the error that a look-up of ours left behind: programs take a pending one for theirs.
pub(crate) fn forget_error() {
    // SAFETY: as in `last_error`; the text is not used.
    unsafe { libc::dlerror() };
}

/// What the override of `dlsym` goes on to; 0 if this process has none, which cannot be.
pub(crate) fn next_dlsym() -> usize {
    loaded(&NEXT_DLSYM)
}

/// As [`next_dlsym`], for `dlvsym`.
pub(crate) fn next_dlvsym() -> usize {
    loaded(&NEXT_DLVSYM)
}

/// The function in `slot`, found at the first use.
fn loaded(slot: &AtomicUsize) -> usize {
    match slot.load(Ordering::Acquire) {
        0 => {
            find_real_functions();
            slot.load(Ordering::Acquire)
        }
        address => address,
    }
}

#[cold]
fn find_real_functions() {
    let Some(dlsym) = elf::libc_symbol(c"dlsym") else {
        return;
    };
    // SAFETY: the address is that of libc's dlsym. Its caller is this library, so RTLD_NEXT means
    // "behind us". Neither name is unknown, so no error is recorded and nothing allocated.
    let next = |name: &CStr, real: usize| unsafe {
        match transmute::<usize, Dlsym>(dlsym)(libc::RTLD_NEXT, name.as_ptr()) as usize {
            0 => real,
            next => next,
        }
    };
    if let Some(dlvsym) = elf::libc_symbol(c"dlvsym") {
        LIBC_DLVSYM.store(dlvsym, Ordering::Release);
        NEXT_DLVSYM.store(next(c"dlvsym", dlvsym), Ordering::Release);
    }
    LIBC_DLSYM.store(dlsym, Ordering::Release);
    NEXT_DLSYM.store(next(c"dlsym", dlsym), Ordering::Release);
}
