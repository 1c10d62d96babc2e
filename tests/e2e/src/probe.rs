//! Probes on functions of a library, in every process, as an observer has them: uprobes and uretprobes. Attached
//! many at once through `bpf(2)`, since the kernel takes a tenth of a second for each that is detached by itself, and
//! so that nothing stays behind when a test is killed.
//!
//! Commands, `union bpf_attr` and instructions: `linux/bpf.h`. Registers: `struct pt_regs`, `asm/ptrace.h`.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result};

const BPF_MAP_CREATE: i32 = 0;
const BPF_MAP_LOOKUP_ELEM: i32 = 1;
const BPF_MAP_GET_NEXT_KEY: i32 = 4;
const BPF_PROG_LOAD: i32 = 5;
const BPF_LINK_CREATE: i32 = 28;

const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

/// How many places and results can be told apart.
const ENTRIES: u32 = 4096;

/// Probes on several places of a library. Detached when dropped.
pub struct Probes {
    _links: [OwnedFd; 2],
    counts: OwnedFd,
}

/// What the probes on one place saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// How often it was called.
    pub calls: u64,
    /// How often it returned which number.
    pub returned: BTreeMap<u32, u64>,
}

impl Seen {
    /// What was seen since `before`.
    pub fn since(&self, before: &Seen) -> Seen {
        let returned = self.returned.iter().map(|(result, count)| {
            let before = before.returned.get(result).copied().unwrap_or_default();
            (*result, count - before)
        });
        Seen {
            calls: self.calls - before.calls,
            returned: returned.filter(|(_, count)| *count != 0).collect(),
        }
    }
}

impl Probes {
    /// Attaches one at the call and one at the return of each place, which are offsets in the file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn attach(library: &Path, places: &[u64]) -> Result<Probes> {
        let counts = counts()?;
        let links = [
            link(&program(&counts, None)?, library, places, 0)?,
            link(
                &program(&counts, Some(AX))?,
                library,
                places,
                BPF_F_UPROBE_MULTI_RETURN,
            )?,
        ];
        Ok(Probes {
            _links: links,
            counts,
        })
    }

    /// What was seen since they were attached, by the number of the place.
    ///
    /// # Errors
    /// The kernel's.
    pub fn seen(&self, places: usize) -> Result<Vec<Seen>> {
        let mut all = vec![Seen::default(); places];
        let mut key = None;
        while let Some(next) = next_key(&self.counts, key)? {
            key = Some(next);
            let count = look_up(&self.counts, next)?;
            let (kind, place, result) = (next >> 63, (next >> 32) as u32 & 0xffff, next as u32);
            let seen = all.get_mut(place as usize).context("an unknown place")?;
            if kind == 0 {
                seen.calls += count;
            } else {
                *seen.returned.entry(result).or_default() += count;
            }
        }
        Ok(all)
    }
}

/// Probes on functions: at the call and at the return, at the first instruction and behind `endbr64`, which are
/// the places that observers choose.
pub struct Probed {
    /// The name of a function, and how far from its entry the place is.
    pub places: Vec<(String, u64)>,
    probes: Probes,
}

impl Probed {
    /// Attaches them to functions which begin at these places in the file.
    ///
    /// # Errors
    /// The kernel's, or the file cannot be read.
    pub fn attach(library: &Path, functions: &BTreeMap<String, u64>) -> Result<Probed> {
        let file =
            std::fs::read(library).with_context(|| format!("cannot read {}", library.display()))?;
        let mut places = Vec::new();
        let mut offsets = Vec::new();
        for (name, entry) in functions {
            let code = file.get(*entry as usize..).context("a place")?;
            places.push((name.clone(), 0));
            offsets.push(*entry);
            if code.starts_with(&[0xf3, 0x0f, 0x1e, 0xfa]) {
                places.push((name.clone(), 4));
                offsets.push(entry + 4);
            }
        }
        let probes = Probes::attach(library, &offsets)?;
        Ok(Probed { places, probes })
    }

    /// What was seen since they were attached, in the order of the places.
    ///
    /// # Errors
    /// The kernel's.
    pub fn seen(&self) -> Result<Vec<Seen>> {
        self.probes.seen(self.places.len())
    }
}

/// Says that probes cannot be attached here, past the test runner's capture, which holds for the macros alone.
/// Whether that is so.
pub fn is_skipped(what: &str) -> bool {
    use std::io::Write;
    let Some(missing) = missing() else {
        return false;
    };
    let line = format!("SKIPPED {what}: needs {missing}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    true
}

/// Why probes cannot be attached here, or `None` if they can.
pub fn missing() -> Option<String> {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return Some("root".into());
    }
    // On a file of its own: the kernel puts breakpoints into whatever is mapped of a file, data as well.
    let file = std::env::temp_dir().join(format!("hipflex-probe-{}", std::process::id()));
    let tried = std::fs::write(&file, [0x90; 64])
        .context("a file to try it on")
        .and_then(|()| Probes::attach(&file, &[0]));
    let _ = std::fs::remove_file(&file);
    let error = tried.err()?;
    Some(format!(
        "a kernel that attaches uprobes by bpf(2) ({error:#})"
    ))
}

/// A table of counts. Keys: bit 63 is set for returns, the place is at bit 32, the result below.
fn counts() -> Result<OwnedFd> {
    let mut attributes = Attributes::default();
    attributes.put(0, BPF_MAP_TYPE_HASH);
    attributes.put(4, 8); // bytes of a key
    attributes.put(8, 8); // and of a value
    attributes.put(12, ENTRIES);
    attributes.make(BPF_MAP_CREATE).context("a map of counts")
}

/// `rax` in `struct pt_regs`.
const AX: i16 = 80;

/// A program that counts in `counts`: by its cookie, and by the register at this offset.
fn program(counts: &OwnedFd, register: Option<i16>) -> Result<OwnedFd> {
    use instruction::*;
    let map = load_map(1, counts.as_raw_fd());
    let key = [move_register(2, 10), add(2, -8)];
    let mut code = vec![
        move_register(6, 1),
        call(GET_ATTACH_COOKIE),
        move_register(7, 0),
    ];
    code.push(shift_left(7, 32));
    if let Some(offset) = register {
        code.extend([load(8, 6, offset), shift_left(8, 32), shift_right(8, 32)]);
        code.push(or(7, 8));
        code.extend([set(8, 1), shift_left(8, 63), or(7, 8)]);
    }
    code.extend([store(10, -8, 7), set(1, 1), store(10, -16, 1)]);
    code.extend(map);
    code.extend(key);
    code.push(call(MAP_LOOKUP_ELEM));
    // The first time it is not there yet; and somebody else may come first.
    code.push(unless_zero(0, 15));
    code.extend(map);
    code.extend(key);
    code.extend([
        move_register(3, 10),
        add(3, -16),
        set(4, NOT_THERE),
        call(MAP_UPDATE_ELEM),
    ]);
    code.push(if_zero(0, 8));
    code.extend(map);
    code.extend(key);
    code.push(call(MAP_LOOKUP_ELEM));
    code.push(if_zero(0, 2));
    code.extend([set(1, 1), add_atomically(0, 1)]);
    code.extend([set(0, 0), exit()]);

    let license = c"Apache-2.0";
    let mut log = vec![0_u8; 1 << 16];
    let mut attributes = Attributes::default();
    attributes.put(0, BPF_PROG_TYPE_KPROBE);
    attributes.put(4, code.len() as u32);
    attributes.put_address(8, code.as_ptr() as u64);
    attributes.put_address(16, license.as_ptr() as u64);
    attributes.put(24, 1); // how much the log says
    attributes.put(28, log.len() as u32);
    attributes.put_address(32, log.as_mut_ptr() as u64);
    attributes.put(68, BPF_TRACE_UPROBE_MULTI);
    attributes.make(BPF_PROG_LOAD).with_context(|| {
        let said = String::from_utf8_lossy(&log);
        format!("a program that counts: {}", said.trim_end_matches('\0'))
    })
}

/// Attaches a program to all places. Its cookie is the number of the place.
fn link(program: &OwnedFd, library: &Path, places: &[u64], flags: u32) -> Result<OwnedFd> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    let cookies: Vec<u64> = (0..places.len() as u64).collect();
    let mut attributes = Attributes::default();
    attributes.put(0, program.as_raw_fd() as u32);
    attributes.put(8, BPF_TRACE_UPROBE_MULTI);
    attributes.put_address(16, path.as_ptr() as u64);
    attributes.put_address(24, places.as_ptr() as u64);
    attributes.put_address(40, cookies.as_ptr() as u64);
    attributes.put(48, places.len() as u32);
    attributes.put(52, flags);
    attributes
        .make(BPF_LINK_CREATE)
        .with_context(|| format!("probes on {}", library.display()))
}

fn next_key(map: &OwnedFd, key: Option<u64>) -> Result<Option<u64>> {
    let mut next = 0_u64;
    let mut attributes = Attributes::default();
    attributes.put(0, map.as_raw_fd() as u32);
    if let Some(key) = &key {
        attributes.put_address(8, core::ptr::from_ref(key) as u64);
    }
    attributes.put_address(16, &raw mut next as u64);
    match attributes.call(BPF_MAP_GET_NEXT_KEY) {
        Ok(_) => Ok(Some(next)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error).context("the counts"),
    }
}

fn look_up(map: &OwnedFd, key: u64) -> Result<u64> {
    let mut value = 0_u64;
    let mut attributes = Attributes::default();
    attributes.put(0, map.as_raw_fd() as u32);
    attributes.put_address(8, &raw const key as u64);
    attributes.put_address(16, &raw mut value as u64);
    attributes.call(BPF_MAP_LOOKUP_ELEM).context("a count")?;
    Ok(value)
}

/// `union bpf_attr`.
#[repr(C, align(8))]
struct Attributes([u8; 128]);

impl Default for Attributes {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl Attributes {
    fn put(&mut self, offset: usize, value: u32) {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn put_address(&mut self, offset: usize, value: u64) {
        self.0[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }

    fn call(&self, command: i32) -> io::Result<i32> {
        // SAFETY: attributes of the size that is said; what they point to outlives the call.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_ptr(), self.0.len()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(result as i32)
    }

    fn make(&self, command: i32) -> io::Result<OwnedFd> {
        let file = self.call(command)?;
        // SAFETY: a descriptor that was just made.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }
}

/// Instructions of eBPF, `struct bpf_insn`.
mod instruction {
    /// `bpf_map_lookup_elem`, `bpf_map_update_elem`, `bpf_get_attach_cookie`.
    pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
    pub(super) const MAP_UPDATE_ELEM: i32 = 2;
    pub(super) const GET_ATTACH_COOKIE: i32 = 174;
    /// `BPF_NOEXIST`.
    pub(super) const NOT_THERE: i32 = 1;
    /// `BPF_PSEUDO_MAP_FD`.
    const MAP: u8 = 1;

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct Instruction {
        code: u8,
        registers: u8,
        offset: i16,
        value: i32,
    }

    fn make(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
        Instruction {
            code,
            registers: from << 4 | to,
            offset,
            value,
        }
    }

    pub(super) fn move_register(to: u8, from: u8) -> Instruction {
        make(0xbf, to, from, 0, 0)
    }
    pub(super) fn set(to: u8, value: i32) -> Instruction {
        make(0xb7, to, 0, 0, value)
    }
    pub(super) fn add(to: u8, value: i32) -> Instruction {
        make(0x07, to, 0, 0, value)
    }
    pub(super) fn or(to: u8, from: u8) -> Instruction {
        make(0x4f, to, from, 0, 0)
    }
    pub(super) fn shift_left(to: u8, bits: i32) -> Instruction {
        make(0x67, to, 0, 0, bits)
    }
    pub(super) fn shift_right(to: u8, bits: i32) -> Instruction {
        make(0x77, to, 0, 0, bits)
    }
    pub(super) fn load(to: u8, from: u8, offset: i16) -> Instruction {
        make(0x79, to, from, offset, 0)
    }
    pub(super) fn store(to: u8, offset: i16, from: u8) -> Instruction {
        make(0x7b, to, from, offset, 0)
    }
    pub(super) fn add_atomically(to: u8, from: u8) -> Instruction {
        make(0xdb, to, from, 0, 0)
    }
    pub(super) fn load_map(to: u8, map: i32) -> [Instruction; 2] {
        [make(0x18, to, MAP, 0, map), make(0, 0, 0, 0, 0)]
    }
    pub(super) fn call(function: i32) -> Instruction {
        make(0x85, 0, 0, 0, function)
    }
    pub(super) fn if_zero(register: u8, skip: i16) -> Instruction {
        make(0x15, register, 0, skip, 0)
    }
    pub(super) fn unless_zero(register: u8, skip: i16) -> Instruction {
        make(0x55, register, 0, skip, 0)
    }
    pub(super) fn exit() -> Instruction {
        make(0x95, 0, 0, 0, 0)
    }
}
