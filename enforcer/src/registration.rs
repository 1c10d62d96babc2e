//! `rocprofiler_register_library_api_table`: by this function a runtime offers its dispatch table to profilers.
//!
//! We stand before librocprofiler-register, remember the table of `hip`, and hand the call on. Declared in
//! `rocprofiler-register/rocprofiler-register.h`.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::below;
use crate::elf;
use crate::entries::belt;

/// `ROCP_REG_NO_TOOLS`: what a runtime hears that nobody profiles.
const NO_TOOLS: c_int = 1;

type Register = unsafe extern "C-unwind" fn(
    *const c_char,
    usize,
    u32,
    *mut *mut c_void,
    u64,
    *mut u64,
) -> c_int;

/// `rocprofiler_register_error_code_t rocprofiler_register_library_api_table(const char *common_name,
/// rocprofiler_register_import_func_t import_func, uint32_t lib_version, void **api_tables, uint64_t
/// api_table_length, rocprofiler_register_library_indentifier_t *register_id)`
///
/// # Safety
/// As for rocprofiler-register's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code, reason = "a test executable has no runtime"))]
unsafe extern "C-unwind" fn rocprofiler_register_library_api_table(
    name: *const c_char,
    import: usize,
    version: u32,
    tables: *mut *mut c_void,
    number: u64,
    identifier: *mut u64,
) -> c_int {
    belt(|| {
        // SAFETY: the arguments are a runtime's: a C string, and as many tables as it says.
        unsafe {
            if !name.is_null() && !tables.is_null() && number > 0 && elf::is(name, b"hip") {
                below::register(import, tables.read().cast());
            }
        }
    });
    let Some(next) = next() else {
        return NO_TOOLS;
    };
    // SAFETY: the function of this name in another library, with the runtime's own arguments.
    unsafe {
        let next: Register = core::mem::transmute(next);
        next(name, import, version, tables, number, identifier)
    }
}

/// The function of this name in another library. The dynamic linker is not asked: another thread may have its lock,
/// and wait for the runtime that is making its table now.
fn next() -> Option<usize> {
    const NAME: &CStr = c"rocprofiler_register_library_api_table";
    let ours = rocprofiler_register_library_api_table as *const () as usize;
    let mut behind_us = false;
    elf::find_object(|object| {
        // Another copy of this library before us would come back to us.
        if !behind_us {
            behind_us = object.contains(ours);
            return None;
        }
        object.symbol(NAME)
    })
}
