//! From the table to the functions that programs call instead of the library's.
//!
//! Each has two kinds of entry. The *export* is for callers that the dynamic linker bound to it: which library
//! they meant depends on who they are, so it passes on its return address. An entry *before a copy* is
//! what a look-up answers, and stands before the function that the look-up found.

use core::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use super::device::{Asked, Device};
use super::natives::Native;
use super::{Api, NOT_SUPPORTED, SUCCESS};
use crate::entries::{belt, quieten_panics};
use crate::process;
use crate::signals::uncancelled;
use crate::stderr::{Errno, say};

/// How many copies of a function are told apart.
pub(crate) const COPIES: usize = 8;

/// One call. As in [`crate::entries::call`], nothing that has a destructor is around the library's function.
#[inline]
pub(crate) fn call(
    api: Api,
    native: Option<Native>,
    device: Device,
    function: impl Fn(usize) -> c_int + Copy,
    answer: impl FnOnce(&Asked) + Copy,
) -> c_int {
    let Some(native) = native else {
        say_missing(api);
        return NOT_SUPPORTED;
    };
    let status = function(native.function);
    if status == SUCCESS && native.is_adapted && !process::is_inert() {
        let _errno = Errno::keep();
        quieten_panics();
        let asked = Asked {
            function: native.function,
            device,
        };
        uncancelled(|| belt(|| answer(&asked)));
    }
    status
}

#[cold]
fn say_missing(api: Api) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say!(
            "no library of this process has {:?}; the call returns \"not supported\"",
            api.name()
        );
    }
}

/// Makes [`Api`] and the entries from the table. The grammar of a row is in [`super::table`].
macro_rules! define_smi {
    ($(
        $(#[$doc:meta])*
        $name:ident ($($arg:ident: $type:ty),*)
            => $device:expr, $($answer:ident)::+ ($($given:ident),*);
    )*) => {
        /// A function of an SMI library.
        #[allow(non_camel_case_types, reason = "the names are the libraries' own")]
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
            pub(crate) fn export(self) -> usize {
                match self { $(Self::$name => exported::$name as *const () as usize),* }
            }

            /// The address of the entry before a copy.
            pub(crate) fn before_copy(self, copy: usize) -> Option<usize> {
                let entries = match self {
                    $(Self::$name => $crate::smi::entries::each_copy!(before_copy::$name)),*
                };
                entries.get(copy).copied()
            }
        }

        /// What programs are bound to that name a function.
        #[allow(non_snake_case, reason = "the names are the libraries' own")]
        mod exported {
            #[allow(unused_imports)]
            use super::*;

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// As for the library's function of this name.
                #[cfg_attr(not(test), unsafe(no_mangle))]
                #[unsafe(naked)]
                pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> core::ffi::c_int {
                    // The return address becomes one more argument.
                    core::arch::naked_asm!(
                        ".cfi_startproc",
                        "endbr64",
                        concat!("mov ", $crate::smi::entries::register_behind!($($arg)*), ", [rsp]"),
                        "jmp {entry}",
                        ".cfi_endproc",
                        entry = sym super::behind_export::$name,
                    )
                }
            )*
        }

        /// The steps of a call by way of the export.
        #[allow(non_snake_case, reason = "the names are the libraries' own")]
        mod behind_export {
            #[allow(unused_imports)]
            use super::*;

            $(
                pub(super) unsafe extern "C-unwind" fn $name(
                    $($arg: $type,)*
                    caller: usize,
                ) -> core::ffi::c_int {
                    let native = $crate::smi::natives::behind_export(Api::$name, caller);
                    // SAFETY: the arguments are the program's own.
                    unsafe { super::steps::$name(native, $($arg),*) }
                }
            )*
        }

        /// What look-ups answer: a function before one copy of the library's.
        #[allow(non_snake_case, reason = "the names are the libraries' own")]
        mod before_copy {
            #[allow(unused_imports)]
            use super::*;

            $(
                pub(super) unsafe extern "C-unwind" fn $name<const COPY: usize>(
                    $($arg: $type),*
                ) -> core::ffi::c_int {
                    let native = $crate::smi::natives::behind_copy(Api::$name, COPY);
                    // SAFETY: the arguments are the program's own.
                    unsafe { super::steps::$name(native, $($arg),*) }
                }
            )*
        }

        #[allow(non_snake_case, reason = "the names are the libraries' own")]
        mod steps {
            #[allow(unused_imports)]
            use super::*;

            $(
                /// # Safety
                /// As for the library's function of this name.
                pub(super) unsafe fn $name(
                    native: Option<$crate::smi::natives::Native>,
                    $($arg: $type),*
                ) -> core::ffi::c_int {
                    $crate::smi::entries::call(
                        Api::$name,
                        native,
                        $device,
                        // SAFETY: the address is that of the function of this name in an SMI library (or
                        // in whatever else the program would have called); the table states its
                        // signature. The arguments are the program's own.
                        |address| unsafe {
                            let function: unsafe extern "C-unwind" fn($($type),*) -> core::ffi::c_int =
                                core::mem::transmute(address);
                            function($($arg),*)
                        },
                        // SAFETY: the library has returned from a call with these arguments with success.
                        |asked| unsafe { $($answer)::+(asked, $($given),*) },
                    )
                }
            )*
        }
    };
}
pub(crate) use define_smi;

/// The register of the argument behind these (System V ABI for x86-64; all of them are numbers or pointers).
macro_rules! register_behind {
    ($first:ident $second:ident) => {
        "rdx"
    };
    ($first:ident $second:ident $third:ident) => {
        "rcx"
    };
}
pub(crate) use register_behind;

/// The addresses of all entries before copies.
macro_rules! each_copy {
    ($($entry:ident)::+) => {{
        let entries: [usize; $crate::smi::entries::COPIES] = [
            $($entry)::+::<0> as *const () as usize,
            $($entry)::+::<1> as *const () as usize,
            $($entry)::+::<2> as *const () as usize,
            $($entry)::+::<3> as *const () as usize,
            $($entry)::+::<4> as *const () as usize,
            $($entry)::+::<5> as *const () as usize,
            $($entry)::+::<6> as *const () as usize,
            $($entry)::+::<7> as *const () as usize,
        ];
        entries
    }};
}
pub(crate) use each_copy;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_entries_belong_together() {
        let mut entries = Vec::new();
        for (number, api) in Api::ALL.iter().enumerate() {
            assert_eq!(*api as usize, number);
            assert_eq!(api.name().to_str().unwrap(), format!("{api:?}"));
            entries.push(api.export());
            entries.extend((0..COPIES).map(|copy| api.before_copy(copy).unwrap()));
            assert_eq!(api.before_copy(COPIES), None);
        }
        let all = entries.len();
        entries.sort_unstable();
        entries.dedup();
        assert_eq!(entries.len(), all);
    }
}
