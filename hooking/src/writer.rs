//! Writes to code.

use core::ffi::c_int;
use std::io;

use crate::Refusal;
use crate::raw::{self, Fd};

/// Writes through `/proc/self/mem`.
///
/// Not by making the page writable: a uprobe that is attached in that moment is silently left out, and coming
/// back to r-x does not mend it. The kernel writes to pages that are r-x (as debuggers need it), under a lock
/// that excludes uprobes, and exactly these bytes: a breakpoint beside them stays, or goes, as its owner wants.
#[derive(Debug)]
pub(crate) struct Writer {
    memory: Fd,
    /// Another process, such as a forked child, must not write with this: it would write to its parent.
    process: c_int,
}

impl Writer {
    /// Opens this process's memory, and tries whether the kernel lets code be written to: it can be told not to
    /// (`proc_mem.force_override`), and security modules may forbid it.
    pub(crate) fn new() -> Result<Self, Refusal> {
        let text = "cannot write to code by /proc/self/mem";
        let memory = Fd::open(c"/proc/self/mem", libc::O_WRONLY)
            .map_err(|error| Refusal::system(text, &raw::error(error)))?;
        let writer = Self {
            memory,
            process: raw::process_id(),
        };
        let page =
            Page::map().map_err(|error| Refusal::system("cannot map executable memory", &error))?;
        match writer.write(page.0, &[0xc3]) {
            Ok(()) => Ok(writer),
            Err(error) => Err(Refusal::system(text, &raw::error(error))),
        }
    }

    /// Whether it was made by this process.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == raw::process_id()
    }

    /// Writes, and looks whether it is there; else the error's number.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), c_int> {
        let written = self.memory.write_at(bytes, at as u64)?;
        let mut places = (at..).zip(bytes);
        // SAFETY: what could be written is mapped, and all that is written here is readable.
        let arrived =
            places.all(|(at, byte)| unsafe { (at as *const u8).read_volatile() } == *byte);
        if written == bytes.len() && arrived {
            Ok(())
        } else {
            Err(libc::EIO)
        }
    }
}

/// A page of r-x memory for trying. Unmapped when dropped.
struct Page(usize);

const PAGE: usize = 0x1000;

impl Page {
    fn map() -> io::Result<Self> {
        // SAFETY: a new mapping where the kernel likes replaces nothing.
        let page = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(page as usize))
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `map`, and nothing of it is used any more.
        unsafe { libc::munmap(self.0 as *mut _, PAGE) };
    }
}
