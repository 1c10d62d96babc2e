//! A caller's memory, reached without the driver's lock.
//!
//! Reading or writing memory of a client can take as long as that client likes: its pages may come
//! from a userfaultfd or from another FUSE server. So ioctls run under the lock on a copy. What an
//! ioctl reads and is not there yet is noted, and the ioctl fails; it is fetched without the lock,
//! and the ioctl runs again. (Ioctls read everything before they change anything; see [`Caller`].)
//! What it writes is kept for after the lock.

use std::cell::RefCell;

use nix::errno::Errno;

use crate::ioctl::{Caller, Descriptor};

use super::caller::RemoteCaller;

/// A part of the caller's memory, or that it is not mapped.
struct Part {
    address: u64,
    bytes: Result<Vec<u8>, Errno>,
}

/// A caller whose memory is a copy.
pub(super) struct StagedCaller {
    caller: RemoteCaller,
    fetched: Vec<Part>,
    wanted: RefCell<Option<(u64, usize)>>,
    written: RefCell<Vec<(u64, Vec<u8>)>>,
}

impl StagedCaller {
    /// Nothing is fetched yet.
    pub(super) fn new(caller: RemoteCaller) -> Self {
        Self {
            caller,
            fetched: Vec::new(),
            wanted: RefCell::default(),
            written: RefCell::default(),
        }
    }

    /// Whether the last run wanted memory that has not been fetched. Its result is none then.
    pub(super) fn wants_memory(&self) -> bool {
        self.wanted.borrow().is_some()
    }

    /// Fetches what the last run wanted. May take any time.
    pub(super) fn fetch(&mut self) {
        if let Some((address, length)) = self.wanted.take() {
            let mut buffer = vec![0; length];
            let read = self.caller.read(address, &mut buffer);
            let bytes = read.map(|()| buffer);
            self.fetched.push(Part { address, bytes });
        }
        self.written.take();
    }

    /// Whether something is to be written.
    pub(super) fn has_written(&self) -> bool {
        !self.written.borrow().is_empty()
    }

    /// Writes what the last run has written. May take any time.
    ///
    /// # Errors
    /// `EFAULT` when a part of it is not mapped.
    pub(super) fn write_back(&self) -> Result<(), Errno> {
        let parts = self.written.take();
        parts
            .iter()
            .try_for_each(|(address, bytes)| self.caller.write(*address, bytes))
    }
}

impl Caller for StagedCaller {
    fn pid(&self) -> u32 {
        self.caller.pid()
    }

    fn tid(&self) -> u32 {
        self.caller.tid()
    }

    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), Errno> {
        let fits = |part: &&Part| {
            part.address == address
                && part
                    .bytes
                    .as_ref()
                    .map_or(true, |b| b.len() == buffer.len())
        };
        match self.fetched.iter().find(fits) {
            Some(part) => {
                buffer.copy_from_slice(part.bytes.as_ref().map_err(|errno| *errno)?);
                Ok(())
            }
            None => {
                *self.wanted.borrow_mut() = Some((address, buffer.len()));
                Err(Errno::EFAULT)
            }
        }
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.written.borrow_mut().push((address, bytes.to_vec()));
        Ok(())
    }

    fn descriptor(&self, fd: u32) -> Descriptor {
        self.caller.descriptor(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> StagedCaller {
        let tid = nix::unistd::gettid().as_raw() as u32;
        StagedCaller::new(RemoteCaller::new(tid, None))
    }

    #[test]
    fn memory_is_read_at_the_second_attempt_and_written_at_the_end() {
        let mut number = 5_u32;
        let address = std::ptr::from_mut(&mut number) as u64;
        let mut staged = me();
        let mut back = [0; 4];
        assert_eq!(staged.read(address, &mut back), Err(Errno::EFAULT));
        assert!(staged.wants_memory());
        staged.fetch();
        staged.read(address, &mut back).unwrap();
        assert_eq!(u32::from_ne_bytes(back), 5);
        assert!(!staged.wants_memory() && !staged.has_written());
        staged.write(address, &7_u32.to_ne_bytes()).unwrap();
        assert!(staged.has_written());
        staged.write_back().unwrap();
        // SAFETY: a local variable, which the kernel has just changed.
        assert_eq!(unsafe { std::ptr::read_volatile(&raw const number) }, 7);
    }

    #[test]
    fn what_is_not_mapped_stays_an_error() {
        let mut staged = me();
        assert_eq!(staged.read(16, &mut [0; 4]), Err(Errno::EFAULT));
        staged.fetch();
        assert_eq!(staged.read(16, &mut [0; 4]), Err(Errno::EFAULT));
        assert!(!staged.wants_memory(), "it is known");
        staged.write(16, &[0; 4]).unwrap();
        assert_eq!(staged.write_back(), Err(Errno::EFAULT));
    }
}
