//! Reading a file with system calls alone: libc's functions may be interposed by libraries that have not set themselves up
//! yet.

use core::arch::asm;
use core::ffi::CStr;
use core::mem::MaybeUninit;

const READ: usize = 0;
const CLOSE: usize = 3;
const OPENAT: usize = 257;
const FACCESSAT: usize = 269;
const AT_FDCWD: usize = -100_isize as usize;
/// `O_RDONLY | O_CLOEXEC`
const READ_ONLY: usize = 0x8_0000;
const EINTR: i32 = 4;

/// A system call. The error is its number.
///
/// # Safety
/// The kernel may be asked this: every argument that is an address is valid for what the call does with it.
unsafe fn system_call(number: usize, arguments: [usize; 4]) -> Result<usize, i32> {
    let [first, second, third, fourth] = arguments;
    let result: isize;
    // SAFETY: as above. The calling convention of Linux on x86-64: rcx and r11 are lost, the result is in rax.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match usize::try_from(result) {
        Ok(value) => Ok(value),
        Err(_) => Err(i32::try_from(result.saturating_neg()).unwrap_or(i32::MAX)),
    }
}

/// Whether there is such a file.
pub(super) fn exists(path: &CStr) -> bool {
    // SAFETY: the path is a C string; F_OK asks for nothing more.
    unsafe { system_call(FACCESSAT, [AT_FDCWD, path.as_ptr().addr(), 0, 0]) }.is_ok()
}

/// Reads a short file into `place`, and answers what was read.
pub(super) fn read<'a>(path: &CStr, place: &'a mut [MaybeUninit<u8>]) -> Result<&'a [u8], i32> {
    // SAFETY: the path is a C string.
    let file = unsafe { system_call(OPENAT, [AT_FDCWD, path.as_ptr().addr(), READ_ONLY, 0]) }?;
    let mut len = 0_usize;
    let result = loop {
        let room = place.get_mut(len..).unwrap_or_default();
        if room.is_empty() {
            break Ok(());
        }
        // SAFETY: the kernel writes at most as many bytes as there is room for.
        match unsafe { system_call(READ, [file, room.as_mut_ptr().addr(), room.len(), 0]) } {
            Ok(0) => break Ok(()),
            Ok(count) => len = len.saturating_add(count),
            Err(EINTR) => {}
            Err(error) => break Err(error),
        }
    };
    // SAFETY: a descriptor of our own, used for the last time.
    let _ = unsafe { system_call(CLOSE, [file, 0, 0, 0]) };
    result?;
    let read = place.get(..len).unwrap_or_default();
    // SAFETY: the kernel has written all of these bytes.
    Ok(unsafe { &*(core::ptr::from_ref(read) as *const [u8]) })
}
