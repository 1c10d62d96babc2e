//! The account of the stand-in's devices, read from outside while programs use them. Layout:
//! `runtime/account.h`.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::liveness::Identity;

const MAGIC: u64 = 0x314e_4941_544e_4453;
const VERSION: u64 = 1;
const DEVICES: usize = 64;
const PROCESSES: usize = 1024;
const FUNCTIONS: usize = 128;
const NAME_BYTES: usize = 48;
const KINDS: usize = 8;

/// Numbers of the header, in front of the peaks.
const HEADER: usize = 8;
/// In numbers of 8 bytes from the start.
const PEAK: usize = HEADER;
const VRAM: usize = PEAK + DEVICES;
const NAMES: usize = VRAM + DEVICES;
const FORMER_CALLS: usize = NAMES + FUNCTIONS * NAME_BYTES / 8;
const FORMER_ERRORS: usize = FORMER_CALLS + FUNCTIONS;
const FORMER_BAD_FREES: usize = FORMER_ERRORS + FUNCTIONS;
const TAKEN: usize = FORMER_BAD_FREES + 1;
const PROCESS: usize = TAKEN + DEVICES * PROCESSES;
/// Of a process's record.
const CALLS: usize = 4;
const ERRORS: usize = CALLS + FUNCTIONS;
const HELD: usize = ERRORS + FUNCTIONS;
const RECORD: usize = HELD + DEVICES * KINDS;
const NUMBERS: usize = PROCESS + PROCESSES * RECORD;

/// A sort of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linear memory: `hipMalloc`, `hipMallocPitch`, `hipMalloc3D`, `hipExtMallocWithFlags`.
    Linear = 0,
    /// `hipMallocManaged`. Takes no VRAM in the driver's count.
    Managed = 1,
    /// Host memory. Takes no VRAM.
    Host = 2,
    /// Arrays and mipmapped arrays.
    Array = 3,
    /// Blocks of pools, whether a program uses them at present or not.
    Pool = 4,
    /// `hipMemCreate`.
    Virtual = 5,
    /// Memory of another process. Takes no VRAM here.
    Imported = 6,
}

/// Why an account could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// The file could not be opened or mapped.
    #[error("the stand-in's account {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is something else, or was made by another build of the stand-in.
    #[error("{0} is no account of this build of the stand-in (no program may have used it yet)")]
    Foreign(PathBuf),
}

/// An account, mapped. All that is read is of this moment.
#[derive(Debug)]
pub struct Account {
    numbers: NonNull<AtomicU64>,
}

// SAFETY: the mapping is read through atomics only.
unsafe impl Send for Account {}
// SAFETY: as above.
unsafe impl Sync for Account {}

impl Account {
    /// Maps the account in this file. It is there once the first program has made its first HIP call.
    pub fn open(path: &Path) -> Result<Self, AccountError> {
        let failed = |source| AccountError::Io {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() != (NUMBERS * 8) as u64 {
            return Err(AccountError::Foreign(path.to_owned()));
        }
        // SAFETY: a new mapping of an open file, as long as the file is.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                NUMBERS * 8,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let numbers = NonNull::new(memory.cast::<AtomicU64>())
            .filter(|_| memory != libc::MAP_FAILED)
            .ok_or_else(|| failed(io::Error::last_os_error()))?;
        let account = Self { numbers };
        let header = [account.number(0), account.number(1), account.number(2)];
        if header != [MAGIC, VERSION, (NUMBERS * 8) as u64] {
            return Err(AccountError::Foreign(path.to_owned()));
        }
        Ok(account)
    }

    fn number(&self, index: usize) -> u64 {
        assert!(index < NUMBERS);
        // SAFETY: inside of the mapping, which is aligned to pages; the index was checked.
        unsafe { self.numbers.add(index).as_ref() }.load(Ordering::SeqCst)
    }

    /// How many devices the machine has (not: how many are visible).
    pub fn devices(&self) -> usize {
        self.number(3) as usize
    }

    /// The size of a device, by its place on the machine.
    pub fn vram(&self, device: usize) -> u64 {
        assert!(device < DEVICES);
        self.number(VRAM + device)
    }

    /// VRAM of a device that living processes hold.
    pub fn used(&self, device: usize) -> u64 {
        self.processes()
            .filter(Process::is_alive)
            .map(|process| process.taken(device))
            .sum()
    }

    /// The most VRAM of a device that living processes ever held together.
    pub fn peak(&self, device: usize) -> u64 {
        assert!(device < DEVICES);
        self.number(PEAK + device)
    }

    /// Requests that a device had no room for.
    pub fn refused(&self) -> u64 {
        self.number(7)
    }

    /// Calls of a function by all processes there were. Panics if there is no such function.
    pub fn calls(&self, function: &str) -> u64 {
        let now: u64 = self
            .processes()
            .map(|process| process.calls(function))
            .sum();
        now + self.number(FORMER_CALLS + self.function(function))
    }

    /// Those of them that failed.
    pub fn errors(&self, function: &str) -> u64 {
        let now: u64 = self
            .processes()
            .map(|process| process.errors(function))
            .sum();
        now + self.number(FORMER_ERRORS + self.function(function))
    }

    /// Frees of what was not there, or not of that sort, by all processes.
    pub fn bad_frees(&self) -> u64 {
        let now: u64 = self.processes().map(|process| process.bad_frees()).sum();
        now + self.number(FORMER_BAD_FREES)
    }

    /// The processes that used a device, in the order of their first call; those that ended too.
    pub fn processes(&self) -> impl Iterator<Item = Process<'_>> {
        let places = (self.number(6) as usize).min(PROCESSES);
        (0..places)
            .map(|place| Process {
                account: self,
                place,
            })
            .filter(|process| process.id() != 0)
    }

    fn function(&self, name: &str) -> usize {
        (0..self.number(4) as usize)
            .find(|index| self.name(*index) == name.as_bytes())
            .unwrap_or_else(|| panic!("the stand-in has no function {name}"))
    }

    fn name(&self, index: usize) -> Vec<u8> {
        let start = NAMES + index * NAME_BYTES / 8;
        (start..start + NAME_BYTES / 8)
            .flat_map(|number| self.number(number).to_ne_bytes())
            .take_while(|byte| *byte != 0)
            .collect()
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and all borrows of it have ended.
        unsafe { libc::munmap(self.numbers.as_ptr().cast::<c_void>(), NUMBERS * 8) };
    }
}

/// A process of an account.
#[derive(Clone, Copy, Debug)]
pub struct Process<'a> {
    account: &'a Account,
    place: usize,
}

impl Process<'_> {
    fn number(&self, index: usize) -> u64 {
        self.account.number(PROCESS + self.place * RECORD + index)
    }

    /// Its PID, as it sees it.
    pub fn id(&self) -> u32 {
        self.number(0) as u32
    }

    /// Whether it is still there. Only for processes in this PID namespace.
    pub fn is_alive(&self) -> bool {
        let identity = Identity {
            pid: self.number(0),
            start_time: self.number(1),
            stack_start: self.number(2),
        };
        identity.is_alive()
    }

    /// VRAM that it takes of a device; for one that is dead, what was not yet noticed to be free.
    fn taken(&self, device: usize) -> u64 {
        assert!(device < DEVICES);
        self.account.number(TAKEN + device * PROCESSES + self.place)
    }

    /// What it holds of one kind, or held at its end.
    pub fn held(&self, device: usize, kind: Kind) -> u64 {
        assert!(device < DEVICES);
        self.number(HELD + device * KINDS + kind as usize)
    }

    /// VRAM that it holds of a device, or held at its end.
    pub fn live(&self, device: usize) -> u64 {
        [Kind::Linear, Kind::Array, Kind::Pool, Kind::Virtual]
            .into_iter()
            .map(|kind| self.held(device, kind))
            .sum()
    }

    /// Its calls of a function. Panics if there is no such function.
    pub fn calls(&self, function: &str) -> u64 {
        self.number(CALLS + self.account.function(function))
    }

    /// Those of them that failed.
    pub fn errors(&self, function: &str) -> u64 {
        self.number(ERRORS + self.account.function(function))
    }

    /// Its frees of what was not there, or not of that sort.
    pub fn bad_frees(&self) -> u64 {
        self.number(3)
    }
}
