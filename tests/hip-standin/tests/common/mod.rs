//! Loads copies of the stand-in into the test's own process, each with its own devices and account.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of this"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem::transmute_copy;
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::Mutex;
use std::{env, fs};

use hip_standin::{Build, Settings};

/// Calls an export: `call!(instance, hipFree(pointer => *mut c_void))`. Each argument is followed by its type in C; the
/// result is a `hipError_t`.
macro_rules! call {
    ($instance:expr, $name:ident($($argument:expr => $type:ty),* $(,)?)) => {{
        type Function = unsafe extern "C" fn($($type),*) -> std::ffi::c_int;
        // SAFETY: the signature is that of the header.
        let function: Function = unsafe { $instance.function(stringify!($name)) };
        // SAFETY: pointers are to values of this test, which live, or such as the function has to refuse.
        unsafe { function($($argument),*) }
    }};
}
#[allow(unused_imports, reason = "not every test file calls functions itself")]
pub(crate) use call;

pub const MIB: usize = 1 << 20;
pub const GIB: usize = 1 << 30;

/// `hipError_t` and a few names of it.
pub type Error = c_int;
pub const SUCCESS: Error = 0;
pub const INVALID_VALUE: Error = 1;
pub const OUT_OF_MEMORY: Error = 2;
pub const NO_DEVICE: Error = 100;
pub const INVALID_DEVICE: Error = 101;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pitched {
    pub pointer: *mut c_void,
    pub pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// `hipMemAllocationProp`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    pub kind: c_int,
    pub handle_type: c_int,
    pub location_type: c_int,
    pub location: c_int,
    pub rest: [usize; 2],
}

impl Properties {
    pub fn on_device(device: c_int) -> Self {
        Self {
            kind: 1,
            handle_type: 1,
            location_type: 1,
            location: device,
            rest: [0; 2],
        }
    }
}

/// A copy of a build, loaded for this test alone.
pub struct Instance {
    pub build: Build,
    handle: *mut c_void,
    path: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

/// The stand-in reads its environment once, in its first call.
static ENVIRONMENT: Mutex<()> = Mutex::new(());

impl Instance {
    pub fn new(build: Build) -> Self {
        Self::with(build, &Settings::new(), &[])
    }

    /// `others`: further variables, such as HIP_VISIBLE_DEVICES.
    pub fn with(build: Build, settings: &Settings, others: &[(&str, &str)]) -> Self {
        Self::load(build, settings, others, || ())
    }

    /// `before`: what happens before the first call of the stand-in.
    pub fn with_first_call(build: Build, settings: &Settings, before: impl FnOnce()) -> Self {
        Self::load(build, settings, &[], before)
    }

    fn load(
        build: Build,
        settings: &Settings,
        others: &[(&str, &str)],
        before: impl FnOnce(),
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Another file is another library to the linker.
        let copy = directory.path().join(build.soname());
        fs::copy(build.path(), &copy).unwrap();
        let path = CString::new(copy.as_os_str().as_bytes()).unwrap();
        let _guard = ENVIRONMENT
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut variables: Vec<_> = settings.variables().map(|(n, v)| (n, v.clone())).collect();
        variables.extend(others.iter().map(|(n, v)| (*n, (*v).into())));
        // SAFETY: the only code here that reads the environment without Rust's lock is the stand-in's first
        // call, below, under the same guard.
        unsafe {
            for (name, value) in &variables {
                env::set_var(name, value);
            }
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            assert!(!handle.is_null(), "{build} cannot be loaded");
            let instance = Self {
                build,
                handle,
                path: copy,
                _directory: directory,
            };
            before();
            instance.bad_frees();
            for (name, _) in &variables {
                env::remove_var(name);
            }
            instance
        }
    }

    /// The address of an export.
    pub fn address(&self, name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).unwrap();
        // SAFETY: a handle that dlopen gave, and a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    }

    /// An export as a function.
    ///
    /// # Safety
    /// `F` is a function pointer of its type.
    pub unsafe fn function<F: Copy>(&self, name: &str) -> F {
        let address = self
            .address(name)
            .unwrap_or_else(|| panic!("{}: no {name}", self.build));
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: a pointer of the type that the caller vouches for.
        unsafe { transmute_copy(&address) }
    }

    pub fn set(&self, name: &str, value: &str) {
        let (name, value) = (CString::new(name).unwrap(), CString::new(value).unwrap());
        let result = call!(self, hip_standin_set(name.as_ptr() => *const c_char, value.as_ptr() => *const c_char));
        assert_eq!(result, 0, "{name:?}={value:?}");
    }

    pub fn live(&self, device: c_int) -> usize {
        // SAFETY: control.c has this signature.
        unsafe {
            self.function::<unsafe extern "C" fn(c_int) -> u64>("hip_standin_live")(device) as usize
        }
    }

    pub fn held(&self, device: c_int, kind: hip_standin::Kind) -> usize {
        // SAFETY: control.c has this signature.
        unsafe {
            self.function::<unsafe extern "C" fn(c_int, c_int) -> u64>("hip_standin_held")(
                device,
                kind as c_int,
            ) as usize
        }
    }

    pub fn calls(&self, name: &str) -> u64 {
        self.counter("hip_standin_calls", name)
    }

    pub fn errors(&self, name: &str) -> u64 {
        self.counter("hip_standin_errors", name)
    }

    fn counter(&self, which: &str, name: &str) -> u64 {
        let name = CString::new(name).unwrap();
        // SAFETY: control.c has this signature.
        unsafe { self.function::<unsafe extern "C" fn(*const c_char) -> u64>(which)(name.as_ptr()) }
    }

    pub fn bad_frees(&self) -> u64 {
        // SAFETY: control.c has this signature.
        unsafe { self.function::<unsafe extern "C" fn() -> u64>("hip_standin_bad_frees")() }
    }

    pub fn malloc(&self, bytes: usize) -> Result<*mut c_void, Error> {
        let mut pointer = UNTOUCHED;
        match call!(self, hipMalloc(&raw mut pointer => *mut *mut c_void, bytes => usize)) {
            SUCCESS => Ok(pointer),
            error => {
                assert_eq!(pointer, UNTOUCHED, "the output of a failure");
                Err(error)
            }
        }
    }

    pub fn free(&self, pointer: *mut c_void) -> Error {
        call!(self, hipFree(pointer => *mut c_void))
    }

    pub fn set_device(&self, device: c_int) -> Error {
        call!(self, hipSetDevice(device => c_int))
    }

    pub fn last_error(&self) -> Error {
        call!(self, hipGetLastError())
    }

    /// Free and total memory of the current device.
    pub fn info(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        let error =
            call!(self, hipMemGetInfo(&raw mut free => *mut usize, &raw mut total => *mut usize));
        assert_eq!(error, SUCCESS);
        (free, total)
    }

    pub fn bus_id(&self, device: c_int) -> Result<String, Error> {
        let mut text = [0; 32];
        match call!(self, hipDeviceGetPCIBusId(text.as_mut_ptr() => *mut c_char, 32 => c_int, device => c_int))
        {
            // SAFETY: a success ends with a terminator inside of the buffer.
            SUCCESS => Ok(unsafe { CStr::from_ptr(text.as_ptr()) }
                .to_str()
                .unwrap()
                .to_owned()),
            error => Err(error),
        }
    }

    pub fn device_count(&self) -> (Error, c_int) {
        let mut count = -1;
        (
            call!(self, hipGetDeviceCount(&raw mut count => *mut c_int)),
            count,
        )
    }

    pub fn mem_create(&self, bytes: usize, properties: &Properties) -> Result<*mut c_void, Error> {
        let mut handle = UNTOUCHED;
        match call!(self, hipMemCreate(&raw mut handle => *mut *mut c_void, bytes => usize,
            ptr::from_ref(properties) => *const Properties, 0 => u64))
        {
            SUCCESS => Ok(handle),
            error => Err(error),
        }
    }

    pub fn malloc_async(&self, bytes: usize, stream: *mut c_void) -> Result<*mut c_void, Error> {
        let mut pointer = UNTOUCHED;
        match call!(self, hipMallocAsync(&raw mut pointer => *mut *mut c_void, bytes => usize, stream => *mut c_void))
        {
            SUCCESS => Ok(pointer),
            error => Err(error),
        }
    }

    pub fn free_async(&self, pointer: *mut c_void, stream: *mut c_void) -> Error {
        call!(self, hipFreeAsync(pointer => *mut c_void, stream => *mut c_void))
    }
}

/// What an output holds before a call.
pub const UNTOUCHED: *mut c_void = 0x5a5a_5a5a_usize as *mut c_void;

/// The release that a row of `functions.h` names: `6`, `5_7`.
pub fn since(field: &str) -> (u32, u32) {
    let (generation, minor) = field.split_once('_').unwrap_or((field, "0"));
    (generation.parse().unwrap(), minor.parse().unwrap())
}

/// The channel format of `channels` floats.
pub fn floats(channels: usize) -> [c_int; 5] {
    let mut format = [0, 0, 0, 0, 2];
    format[..channels].fill(32);
    format
}

/// `HIP_ARRAY3D_DESCRIPTOR` (and, without its depth and flags, `HIP_ARRAY_DESCRIPTOR`).
#[repr(C)]
pub struct Descriptor3D {
    pub extent: Extent,
    pub format: c_uint,
    pub channels: c_uint,
    pub flags: c_uint,
}

#[repr(C)]
pub struct Descriptor {
    pub width: usize,
    pub height: usize,
    pub format: c_uint,
    pub channels: c_uint,
}

impl Instance {
    /// An export of a certain version.
    pub fn versioned(&self, name: &str, version: &str) -> Option<*mut c_void> {
        let (name, version) = (CString::new(name).unwrap(), CString::new(version).unwrap());
        // SAFETY: a handle that dlopen gave, and C strings.
        let address = unsafe { libc::dlvsym(self.handle, name.as_ptr(), version.as_ptr()) };
        (!address.is_null()).then_some(address)
    }
}

impl Instance {
    /// Puts the library into the global scope, where those loaded later look first.
    pub fn make_global(&self) {
        let path = CString::new(self.path.as_os_str().as_bytes()).unwrap();
        // SAFETY: a C string; the library is loaded already.
        let handle = unsafe {
            libc::dlopen(
                path.as_ptr(),
                libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_GLOBAL,
            )
        };
        assert_eq!(handle, self.handle);
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: control.c has this signature; nothing calls this copy any more.
        unsafe { self.function::<unsafe extern "C" fn()>("hip_standin_close")() }
    }
}
