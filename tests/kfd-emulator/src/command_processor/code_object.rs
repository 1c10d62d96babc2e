//! Names a kernel from its kernel object, out of the code object that the runtime loaded into GPU memory.
//!
//! The first loaded segment of an AMDGPU code object (v3 and later) holds the ELF header, the metadata note, the
//! dynamic symbols and the kernel descriptors, so everything is found in GPU memory, without help from the process.
//! Formats: the ELF gABI, and LLVM's "User Guide for AMDGPU Backend", sections "Code Object" and
//! "Code Object V3 Metadata" (`NT_AMDGPU_METADATA`).

use std::collections::BTreeMap;

use rmpv::ValueRef;

use super::memory::{GpuMemory, offset, u16_at, u32_at, u64_at};

/// How far before a kernel descriptor the ELF header may be.
const SEARCH_BACK: u64 = 16 << 20;
const PAGE: u64 = 0x1000;
/// The largest table (symbols, strings, metadata) that is read.
const LARGEST_TABLE: u64 = 64 << 20;
/// Metadata nests maps in lists in maps; more than this is not metadata.
const DEEPEST_METADATA: usize = 16;

/// A kernel of a code object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Its name, without the `.kd` of its descriptor.
    pub name: String,
    /// Its arguments by name.
    pub arguments: BTreeMap<String, Argument>,
}

/// Where a kernel argument is in the kernel argument segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Bytes from the start of the segment.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// The kernel whose descriptor is at `kernel_object`, or `None` if no code object around has one there.
///
/// A code object without usable metadata gives a kernel without arguments.
pub fn find(memory: &dyn GpuMemory, kernel_object: u64) -> Option<Kernel> {
    let elf = Elf::around(memory, kernel_object)?;
    let descriptor = elf.symbol_at(kernel_object)?;
    let name = descriptor.strip_suffix(".kd")?.to_owned();
    let arguments = elf
        .metadata()
        .and_then(|note| arguments(&note, &descriptor));
    Some(Kernel {
        name,
        arguments: arguments.unwrap_or_default(),
    })
}

/// A loaded code object.
struct Elf<'a> {
    memory: &'a dyn GpuMemory,
    /// Address of the ELF header, to which all addresses in the file are relative.
    base: u64,
    segments: Vec<Segment>,
}

/// A program header: `Elf64_Phdr`.
struct Segment {
    kind: u32,
    va: u64,
    memory_size: u64,
}

mod elf {
    pub(super) const HEADER: usize = 64;
    pub(super) const PROGRAM_HEADER: u16 = 56;
    pub(super) const EM_AMDGPU: u16 = 224;
    pub(super) const PT_DYNAMIC: u32 = 2;
    pub(super) const PT_NOTE: u32 = 4;
    pub(super) const DT_HASH: u64 = 4;
    pub(super) const DT_STRTAB: u64 = 5;
    pub(super) const DT_SYMTAB: u64 = 6;
    pub(super) const DT_STRSZ: u64 = 10;
    pub(super) const SYMBOL: usize = 24;
}

impl<'a> Elf<'a> {
    /// Searches page by page back from an address, as far as there is memory.
    fn around(memory: &'a dyn GpuMemory, va: u64) -> Option<Elf<'a>> {
        let mut base = va & !(PAGE - 1);
        let header: [u8; elf::HEADER] = loop {
            let bytes: [u8; elf::HEADER] = memory.read_array(base).ok()?;
            if bytes.starts_with(b"\x7fELF") && u16_at(&bytes, 18)? == elf::EM_AMDGPU {
                break bytes;
            }
            base = base
                .checked_sub(PAGE)
                .filter(|base| va - base <= SEARCH_BACK)?;
        };
        let (table, entry, count) = (
            u64_at(&header, 32)?,
            u16_at(&header, 54)?,
            u16_at(&header, 56)?,
        );
        if entry != elf::PROGRAM_HEADER {
            return None;
        }
        let mut bytes = vec![0; usize::from(count) * usize::from(entry)];
        memory.read(offset(base, table).ok()?, &mut bytes).ok()?;
        let segments = bytes.chunks_exact(entry.into()).map_while(|header| {
            Some(Segment {
                kind: u32_at(header, 0)?,
                va: u64_at(header, 16)?,
                memory_size: u64_at(header, 40)?,
            })
        });
        Some(Elf {
            memory,
            base,
            segments: segments.collect(),
        })
    }

    /// A piece of the code object, if it is not too long to be one.
    fn read(&self, va: u64, bytes: u64) -> Option<Vec<u8>> {
        let bytes = usize::try_from(bytes)
            .ok()
            .filter(|_| bytes <= LARGEST_TABLE)?;
        let mut table = vec![0; bytes];
        self.memory
            .read(offset(self.base, va).ok()?, &mut table)
            .ok()?;
        Some(table)
    }

    fn segment(&self, kind: u32) -> Option<Vec<u8>> {
        let segment = self.segments.iter().find(|segment| segment.kind == kind)?;
        self.read(segment.va, segment.memory_size)
    }

    /// The name of the dynamic symbol at an address.
    fn symbol_at(&self, va: u64) -> Option<String> {
        let dynamic = self.segment(elf::PT_DYNAMIC)?;
        let tag = |wanted: u64| {
            let mut entries = dynamic.chunks_exact(16);
            entries
                .find(|entry| u64_at(entry, 0) == Some(wanted))
                .and_then(|e| u64_at(e, 8))
        };
        // DT_HASH starts with the numbers of buckets and of chains; there is a chain for each symbol.
        let hash = self.read(tag(elf::DT_HASH)?, 8)?;
        let count = u64::from(u32_at(&hash, 4)?);
        let symbols = self.read(tag(elf::DT_SYMTAB)?, count * elf::SYMBOL as u64)?;
        let strings = self.read(tag(elf::DT_STRTAB)?, tag(elf::DT_STRSZ)?)?;
        // Elf64_Sym: st_name, ..., st_value
        let value = va.checked_sub(self.base)?;
        let symbol = symbols
            .chunks_exact(elf::SYMBOL)
            .find(|s| u64_at(s, 8) == Some(value))?;
        c_string(&strings, u32_at(symbol, 0)? as usize)
    }

    fn metadata(&self) -> Option<Vec<u8>> {
        self.segment(elf::PT_NOTE)
    }
}

fn c_string(strings: &[u8], at: usize) -> Option<String> {
    let rest = strings.get(at..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    String::from_utf8(rest[..end].to_vec()).ok()
}

/// The arguments of the kernel with this descriptor, from a note: "AMDGPU", NT_AMDGPU_METADATA, MessagePack
/// `{"amdhsa.kernels": [{".symbol": ..., ".args": [{".name": ..., ".offset": ..., ".size": ...}]}]}`.
fn arguments(note: &[u8], descriptor: &str) -> Option<BTreeMap<String, Argument>> {
    const NT_AMDGPU_METADATA: u32 = 32;
    // Elf64_Nhdr, then the name, then the content, each padded to words.
    let (name_size, size, kind) = (u32_at(note, 0)?, u32_at(note, 4)?, u32_at(note, 8)?);
    if kind != NT_AMDGPU_METADATA {
        return None;
    }
    let start = (name_size as usize)
        .checked_next_multiple_of(4)?
        .checked_add(12)?;
    let mut content = note.get(start..start.checked_add(size as usize)?)?;
    let root = rmpv::decode::read_value_ref_with_max_depth(&mut content, DEEPEST_METADATA).ok()?;
    let kernels = field(&root, "amdhsa.kernels")?.as_array()?;
    let kernel = kernels
        .iter()
        .find(|k| text(k, ".symbol") == Some(descriptor))?;
    let list = field(kernel, ".args")
        .and_then(ValueRef::as_array)
        .map_or(&[][..], Vec::as_slice);
    // Hidden arguments have no name; nobody asks for them.
    let named = list.iter().filter_map(|argument| {
        let place = |name| u32::try_from(field(argument, name)?.as_u64()?).ok();
        let name = text(argument, ".name")?.to_owned();
        Some((
            name,
            Argument {
                offset: place(".offset")?,
                size: place(".size")?,
            },
        ))
    });
    Some(named.collect())
}

fn field<'a, 'b>(map: &'b ValueRef<'a>, name: &str) -> Option<&'b ValueRef<'a>> {
    let ValueRef::Map(entries) = map else {
        return None;
    };
    entries
        .iter()
        .find(|(key, _)| string(key) == Some(name))
        .map(|(_, value)| value)
}

fn text<'a>(map: &ValueRef<'a>, name: &str) -> Option<&'a str> {
    string(field(map, name)?)
}

fn string<'a>(value: &ValueRef<'a>) -> Option<&'a str> {
    match value {
        ValueRef::String(text) => (*text).into_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
