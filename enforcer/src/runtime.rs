//! The HIP runtime behind the hooks: which one it is, and where its functions are.
//!
//! In this order: the one that `FH_HIP_LIB_PATH` names, the one that the process has loaded, or one
//! that the dynamic linker finds under the usual names. Once chosen it stays for the life of the
//! process, and it is pinned: a `dlclose` by the program must not leave us with dangling addresses.
//!
//! A library behind us in the linker's order may wrap HIP functions too, and find the runtime's with
//! `RTLD_NEXT`, as it would without us. An outer call goes to it then, and by it to the runtime.
//!
//! No lock is held here. Choosing calls the dynamic linker, whose own lock another thread may hold while it
//! runs a constructor that waits for us. Threads that choose at the same time choose the same.

use core::ffi::{CStr, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

use crate::elf;
use crate::entries::{Api, belt, quieten_panics};
use crate::environment;
use crate::guard;
use crate::helpers::Helper;
use crate::linker;
use crate::signals::uncancelled;
use crate::stderr::say;

/// What every HIP runtime's file or SONAME starts with, bundled and renamed copies included
/// (`libamdhip64.so.6`, `libamdhip64-1f3a.so`).
const RUNTIME_NAME: &[u8] = b"libamdhip64";

/// Where a runtime is looked for when the process has none: the unversioned name first, as a linker
/// script or `ldconfig` may have set it, then the known ABI versions, newest first.
const USUAL_NAMES: [&CStr; 4] = [
    c"libamdhip64.so",
    c"libamdhip64.so.7",
    c"libamdhip64.so.6",
    c"libamdhip64.so.5",
];

/// The runtime in use. Published as a whole, when all its slots are filled.
struct Runtime {
    /// Where it is loaded.
    base: usize,
    /// For each API the functions that a hook calls.
    native: [Functions; Api::COUNT],
    /// The functions that the hooks call on their own behalf.
    helper: [usize; Helper::COUNT],
}

/// The functions behind one of our entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Functions {
    /// What an outer call goes to: a wrapper behind us, if there is one, or the runtime's own.
    pub(crate) first: usize,
    /// The runtime's own, for calls inside of calls; 0 if it has none of that name.
    pub(crate) own: usize,
}

/// Null until the first HIP call or look-up of a hooked name; set once, never freed.
static RUNTIME: AtomicPtr<Runtime> = AtomicPtr::new(ptr::null_mut());

#[inline]
fn chosen() -> Option<&'static Runtime> {
    // SAFETY: null or a leaked box that nobody mutates.
    unsafe { RUNTIME.load(Ordering::Acquire).as_ref() }
}

/// The address of a function that hooks call on their own behalf, if the chosen runtime has it.
#[inline]
pub(crate) fn helper(helper: Helper) -> Option<usize> {
    let address = *chosen()?.helper.get(helper as usize)?;
    (address != 0).then_some(address)
}

/// What a call of an API has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Native {
    /// The runtime's function.
    Runtime(Functions),
    /// A function of the same name in a library that is no HIP runtime, in a process that has none.
    /// It is called as if we were not there, and not counted: its memory is not a GPU's.
    Foreign(usize),
    /// Nothing; a line on stderr has said so.
    Missing,
}

/// The function behind `api`. The first call chooses the runtime.
#[inline]
pub(crate) fn native(api: Api) -> Native {
    match known(api) {
        Some(functions) => Native::Runtime(functions),
        None => {
            uncancelled(|| guard::setting_up(|| belt(|| choose(api)))).unwrap_or(Native::Missing)
        }
    }
}

/// The runtime's function, if a runtime was chosen and has it.
#[inline]
fn known(api: Api) -> Option<Functions> {
    let functions = *chosen()?.native.get(api as usize)?;
    (functions.own != 0).then_some(functions)
}

/// Whether `address` lies in the chosen runtime.
pub(crate) fn contains(address: usize) -> bool {
    let base = elf::find_object(|object| object.contains(address).then(|| object.base()));
    chosen().is_some_and(|runtime| base == Some(runtime.base))
}

/// Whether `address` lies in a HIP runtime, and whether that is the one behind the hooks.
pub(crate) enum Owner {
    /// In the chosen runtime. If none was chosen yet, this one is now.
    Chosen,
    /// In another copy of the runtime than the chosen one.
    OtherRuntime,
    /// Elsewhere.
    Unrelated,
}

/// Finds out whose function `address` is.
pub(crate) fn owner(address: usize) -> Owner {
    quieten_panics();
    let found = elf::find_object(|object| {
        object.contains(address).then(|| {
            let path = is_runtime(object).then(|| object.path().to_owned());
            (object.base(), path)
        })
    });
    let Some((base, path)) = found else {
        return Owner::Unrelated;
    };
    match (path, chosen()) {
        (_, Some(chosen)) if chosen.base == base => Owner::Chosen,
        (None, _) => Owner::Unrelated,
        (Some(_), Some(_)) => Owner::OtherRuntime,
        (Some(path), None) => {
            // FH_HIP_LIB_PATH outranks what the program happens to look up.
            let handle = match named_by_user() {
                // Then there is no runtime, as was said, and not one that nobody counts.
                Some(named) if open_named(&named).is_none() => return Owner::Chosen,
                Some(named) => open_named(&named),
                None => pin(&path),
            };
            match handle {
                Some(handle) if adopt(handle) == Some(base) => Owner::Chosen,
                _ => Owner::OtherRuntime,
            }
        }
    }
}

#[cold]
fn choose(api: Api) -> Native {
    quieten_panics();
    // Another thread may have chosen since `native` looked.
    if chosen().is_none() {
        let handle = match named_by_user() {
            Some(path) => open_named(&path),
            None => {
                let loaded = loaded_runtime(api);
                if loaded.is_none()
                    && let Some(address) = linker::after_us(api.name(), None)
                {
                    return Native::Foreign(address);
                }
                loaded.and_then(|path| pin(&path)).or_else(open_usual)
            }
        };
        if handle.is_none() {
            return Native::Missing;
        }
        handle.and_then(adopt);
    }
    match known(api) {
        None => {
            say_missing_function(api);
            Native::Missing
        }
        Some(functions) => Native::Runtime(functions),
    }
}

/// Makes the runtime of this handle the one behind the hooks, unless another thread was first, and
/// answers where the chosen one is loaded. `None`: the library has not a single HIP function.
fn adopt(handle: Handle) -> Option<usize> {
    // Found out here, where the linker may be called.
    linker::another_copy_counts();
    let find = |name: &CStr| linker::find(handle.0, name, None);
    let own = Api::ALL.map(|api| find(api.name()));
    let helper = Helper::ALL.map(|helper| find(helper.name()));
    let known = own.iter().copied().find(|address| *address != 0)?;
    let base_of =
        |address| elf::find_object(|object| object.contains(address).then(|| object.base()));
    let base = base_of(known)?;
    // A wrapper finds the runtime only if the linker does, behind us: by some name that is not wrapped.
    let names = Api::ALL
        .map(Api::name)
        .into_iter()
        .chain(Helper::ALL.map(Helper::name));
    let reachable = names
        .filter_map(|name| linker::after_us(name, None))
        .any(|address| base_of(address) == Some(base));
    let native = Api::ALL.map(|api| {
        let own = own.get(api as usize).copied().unwrap_or(0);
        let next = linker::after_us(api.name(), None).filter(|next| {
            let owner =
                elf::find_object(|object| object.contains(*next).then(|| is_runtime(object)));
            reachable && owner == Some(false)
        });
        Functions {
            first: next.unwrap_or(own),
            own,
        }
    });
    linker::forget_error();
    let runtime = Box::into_raw(Box::new(Runtime {
        base,
        native,
        helper,
    }));
    match RUNTIME.compare_exchange(
        ptr::null_mut(),
        runtime,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => Some(base),
        Err(_) => {
            // SAFETY: it came from `into_raw` above and was not published.
            drop(unsafe { Box::from_raw(runtime) });
            chosen().map(|runtime| runtime.base)
        }
    }
}

/// A handle of `dlopen`. It is never closed.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

fn open(path: &CStr, flags: c_int) -> Option<Handle> {
    // SAFETY: `path` is a C string. Loading a HIP runtime runs its constructors, which is what a
    // program that calls HIP has asked for.
    let handle = unsafe { libc::dlopen(path.as_ptr(), flags | libc::RTLD_LAZY) };
    (!handle.is_null()).then_some(Handle(handle))
}

/// A loaded library, which is now held loaded.
fn pin(path: &CStr) -> Option<Handle> {
    open(path, libc::RTLD_NOLOAD)
}

fn named_by_user() -> Option<CString> {
    let path = environment::var("FH_HIP_LIB_PATH").filter(|path| !path.is_empty())?;
    CString::new(path.into_vec()).ok()
}

fn open_named(path: &CStr) -> Option<Handle> {
    let handle = pin(path).or_else(|| open(path, libc::RTLD_LOCAL));
    if handle.is_none() && first_time(&SAID_NO_RUNTIME) {
        say!(
            "FH_HIP_LIB_PATH={path:?} cannot be loaded ({}); HIP calls return hipErrorNotInitialized. \
             Name the libamdhip64.so to use, or unset the variable",
            linker::last_error()
        );
    }
    linker::forget_error();
    handle
}

/// The path of the runtime that the process has loaded. Of several, the one that a program linked to
/// HIP would reach.
fn loaded_runtime(api: Api) -> Option<CString> {
    let reached = linker::after_us(api.name(), None);
    let by_address = |object: &elf::Object<'_>| {
        (is_runtime(object) && reached.is_some_and(|address| object.contains(address)))
            .then(|| object.path().to_owned())
    };
    let any = |object: &elf::Object<'_>| is_runtime(object).then(|| object.path().to_owned());
    elf::find_object(by_address).or_else(|| elf::find_object(any))
}

fn open_usual() -> Option<Handle> {
    let found = USUAL_NAMES.iter().find_map(|name| pin(name)).or_else(|| {
        USUAL_NAMES
            .iter()
            .find_map(|name| open(name, libc::RTLD_LOCAL))
    });
    if found.is_none() && first_time(&SAID_NO_RUNTIME) {
        say!(
            "no HIP runtime: the process has none loaded, and libamdhip64.so, .so.7, .so.6, .so.5 cannot \
             be loaded ({}); HIP calls return hipErrorNotInitialized. Install ROCm's HIP runtime \
             or name the library in FH_HIP_LIB_PATH",
            linker::last_error()
        );
    }
    linker::forget_error();
    found
}

/// Whether an object is a HIP runtime, by the name of its file or the one it gives itself.
fn is_runtime(object: &elf::Object<'_>) -> bool {
    object.file_name().starts_with(RUNTIME_NAME)
        || object
            .soname()
            .is_some_and(|name| name.starts_with(RUNTIME_NAME))
}

static SAID_NO_RUNTIME: AtomicBool = AtomicBool::new(false);
static SAID_NO_FUNCTION: AtomicBool = AtomicBool::new(false);

fn first_time(said: &AtomicBool) -> bool {
    !said.swap(true, Ordering::Relaxed)
}

fn say_missing_function(api: Api) {
    if first_time(&SAID_NO_FUNCTION) {
        say!(
            "the HIP runtime in use has no {:?}; the call returns hipErrorNotInitialized",
            api.name()
        );
    }
}
