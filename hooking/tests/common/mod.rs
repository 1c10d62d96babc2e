//! A library of functions to hook, and hooks that count.

#![allow(dead_code, reason = "each suite uses a part")]

use std::ffi::{CStr, CString, c_void};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hipflex_hooking::{EngineKind, Hook, Refusal, Session};
use tempfile::TempDir;

/// A function of `prologues.S`.
pub(crate) type Function = extern "C" fn(u64) -> u32;

/// One copy of the library, loaded for good.
pub(crate) struct Library {
    pub(crate) folder: TempDir,
    pub(crate) path: PathBuf,
    handle: *mut c_void,
}

impl Library {
    /// Assembles and loads it.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("prologues.so");
        let built = Command::new("cc")
            .args(["-shared", "-nostdlib", "-Wl,-Bsymbolic", "-o"])
            .arg(&path)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prologues.S"))
            .status()
            .expect("a C compiler");
        assert!(built.success(), "the library does not assemble");
        Self::load(folder, path)
    }

    /// Another copy: the same functions at other addresses, not hooked.
    pub(crate) fn copy(&self) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("prologues.so");
        fs::copy(&self.path, &path).expect("a copy");
        Self::load(folder, path)
    }

    fn load(folder: TempDir, path: PathBuf) -> Self {
        let handle = load(&path);
        Self {
            folder,
            path,
            handle,
        }
    }

    /// The address of a function.
    pub(crate) fn address(&self, name: &str) -> usize {
        let name = CString::new(name).expect("a name");
        // SAFETY: a handle that is never closed, and a C string.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) } as usize;
        assert_ne!(address, 0, "{name:?}");
        address
    }

    /// A function of one argument.
    pub(crate) fn function(&self, name: &str) -> Function {
        // SAFETY: what the library has under the names of `prologues.S`.
        unsafe { core::mem::transmute(self.address(name)) }
    }
}

fn load(path: &Path) -> *mut c_void {
    let name = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a library without constructors.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    // SAFETY: dlerror gives a string or null; it is read only after a failure.
    assert!(!handle.is_null(), "{:?}", unsafe {
        CStr::from_ptr(libc::dlerror())
    });
    handle
}

/// How many counting hooks there are.
pub(crate) const HOOKS: usize = 48;
static CALLS: [AtomicU64; HOOKS] = [const { AtomicU64::new(0) }; HOOKS];
static ORIGINALS: [AtomicUsize; HOOKS] = [const { AtomicUsize::new(0) }; HOOKS];

macro_rules! counting_hooks {
    ($($index:literal)*) => { [$({
        /// Counts, and goes on to the original with all registers as they came.
        #[unsafe(naked)]
        unsafe extern "C" fn hook() {
            core::arch::naked_asm!(
                // Faults if the stack is not aligned as at any entry.
                "movaps xmmword ptr [rsp - 24], xmm0",
                "lock inc qword ptr [rip + {calls} + {offset}]",
                "jmp qword ptr [rip + {originals} + {offset}]",
                calls = sym CALLS,
                originals = sym ORIGINALS,
                offset = const $index * 8,
            )
        }
        hook as *const () as usize
    }),*] };
}

/// The hook with this number.
pub(crate) fn hook(index: usize) -> usize {
    let hooks = counting_hooks!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29
        30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47);
    hooks[index]
}

/// How often the hook with this number was called.
pub(crate) fn calls(index: usize) -> u64 {
    CALLS[index].load(Ordering::SeqCst)
}

/// Stages a function with the counting hook of this number.
pub(crate) fn stage(session: &mut Session, address: usize, index: usize) -> Result<Hook, Refusal> {
    // SAFETY: a function of a library that is never unloaded; the hook has every signature.
    let staged = unsafe { session.stage(address, hook(index)) }?;
    ORIGINALS[index].store(staged.original, Ordering::SeqCst);
    Ok(staged)
}

/// A session with the default engine.
pub(crate) fn session() -> Session {
    Session::new(EngineKind::Detour).expect("a session")
}

/// Commits what was staged with [`stage`].
pub(crate) fn commit(session: Session) -> Result<(), Refusal> {
    // SAFETY: `stage` stored the originals.
    unsafe { session.commit() }
}

/// Hooks one function with the counting hook of this number.
pub(crate) fn install(address: usize, index: usize) -> Result<Hook, Refusal> {
    let mut session = session();
    let staged = stage(&mut session, address, index)?;
    commit(session)?;
    Ok(staged)
}

/// Reads code.
pub(crate) fn code<const LENGTH: usize>(address: usize) -> [u8; LENGTH] {
    // SAFETY: functions of the library are longer than what is asked for, and readable.
    unsafe { (address as *const [u8; LENGTH]).read_volatile() }
}

/// Writes over code, as a debugger does it.
pub(crate) fn write_code(address: usize, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let memory = fs::OpenOptions::new().write(true).open("/proc/self/mem");
    let memory = memory.expect("/proc/self/mem");
    memory
        .write_all_at(bytes, address as u64)
        .expect("code can be written");
}

/// Runs `check` in a child process with one thread, for what cannot be taken back. Its panic becomes one here.
pub(crate) fn in_child(check: impl FnOnce()) {
    use std::io::{Read, Write};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    let (mut reader, mut writer) = std::io::pipe().expect("a pipe");
    // SAFETY: the child runs code of the test alone, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "{}", std::io::Error::last_os_error());
    if child == 0 {
        let said = Box::leak(Box::new(std::sync::Mutex::new(String::new())));
        let place: &'static std::sync::Mutex<String> = said;
        std::panic::set_hook(Box::new(move |panic| {
            *place.lock().expect("not poisoned") = panic.to_string();
        }));
        let passed = catch_unwind(AssertUnwindSafe(check)).is_ok();
        if !passed {
            let _ = writer.write_all(place.lock().expect("not poisoned").as_bytes());
        }
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    drop(writer);
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("what it said");
    let mut status = 0;
    // SAFETY: the child of above and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child: {said}");
}
