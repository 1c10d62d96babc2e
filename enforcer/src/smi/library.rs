//! The SMI library that a function belongs to, and its other functions.

use core::ffi::CStr;

use crate::elf::{self, Object};
use crate::linker;

/// What the files or SONAMEs of the libraries start with, bundled and renamed copies included
/// (`librocm_smi64.so.7`, `libamd_smi.so.26`, `libamd_smi_python.so`).
const NAMES: [&[u8]; 2] = [b"librocm_smi64", b"libamd_smi"];

fn is_smi(object: &Object<'_>) -> bool {
    NAMES.iter().any(|start| object.is_called(start))
}

/// Whether `address` lies in an SMI library.
pub(crate) fn contains(address: usize) -> bool {
    elf::find_object(|object| object.contains(address).then(|| is_smi(object))) == Some(true)
}

/// Whether an SMI library is loaded.
pub(crate) fn is_loaded() -> bool {
    elf::find_object(|object| is_smi(object).then_some(())).is_some()
}

/// The function `name` of the library that has the function at `beside`. A wrapper that another preload puts
/// before the library has not got it: then it is the next in the linker's order.
pub(crate) fn function(beside: usize, name: &CStr) -> Option<usize> {
    let own = elf::find_object(|object| object.contains(beside).then(|| object.symbol(name)));
    own.flatten().or_else(|| {
        // The linker reads other tables of symbols as well.
        let found =
            linker::in_scope_of(beside, name, None).or_else(|| linker::after_us(name, None));
        linker::forget_error();
        found
    })
}
