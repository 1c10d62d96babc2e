//! What a function's code is according to its file. Memory may hold somebody's breakpoint.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use crate::Refusal;
use crate::elf::Functions;
use crate::maps::{Mapping, Maps};

/// What is looked at of a function of which the file does not say how long it is.
const UNKNOWN_LENGTH: usize = 512;
/// What is looked at of any.
const LONGEST: usize = 1 << 20;
/// At least this much is read, if it is there: kept instructions, the jump, and what is under it.
const SHORTEST: usize = 64;

/// The bytes of one function, from its file.
#[derive(Clone, Debug)]
pub(crate) struct Code {
    /// Where it is in memory.
    pub(crate) entry: usize,
    /// Its length, if the file says it.
    pub(crate) length: Option<usize>,
    /// The function, and what comes behind it if it is short.
    bytes: Vec<u8>,
    /// How many of them are the function, as far as known.
    body: usize,
}

impl Code {
    /// For `bytes` at `entry`.
    pub(crate) fn new(entry: usize, length: Option<usize>, bytes: Vec<u8>) -> Self {
        let body = length.unwrap_or(UNKNOWN_LENGTH).min(bytes.len());
        Self {
            entry,
            length,
            bytes,
            body,
        }
    }

    /// The function.
    pub(crate) fn body(&self) -> &[u8] {
        self.bytes.get(..self.body).unwrap_or_default()
    }

    /// The byte that the file has for an address.
    pub(crate) fn byte(&self, address: usize) -> Option<u8> {
        let offset = address.checked_sub(self.entry)?;
        self.bytes.get(offset).copied()
    }

    /// The bytes that the file has from an address on: as many as are wanted, or none.
    pub(crate) fn bytes<const LENGTH: usize>(&self, address: usize) -> Option<[u8; LENGTH]> {
        let offset = address.checked_sub(self.entry)?;
        self.bytes.get(offset..)?.first_chunk().copied()
    }
}

/// The files of the libraries that are mapped.
#[derive(Debug)]
pub(crate) struct CodeFiles {
    pub(crate) maps: Maps,
    files: Vec<CodeFile>,
}

#[derive(Debug)]
struct CodeFile {
    path: PathBuf,
    inode: u64,
    file: File,
    functions: Functions,
}

impl CodeFiles {
    /// As things are mapped now.
    pub(crate) fn new() -> Result<Self, Refusal> {
        Ok(Self {
            maps: Maps::read()?,
            files: Vec::new(),
        })
    }

    /// The code of the function at `entry`.
    pub(crate) fn code(&mut self, entry: usize) -> Result<Code, Refusal> {
        let mapping = self
            .maps
            .at(entry)
            .filter(|mapping| mapping.inode != 0 && mapping.executable && mapping.readable)
            .ok_or(Refusal::NotInFile(entry))?;
        let mapped = self.maps.end_of_code(mapping).saturating_sub(entry);
        let offset = mapping
            .offset
            .saturating_add(entry.saturating_sub(mapping.start) as u64);
        let known = |file: &&CodeFile| file.inode == mapping.inode && file.path == mapping.path;
        let known = match self.files.iter().position(|file| known(&file)) {
            Some(index) => index,
            None => {
                self.files.push(CodeFile::open(mapping)?);
                self.files.len().saturating_sub(1)
            }
        };
        let file = self.files.get(known).ok_or(Refusal::NotInFile(entry))?;
        let extent = file.functions.extent(&file.file, offset);
        let guessed = extent
            .next
            .map_or(UNKNOWN_LENGTH, |next| next.min(UNKNOWN_LENGTH));
        let body = extent.length.unwrap_or(guessed).min(LONGEST);
        let mut bytes = vec![0; body.max(SHORTEST).min(mapped)];
        let read = file
            .file
            .read_at(&mut bytes, offset)
            .map_err(|error| gone(mapping, &error))?;
        bytes.truncate(read);
        let mut code = Code::new(entry, extent.length, bytes);
        code.body = body.min(read);
        Ok(code)
    }
}

impl CodeFile {
    /// Opens the very file that is mapped, even if its name is gone or is another file's by now.
    ///
    /// Told by the inode alone: on overlayfs and btrfs the device in `maps` is not the one that `stat` says. That
    /// the bytes are the right ones is checked against memory before anything is done.
    fn open(mapping: &Mapping) -> Result<Self, Refusal> {
        let by_name = File::open(&mapping.path)
            .ok()
            .filter(|file| file.metadata().is_ok_and(|m| m.ino() == mapping.inode));
        let file = match by_name {
            Some(file) => file,
            // The kernel still has it, for those with CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
            None => {
                let (start, end) = (mapping.start, mapping.end);
                File::open(format!("/proc/self/map_files/{start:x}-{end:x}"))
                    .map_err(|error| gone(mapping, &error))?
            }
        };
        Ok(Self {
            path: mapping.path.clone(),
            inode: mapping.inode,
            functions: Functions::read(&file),
            file,
        })
    }
}

fn gone(mapping: &Mapping, error: &std::io::Error) -> Refusal {
    Refusal::FileGone {
        path: mapping.path.display().to_string(),
        why: error.to_string(),
    }
}
