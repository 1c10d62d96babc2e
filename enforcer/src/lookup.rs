//! `dlsym` and `dlvsym`: programs that look HIP up by name get our entries; every other question is
//! answered as if we were not there.
//!
//! Both are naked functions that decide first and then *jump* to the real function, so that it sees
//! the true caller: `RTLD_NEXT` and `RTLD_DEFAULT` depend on it. What they jump to is the next `dlsym` in
//! the linker's order, which is another preload's if there is one behind us. Our own questions go to
//! libc's, found without asking anybody ([`crate::elf`]).
//!
//! A hooked name is redirected only if the question would be answered without us, and by a HIP
//! runtime: a library of another kind that happens to export `hipMalloc` is left alone, and a name that
//! the runtime does not have stays unknown.

use core::ffi::{CStr, c_char, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::elf;
use crate::entries::{Api, belt};
use crate::runtime::{self, Owner};
use crate::stderr::say;

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// libc's own functions, for our questions.
static LIBC_DLSYM: AtomicUsize = AtomicUsize::new(0);
static LIBC_DLVSYM: AtomicUsize = AtomicUsize::new(0);
/// What the overrides jump to: the next definition behind us.
static NEXT_DLSYM: AtomicUsize = AtomicUsize::new(0);
static NEXT_DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// What an override does: if `jump` is not 0 it goes on there with its arguments untouched, else it
/// returns `answer`. (Two words: returned in rax and rdx.)
#[repr(C)]
struct Decision {
    answer: usize,
    jump: usize,
}

/// `void *dlsym(void *handle, const char *name)`
///
/// # Safety
/// As for libc's `dlsym`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "a test executable keeps libc's own"))]
#[unsafe(naked)]
unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // At entry rsp is 8 below a multiple of 16; two pushes and 8 bytes make it a multiple again.
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "mov rdx, [rsp + 24]",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rdx, rdx",
        "jnz 2f",
        "ret",
        "2: jmp rdx",
        decide = sym decide_dlsym,
    )
}

/// `void *dlvsym(void *handle, const char *name, const char *version)`
///
/// # Safety
/// As for libc's `dlvsym`.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "a test executable keeps libc's own"))]
#[unsafe(naked)]
unsafe extern "C" fn dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    // Three pushes make rsp a multiple of 16. The target of the jump goes to rax, since rdx is an argument.
    core::arch::naked_asm!(
        "endbr64",
        "push rdi",
        "push rsi",
        "push rdx",
        "mov rcx, [rsp + 24]",
        "call {decide}",
        "test rdx, rdx",
        "jnz 2f",
        "add rsp, 24",
        "ret",
        "2: mov rax, rdx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jmp rax",
        decide = sym decide_dlvsym,
    )
}

unsafe extern "C" fn decide_dlsym(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> Decision {
    let jump = loaded(&NEXT_DLSYM);
    // SAFETY: `name` is what the caller of dlsym passed.
    match unsafe { hooked(name) } {
        Some(api) if jump != 0 => decide(
            &Question {
                handle,
                api,
                version: None,
                caller,
            },
            jump,
        ),
        _ => Decision { answer: 0, jump },
    }
}

unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Decision {
    let jump = loaded(&NEXT_DLVSYM);
    // SAFETY: `name` is what the caller of dlvsym passed.
    match unsafe { hooked(name) } {
        Some(api) if jump != 0 && !version.is_null() => {
            // SAFETY: the version is what the caller of dlvsym passed, and not null.
            let version = Some(unsafe { CStr::from_ptr(version) });
            decide(
                &Question {
                    handle,
                    api,
                    version,
                    caller,
                },
                jump,
            )
        }
        _ => {
            // SAFETY: as above.
            let ours = unsafe { next_override(handle, name, caller) };
            Decision {
                answer: ours.unwrap_or(0),
                jump: if ours.is_some() { 0 } else { jump },
            }
        }
    }
}

/// Our `dlsym` or `dlvsym`, for a library before us that overrides them too and asks for the next one by
/// version, as is usual (`dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5")`). Our exports have no version, so the
/// linker would pass them by, and with us all look-ups of the program. A library behind us must not
/// get ours: we go on to its.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn next_override(handle: *mut c_void, name: *const c_char, caller: usize) -> Option<usize> {
    if handle != libc::RTLD_NEXT || name.is_null() {
        return None;
    }
    // SAFETY: see above.
    let name = unsafe { CStr::from_ptr(name) };
    let ours = if name == c"dlsym" {
        dlsym as *const () as usize
    } else if name == c"dlvsym" {
        dlvsym as *const () as usize
    } else {
        return None;
    };
    // Load order is the order in which the linker searches.
    let first = elf::find_object(|object| {
        let (us, them) = (object.contains(ours), object.contains(caller));
        (us || them).then_some(them && !us)
    });
    (first == Some(true)).then_some(ours)
}

/// The API of this name. Programs look up a great many names that are none.
///
/// # Safety
/// `name` is null or a C string.
unsafe fn hooked(name: *const c_char) -> Option<Api> {
    if name.is_null() {
        return None;
    }
    // SAFETY: `name` is a C string; byte n + 1 is read only if byte n is not its end.
    unsafe {
        let starts = |at: usize, c: u8| *name.add(at) as u8 == c;
        if !(starts(0, b'h') && starts(1, b'i') && starts(2, b'p')) {
            return None;
        }
        let name = CStr::from_ptr(name);
        Api::ALL.iter().copied().find(|api| api.name() == name)
    }
}

/// A look-up of a hooked name.
struct Question<'a> {
    handle: *mut c_void,
    api: Api,
    version: Option<&'a CStr>,
    /// Return address of the look-up.
    caller: usize,
}

fn decide(question: &Question<'_>, jump: usize) -> Decision {
    belt(|| decide_hooked(question, jump)).unwrap_or(Decision { answer: 0, jump })
}

fn decide_hooked(question: &Question<'_>, jump: usize) -> Decision {
    let entry = question.api.entry();
    let without_us = question.answer_without_us(entry);
    match without_us {
        // The real function answers "undefined symbol", with the error that the program expects.
        Answer::Nothing => Decision { answer: 0, jump },
        // As above, but asking with the caller's arguments would find our export.
        Answer::OnlyUs => {
            after_us(question.api.name(), question.version);
            Decision { answer: 0, jump: 0 }
        }
        Answer::Function(address) => match runtime::owner(address) {
            Owner::Chosen => {
                forget_error();
                Decision {
                    answer: entry,
                    jump: 0,
                }
            }
            Owner::OtherRuntime => {
                say_second_runtime(question.api);
                Decision { answer: 0, jump }
            }
            Owner::Unrelated => Decision { answer: 0, jump },
        },
        Answer::Ours => Decision {
            answer: entry,
            jump: 0,
        },
    }
}

/// How the linker answers a question when our export is not counted.
enum Answer {
    /// With this function, which is not ours.
    Function(usize),
    /// With an error.
    Nothing,
    /// With an error, but as things are it would answer with our export.
    OnlyUs,
    /// The program asked for our export, by a handle of this library.
    Ours,
}

impl Question<'_> {
    fn answer_without_us(&self, entry: usize) -> Answer {
        let name = self.api.name();
        let behind_us = || match after_us(name, self.version) {
            Some(address) => Answer::Function(address),
            None => Answer::OnlyUs,
        };
        if self.handle == libc::RTLD_NEXT {
            return behind_us();
        }
        let answer = find(self.handle, name, self.version);
        if self.handle == libc::RTLD_DEFAULT {
            // Our own scope was searched, which is the global one. The caller's may go further.
            return match answer {
                0 => self.in_scope_of_caller(Answer::Nothing),
                found if found != entry => Answer::Function(found),
                _ => match behind_us() {
                    Answer::OnlyUs => self.in_scope_of_caller(Answer::OnlyUs),
                    found => found,
                },
            };
        }
        match answer {
            0 => Answer::Nothing,
            found if found != entry => Answer::Function(found),
            // The handle is either the program's (`dlopen(NULL)`), which stands for the global scope, or our own.
            _ if self.handle == program() => behind_us(),
            _ => Answer::Ours,
        }
    }

    /// A library that was loaded with RTLD_LOCAL sees, with RTLD_DEFAULT, its own dependencies too.
    fn in_scope_of_caller(&self, otherwise: Answer) -> Answer {
        let path = elf::find_object(|object| {
            object
                .contains(self.caller)
                .then(|| object.path().to_owned())
        });
        let Some(path) = path.filter(|path| !path.is_empty()) else {
            return otherwise;
        };
        // SAFETY: a C string; with RTLD_NOLOAD nothing is loaded, only counted once more. The count
        // is given back below.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
        if handle.is_null() {
            return otherwise;
        }
        let found = find(handle, self.api.name(), self.version);
        // SAFETY: the handle was opened above, and the caller's library stays loaded while it calls.
        unsafe { libc::dlclose(handle) };
        match found {
            0 => otherwise,
            found => Answer::Function(found),
        }
    }
}

/// The handle of the program itself.
fn program() -> *mut c_void {
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

/// The address of `name` by a handle, 0 if there is none.
pub(crate) fn in_handle(handle: *mut c_void, name: &CStr) -> usize {
    find(handle, name, None)
}

/// Asks libc. The caller that it sees is this library.
fn find(handle: *mut c_void, name: &CStr, version: Option<&CStr>) -> usize {
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
    // One library since glibc 2.34, two before.
    let in_libc = |name| {
        elf::symbol_in(b"libc.so.6", name)
            .or_else(|| elf::symbol_in(b"libdl.so.2", name))
            .unwrap_or(0)
    };
    let (dlsym, dlvsym) = (in_libc(c"dlsym"), in_libc(c"dlvsym"));
    LIBC_DLVSYM.store(dlvsym, Ordering::Release);
    LIBC_DLSYM.store(dlsym, Ordering::Release);
    if dlsym == 0 {
        return;
    }
    // SAFETY: the address is that of libc's dlsym. Its caller is this library, so RTLD_NEXT means
    // "behind us".
    let next = |name: &CStr| unsafe {
        transmute::<usize, Dlsym>(dlsym)(libc::RTLD_NEXT, name.as_ptr()) as usize
    };
    for (slot, name, real) in [
        (&NEXT_DLVSYM, c"dlvsym", dlvsym),
        (&NEXT_DLSYM, c"dlsym", dlsym),
    ] {
        let next = next(name);
        slot.store(if next == 0 { real } else { next }, Ordering::Release);
    }
}

fn say_second_runtime(api: Api) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say!(
            "this process looks up {:?} in a second HIP runtime than the one in use; what it allocates \
             through that is not counted. Name the one to use in FH_HIP_LIB_PATH",
            api.name()
        );
    }
}
