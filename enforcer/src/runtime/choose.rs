//! Which runtimes there are, and which of them a caller reaches.
//!
//! In this order: the one that `FH_HIP_LIB_PATH` names, the one that the dynamic linker would have given the caller
//! without us, one that the process has loaded, or one that the linker finds under the usual names.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;

use super::adopt::{Handle, adopt};
use super::{MOST_RUNTIMES, Runtime, all, callers, first, is_runtime, prepare};
use crate::elf;
use crate::entries::{Api, belt};
use crate::environment;
use crate::guard;
use crate::linker;
use crate::process;
use crate::signals::uncancelled;
use crate::stderr::{say, say_once};

/// Where a runtime is looked for when the process has none: the unversioned name first, as a linker
/// script or `ldconfig` may have set it, then the known ABI versions, newest first.
const USUAL_NAMES: [&CStr; 4] = [
    c"libamdhip64.so",
    c"libamdhip64.so.7",
    c"libamdhip64.so.6",
    c"libamdhip64.so.5",
];

/// Where a call of our export of `api` by a caller goes on. `None`: nowhere, as was said.
pub(super) fn reach(api: Api, caller: usize) -> Option<usize> {
    prepare();
    // Another thread may have begun since the caller was not known.
    if first().is_none()
        && let Err(instead) = begin(api, caller)
    {
        return instead;
    }
    adopt_loaded();
    let runtime = match of_caller(api, caller) {
        Ok(runtime) => runtime?,
        Err(uncounted) => return Some(uncounted),
    };
    if let Some(range) = elf::find_object(|object| object.contains(caller).then(|| object.extent()))
    {
        callers::remember(range, runtime);
    }
    let way = runtime.way(api);
    if way.is_none() {
        say_missing_function(api);
    }
    way
}

/// Makes the first runtime known, or says where a call goes on instead: to a function of the same name in a library
/// that is no HIP runtime, in a process that has none, where it is not counted, since its memory is not a GPU's; or
/// nowhere.
fn begin(api: Api, caller: usize) -> Result<(), Option<usize>> {
    let handle = match named_by_user() {
        Some(path) => open_named(&path),
        None => {
            let path = reached_by(api, caller)
                .and_then(runtime_path)
                .or_else(any_loaded);
            if path.is_none()
                && let Some(address) = linker::after_us(api.name(), None)
            {
                return Err(Some(address));
            }
            path.and_then(|path| pin(&path)).or_else(open_usual)
        }
    };
    match handle {
        None => Err(None),
        // A library without a single HIP function leaves nothing known.
        Some(handle) => {
            adopt(handle);
            Ok(())
        }
    }
}

/// The known runtime that a caller reaches. The error is the function of one that is not known: one too many.
fn of_caller(api: Api, caller: usize) -> Result<Option<&'static Runtime>, usize> {
    let usual = first();
    if named_by_user().is_some() || all().nth(1).is_none() {
        return Ok(usual);
    }
    let Some(reached) = reached_by(api, caller) else {
        return Ok(usual);
    };
    let base = base_of(reached);
    match all().find(|runtime| base == Some(runtime.base)) {
        Some(theirs) => Ok(Some(theirs)),
        None if runtime_path(reached).is_some() => {
            say_one_too_many(api);
            Err(reached)
        }
        None => Ok(usual),
    }
}

/// A runtime is used that is not counted.
pub(crate) fn say_one_too_many(api: Api) {
    say_once!(
        "this process uses {:?} of a further HIP runtime, and {MOST_RUNTIMES} are counted at most: what it \
         allocates through that one is not",
        api.name()
    );
}

/// The address that the linker would have given a caller for the name of `api`.
fn reached_by(api: Api, caller: usize) -> Option<usize> {
    let found = linker::after_us(api.name(), None)
        .filter(|address| runtime_path(*address).is_some())
        .or_else(|| linker::in_scope_of(caller, api.name(), None));
    linker::forget_error();
    found
}

fn base_of(address: usize) -> Option<usize> {
    elf::find_object(|object| object.contains(address).then(|| object.base()))
}

/// The path of the runtime that an address lies in, if it lies in one.
fn runtime_path(address: usize) -> Option<CString> {
    elf::find_object(|object| {
        object
            .contains(address)
            .then(|| is_runtime(object).then(|| object.path().to_owned()))
    })
    .flatten()
}

fn any_loaded() -> Option<CString> {
    elf::find_object(|object| is_runtime(object).then(|| object.path().to_owned()))
}

/// Makes all runtimes known that the process has loaded.
fn adopt_loaded() {
    // What is called like one and cannot be made known: a wrapper of it, or one too many.
    let mut others = Vec::new();
    loop {
        let unknown = elf::find_object(|object| {
            let base = object.base();
            let new = is_runtime(object)
                && all().all(|known| known.base != base)
                && !others.contains(&base);
            new.then(|| (base, object.path().to_owned()))
        });
        let Some((base, path)) = unknown else { return };
        if pin(&path).and_then(adopt).map(|runtime| runtime.base) != Some(base) {
            others.push(base);
        }
    }
}

/// Looks for runtimes that were loaded since this was last asked, so that calls of them are counted also if they
/// come by addresses that we never see: through `RTLD_DEEPBIND`, through pointers that a program has computed. Asked
/// at look-ups of names that are none of ours, which a program makes after it has loaded something, and which
/// runtimes make themselves when they set themselves up.
///
/// Programs look up names in all situations. So nothing is done for one without a limit, or where nothing was
/// loaded, and nothing is called that others interpose before there is a runtime; nor for `RTLD_NEXT` and
/// `RTLD_DEFAULT`, by which allocators and sanitizers find what they stand in for while they cannot be called
/// themselves.
pub(crate) fn look_around(has_handle: bool, caller: usize) {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    if !environment::has_limit() && process::account().is_none() {
        return;
    }
    let loaded = elf::loaded_so_far();
    if SEEN.load(Ordering::Relaxed) == loaded {
        return;
    }
    let asks = |object: &elf::Object<'_>| object.contains(caller).then(|| is_runtime(object));
    if !has_handle && elf::find_object(asks) != Some(true) {
        return;
    }
    SEEN.store(loaded, Ordering::Relaxed);
    if elf::find_object(|object| is_runtime(object).then_some(())).is_none()
        || guard::is_setting_up()
    {
        return;
    }
    let look = || {
        prepare();
        if first().is_none()
            && let Some(named) = named_by_user()
        {
            open_named(&named).and_then(adopt);
        }
        adopt_loaded();
        linker::forget_error();
    };
    uncancelled(|| guard::setting_up(|| belt(look)));
}

/// Whose function an address is.
pub(crate) enum Owner {
    /// That of a runtime, which is known now.
    Runtime(&'static Runtime),
    /// That of a runtime, when `FH_HIP_LIB_PATH` names one that cannot be loaded: there is none, as was said,
    /// and not one that nobody counts.
    Nobody,
    /// That of one runtime too many.
    OneTooMany,
    /// Something else's.
    Unrelated,
}

/// Finds out whose function `address` is.
pub(crate) fn owner(address: usize) -> Owner {
    prepare();
    let found = elf::find_object(|object| {
        object.contains(address).then(|| {
            let path = is_runtime(object).then(|| object.path().to_owned());
            (object.base(), path)
        })
    });
    let Some((base, path)) = found else {
        return Owner::Unrelated;
    };
    let known = || all().find(|runtime| runtime.base == base);
    if let Some(runtime) = known() {
        return Owner::Runtime(runtime);
    }
    let Some(path) = path else {
        return Owner::Unrelated;
    };
    // FH_HIP_LIB_PATH outranks what the program happens to look up: it comes first.
    if first().is_none()
        && let Some(named) = named_by_user()
        && open_named(&named).and_then(adopt).is_none()
    {
        return Owner::Nobody;
    }
    match pin(&path).and_then(adopt) {
        Some(runtime) if runtime.base == base => Owner::Runtime(runtime),
        _ => known().map_or(Owner::OneTooMany, Owner::Runtime),
    }
}

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

static SAID_NO_RUNTIME: AtomicBool = AtomicBool::new(false);

fn first_time(said: &AtomicBool) -> bool {
    !said.swap(true, Ordering::Relaxed)
}

fn say_missing_function(api: Api) {
    say_once!(
        "the HIP runtime in use has no {:?}; the call returns hipErrorNotInitialized",
        api.name()
    );
}
