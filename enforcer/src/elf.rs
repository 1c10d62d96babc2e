//! The objects that the dynamic linker has loaded, and a look-up in their symbol tables that does not
//! go through `dlsym` (which this library overrides).
//!
//! Structures and tags: the ELF gABI, `elf.h`; `DT_GNU_HASH` as the GNU linker writes it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_SONAME: u64 = 14;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;

/// In `DT_VERSYM`: this version is not the default one of its symbol.
const VERSYM_HIDDEN: u16 = 0x8000;
const STT_GNU_IFUNC: u8 = 10;

/// `Elf64_Dyn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Dynamic {
    tag: u64,
    value: u64,
}

/// `Elf64_Sym`.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// The start of `struct link_map`, `link.h`: what debuggers may rely on.
#[repr(C)]
struct LinkMap {
    /// What was added to the addresses in its file.
    base: usize,
    /// Its path; empty for the program.
    name: *const c_char,
    dynamic: *const Dynamic,
    next: AtomicPtr<LinkMap>,
}

/// The start of `struct r_debug`, `link.h`.
#[repr(C)]
struct DebuggerInterface {
    version: c_int,
    first: AtomicPtr<LinkMap>,
}

unsafe extern "C" {
    /// The dynamic linker's own record for debuggers, `_r_debug@@GLIBC_2.2.5`. It is data: nobody interposes
    /// it, and reading it calls nothing.
    #[link_name = "_r_debug"]
    static DEBUGGER_INTERFACE: DebuggerInterface;
}

/// The address of the default version of a function of libc: `symbol`.
///
/// Calls nothing at all, so that it can be asked at any time, by anybody: sanitizers and allocators look up
/// the functions that they interpose before they can stand in for them, and a call of one of those,
/// `strlen` as well as `dl_iterate_phdr`, would jump to nowhere.
pub(crate) fn libc_symbol(symbol: &CStr) -> Option<usize> {
    // One library since glibc 2.34, two before.
    symbol_in(b"libc.so.6", symbol).or_else(|| symbol_in(b"libdl.so.2", symbol))
}

/// As [`libc_symbol`], for the library of this file name. It must be one that the program started with:
/// those stand first in the linker's list, never move, and are never unloaded. What other threads load or
/// unload meanwhile stands behind them.
fn symbol_in(library: &[u8], symbol: &CStr) -> Option<usize> {
    // SAFETY: the list is set up before any code of the process runs. The members up to a library that
    // the program started with are valid for good, and the search ends there.
    unsafe {
        let mut map = DEBUGGER_INTERFACE.first.load(Ordering::Acquire);
        while let Some(loaded) = map.as_ref() {
            if is_file_name_of(loaded.name, library) {
                let section = Section {
                    base: loaded.base,
                    entries: loaded.dynamic,
                };
                return section.symbol(symbol);
            }
            map = loaded.next.load(Ordering::Acquire);
        }
    }
    None
}

/// Whether `name` is the last part of the path `path`.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn is_file_name_of(path: *const c_char, name: &[u8]) -> bool {
    // SAFETY: see above; a part of a C string up to its end is one.
    !path.is_null() && unsafe { is(last_part(path), name) }
}

/// The last part of a path.
///
/// # Safety
/// `path` is a C string.
unsafe fn last_part(path: *const c_char) -> *const c_char {
    let (mut at, mut last) = (path, path);
    loop {
        // SAFETY: the string is read up to its end.
        unsafe {
            // Volatile, as in `begins_with`.
            let byte = at.read_volatile() as u8;
            at = at.add(1);
            match byte {
                0 => return last,
                b'/' => last = at,
                _ => {}
            }
        }
    }
}

/// Whether the C string `text` begins with `start`, in which is no 0.
///
/// The reads are volatile so that the compiler does not make a call of `strlen` or `memcmp` of them, which
/// others interpose.
///
/// # Safety
/// `text` is a C string.
unsafe fn begins_with(text: *const c_char, start: &[u8]) -> bool {
    let mut at = text;
    for byte in start {
        // SAFETY: what was read so far is not the end of the string.
        unsafe {
            let read = at.read_volatile() as u8;
            if read != *byte || read == 0 {
                return false;
            }
            at = at.add(1);
        }
    }
    true
}

/// Whether the C string `text` is `wanted`. Calls nothing.
///
/// # Safety
/// `text` is a C string.
pub(crate) unsafe fn is(text: *const c_char, wanted: &[u8]) -> bool {
    // SAFETY: see above; if it begins with `wanted`, the byte behind belongs to the string, too.
    unsafe { begins_with(text, wanted) && text.add(wanted.len()).read_volatile() == 0 }
}

/// One loaded object. Lives only as long as the walk that shows it: the linker may unload it after.
pub(crate) struct Object<'a>(&'a libc::dl_phdr_info);

type Visitor = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Option<Visitor>, *mut c_void) -> c_int;

/// Shows every object of this process to `visit`, in load order, until it answers something.
///
/// `visit` runs under a lock of the dynamic linker: it must not load or unload anything.
pub(crate) fn find_object<T>(mut visit: impl FnMut(&Object<'_>) -> Option<T>) -> Option<T> {
    // libc's own, whoever else has one of that name: see `libc_symbol`.
    static ITERATE: AtomicUsize = AtomicUsize::new(0);
    let mut iterate = ITERATE.load(Ordering::Acquire);
    if iterate == 0 {
        iterate = libc_symbol(c"dl_iterate_phdr")?;
        ITERATE.store(iterate, Ordering::Release);
    }
    let mut found = None;
    let mut step = |object: &Object<'_>| {
        found = visit(object);
        found.is_some()
    };
    let mut step: &mut dyn FnMut(&Object<'_>) -> bool = &mut step;
    // SAFETY: the address is that of libc's dl_iterate_phdr. `shown` gets `&mut step` back as its `data`,
    // which lives until the walk is over; the walk calls it on this thread only.
    unsafe {
        transmute::<usize, Iterate>(iterate)(Some(shown), ptr::from_mut(&mut step).cast());
    }
    found
}

/// What `dl_iterate_phdr` calls for each object.
unsafe extern "C" fn shown(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is the `step` of `find_object`; the linker passes a valid `info`.
    let (info, step) = unsafe {
        (
            &*info,
            &mut *data.cast::<&mut dyn FnMut(&Object<'_>) -> bool>(),
        )
    };
    c_int::from(step(&Object(info)))
}

/// How many objects were ever loaded: while it stays, nothing new is there.
pub(crate) fn loaded_so_far() -> u64 {
    find_object(|object| Some(object.0.dlpi_adds)).unwrap_or(0)
}

/// How many objects were ever unloaded: while it stays, every address belongs to whom it did.
pub(crate) fn unloaded_so_far() -> u64 {
    find_object(|object| Some(object.0.dlpi_subs)).unwrap_or(0)
}

impl<'a> Object<'a> {
    /// Where it is loaded: the same for every symbol of it, and for no other object.
    pub(crate) fn base(&self) -> usize {
        self.0.dlpi_addr as usize
    }

    /// The path by which the linker knows it; empty for the program itself.
    pub(crate) fn path(&self) -> &'a CStr {
        if self.0.dlpi_name.is_null() {
            return c"";
        }
        // SAFETY: a name that the linker gives is a C string, valid while the object is loaded.
        unsafe { CStr::from_ptr(self.0.dlpi_name) }
    }

    /// Whether the name of its file, or the one that it gives itself, begins with `start`. Calls nothing.
    pub(crate) fn is_called(&self, start: &[u8]) -> bool {
        let path = self.0.dlpi_name;
        // SAFETY: names that the linker gives are C strings, valid while the object is loaded.
        unsafe {
            !path.is_null() && begins_with(last_part(path), start)
                || self.soname().is_some_and(|name| begins_with(name, start))
        }
    }

    /// Whether one of its segments is loaded over `address`.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.segments().iter().any(|segment| {
            let start = self.base().wrapping_add(segment.p_vaddr as usize);
            segment.p_type == libc::PT_LOAD
                && address.wrapping_sub(start) < segment.p_memsz as usize
        })
    }

    /// Whether `address` lies in code of this object.
    pub(crate) fn has_code_at(&self, address: usize) -> bool {
        self.segments().iter().any(|segment| {
            let start = self.base().wrapping_add(segment.p_vaddr as usize);
            segment.p_type == libc::PT_LOAD
                && segment.p_flags & libc::PF_X != 0
                && address.wrapping_sub(start) < segment.p_memsz as usize
        })
    }

    /// Whether it defines a function, as far as that can be told: by its GNU hash table. Calls nothing.
    pub(crate) fn may_define(&self, name: &CStr) -> bool {
        let Some(section) = self.section() else {
            return false;
        };
        section.address(DT_GNU_HASH).is_none() || section.symbol(name).is_some()
    }

    /// The address of the default version of a function that it defines.
    pub(crate) fn symbol(&self, name: &CStr) -> Option<usize> {
        self.section()?.symbol(name)
    }

    /// Its first address, and the first one behind it.
    pub(crate) fn extent(&self) -> (usize, usize) {
        let loaded = self.segments().iter().filter(|s| s.p_type == libc::PT_LOAD);
        let (start, end) = loaded.fold((u64::MAX, 0), |(start, end), segment| {
            (
                start.min(segment.p_vaddr),
                end.max(segment.p_vaddr.wrapping_add(segment.p_memsz)),
            )
        });
        (
            self.base().wrapping_add(start as usize),
            self.base().wrapping_add(end as usize),
        )
    }

    /// The name that the library gives itself: a C string.
    fn soname(&self) -> Option<*const c_char> {
        let section = self.section()?;
        let names = section.address(DT_STRTAB)?;
        let offset = section.value(DT_SONAME)?;
        // DT_SONAME is an offset into the string table DT_STRTAB.
        Some((names as *const c_char).wrapping_add(offset as usize))
    }

    fn section(&self) -> Option<Section> {
        let segment = self
            .segments()
            .iter()
            .find(|s| s.p_type == libc::PT_DYNAMIC)?;
        Some(Section {
            base: self.base(),
            entries: self.base().wrapping_add(segment.p_vaddr as usize) as *const Dynamic,
        })
    }

    fn segments(&self) -> &'a [libc::Elf64_Phdr] {
        if self.0.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the linker gives the program headers of a loaded object and their number.
        unsafe { core::slice::from_raw_parts(self.0.dlpi_phdr, usize::from(self.0.dlpi_phnum)) }
    }
}

/// The dynamic section of a loaded object.
struct Section {
    /// Where the object is loaded.
    base: usize,
    entries: *const Dynamic,
}

impl Section {
    /// The address of the default version of a function that it defines, by its GNU hash table.
    fn symbol(&self, wanted: &CStr) -> Option<usize> {
        let symbols = self.address(DT_SYMTAB)? as *const Symbol;
        let names = self.address(DT_STRTAB)? as *const c_char;
        let versions = self.address(DT_VERSYM).map(|table| table as *const u16);
        let table = self.address(DT_GNU_HASH)? as *const u32;
        let hash = gnu_hash(wanted.to_bytes());
        // SAFETY: the table is `[buckets, first symbol, bloom words (64-bit), shift]`, the bloom words, the
        // buckets, and one chain word for each symbol from the first on; the chain of a bucket
        // ends at a word whose lowest bit is set. Chain and symbol table have the same numbering.
        unsafe {
            let (buckets, first, bloom) = (*table, *table.add(1), *table.add(2));
            let bucket = table.add(4).add(bloom as usize).add(bloom as usize);
            let chain = bucket.add(buckets as usize);
            let mut index = *bucket.add(hash.checked_rem(buckets)? as usize);
            if index < first {
                return None;
            }
            let mut older = None;
            loop {
                let word = *chain.add(index.wrapping_sub(first) as usize);
                let symbol = &*symbols.add(index as usize);
                if word | 1 == hash | 1
                    && symbol.section != 0
                    && symbol.info & 0xf != STT_GNU_IFUNC
                    && is(names.add(symbol.name as usize), wanted.to_bytes())
                {
                    let address = self.base.wrapping_add(symbol.value as usize);
                    if versions.is_none_or(|v| *v.add(index as usize) & VERSYM_HIDDEN == 0) {
                        return Some(address);
                    }
                    older = Some(address);
                }
                if word & 1 != 0 {
                    return older;
                }
                index = index.wrapping_add(1);
            }
        }
    }

    /// The value of an entry that is an address.
    fn address(&self, tag: u64) -> Option<usize> {
        let value = self.value(tag)? as usize;
        // glibc has added the base to these entries; in the vDSO they are as in the file.
        Some(if value < self.base {
            value.wrapping_add(self.base)
        } else {
            value
        })
    }

    fn value(&self, tag: u64) -> Option<u64> {
        let mut entry = self.entries;
        // SAFETY: the dynamic section of a loaded object is an array that ends with DT_NULL.
        unsafe {
            while (*entry).tag != DT_NULL {
                if (*entry).tag == tag {
                    return Some((*entry).value);
                }
                entry = entry.add(1);
            }
        }
        None
    }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381, |hash: u32, byte| {
        hash.wrapping_mul(33).wrapping_add(u32::from(*byte))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_dlsym_is_found_without_dlsym() {
        for name in [c"dlsym", c"dlvsym", c"malloc"] {
            let found = symbol_in(b"libc.so.6", name).unwrap();
            // SAFETY: a look-up by name; the test executable does not override dlsym.
            let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
            assert_eq!(found, expected, "{name:?}");
        }
    }

    #[test]
    fn of_several_versions_the_default_one_is_found() {
        // memcpy@@GLIBC_2.14 is an IFUNC, pthread_cond_wait has an old and a new version.
        let found = symbol_in(b"libc.so.6", c"pthread_cond_wait").unwrap();
        // SAFETY: look-ups by name and version.
        let (new, old) = unsafe {
            (
                libc::dlvsym(
                    libc::RTLD_DEFAULT,
                    c"pthread_cond_wait".as_ptr(),
                    c"GLIBC_2.3.2".as_ptr(),
                ),
                libc::dlvsym(
                    libc::RTLD_DEFAULT,
                    c"pthread_cond_wait".as_ptr(),
                    c"GLIBC_2.2.5".as_ptr(),
                ),
            )
        };
        assert_eq!(found, new as usize);
        assert_ne!(found, old as usize);
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        assert_eq!(symbol_in(b"libc.so.6", c"hipMalloc"), None);
        assert_eq!(symbol_in(b"libnone.so.1", c"malloc"), None);
        assert_eq!(find_object(|_| None::<()>), None);
    }

    #[test]
    fn texts_are_compared_to_their_ends() {
        let is = |text: &CStr, wanted: &[u8]| {
            // SAFETY: C strings.
            unsafe { is(text.as_ptr(), wanted) }
        };
        assert!(is(c"", b"") && is(c"libc.so.6", b"libc.so.6"));
        for other in [
            &b""[..],
            b"libc.so",
            b"libc.so.6.1",
            b"libc.so.7",
            b"libc.so.6\0",
        ] {
            assert!(!is(c"libc.so.6", other), "{other:?}");
        }
        let names = |path: &CStr| {
            // SAFETY: C strings.
            unsafe { is_file_name_of(path.as_ptr(), b"libc.so.6") }
        };
        assert!(names(c"libc.so.6") && names(c"/lib/x86_64-linux-gnu/libc.so.6"));
        for other in [
            c"",
            c"/",
            c"libc.so.6/",
            c"/libc.so.6/x",
            c"/lib/xlibc.so.6",
        ] {
            assert!(!names(other), "{other:?}");
        }
    }

    #[test]
    fn an_address_belongs_to_one_object_and_that_has_a_name() {
        let malloc = libc::malloc as *const () as usize;
        let called = |start: &'static [u8]| {
            find_object(|object| object.contains(malloc).then(|| object.is_called(start)))
        };
        for start in [&b"libc.so.6"[..], b"libc", b""] {
            assert_eq!(called(start), Some(true), "{start:?}");
        }
        for other in [&b"libc.so.6.1"[..], b"ibc", b"libm"] {
            assert_eq!(called(other), Some(false), "{other:?}");
        }
    }

    #[test]
    fn every_object_of_this_process_can_be_walked() {
        let mut objects = 0;
        find_object(|object| {
            objects += 1;
            let _ = (
                object.soname(),
                object
                    .section()
                    .and_then(|section| section.symbol(c"no_such_symbol_anywhere")),
                object.contains(1),
            );
            None::<()>
        });
        assert!(objects >= 3, "program, libc, linker: {objects}");
    }
}
