//! From one table to all that is needed for each hooked function: its number, its name, its exported
//! entry and the steps of a call.
//!
//! An entry does the same in every function: it asks what the call needs (*before*), calls the runtime's
//! function, and books what came of it (*after*). The native call stands by itself: a thread that is
//! cancelled inside of the runtime unwinds through our frames unharmed. What is ours of the steps is held by
//! [`belt`]: should it panic, the native call happens all the same and its result is what the program gets.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::allocation::Plan;
use crate::guard::{self, Thread};
use crate::hip;
use crate::impossible;
use crate::process::{self, Standing};
use crate::queries;
use crate::runtime::Functions;
use crate::stderr::say;

pub(crate) use crate::hook_table::Api;

/// What *before* found out about a call.
#[derive(Clone, Copy)]
pub(crate) enum Verdict {
    /// Nothing of ours: call the runtime and return what it returns.
    Native,
    /// Call the runtime, then finish the plan that the thread has got ([`Thread::begin`]).
    Planned,
    /// The program gets an error, the runtime no chance to succeed.
    Refused,
}

/// One call of a hooked function. `native` calls the function at an address with the program's arguments.
///
/// A thread may be unwound from inside of the runtime (`pthread_cancel`, a C++ exception), by another copy of
/// the unwinder than the one that is linked into this library, and the two do not understand each other's
/// landing pads. So there must be none around a native call: nothing that is alive then has a destructor, and
/// [`belt`] is not around it. That goes for *before* and *after*, too, which ask the runtime for the
/// current device.
#[inline]
pub(crate) fn call(
    api: Api,
    functions: Functions,
    before: impl FnOnce(&Thread) -> Verdict + Copy,
    native: impl Fn(usize) -> c_int + Copy,
    after: impl FnOnce(Plan, c_int) -> c_int + Copy,
) -> c_int {
    const { assert!(!core::mem::needs_drop::<Plan>()) };
    // A wrapper behind us may come back to us, and must not be called for that again.
    if process::is_inert() && functions.first == functions.own {
        return native(functions.own);
    }
    // SAFETY: it stays here.
    let thread = unsafe { guard::this_thread() };
    let frame = 0_u8;
    if !thread.enter(&raw const frame as usize) {
        return native(functions.own);
    }
    thread.serve(functions.runtime);
    let result = match before(thread) {
        Verdict::Native => native(functions.first),
        Verdict::Planned => {
            let result = native(functions.first);
            match thread.take() {
                Some(plan) => after(plan, result),
                None => result,
            }
        }
        Verdict::Refused => impossible::error(api),
    };
    thread.leave();
    result
}

/// One call of a hooked function that answers a question: the same, but nothing is under way meanwhile that a call
/// which never comes back could leave.
#[inline]
pub(crate) fn ask(
    functions: Functions,
    native: impl Fn(usize) -> c_int + Copy,
    adapt: impl FnOnce(&Standing) + Copy,
) -> c_int {
    // SAFETY: it stays here.
    let thread = unsafe { guard::this_thread() };
    let frame = 0_u8;
    if !thread.enter(&raw const frame as usize) {
        return native(functions.own);
    }
    thread.serve(functions.runtime);
    let standing = queries::standing();
    let error = native(functions.first);
    if let (Some(standing), hip::SUCCESS) = (standing, error) {
        adapt(standing);
    }
    thread.leave();
    error
}

/// How often a hook met something that should never happen.
static ACCIDENTS: AtomicU64 = AtomicU64::new(0);

/// Runs a step of a hook; `None` if it panicked. The host program must not end because of us.
#[inline]
pub(crate) fn belt<T>(step: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(value) => Some(value),
        Err(_) => {
            if count_accident() == 0 {
                say!(
                    "a hook failed unexpectedly; the HIP call went to the runtime uncounted. \
                     This is a bug of hipflex: please report it"
                );
            }
            None
        }
    }
}

/// Counts something that should never happen, and answers how often it had happened before.
pub(crate) fn count_accident() -> u64 {
    ACCIDENTS.fetch_add(1, Ordering::Relaxed)
}

/// Keeps the standard message of a panic off the program's stderr, where it could wait. [`belt`] tells.
pub(crate) fn quieten_panics() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|_| {}));
    }
}

/// Makes [`Api`] and the exported entries from the table. The grammar of a row is in
/// [`crate::hook_table`].
macro_rules! define_hooks {
    ($(
        $(#[$doc:meta])*
        $name:ident ($($arg:ident: $type:ty),*) => $kind:ident $how:tt, slot $slot:tt;
    )*) => {
        /// A hooked function.
        #[allow(non_camel_case_types, reason = "the names are HIP's own")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub(crate) enum Api { $($(#[$doc])* $name),* }

        impl Api {
            /// How many there are.
            pub(crate) const COUNT: usize = Self::ALL.len();
            /// All of them, in the order of their numbers.
            pub(crate) const ALL: [Self; [$(Self::$name),*].len()] = [$(Self::$name),*];

            /// The exported name.
            pub(crate) fn name(self) -> &'static core::ffi::CStr {
                const NAMES: [&core::ffi::CStr; Api::COUNT] =
                    [$($crate::entries::c_string(concat!(stringify!($name), "\0"))),*];
                NAMES.get(self as usize).copied().unwrap_or(c"")
            }

            /// The address of our export.
            pub(crate) fn entry(self) -> usize {
                match self { $(Self::$name => exported::$name as *const () as usize),* }
            }

            /// The address of the entry for the function of the runtime of this number, which is reached by
            /// its address or from below its export.
            pub(crate) fn entry_of(self, runtime: usize) -> Option<usize> {
                const { assert!($crate::runtime::MOST_RUNTIMES == 4) };
                match runtime {
                    0 => Some(self.counted::<0>()),
                    1 => Some(self.counted::<1>()),
                    2 => Some(self.counted::<2>()),
                    3 => Some(self.counted::<3>()),
                    _ => None,
                }
            }

            fn counted<const RUNTIME: usize>(self) -> usize {
                match self { $(Self::$name => counted::$name::<RUNTIME> as *const () as usize),* }
            }

            /// The function's place in the runtime's dispatch table (ROCm 6 and later), counted in
            /// pointers behind the table's size; `None` for a function without a place of its own.
            pub(crate) fn dispatch_slot(self) -> Option<usize> {
                match self { $(Self::$name => $crate::entries::slot!($slot)),* }
            }
        }

        /// The functions that programs call. Each asks [`crate::runtime::reached`] where its caller would have
        /// got without us, and jumps there: the call stays the caller's own.
        #[allow(non_snake_case, reason = "the names are HIP's own")]
        mod exported {
            #[allow(unused_imports)]
            use super::*;

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As for the runtime's function of this name.
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[unsafe(naked)]
                pub(super) unsafe extern "C-unwind" fn $name($(_: $type),*) -> core::ffi::c_int {
                    $crate::entries::jump_where_reached!(Api::$name)
                }
            )*
        }

        /// The entries for the functions of one runtime, by its number: what exports and look-ups lead to, or what
        /// hooks below the runtime's exports do.
        #[allow(non_snake_case, reason = "the names are HIP's own")]
        mod counted {
            #[allow(unused_imports)]
            use super::*;

            $(
                /// # Safety
                /// As for the runtime's function of this name.
                pub(super) unsafe extern "C-unwind" fn $name<const RUNTIME: usize>(
                    $($arg: $type),*
                ) -> core::ffi::c_int {
                    // SAFETY: the address is that of the function of this name in the HIP runtime (or in a
                    // wrapper of it), or of its code behind the hook that led here; the table states its
                    // signature. The arguments are the program's own.
                    let native = |address: usize| unsafe {
                        let function: unsafe extern "C-unwind" fn($($type),*) -> core::ffi::c_int =
                            core::mem::transmute(address);
                        function($($arg),*)
                    };
                    let Some(functions) = $crate::runtime::behind(RUNTIME, Api::$name) else {
                        // Nothing leads here before the runtime of this number is known.
                        return $crate::hip::ERROR_NOT_INITIALIZED;
                    };
                    $crate::entries::steps!(Api::$name, functions, native, $kind $how)
                }
            )*
        }
    };
}
pub(crate) use define_hooks;

/// The code of an export. The arguments stay where they are: the registers that may hold some are kept, and none of
/// the functions takes floating-point numbers. Rust has no way to ask for the caller's address, which is the return
/// address here.
macro_rules! jump_where_reached {
    ($api:expr) => {
        core::arch::naked_asm!(
            ".cfi_startproc",
            "endbr64",
            "push rdi",
            ".cfi_adjust_cfa_offset 8",
            "push rsi",
            ".cfi_adjust_cfa_offset 8",
            "push rdx",
            ".cfi_adjust_cfa_offset 8",
            "push rcx",
            ".cfi_adjust_cfa_offset 8",
            "push r8",
            ".cfi_adjust_cfa_offset 8",
            "push r9",
            ".cfi_adjust_cfa_offset 8",
            // Six pushes and 8 bytes make rsp a multiple of 16.
            "sub rsp, 8",
            ".cfi_adjust_cfa_offset 8",
            "mov edi, {api}",
            "mov rsi, qword ptr [rsp + 56]",
            "call {reached}",
            "add rsp, 8",
            ".cfi_adjust_cfa_offset -8",
            "pop r9",
            ".cfi_adjust_cfa_offset -8",
            "pop r8",
            ".cfi_adjust_cfa_offset -8",
            "pop rcx",
            ".cfi_adjust_cfa_offset -8",
            "pop rdx",
            ".cfi_adjust_cfa_offset -8",
            "pop rsi",
            ".cfi_adjust_cfa_offset -8",
            "pop rdi",
            ".cfi_adjust_cfa_offset -8",
            "jmp rax",
            ".cfi_endproc",
            api = const $api as usize,
            reached = sym $crate::runtime::reached,
        )
    };
}
pub(crate) use jump_where_reached;

/// The steps of a call, by what the function does.
macro_rules! steps {
    ($api:expr, $functions:ident, $native:ident, allocates { $sort:ident $out:ident, $request:expr }) => {
        $crate::entries::call(
            $api,
            $functions,
            |thread| {
                // SAFETY: the arguments are those that the runtime is about to be called with.
                #[allow(unused_unsafe, reason = "some requests are made from plain numbers")]
                let request = unsafe { $request };
                // SAFETY: as above.
                unsafe {
                    $crate::allocation::before(
                        thread,
                        $api,
                        $crate::entries::sort!($sort),
                        $out.cast(),
                        &request,
                    )
                }
            },
            $native,
            // SAFETY: the runtime has returned from a call with this place for its result, which is not null.
            |plan, error| unsafe {
                $crate::allocation::after(
                    $api,
                    plan,
                    error,
                    $crate::entries::sort!($sort),
                    $out.cast_const().cast(),
                )
            },
        )
    };
    ($api:expr, $functions:ident, $native:ident, frees { $sort:ident $name:ident $(, on $stream:ident)? }) => {
        $crate::entries::call(
            $api,
            $functions,
            |thread| {
                $crate::allocation::before_free(
                    thread,
                    $crate::entries::sort!($sort),
                    $name as usize,
                    None $(.or(Some($stream)))?,
                )
            },
            $native,
            $crate::allocation::after_free,
        )
    };
    ($api:expr, $functions:ident, $native:ident, maps { $address:ident, $bytes:ident, $handle:ident }) => {
        $crate::entries::call(
            $api,
            $functions,
            |thread| {
                $crate::mapping::before_map(thread, $address as usize, $bytes, $handle as usize)
            },
            $native,
            $crate::mapping::after,
        )
    };
    ($api:expr, $functions:ident, $native:ident, unmaps { $address:ident, $bytes:ident }) => {
        $crate::entries::call(
            $api,
            $functions,
            |thread| $crate::mapping::before_unmap(thread, $address as usize, $bytes),
            $native,
            $crate::mapping::after,
        )
    };
    ($api:expr, $functions:ident, $native:ident, releases { $handle:ident }) => {
        $crate::entries::call(
            $api,
            $functions,
            |thread| $crate::mapping::before_release(thread, $handle as usize),
            $native,
            $crate::mapping::after,
        )
    };
    ($api:expr, $functions:ident, $native:ident, resets {}) => {
        $crate::entries::call(
            $api,
            $functions,
            $crate::reset::before,
            $native,
            $crate::reset::after,
        )
    };
    ($api:expr, $functions:ident, $native:ident, observes { $($observer:ident)::+ ($($arg:expr),*) }) => {
        $crate::entries::call(
            $api,
            $functions,
            $crate::observers::before,
            $native,
            |plan, error| {
                if let ($crate::allocation::Plan::Look(account), $crate::hip::SUCCESS) = (plan, error) {
                    // SAFETY: the runtime has returned from a call with these arguments with success.
                    #[allow(unused_unsafe, reason = "some observers look at no argument")]
                    unsafe { $($observer)::+(account $(, $arg)*) }
                }
                error
            },
        )
    };
    ($api:expr, $functions:ident, $native:ident, answers { $($query:ident)::+ ($($arg:expr),*) }) => {
        $crate::entries::ask(
            $functions,
            $native,
            // SAFETY: the runtime has returned from a call with these arguments with success; the query adapts what
            // it wrote.
            |standing| unsafe { $($query)::+(standing, $($arg),*) },
        )
    };
}
pub(crate) use steps;

/// How something is named, as it stands in the table.
macro_rules! sort {
    (memory) => {
        $crate::live::Sort::Memory
    };
    (object) => {
        $crate::live::Sort::Object
    };
    (physical) => {
        $crate::live::Sort::Physical
    };
}
pub(crate) use sort;

/// A dispatch slot as it stands in the table.
macro_rules! slot {
    (none) => {
        None
    };
    ($number:literal) => {
        Some($number)
    };
}
pub(crate) use slot;

/// A C string of a name that ends with the terminator.
pub(crate) const fn c_string(name: &'static str) -> &'static core::ffi::CStr {
    match core::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Runtime;
    use std::cell::Cell;

    #[test]
    fn names_and_numbers_belong_together() {
        for (number, api) in Api::ALL.iter().enumerate() {
            assert_eq!(*api as usize, number);
            assert_eq!(api.name().to_str().unwrap(), format!("{api:?}"));
            assert_ne!(api.entry(), 0);
        }
    }

    #[test]
    fn dispatch_slots_are_distinct() {
        let mut slots: Vec<_> = Api::ALL
            .iter()
            .filter_map(|api| api.dispatch_slot())
            .collect();
        let all = slots.len();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), all);
    }

    /// The lists are those of the real libraries: a test of the end-to-end suites compares them.
    #[test]
    fn dispatch_slots_are_those_of_the_real_libraries() {
        for list in [
            include_str!("../../tests/hip-standin/golden/6.4.3.txt"),
            include_str!("../../tests/hip-standin/golden/7.2.4.txt"),
        ] {
            for api in Api::ALL {
                let name = api.name().to_str().unwrap();
                let line = list
                    .lines()
                    .find(|line| line.split(' ').next() == Some(name));
                let Some(line) = line else {
                    panic!("{name} is in no dispatch table");
                };
                let slot = line.rsplit(' ').next().and_then(|slot| slot.parse().ok());
                assert_eq!(api.dispatch_slot(), slot, "{name}");
            }
        }
    }

    const FIRST: usize = 1;

    fn functions() -> Functions {
        Functions {
            first: FIRST,
            own: 2,
            runtime: Runtime::without_functions(),
        }
    }

    /// A plan that nothing has to be done for.
    fn planned(thread: &Thread) -> Verdict {
        thread.begin(Plan::Nothing);
        Verdict::Planned
    }

    #[test]
    fn a_nested_call_goes_to_the_runtime_only() {
        let booked = Cell::new(0);
        let count = |_: Plan, error: c_int| {
            booked.set(booked.get() + 1);
            error
        };
        let inner = || {
            call(
                Api::hipMalloc,
                functions(),
                planned,
                |address| 10 + address as c_int,
                count,
            )
        };
        let outer = call(
            Api::hipMalloc,
            functions(),
            planned,
            |address| {
                assert_eq!(address, FIRST);
                let mut result = 0;
                crate::stack::tests::from_outside(&mut || result = inner());
                result
            },
            count,
        );
        assert_eq!((outer, booked.get()), (12, 1));
        assert_eq!((inner(), booked.get()), (11, 2));
    }

    #[test]
    fn a_panic_leaves_the_native_call_and_its_result() {
        let calls = Cell::new(0);
        let native = |_| {
            calls.set(calls.get() + 1);
            5
        };
        let before = |_: &Thread| belt(|| panic!("before")).unwrap_or(Verdict::Native);
        assert_eq!(
            call(Api::hipMalloc, functions(), before, native, |_, error| {
                error
            }),
            5
        );
        let after = |_, error| {
            belt(|| panic!("after"));
            error
        };
        assert_eq!(call(Api::hipMalloc, functions(), planned, native, after), 5);
        assert_eq!(calls.get(), 2);
    }
}
