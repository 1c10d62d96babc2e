//! Uses a build of the stand-in as a program would, in a process of its own:
//! `hip-standin-client LIBRARY STEP...`
//!
//! * `malloc:BYTES`, `free` (the last one), `device:N`: prints the result's number;
//! * `wait`: until a line comes in;
//! * `fork STEP...`: the rest happens in a child, whose end is waited for;
//! * `exec STEP...`: the rest happens in this process after an exec.

use std::env;
use std::error::Error;
use std::ffi::{CStr, CString, c_int, c_void};
use std::io::{self, Write};
use std::mem::transmute;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::ptr;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hip-standin-client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The functions that the steps need.
struct Hip(*mut c_void);

impl Hip {
    fn function(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: a handle that dlopen gave, and a C string.
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        (!address.is_null())
            .then_some(address)
            .ok_or_else(|| format!("no function {name:?}"))
    }

    fn malloc(&self, bytes: usize, pointer: &mut *mut c_void) -> Result<c_int, String> {
        // SAFETY: hipMalloc has this signature in every release.
        unsafe {
            let malloc: unsafe extern "C" fn(*mut *mut c_void, usize) -> c_int =
                transmute(self.function(c"hipMalloc")?);
            Ok(malloc(pointer, bytes))
        }
    }

    fn free(&self, pointer: *mut c_void) -> Result<c_int, String> {
        // SAFETY: hipFree has this signature in every release, and takes any value.
        unsafe {
            let free: unsafe extern "C" fn(*mut c_void) -> c_int =
                transmute(self.function(c"hipFree")?);
            Ok(free(pointer))
        }
    }

    fn set_device(&self, device: c_int) -> Result<c_int, String> {
        // SAFETY: hipSetDevice has this signature in every release.
        unsafe {
            let set: unsafe extern "C" fn(c_int) -> c_int =
                transmute(self.function(c"hipSetDevice")?);
            Ok(set(device))
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args_os().skip(1);
    let library = arguments.next().ok_or("no library named")?;
    let path = CString::new(library.clone().into_vec())?;
    // SAFETY: a C string; the library's constructors are what the caller asked for.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    if handle.is_null() {
        return Err(format!("{} cannot be loaded", path.to_string_lossy()).into());
    }
    let hip = Hip(handle);
    let mut pointers = Vec::new();
    let mut child = None;
    while let Some(step) = arguments.next() {
        let step = step.into_string().map_err(|_| "a step is no text")?;
        let (name, value) = step.split_once(':').unwrap_or((&step, "0"));
        let result = match name {
            "malloc" => {
                let mut pointer = ptr::null_mut();
                let error = hip.malloc(value.parse()?, &mut pointer)?;
                pointers.push(pointer);
                error
            }
            "free" => hip.free(pointers.pop().ok_or("nothing to free")?)?,
            "device" => hip.set_device(value.parse()?)?,
            "wait" => {
                io::stdin().read_line(&mut String::new())?;
                continue;
            }
            // SAFETY: this program has one thread.
            "fork" => match unsafe { libc::fork() } {
                0 => continue,
                -1 => return Err(io::Error::last_os_error().into()),
                pid => {
                    child = Some(pid);
                    break;
                }
            },
            "exec" => {
                let error = Command::new(env::current_exe()?)
                    .arg(library)
                    .args(arguments)
                    .exec();
                return Err(error.into());
            }
            _ => return Err(format!("no step {name}").into()),
        };
        println!("{result}");
        io::stdout().flush()?;
    }
    if let Some(pid) = child {
        let mut status = 0;
        // SAFETY: a child of this process, and a place for its status.
        if unsafe { libc::waitpid(pid, &mut status, 0) } != pid || status != 0 {
            return Err("the child failed".into());
        }
    }
    Ok(())
}
