//! How long a function is, according to its file: the symbol that it is exported by, or, for what is not
//! exported, the table for unwinding.
//!
//! Structures: the ELF gABI, `elf.h`. `.eh_frame_hdr` and `.eh_frame`: the Linux Standard Base, "Exception
//! Frames".

use std::fs::File;
use std::os::unix::fs::FileExt;

const EI_CLASS_64_LITTLE: [u8; 6] = [0x7f, b'E', b'L', b'F', 2, 1];
const PT_LOAD: u32 = 1;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const SHT_DYNSYM: u32 = 11;
const STT_FUNC: u8 = 2;

/// Sizes of `Elf64_Ehdr`, `Elf64_Phdr`, `Elf64_Shdr`, `Elf64_Sym`.
const HEADER: usize = 64;
const SEGMENT: usize = 56;
const SECTION: usize = 64;
const SYMBOL: usize = 24;

/// The encodings that every compiler and linker use: a count of four bytes, and a table of pairs of signed
/// four bytes, relative to its start (`DW_EH_PE_udata4`, `DW_EH_PE_datarel | DW_EH_PE_sdata4`).
const FRAME_TABLE: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// No table of a library is as long as that; a file that says so is damaged.
const TOO_LONG: usize = 1 << 28;

/// What a library's file says of its functions. Empty where the file says nothing.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    /// Address and length, by address. Addresses are those in the file.
    exported: Vec<(u64, u64)>,
    segments: Vec<Segment>,
    frames: Vec<u8>,
    /// The address of `frames`.
    frames_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    address: u64,
    length: u64,
}

/// How far a function goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Its length, if the file says it.
    pub(crate) length: Option<usize>,
    /// How far the next exported function is.
    pub(crate) next: Option<usize>,
}

impl Functions {
    /// Reads the tables of a file.
    pub(crate) fn read(file: &File) -> Self {
        Self::try_read(file).unwrap_or_default()
    }

    fn try_read(file: &File) -> Option<Self> {
        let header = part(file, 0, HEADER)?;
        if !header.starts_with(&EI_CLASS_64_LITTLE) {
            return None;
        }
        let mut functions = Self::default();
        let segments = usize::from(u16_at(&header, 56)?).checked_mul(SEGMENT)?;
        for segment in part(file, u64_at(&header, 32)?, segments)?.chunks_exact(SEGMENT) {
            let found = Segment {
                offset: u64_at(segment, 8)?,
                address: u64_at(segment, 16)?,
                length: u64_at(segment, 32)?,
            };
            match u32_at(segment, 0)? {
                PT_LOAD => functions.segments.push(found),
                PT_GNU_EH_FRAME => {
                    functions.frames_at = found.address;
                    let length = usize::try_from(found.length).ok()?;
                    functions.frames = part(file, found.offset, length).unwrap_or_default();
                }
                _ => {}
            }
        }
        functions.exported = exported(file, &header).unwrap_or_default();
        Some(functions)
    }

    /// How far the function goes that begins at this offset of the file.
    pub(crate) fn extent(&self, file: &File, offset: u64) -> Extent {
        let Some(address) = self.address(offset) else {
            return Extent {
                length: None,
                next: None,
            };
        };
        let first = self.exported.partition_point(|(start, _)| *start < address);
        let rest = self.exported.get(first..).unwrap_or_default();
        // Several names of one function, of which some may have no length.
        let same = rest.iter().take_while(|(start, _)| *start == address);
        let length = same.map(|(_, length)| *length).max();
        let next = rest.iter().find(|(start, _)| *start > address);
        Extent {
            length: length
                .filter(|length| *length != 0)
                .or_else(|| self.unwound(file, address))
                .and_then(|length| usize::try_from(length).ok()),
            next: next.and_then(|(start, _)| usize::try_from(start.checked_sub(address)?).ok()),
        }
    }

    /// The address that an offset of the file is loaded at.
    fn address(&self, offset: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = offset.checked_sub(segment.offset)?;
            (into < segment.length).then(|| segment.address.wrapping_add(into))
        })
    }

    /// The offset of the file at which an address comes from.
    fn offset(&self, address: u64) -> Option<u64> {
        self.segments.iter().find_map(|segment| {
            let into = address.checked_sub(segment.address)?;
            (into < segment.length).then(|| segment.offset.wrapping_add(into))
        })
    }

    /// The length of the function at `address` by the table for unwinding.
    fn unwound(&self, file: &File, address: u64) -> Option<u64> {
        if !self.frames.starts_with(&FRAME_TABLE) {
            return None;
        }
        let count = u32_at(&self.frames, 8)? as usize;
        let table = self.frames.get(12..)?.get(..count.checked_mul(8)?)?;
        let table = table.as_chunks::<8>().0;
        let start = |entry: &[u8; 8]| self.frames_at.wrapping_add_signed(i32_in(entry, 0));
        let index = table.partition_point(|entry| start(entry) < address);
        let entry = table.get(index).filter(|entry| start(entry) == address)?;
        // Length of the record, distance of its common part, then start and length of the function. The usual
        // encoding of the start is its distance (DW_EH_PE_pcrel | DW_EH_PE_sdata4); if that is not what gives
        // this function's address, the encoding is another.
        let record = self.frames_at.wrapping_add_signed(i32_in(entry, 4));
        let bytes = part(file, self.offset(record)?, 16)?;
        let start = record
            .wrapping_add(8)
            .wrapping_add_signed(i64::from(u32_at(&bytes, 8)? as i32));
        let length = u64::from(u32_at(&bytes, 12)?);
        (start == address && length != 0).then_some(length)
    }
}

/// Address and length of all exported functions, by address.
fn exported(file: &File, header: &[u8]) -> Option<Vec<(u64, u64)>> {
    let sections = usize::from(u16_at(header, 60)?).checked_mul(SECTION)?;
    let sections = part(file, u64_at(header, 40)?, sections)?;
    let table = sections
        .chunks_exact(SECTION)
        .find(|section| u32_at(section, 4) == Some(SHT_DYNSYM))?;
    let length = usize::try_from(u64_at(table, 32)?).ok()?;
    let symbols = part(file, u64_at(table, 24)?, length)?;
    let mut found: Vec<_> = symbols
        .chunks_exact(SYMBOL)
        .filter_map(|symbol| {
            let is_function = symbol.get(4)? & 0xf == STT_FUNC && u16_at(symbol, 6)? != 0;
            is_function.then_some((u64_at(symbol, 8)?, u64_at(symbol, 16)?))
        })
        .collect();
    found.sort_unstable();
    Some(found)
}

/// A part of a file, all of it.
fn part(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    if length > TOO_LONG {
        return None;
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn i32_in(bytes: &[u8; 8], at: usize) -> i64 {
    i64::from(u32_at(bytes, at).unwrap_or_default() as i32)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
