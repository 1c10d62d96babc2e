//! How the dynamic linker answers a question for a name that this library exports, when our export is not
//! counted.

use core::ffi::{CStr, c_void};

use crate::elf;
use crate::linker::{self, after_us, find};

/// A look-up of a hooked name.
pub(crate) struct Question<'a> {
    pub(crate) handle: *mut c_void,
    pub(crate) name: &'static CStr,
    pub(crate) version: Option<&'a CStr>,
    /// Return address of the look-up.
    pub(crate) caller: usize,
    /// Our export of that name.
    pub(crate) export: usize,
}

/// What the answer is.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    /// This function, which is not ours.
    Function(usize),
    /// An error.
    Nothing,
    /// An error, but as things are it would be our export.
    OnlyUs,
    /// The program asked for our export, by a handle of this library.
    Ours,
}

impl Question<'_> {
    pub(crate) fn answer_without_us(&self) -> Answer {
        let behind_us = || match after_us(self.name, self.version) {
            Some(address) => Answer::Function(address),
            None => Answer::OnlyUs,
        };
        if self.handle == libc::RTLD_NEXT {
            return match self.between_caller_and_us() {
                Some(address) => Answer::Function(address),
                None => behind_us(),
            };
        }
        if self.handle == libc::RTLD_DEFAULT {
            // The global scope, by the program's handle: asked from here, RTLD_DEFAULT would begin with this
            // library, which is linked with -Bsymbolic. The caller's scope may go further.
            return match find(linker::program(), self.name, self.version) {
                0 => self.in_scope_of_caller(Answer::Nothing),
                found if found != self.export => Answer::Function(found),
                _ => match behind_us() {
                    Answer::OnlyUs => self.in_scope_of_caller(Answer::OnlyUs),
                    found => found,
                },
            };
        }
        match find(self.handle, self.name, self.version) {
            0 => Answer::Nothing,
            found if found != self.export => Answer::Function(found),
            // The handle is either the program's (`dlopen(NULL)`), which stands for the global scope, or our own.
            _ if self.handle == linker::program() => behind_us(),
            _ => Answer::Ours,
        }
    }

    /// A function of that name in a library that was loaded behind the caller's and before this one: a
    /// wrapper's, as what is loaded later, or for itself, stands behind.
    fn between_caller_and_us(&self) -> Option<usize> {
        let mut is_behind = false;
        let found = elf::find_object(|object| {
            if object.contains(self.export) {
                return Some(None);
            }
            let address = is_behind.then(|| object.symbol(self.name)).flatten();
            is_behind |= object.contains(self.caller);
            address.map(Some)
        });
        found.flatten()
    }

    fn in_scope_of_caller(&self, otherwise: Answer) -> Answer {
        linker::in_scope_of(self.caller, self.name, self.version)
            .map_or(otherwise, Answer::Function)
    }
}
