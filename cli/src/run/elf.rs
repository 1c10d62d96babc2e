//! The little of an ELF file that decides whether the dynamic linker will preload a library.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `e_type` of shared objects and position-independent programs (ELF gABI).
pub(crate) const ET_DYN: u16 = 3;
/// `e_machine` of x86-64 (System V ABI, AMD64 supplement).
pub(crate) const EM_X86_64: u16 = 62;

const EHDR_LEN: usize = 64;
const PHDR_LEN: usize = 56;
const ELFCLASS64: u8 = 2;
const ELFDATA2LSB: u8 = 1;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
/// Paths are at most this long (`PATH_MAX`).
const LONGEST_INTERPRETER: u64 = 4096;

/// What an ELF file is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Elf {
    /// 64-bit and little-endian, as everything on x86-64 is. If not, only `machine` is known.
    pub(crate) is_64_bit: bool,
    /// `e_machine`.
    pub(crate) machine: u16,
    /// `e_type`.
    pub(crate) kind: u16,
    /// The dynamic linker it asks for; a program without one is static.
    pub(crate) interpreter: Option<OsString>,
    /// It has a dynamic section.
    pub(crate) is_dynamic: bool,
    /// The file ends before what its headers tell of.
    pub(crate) is_truncated: bool,
}

/// Reads the headers of a file; `None` if it is not an ELF file at all.
pub(crate) fn read(path: &Path) -> io::Result<Option<Elf>> {
    let file = File::open(path)?;
    let mut header = [0; EHDR_LEN];
    let length = read_up_to(&file, &mut header)?;
    if length < 20 || !header.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    let kind = u16_at(&header, 16);
    let mut elf = Elf {
        machine: u16_at(&header, 18),
        kind,
        ..Elf::default()
    };
    elf.is_64_bit = header[4] == ELFCLASS64 && header[5] == ELFDATA2LSB;
    if !elf.is_64_bit {
        return Ok(Some(elf));
    }
    if length < EHDR_LEN {
        elf.is_truncated = true;
        return Ok(Some(elf));
    }
    let table = u64_at(&header, 32);
    let (entry_length, entries) = (u16_at(&header, 54), u16_at(&header, 56));
    let file_length = file.metadata()?.len();
    if usize::from(entry_length) != PHDR_LEN {
        elf.is_truncated = true;
        return Ok(Some(elf));
    }
    // A linker puts the section headers last, so that these tell of a file cut short; a stripped file
    // may have none.
    let sections = u64_at(&header, 40);
    let sections_length = u64::from(u16_at(&header, 58)) * u64::from(u16_at(&header, 60));
    elf.is_truncated = sections.saturating_add(sections_length) > file_length;
    for index in 0..u64::from(entries) {
        let mut entry = [0; PHDR_LEN];
        let offset = table.saturating_add(index * PHDR_LEN as u64);
        if file.read_exact_at(&mut entry, offset).is_err() {
            elf.is_truncated = true;
            break;
        }
        let (offset, in_file) = (u64_at(&entry, 8), u64_at(&entry, 32));
        let fits = offset
            .checked_add(in_file)
            .is_some_and(|end| end <= file_length);
        match u32_at(&entry, 0) {
            PT_LOAD if !fits => elf.is_truncated = true,
            PT_DYNAMIC => elf.is_dynamic = true,
            PT_INTERP if fits => elf.interpreter = Some(string(&file, offset, in_file)?),
            _ => {}
        }
    }
    Ok(Some(elf))
}

/// A NUL-terminated string of the file.
fn string(file: &File, offset: u64, length: u64) -> io::Result<OsString> {
    let mut bytes = vec![0; length.min(LONGEST_INTERPRETER) as usize];
    file.read_exact_at(&mut bytes, offset)?;
    bytes.truncate(
        bytes
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(bytes.len()),
    );
    Ok(OsString::from_vec(bytes))
}

/// Fills the buffer as far as the file goes.
pub(crate) fn read_up_to(file: &File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

fn bytes_at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[offset..offset + N]);
    value
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(bytes_at(bytes, offset))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes_at(bytes, offset))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes_at(bytes, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test program itself, which is an ordinary dynamic program.
    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").unwrap()
    }

    fn read_bytes(bytes: &[u8]) -> Option<Elf> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        read(file.path()).unwrap()
    }

    #[test]
    fn an_ordinary_program_has_an_interpreter() {
        let elf = read(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert!(
            elf.is_64_bit && elf.is_dynamic && !elf.is_truncated,
            "{elf:?}"
        );
        assert_eq!((elf.machine, elf.kind), (EM_X86_64, ET_DYN));
        assert!(
            elf.interpreter
                .unwrap()
                .to_str()
                .unwrap()
                .contains("ld-linux-x86-64")
        );
    }

    #[test]
    fn what_is_no_elf_is_none() {
        for bytes in [&b""[..], b"\x7fEL", b"#!/bin/sh\n", &[0; 4096], b"\x7fELF"] {
            assert_eq!(read_bytes(bytes), None);
        }
    }

    #[test]
    fn files_cut_anywhere_are_truncated_and_do_not_panic() {
        let whole = own();
        for length in (20..EHDR_LEN).chain([EHDR_LEN, 100, 700, whole.len() / 2]) {
            let elf = read_bytes(&whole[..length]).unwrap();
            assert!(elf.is_truncated, "{length}: {elf:?}");
        }
    }

    #[test]
    fn headers_full_of_ones_do_not_panic() {
        let mut bytes = own()[..4096].to_vec();
        bytes[20..EHDR_LEN].fill(0xff);
        assert!(read_bytes(&bytes).unwrap().is_truncated);
        let mut bytes = own()[..4096].to_vec();
        bytes[EHDR_LEN..].fill(0xff);
        assert!(read_bytes(&bytes).is_some());
    }

    #[test]
    fn a_32_bit_file_is_recognised() {
        let mut bytes = own()[..4096].to_vec();
        bytes[4] = 1;
        bytes[18] = 3;
        let elf = read_bytes(&bytes).unwrap();
        assert_eq!((elf.is_64_bit, elf.machine), (false, 3));
    }
}
