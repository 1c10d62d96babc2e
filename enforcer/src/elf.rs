//! The objects that the dynamic linker has loaded, and a look-up in their symbol tables that does not
//! go through `dlsym` (which this library overrides).
//!
//! Structures and tags: the ELF gABI, `elf.h`; `DT_GNU_HASH` as the GNU linker writes it.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;

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

/// One loaded object. Lives only as long as the walk that shows it: the linker may unload it after.
pub(crate) struct Object<'a>(&'a libc::dl_phdr_info);

/// Shows every object of this process to `visit`, in load order, until it answers something.
///
/// `visit` runs under a lock of the dynamic linker: it must not load or unload anything.
pub(crate) fn find_object<T>(mut visit: impl FnMut(&Object<'_>) -> Option<T>) -> Option<T> {
    let mut found = None;
    let mut step = |object: &Object<'_>| {
        found = visit(object);
        found.is_some()
    };
    let mut step: &mut dyn FnMut(&Object<'_>) -> bool = &mut step;
    // SAFETY: `shown` gets `&mut step` back as its `data`, which lives until the walk is over; the
    // walk calls it on this thread only.
    unsafe {
        libc::dl_iterate_phdr(Some(shown), ptr::from_mut(&mut step).cast());
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

/// The address of the default version of `symbol` in the object whose file name is `library`.
pub(crate) fn symbol_in(library: &[u8], symbol: &CStr) -> Option<usize> {
    find_object(|object| {
        (object.file_name() == library)
            .then(|| object.symbol(symbol))
            .flatten()
    })
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

    /// The last part of [`Object::path`].
    pub(crate) fn file_name(&self) -> &'a [u8] {
        let path = self.path().to_bytes();
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }

    /// Whether one of its segments is loaded over `address`.
    pub(crate) fn contains(&self, address: usize) -> bool {
        self.segments().iter().any(|segment| {
            let start = self.base().wrapping_add(segment.p_vaddr as usize);
            segment.p_type == libc::PT_LOAD
                && address.wrapping_sub(start) < segment.p_memsz as usize
        })
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

    /// The name that the library gives itself.
    pub(crate) fn soname(&self) -> Option<&'a [u8]> {
        let names = self.dynamic(DT_STRTAB)?;
        let offset = self.dynamic_value(DT_SONAME)?;
        // SAFETY: DT_SONAME is an offset into the string table DT_STRTAB.
        Some(unsafe { CStr::from_ptr((names as *const c_char).add(offset as usize)) }.to_bytes())
    }

    /// The address of the default version of a function that it defines, by its GNU hash table.
    fn symbol(&self, wanted: &CStr) -> Option<usize> {
        let symbols = self.dynamic(DT_SYMTAB)? as *const Symbol;
        let names = self.dynamic(DT_STRTAB)? as *const c_char;
        let versions = self.dynamic(DT_VERSYM).map(|table| table as *const u16);
        let table = self.dynamic(DT_GNU_HASH)? as *const u32;
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
                    && CStr::from_ptr(names.add(symbol.name as usize)) == wanted
                {
                    let address = self.base().wrapping_add(symbol.value as usize);
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

    fn segments(&self) -> &'a [libc::Elf64_Phdr] {
        if self.0.dlpi_phdr.is_null() {
            return &[];
        }
        // SAFETY: the linker gives the program headers of a loaded object and their number.
        unsafe { core::slice::from_raw_parts(self.0.dlpi_phdr, usize::from(self.0.dlpi_phnum)) }
    }

    /// The value of an entry of the dynamic section that is an address.
    fn dynamic(&self, tag: u64) -> Option<usize> {
        let value = self.dynamic_value(tag)? as usize;
        // glibc has added the base to these entries; in the vDSO they are as in the file.
        Some(if value < self.base() {
            value.wrapping_add(self.base())
        } else {
            value
        })
    }

    fn dynamic_value(&self, tag: u64) -> Option<u64> {
        let segment = self
            .segments()
            .iter()
            .find(|s| s.p_type == libc::PT_DYNAMIC)?;
        let mut entry = self.base().wrapping_add(segment.p_vaddr as usize) as *const Dynamic;
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
    fn an_address_belongs_to_one_object_and_that_has_a_name() {
        let malloc = libc::malloc as *const () as usize;
        let names = find_object(|object| {
            object.contains(malloc).then(|| {
                (
                    object.file_name().to_vec(),
                    object.soname().map(<[u8]>::to_vec),
                )
            })
        });
        assert_eq!(
            names,
            Some((b"libc.so.6".to_vec(), Some(b"libc.so.6".to_vec())))
        );
    }

    #[test]
    fn every_object_of_this_process_can_be_walked() {
        let mut objects = 0;
        find_object(|object| {
            objects += 1;
            let _ = (
                object.soname(),
                object.symbol(c"no_such_symbol_anywhere"),
                object.contains(1),
            );
            None::<()>
        });
        assert!(objects >= 3, "program, libc, linker: {objects}");
    }
}
