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
const SHDR_LEN: usize = 64;
const SYM_LEN: usize = 24;
const SHT_DYNSYM: u32 = 11;
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

/// Which of these functions a shared object does *not* define for others; all of them if it has no
/// table of dynamic symbols that can be read.
pub(crate) fn missing_exports<'a>(path: &Path, names: &[&'a str]) -> io::Result<Vec<&'a str>> {
    let file = File::open(path)?;
    let defined = defined_symbols(&file)?;
    let is_missing = |name: &&&str| !defined.iter().any(|defined| defined == name.as_bytes());
    Ok(names.iter().filter(is_missing).copied().collect())
}

/// The names of the dynamic symbols that the file defines and that other objects can reach.
fn defined_symbols(file: &File) -> io::Result<Vec<Vec<u8>>> {
    let mut header = [0; EHDR_LEN];
    file.read_exact_at(&mut header, 0)?;
    let (table, entries) = (u64_at(&header, 40), u16_at(&header, 60));
    let section = |index: u64| {
        let mut entry = [0; SHDR_LEN];
        let offset = table.saturating_add(index * SHDR_LEN as u64);
        file.read_exact_at(&mut entry, offset).map(|()| entry)
    };
    let mut names = Vec::new();
    for index in 0..u64::from(entries) {
        let entry = section(index)?;
        if u32_at(&entry, 4) != SHT_DYNSYM {
            continue;
        }
        let strings = content(file, &section(u64::from(u32_at(&entry, 40)))?)?;
        for symbol in content(file, &entry)?.chunks_exact(SYM_LEN) {
            // STB_GLOBAL, STB_WEAK and STB_GNU_UNIQUE, and not SHN_UNDEF.
            let is_visible = matches!(symbol[4] >> 4, 1 | 2 | 10);
            if is_visible && u16_at(symbol, 6) != 0 {
                let name = strings.get(u32_at(symbol, 0) as usize..).unwrap_or(&[]);
                let end = name.iter().position(|byte| *byte == 0);
                names.push(name[..end.unwrap_or(name.len())].to_vec());
            }
        }
    }
    Ok(names)
}

/// What is in a section.
fn content(file: &File, section: &[u8; SHDR_LEN]) -> io::Result<Vec<u8>> {
    let (offset, length) = (u64_at(section, 24), u64_at(section, 32));
    // No more than there is, whatever the header says.
    let there = file.metadata()?.len().saturating_sub(offset);
    let mut bytes = vec![0; length.min(there) as usize];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
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
    fn exports_are_what_is_defined_for_others() {
        // The C library of this test program.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| path.contains("/libc.so") || path.contains("/libc-2"))
            .unwrap();
        let missing = missing_exports(Path::new(libc), &["malloc", "hipMalloc"]).unwrap();
        assert_eq!(missing, ["hipMalloc"]);
        // A program needs malloc, and does not define it.
        let own = missing_exports(Path::new("/proc/self/exe"), &["malloc"]).unwrap();
        assert_eq!(own, ["malloc"]);
    }

    #[test]
    fn section_headers_full_of_ones_do_not_panic() {
        let mut bytes = own()[..EHDR_LEN].to_vec();
        bytes[40..48].copy_from_slice(&64_u64.to_le_bytes());
        bytes[60..62].copy_from_slice(&2_u16.to_le_bytes());
        bytes.extend([0xff; 2 * SHDR_LEN]);
        bytes[64 + 4..64 + 8].copy_from_slice(&SHT_DYNSYM.to_le_bytes());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        assert!(missing_exports(file.path(), &["x"]).is_err());
        // Its strings are in itself, and it ends in the middle of its symbols.
        bytes[64 + 24..64 + 32].fill(0);
        bytes[64 + 40..64 + 44].fill(0);
        std::fs::write(file.path(), &bytes).unwrap();
        assert_eq!(missing_exports(file.path(), &["x"]).unwrap(), ["x"]);
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
