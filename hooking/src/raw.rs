//! System calls as they are: nothing here allocates, takes a lock, or is a cancellation point. That is what may
//! be done while other threads are stopped, since one of them may have the lock that an allocator or libc wants.

use core::ffi::{CStr, c_int, c_long};
use core::ptr;
use core::sync::atomic::AtomicU32;
use core::time::Duration;

/// `FUTEX_WAIT | FUTEX_PRIVATE_FLAG` and `FUTEX_WAKE | FUTEX_PRIVATE_FLAG`, `linux/futex.h`.
const FUTEX_WAIT_PRIVATE: c_int = 128;
const FUTEX_WAKE_PRIVATE: c_int = 129;

/// An open file. Closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(c_int);

impl Fd {
    /// Opens `path`; else the error's number.
    pub(crate) fn open(path: &CStr, flags: c_int) -> Result<Self, c_int> {
        let flags = flags | libc::O_CLOEXEC;
        // SAFETY: the path is a C string; without O_CREAT there is no further argument.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_openat,
                libc::AT_FDCWD as c_long,
                path.as_ptr(),
                flags as c_long,
            )
        };
        result(fd).map(|fd| Self(fd as c_int))
    }

    /// Reads from where the file stands.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<usize, c_int> {
        // SAFETY: the buffer is valid for writes of its length.
        result(unsafe {
            libc::syscall(
                libc::SYS_read,
                self.0 as c_long,
                into.as_mut_ptr(),
                into.len(),
            )
        })
    }

    /// Writes at an offset.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize, c_int> {
        // SAFETY: the buffer is valid for reads of its length. What the file is concerned by the write is the
        // business of who opened it.
        result(unsafe {
            libc::syscall(
                libc::SYS_pwrite64,
                self.0 as c_long,
                bytes.as_ptr(),
                bytes.len(),
                offset,
            )
        })
    }

    /// Goes back to the start.
    pub(crate) fn rewind(&self) -> Result<(), c_int> {
        // SAFETY: no pointers.
        result(unsafe {
            libc::syscall(
                libc::SYS_lseek,
                self.0 as c_long,
                0_i64,
                libc::SEEK_SET as c_long,
            )
        })
        .map(drop)
    }

    /// Reads `linux_dirent64` records of a folder.
    pub(crate) fn entries(&self, into: &mut [u8]) -> Result<usize, c_int> {
        // SAFETY: the buffer is valid for writes of its length.
        result(unsafe {
            libc::syscall(
                libc::SYS_getdents64,
                self.0 as c_long,
                into.as_mut_ptr(),
                into.len(),
            )
        })
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is owned, and not used any more.
        unsafe { libc::syscall(libc::SYS_close, self.0 as c_long) };
    }
}

/// What a system call returned, or the number of its error.
fn result(returned: c_long) -> Result<usize, c_int> {
    usize::try_from(returned).map_err(|_| errno())
}

/// The number of the calling thread's last error.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Sets the number of the calling thread's last error.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
}

/// What an error's number means.
pub(crate) fn error(number: c_int) -> std::io::Error {
    std::io::Error::from_raw_os_error(number)
}

/// The calling thread's number.
pub(crate) fn thread_id() -> c_int {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as c_int }
}

/// The process's number.
pub(crate) fn process_id() -> c_int {
    // SAFETY: no arguments. Not libc's, which older ones cache across a raw clone.
    unsafe { libc::syscall(libc::SYS_getpid) as c_int }
}

/// Sends a signal to a thread of this process.
pub(crate) fn signal_thread(thread: c_int, signal: c_int) -> Result<(), c_int> {
    // SAFETY: no pointers; process and thread are named, so that a number which was given away meanwhile to
    // another process's thread is not meant.
    result(unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            process_id() as c_long,
            thread as c_long,
            signal as c_long,
        )
    })
    .map(drop)
}

/// Waits until somebody wakes `word`, it is not `expected`, or the time is over.
pub(crate) fn wait(word: &AtomicU32, expected: u32, at_most: Duration) {
    let time = timespec(at_most);
    // SAFETY: the word outlives the call, as does the time.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            FUTEX_WAIT_PRIVATE as c_long,
            expected,
            &raw const time,
        )
    };
}

/// Wakes all who wait for `word`.
pub(crate) fn wake(word: &AtomicU32) {
    // SAFETY: the word is valid during the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            FUTEX_WAKE_PRIVATE as c_long,
            c_int::MAX as c_long,
        )
    };
}

/// Sleeps.
pub(crate) fn sleep(duration: Duration) {
    let time = timespec(duration);
    // SAFETY: the time outlives the call, what is left of it is not asked for.
    unsafe {
        libc::syscall(
            libc::SYS_nanosleep,
            &raw const time,
            ptr::null_mut::<libc::timespec>(),
        )
    };
}

/// The time since some start, which does not jump.
pub(crate) fn now() -> Duration {
    let mut time = timespec(Duration::ZERO);
    // SAFETY: the out-pointer is valid; clock_gettime takes no lock and may be called from signal handlers.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs() as i64,
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
