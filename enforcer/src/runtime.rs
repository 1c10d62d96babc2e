//! The HIP runtimes of this process: which there are, where their functions are, and which of them a caller
//! reaches.
//!
//! Most processes have one. Some have more: a framework brings a copy of its own and a plugin links the system's.
//! All of them are counted in the one account; each call goes to the runtime that its caller would have reached
//! without us ([`choose`]), and what we ask on its behalf is asked of the same one. Once known, a runtime stays for
//! the life of the process, and it is pinned: a `dlclose` by the program must not leave us with dangling addresses.
//!
//! A library behind us in the linker's order may wrap HIP functions too, and find the runtime's with
//! `RTLD_NEXT`, as it would without us. An outer call goes to it then, and by it to the runtime.
//!
//! No lock is held here. Choosing calls the dynamic linker, whose own lock another thread may hold while it
//! runs a constructor that waits for us. Threads that choose at the same time choose the same.

mod adopt;
mod callers;
mod choose;

use core::ffi::c_int;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicUsize, Ordering};

use hipflex_ledger::HookEngine;

use crate::elf;
use crate::entries::{Api, belt, quieten_panics};
use crate::guard;
use crate::helpers::Helper;
use crate::hip;
use crate::process;
use crate::signals::uncancelled;

pub(crate) use choose::{Owner, look_around, owner, say_one_too_many};

/// What every HIP runtime's file or SONAME starts with, bundled and renamed copies included
/// (`libamdhip64.so.6`, `libamdhip64-1f3a.so`).
const RUNTIME_NAME: &[u8] = b"libamdhip64";

/// How many runtimes of a process are known. Each has entries of its own ([`crate::entries`]).
pub(crate) const MOST_RUNTIMES: usize = 4;

/// A runtime, and the functions of it that matter here.
pub(crate) struct Runtime {
    /// Its number: which entries are its own.
    number: usize,
    /// Where it is loaded: what was added to the addresses in its file.
    base: usize,
    /// Its first address, and the first one behind it.
    extent: (usize, usize),
    /// Whether it was tried to hook its functions below the exports.
    tried: AtomicBool,
    functions: [Function; Api::COUNT],
    /// The functions that the hooks call on their own behalf.
    helper: [usize; Helper::COUNT],
}

/// One function of a runtime.
pub(crate) struct Function {
    /// What a call of our export goes to: a wrapper behind us, if there is one, or the runtime's own.
    first: usize,
    /// The runtime's export; 0 if it has none of that name.
    own: usize,
    /// The runtime's code behind the hook below its export; the export itself while there is none.
    original: AtomicUsize,
    /// [`HookEngine`], by its code; set once the hook is in place.
    engine: AtomicU8,
}

/// The functions behind one of our entries, for one call.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    /// What an outer call goes to.
    pub(crate) first: usize,
    /// For calls inside of calls.
    pub(crate) own: usize,
    /// Whose they are.
    pub(crate) runtime: &'static Runtime,
}

/// By their numbers. Each is null until it is known; set once, never freed.
static RUNTIMES: [AtomicPtr<Runtime>; MOST_RUNTIMES] =
    [const { AtomicPtr::new(ptr::null_mut()) }; MOST_RUNTIMES];

/// The runtime of this number.
#[inline]
fn numbered(number: usize) -> Option<&'static Runtime> {
    // SAFETY: null or a leaked box, of which only atomics change.
    unsafe { RUNTIMES.get(number)?.load(Ordering::Acquire).as_ref() }
}

/// All that are known.
pub(crate) fn all() -> impl Iterator<Item = &'static Runtime> {
    (0..MOST_RUNTIMES).map_while(numbered)
}

/// The runtime in use before any call has told another one.
#[inline]
pub(crate) fn first() -> Option<&'static Runtime> {
    numbered(0)
}

/// Makes a runtime known under the next number, unless another thread has done so, and answers the one that is
/// known. `None`: there are too many.
fn publish(mut runtime: Box<Runtime>) -> Option<(&'static Runtime, bool)> {
    for (number, place) in RUNTIMES.iter().enumerate() {
        runtime.number = number;
        let present = numbered(number);
        let present = match present {
            Some(present) => present,
            None => {
                let new = Box::into_raw(runtime);
                match place.compare_exchange(
                    ptr::null_mut(),
                    new,
                    Ordering::AcqRel,
                    Ordering::Acquire,
                ) {
                    // SAFETY: leaked just now; nobody frees it.
                    Ok(_) => return Some((unsafe { &*new }, true)),
                    Err(_) => {
                        // SAFETY: it came from `into_raw` above and was not published.
                        runtime = unsafe { Box::from_raw(new) };
                        numbered(number)?
                    }
                }
            }
        };
        if present.base == runtime.base {
            return Some((present, false));
        }
    }
    None
}

impl Runtime {
    /// Its number, below [`MOST_RUNTIMES`].
    #[inline]
    pub(crate) fn number(&self) -> usize {
        self.number
    }

    /// True once: for the one who tries to hook its functions.
    pub(crate) fn begin_hooking(&self) -> bool {
        !self.tried.swap(true, Ordering::AcqRel)
    }

    /// Whether an address lies in it.
    pub(crate) fn contains(&self, address: usize) -> bool {
        (self.extent.0..self.extent.1).contains(&address)
    }

    #[inline]
    pub(crate) fn function(&self, api: Api) -> Option<&Function> {
        self.functions.get(api as usize)
    }

    /// The address of a function that hooks call on their own behalf, if this runtime has it.
    #[inline]
    pub(crate) fn helper(&self, helper: Helper) -> Option<usize> {
        let address = *self.helper.get(helper as usize)?;
        (address != 0).then_some(address)
    }

    /// A function for calls of ours instead of the program's: behind the hook, if there is one below the
    /// export. A probe on the export has seen the program's call already.
    pub(crate) fn original(&self, api: Api) -> Option<usize> {
        let address = self.function(api)?.original();
        (address != 0).then_some(address)
    }

    /// How a function is hooked below its export.
    pub(crate) fn engine(&self, api: Api) -> HookEngine {
        self.function(api)
            .map_or(HookEngine::ExportOnly, Function::engine)
    }
}

impl Function {
    fn new(first: usize, own: usize) -> Self {
        Self {
            first,
            own,
            original: AtomicUsize::new(own),
            engine: AtomicU8::new(HookEngine::ExportOnly.code()),
        }
    }

    /// The runtime's export, if it has one.
    pub(crate) fn export(&self) -> Option<usize> {
        (self.own != 0).then_some(self.own)
    }

    /// Says where the code behind the hook is, before the hook is in place.
    pub(crate) fn set_original(&self, address: usize) {
        self.original.store(address, Ordering::Release);
    }

    /// Where the code behind the hook is.
    pub(crate) fn original(&self) -> usize {
        self.original.load(Ordering::Acquire)
    }

    /// Says that the hook is in place: calls of our export may go to the runtime's as they are.
    pub(crate) fn set_hooked(&self, engine: HookEngine) {
        self.engine.store(engine.code(), Ordering::Release);
    }

    #[inline]
    fn engine(&self) -> HookEngine {
        HookEngine::from_code(self.engine.load(Ordering::Acquire))
    }

    /// Whether calls of the runtime's export come to its entry below.
    #[inline]
    pub(crate) fn is_hooked(&self) -> bool {
        self.engine() != HookEngine::ExportOnly
    }
}

/// Where a call of one of our exports goes on: what its caller would have reached without us, or the entry that
/// counts for that. The exports jump there.
pub(crate) extern "C" fn reached(api: Api, caller: usize) -> usize {
    match callers::known(caller).and_then(|runtime| runtime.way(api)) {
        Some(address) => address,
        None => find_out(api, caller),
    }
}

#[cold]
fn find_out(api: Api, caller: usize) -> usize {
    let found = uncancelled(|| guard::setting_up(|| belt(|| choose::reach(api, caller))));
    found.flatten().unwrap_or(missing as *const () as usize)
}

/// Stands in for a function that is nowhere, as a line on stderr has said.
extern "C" fn missing() -> c_int {
    hip::ERROR_NOT_INITIALIZED
}

/// What a call that has come to the entry of this runtime goes on to.
#[inline]
pub(crate) fn behind(number: usize, api: Api) -> Option<Functions> {
    let runtime = numbered(number)?;
    let function = runtime.function(api)?;
    let original = function.original();
    let functions = if original == function.own {
        Functions {
            first: function.first,
            own: function.own,
            runtime,
        }
    } else {
        Functions {
            first: original,
            own: original,
            runtime,
        }
    };
    (functions.own != 0).then_some(functions)
}

impl Runtime {
    /// Where a call of our export goes on, if this is the runtime that it is for; `None` if it has no such
    /// function.
    #[inline]
    fn way(&self, api: Api) -> Option<usize> {
        let function = self.function(api)?;
        if function.own == 0 {
            None
        } else if function.is_hooked() || process::is_inert() {
            Some(function.first)
        } else {
            api.entry_of(self.number)
        }
    }

    /// What a look-up is answered with that finds this runtime's function. It is never our export: a wrapper looks
    /// for what is behind it, and our export may lead to the wrapper.
    pub(crate) fn answer(&self, api: Api) -> Option<usize> {
        let function = self.function(api)?;
        if function.is_hooked() {
            function.export()
        } else {
            api.entry_of(self.number)
        }
    }
}

/// The runtime that the call of this thread is for, or the one in use.
#[inline]
pub(crate) fn of_this_call() -> Option<&'static Runtime> {
    // Most processes have one, and the thread's state costs more to find.
    if numbered(1).is_none() {
        return first();
    }
    guard::runtime().or_else(first)
}

/// Whether `address` lies in a HIP runtime that is known.
pub(crate) fn contains(address: usize) -> bool {
    all().any(|runtime| runtime.contains(address))
}

/// Whether an object is a HIP runtime, by the name of its file or the one it gives itself, and by what it has:
/// tools have names like that, too. Calls nothing.
fn is_runtime(object: &elf::Object<'_>) -> bool {
    object.is_called(RUNTIME_NAME) && object.may_define(c"hipMalloc")
}

/// For what is called outside of [`reached`]: panics are kept quiet from here on.
fn prepare() {
    quieten_panics();
}

#[cfg(test)]
impl Runtime {
    /// One that has nothing.
    pub(crate) fn without_functions() -> &'static Self {
        Box::leak(Box::new(Self {
            number: 0,
            base: 0,
            extent: (0, 0),
            tried: AtomicBool::new(false),
            functions: Api::ALL.map(|_| Function::new(0, 0)),
            helper: [0; Helper::COUNT],
        }))
    }
}
