//! Noticing a fork for the price of one load.

use std::io;
use std::ptr::NonNull;

// Not those of `sync`: no other process has this word.
use core::sync::atomic::{AtomicU64, Ordering};

/// Tells whether this process is a forked child of the one that made the guard.
///
/// It is a word on a page of its own that the kernel wipes in a forked child (`MADV_WIPEONFORK`,
/// Linux 4.14). A child that shares its parent's memory (vfork, `CLONE_VM`) sees the parent's word:
/// it acts on the parent's behalf and nothing is wiped. Asking `getpid` instead would be a system
/// call each time.
///
/// The page is never unmapped: the guard lives as long as the process.
#[derive(Debug)]
pub struct ForkGuard {
    word: NonNull<AtomicU64>,
}

// SAFETY: the word is an atomic in memory that is never unmapped.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

/// What the word holds where nothing was wiped.
const HERE: u64 = 1;

impl ForkGuard {
    /// Makes a guard that belongs to the calling process.
    ///
    /// # Errors
    /// When no page can be mapped, or the kernel cannot wipe it on fork.
    pub fn new() -> io::Result<Self> {
        let length = crate::sys::page_size();
        // SAFETY: a new private anonymous mapping at an address of the kernel's choice touches no
        // memory that is in use.
        let page = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `page` is the mapping made above, `length` bytes long.
        if unsafe { libc::madvise(page, length, libc::MADV_WIPEONFORK) } != 0 {
            let error = io::Error::last_os_error();
            // SAFETY: as above; nothing points into it yet.
            unsafe { libc::munmap(page, length) };
            return Err(error);
        }
        let word = NonNull::new(page.cast::<AtomicU64>())
            .ok_or_else(|| io::Error::other("mmap returned address 0"))?;
        let guard = Self { word };
        guard.word().store(HERE, Ordering::Release);
        Ok(guard)
    }

    /// A guard for a model, which has no processes.
    #[cfg(all(test, loom))]
    pub(crate) fn never_forked() -> Self {
        static WORD: AtomicU64 = AtomicU64::new(HERE);
        Self {
            word: NonNull::from(&WORD),
        }
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `word` points to the start of a page that is mapped readable and writable for the
        // life of the process, zeroed by the kernel (a valid AtomicU64) and aligned to a page.
        unsafe { self.word.as_ref() }
    }

    /// Whether this process is a forked child (or a child's child) of the one that made the guard.
    #[inline]
    #[must_use]
    pub fn in_forked_child(&self) -> bool {
        self.word().load(Ordering::Relaxed) != HERE
    }
}
