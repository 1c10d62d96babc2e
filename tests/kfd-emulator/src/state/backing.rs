//! The memory behind every mmap of `/dev/kfd` and the render nodes.
//!
//! One sparse file holds VRAM, GTT and doorbells of all GPUs. The kernel maps it into clients
//! directly (FUSE passthrough), and all openers of a FUSE inode share one backing file, so the
//! offsets that the ioctls hand out are offsets in this one file:
//!
//! | from | what |
//! |---|---|
//! | 0 | unused, so that offset 0 is nobody's memory |
//! | [`BUFFERS`] | buffer objects |
//! | [`DOORBELLS`] | doorbell pages, 4 GiB apart |

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// Where buffer objects start.
pub const BUFFERS: u64 = 64 << 20;
/// Where doorbell pages start.
pub const DOORBELLS: u64 = 1 << 45;
/// Distance of doorbell pages: libhsakmt takes the low 32 bits of `doorbell_offset` as the
/// doorbell's place within the page that it maps, so each page needs 4 GiB of numbers.
pub const DOORBELL_STRIDE: u64 = 1 << 32;
/// Bytes of a doorbell page: 1,024 doorbells of 8 bytes (`KFD_MAX_NUM_OF_QUEUES_PER_PROCESS`).
pub const DOORBELL_PAGE: u64 = 8192;
/// What a doorbell holds before the first ring.
pub const DOORBELL_UNRUNG: u64 = u64::MAX;
const END: u64 = DOORBELLS << 1;

/// What the state needs of the backing file. Errors are the host's (memory full); the driver has
/// no way to tell a client, so implementations report them and go on.
pub trait Backing: Send + Sync {
    /// Gives the pages of a freed run back to the host; they read as zero from then on.
    fn discard(&self, offset: u64, length: u64);
    /// Writes a doorbell.
    fn set_doorbell(&self, offset: u64, value: u64);
}

/// The backing file: an anonymous, sparse file in memory.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
}

impl MemoryFile {
    /// Makes the file. It takes host memory only for pages that are written.
    ///
    /// # Errors
    /// When the kernel refuses a memfd or its size.
    pub fn create() -> io::Result<Self> {
        let fd: OwnedFd = memfd_create(c"kfd-emulator", MFdFlags::MFD_CLOEXEC)?;
        let file = File::from(fd);
        file.set_len(END)?;
        Ok(Self { file })
    }

    /// The file, for passthrough and mmap.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Reads bytes at an offset.
    ///
    /// # Errors
    /// Past the end of the file.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// When the host has no memory left.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }
}

impl Backing for MemoryFile {
    fn discard(&self, offset: u64, length: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: fallocate takes a descriptor, which `self.file` keeps open, and plain numbers.
        let result =
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as i64, length as i64) };
        if result != 0 {
            eprintln!(
                "kfd-emulator: freed memory at {offset:#x} was not given back to the host: {}",
                io::Error::last_os_error()
            );
        }
    }

    fn set_doorbell(&self, offset: u64, value: u64) {
        if let Err(error) = self.write(offset, &value.to_ne_bytes()) {
            eprintln!("kfd-emulator: the doorbell at {offset:#x} could not be reset: {error}");
        }
    }
}

#[cfg(test)]
pub(crate) mod fake {
    //! A backing that remembers what was asked of it.

    use std::sync::{Arc, Mutex};

    use super::Backing;

    #[derive(Clone, Default)]
    pub(crate) struct FakeBacking(pub(crate) Arc<Mutex<Vec<(u64, u64)>>>);

    impl Backing for FakeBacking {
        fn discard(&self, offset: u64, length: u64) {
            self.0.lock().unwrap().push((offset, length));
        }

        fn set_doorbell(&self, _offset: u64, _value: u64) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discarded_page_reads_as_zero() {
        let memory = MemoryFile::create().unwrap();
        memory.write(BUFFERS, &[7; 4096]).unwrap();
        memory.discard(BUFFERS, 4096);
        let mut buffer = [1; 4096];
        memory.read(BUFFERS, &mut buffer).unwrap();
        assert_eq!(buffer, [0; 4096]);
    }

    #[test]
    fn doorbells_lie_past_all_buffers() {
        let memory = MemoryFile::create().unwrap();
        memory.set_doorbell(DOORBELLS + DOORBELL_STRIDE + 8, 5);
        let mut buffer = [0; 8];
        memory
            .read(DOORBELLS + DOORBELL_STRIDE + 8, &mut buffer)
            .unwrap();
        assert_eq!(u64::from_ne_bytes(buffer), 5);
        assert!(memory.read(END, &mut buffer).is_err());
    }
}
