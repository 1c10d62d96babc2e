//! The library's own function behind an entry of ours.
//!
//! Nothing is pinned: a library that the program closes goes, as it would without us, and whoever calls
//! an entry after that calls a function that is gone.

use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::entries::COPIES;
use super::{Api, library};
use crate::elf;
use crate::entries::{belt, quieten_panics};
use crate::linker;
use crate::signals::uncancelled;
use crate::stderr::say_once;

/// What a call of an entry has to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Native {
    pub(crate) function: usize,
    /// Whether what it answers is to be adapted.
    pub(crate) is_adapted: bool,
}

/// The functions before which look-ups have put entries, by function and copy; 0: free.
static COPIES_FOUND: [[AtomicUsize; COPIES]; Api::COUNT] =
    [const { [const { AtomicUsize::new(0) }; COPIES] }; Api::COUNT];

/// The entry before the function that a look-up of `api` found; `None` if that is none of an SMI library.
pub(crate) fn entry_before(api: Api, function: usize) -> Option<usize> {
    quieten_panics();
    if !library::contains(function) {
        return None;
    }
    let places = COPIES_FOUND.get(api as usize)?;
    let put = |(copy, place): (usize, &AtomicUsize), expected: usize| {
        let put = place.compare_exchange(expected, function, Ordering::AcqRel, Ordering::Acquire);
        // Another thread may have found the same one.
        (put.is_ok() || put == Err(function)).then(|| api.before_copy(copy))
    };
    let all = || places.iter().enumerate();
    let found = all()
        .find_map(|place| put(place, function))
        .or_else(|| all().find_map(|place| put(place, 0)))
        .or_else(|| {
            // A library that was unloaded has left its place.
            all().find_map(|place| {
                let present = place.1.load(Ordering::Acquire);
                (!is_loaded(present)).then(|| put(place, present)).flatten()
            })
        });
    if found.is_none() {
        say_once!(
            "this process has more than {COPIES} copies of an SMI library; what further ones tell is \
             the board's memory, not the limit"
        );
    }
    found.flatten()
}

fn is_loaded(address: usize) -> bool {
    elf::find_object(|object| object.contains(address).then_some(())).is_some()
}

/// What is behind an entry that a look-up answered.
pub(crate) fn behind_copy(api: Api, copy: usize) -> Option<Native> {
    let place = COPIES_FOUND.get(api as usize)?.get(copy)?;
    match place.load(Ordering::Acquire) {
        0 => None,
        function => Some(Native {
            function,
            is_adapted: true,
        }),
    }
}

/// What a caller is bound to, once that was found out.
struct Binding {
    /// The return address of its call.
    caller: usize,
    api: Api,
    native: Native,
    /// How many libraries had been unloaded when that was found out: later, the addresses may be others'.
    unloaded: u64,
    /// The next of the list.
    next: *mut Binding,
}

/// The most bindings that are remembered. A program has a few places that ask for memory.
const MOST: usize = 64;

/// The newest of a list that only grows.
static BINDINGS: AtomicPtr<Binding> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What the dynamic linker would have bound the caller of our export to.
///
/// It binds a caller once, so what was found stays true until something is unloaded.
pub(crate) fn behind_export(api: Api, caller: usize) -> Option<Native> {
    remembered(api, caller).or_else(|| {
        quieten_panics();
        let unloaded = elf::unloaded_so_far();
        let native = uncancelled(|| belt(|| find(api, caller)))??;
        if COUNT.load(Ordering::Relaxed) < MOST {
            remember(Binding {
                caller,
                api,
                native,
                unloaded,
                next: ptr::null_mut(),
            });
        }
        Some(native)
    })
}

fn remembered(api: Api, caller: usize) -> Option<Native> {
    let unloaded = elf::unloaded_so_far();
    let mut next = BINDINGS.load(Ordering::Acquire);
    // SAFETY: null, or a leaked box that nobody changes once it is in the list.
    while let Some(binding) = unsafe { next.as_ref() } {
        if (binding.caller, binding.api, binding.unloaded) == (caller, api, unloaded) {
            return Some(binding.native);
        }
        next = binding.next;
    }
    None
}

fn remember(binding: Binding) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    let new = Box::into_raw(Box::new(binding));
    let mut first = BINDINGS.load(Ordering::Acquire);
    loop {
        // SAFETY: it is not in the list yet.
        unsafe { (*new).next = first };
        match BINDINGS.compare_exchange(first, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return,
            Err(present) => first = present,
        }
    }
}

fn find(api: Api, caller: usize) -> Option<Native> {
    // The global scope comes first, then the caller's own.
    let function = linker::after_us(api.name(), None)
        .or_else(|| linker::in_scope_of(caller, api.name(), None))
        .filter(|function| *function != api.export());
    linker::forget_error();
    let function = function?;
    // The libraries call their own exports. Such an answer is a part of another, which is adapted as a whole.
    let is_inner = library::contains(caller);
    // A function of that name may be a wrapper's, or belong to a program that has no SMI library at all.
    let is_smi = library::contains(function) || library::is_loaded();
    Some(Native {
        function,
        is_adapted: is_smi && !is_inner && !linker::another_copy_counts(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_binding_is_remembered_for_its_caller_and_function_alone() {
        let native = Native {
            function: 7,
            is_adapted: true,
        };
        let (api, other) = (Api::ALL[0], Api::ALL[1]);
        for caller in [1, 2] {
            remember(Binding {
                caller,
                api,
                native: Native {
                    function: 6 + caller,
                    ..native
                },
                unloaded: elf::unloaded_so_far(),
                next: ptr::null_mut(),
            });
        }
        assert_eq!(remembered(api, 1), Some(native));
        assert_eq!(remembered(api, 2).unwrap().function, 8);
        assert_eq!(remembered(api, 3), None);
        assert_eq!(remembered(other, 1), None);
    }

    #[test]
    fn a_function_that_is_none_of_an_smi_library_gets_no_entry() {
        assert_eq!(
            entry_before(Api::ALL[0], libc::malloc as *const () as usize),
            None
        );
        assert_eq!(behind_copy(Api::ALL[0], 0), None);
        assert_eq!(behind_copy(Api::ALL[0], COPIES), None);
    }
}
