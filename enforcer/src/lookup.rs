//! `dlsym` and `dlvsym`: programs that look HIP up by name get our entries; every other question is
//! answered as if we were not there.
//!
//! Both are naked functions that decide first and then *jump* to the real function, so that it sees
//! the true caller: `RTLD_NEXT` and `RTLD_DEFAULT` depend on it. What they jump to is the next `dlsym` in
//! the linker's order, which is another preload's if there is one behind us ([`crate::linker`]). They tell
//! unwinders where the stack stands at each instruction: a constructor that a look-up runs may throw.
//!
//! A hooked name is redirected only if the question would be answered without us, and by a HIP
//! runtime: a library of another kind that happens to export `hipMalloc` is left alone, and a name that
//! the runtime does not have stays unknown. (What an export cannot hide is itself: a *weak* reference of a
//! linked program to a function that its runtime does not have finds ours, which then answers
//! `hipErrorNotInitialized`.)

use core::ffi::{CStr, c_char, c_void};

use crate::elf;
use crate::entries::{Api, belt};
use crate::linker::{self, after_us, forget_error};
use crate::question::{Answer, Question};
use crate::runtime::{self, Owner};
use crate::signals::uncancelled;
use crate::smi;

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
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rdx, [rsp + 24]",
        "call {decide}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rdx, rdx",
        "jnz 2f",
        "ret",
        "2: jmp rdx",
        ".cfi_endproc",
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
        ".cfi_startproc",
        "endbr64",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "mov rcx, [rsp + 24]",
        "call {decide}",
        "test rdx, rdx",
        "jnz 2f",
        ".cfi_remember_state",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_restore_state",
        "2: mov rax, rdx",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        ".cfi_endproc",
        decide = sym decide_dlvsym,
    )
}

unsafe extern "C" fn decide_dlsym(
    handle: *mut c_void,
    name: *const c_char,
    caller: usize,
) -> Decision {
    let jump = linker::next_dlsym();
    // SAFETY: `name` is what the caller of dlsym passed.
    match unsafe { hooked(name) } {
        Some(hooked) if jump != 0 => {
            let question = hooked.question(handle, None, caller);
            decide(hooked, &question, jump)
        }
        _ => {
            runtime::look_around(is_handle(handle), caller);
            Decision { answer: 0, jump }
        }
    }
}

/// Whether a library is asked, and not the order in which the linker searches.
fn is_handle(handle: *mut c_void) -> bool {
    handle != libc::RTLD_DEFAULT && handle != libc::RTLD_NEXT
}

unsafe extern "C" fn decide_dlvsym(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
    caller: usize,
) -> Decision {
    let jump = linker::next_dlvsym();
    // SAFETY: `name` is what the caller of dlvsym passed.
    match unsafe { hooked(name) } {
        Some(hooked) if jump != 0 && !version.is_null() => {
            // SAFETY: the version is what the caller of dlvsym passed, and not null.
            let version = Some(unsafe { CStr::from_ptr(version) });
            let question = hooked.question(handle, version, caller);
            decide(hooked, &question, jump)
        }
        _ => {
            runtime::look_around(is_handle(handle), caller);
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
    let is = |wanted| unsafe { elf::is(name, wanted) };
    let ours = if is(b"dlsym") {
        dlsym as *const () as usize
    } else if is(b"dlvsym") {
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

/// A function that a program looks up.
#[derive(Clone, Copy)]
enum Hooked {
    /// One of the HIP runtime.
    Hip(Api),
    /// One of the libraries that show GPUs to administrators.
    Smi(smi::Api),
}

impl Hooked {
    fn question<'a>(
        self,
        handle: *mut c_void,
        version: Option<&'a CStr>,
        caller: usize,
    ) -> Question<'a> {
        let (name, export) = match self {
            Self::Hip(api) => (api.name(), api.entry()),
            Self::Smi(api) => (api.name(), api.export()),
        };
        Question {
            handle,
            name,
            version,
            caller,
            export,
        }
    }
}

/// The API of this name. Programs look up a great many names that are none; for those nothing is called
/// that others interpose ([`elf::libc_symbol`]).
///
/// # Safety
/// `name` is null or a C string.
unsafe fn hooked(name: *const c_char) -> Option<Hooked> {
    if name.is_null() {
        return None;
    }
    // SAFETY: `name` is a C string; byte n + 1 is read only if byte n is not its end.
    unsafe {
        let starts = |at: usize, c: u8| *name.add(at) as u8 == c;
        if starts(0, b'h') && starts(1, b'i') && starts(2, b'p') {
            let mut all = Api::ALL.iter().copied();
            return all
                .find(|api| elf::is(name, api.name().to_bytes()))
                .map(Hooked::Hip);
        }
        if starts(0, b'r') || starts(0, b'a') {
            let mut all = smi::Api::ALL.iter().copied();
            return all
                .find(|api| elf::is(name, api.name().to_bytes()))
                .map(Hooked::Smi);
        }
        None
    }
}

fn decide(hooked: Hooked, question: &Question<'_>, jump: usize) -> Decision {
    uncancelled(|| belt(|| decide_hooked(hooked, question, jump)))
        .unwrap_or(Decision { answer: 0, jump })
}

fn decide_hooked(hooked: Hooked, question: &Question<'_>, jump: usize) -> Decision {
    if linker::another_copy_counts() {
        // As any name that is none of ours.
        return Decision { answer: 0, jump };
    }
    let address = match question.answer_without_us() {
        // The real function answers "undefined symbol", with the error that the program expects.
        Answer::Nothing => return Decision { answer: 0, jump },
        // As above, but asking with the caller's arguments would find our export.
        Answer::OnlyUs => {
            after_us(question.name, question.version);
            return Decision { answer: 0, jump: 0 };
        }
        Answer::Ours => {
            return Decision {
                answer: question.export,
                jump: 0,
            };
        }
        Answer::Function(address) => address,
    };
    let entry = match hooked {
        Hooked::Hip(api) => match runtime::owner(address) {
            Owner::Runtime(runtime) => runtime.answer(api).or(Some(question.export)),
            Owner::Nobody => Some(question.export),
            Owner::OneTooMany => {
                runtime::say_one_too_many(api);
                None
            }
            Owner::Unrelated => None,
        },
        Hooked::Smi(api) => smi::entry_before(api, address),
    };
    match entry {
        Some(answer) => {
            forget_error();
            Decision { answer, jump: 0 }
        }
        None => Decision { answer: 0, jump },
    }
}
