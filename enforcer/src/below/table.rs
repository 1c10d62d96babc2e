//! The dispatch table of ROCm 6 and later.
//!
//! Exports are stubs that fetch a table of functions and jump through one of its slots
//! (`HipDispatchTable` of `hip/amd_detail/hip_api_trace.hpp`; `hip_api_trace.cpp`): a size in bytes, then pointers whose order
//! is frozen. The table comes from the runtime's own registration, where it registers with a profiler, else from
//! the stubs, which all call the same local function for it. Nothing is written before all of it has been found
//! to be what it must be.

use core::slice;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use hipflex_ledger::HookEngine;

use crate::elf;
use crate::entries::Api;
use crate::runtime::Runtime;

/// Stubs look like this, seen in 6.4.3 and 7.2.4: `endbr64`, `sub`, spills of up to six registers, `call
/// GetHipDispatchTable`, reloads, `mov rax, [rax + 8 * (slot + 1)]`, `add`, `jmp rax`. The longest has some 90 bytes.
const STUB: usize = 128;
/// Of the functions with a slot, this share of those that the runtime has must be such stubs: 3/4.
const ENOUGH: (usize, usize) = (3, 4);
/// No table is larger, in bytes: 7.2.4 has 506 slots.
const LARGEST: usize = 8 * 4096;

/// Swaps the slots of this runtime's table. The error says why it was left alone.
pub(super) fn hook(runtime: &'static Runtime) -> Result<(), String> {
    let stubs = Stubs::read(runtime)?;
    let table = Table::of(runtime, &stubs)?;
    for (api, slot) in stubs.slots {
        if let Err(why) = table.swap(runtime, api, slot) {
            tracing::info!("{:?} is not hooked in the table: {why}", api.name());
        }
    }
    Ok(())
}

/// What the exports say: which function gives the table, and which slot is whose.
struct Stubs {
    getter: usize,
    slots: Vec<(Api, usize)>,
}

impl Stubs {
    fn read(runtime: &Runtime) -> Result<Self, String> {
        let with_slot = Api::ALL.into_iter().filter_map(|api| {
            let export = runtime.function(api)?.export()?;
            Some((api, api.dispatch_slot()?, export))
        });
        let all: Vec<_> = with_slot.collect();
        let mut slots = Vec::with_capacity(all.len());
        let mut getter = None;
        for (api, slot, export) in &all {
            // SAFETY: an export of a loaded library; its code can be read, as far as its object goes.
            let code = unsafe { code_at(*export) };
            match stub(code, *export, *slot) {
                Some(called) if getter.is_none_or(|getter| getter == called) => {
                    getter = Some(called);
                    slots.push((*api, *slot));
                }
                Some(_) => {
                    return Err(String::from("its exports do not agree on a dispatch table"));
                }
                None => tracing::info!("{:?} is no stub over slot {slot}", api.name()),
            }
        }
        let (share, whole) = ENOUGH;
        let enough = slots.len().saturating_mul(whole) >= all.len().saturating_mul(share);
        match getter {
            Some(getter) if enough && runtime.contains(getter) => Ok(Self { getter, slots }),
            _ => Err(String::from(
                "its exports are no stubs over a dispatch table (it is older than ROCm 6?)",
            )),
        }
    }
}

/// The code at an export, up to the end of a stub or of the object.
///
/// # Safety
/// `export` is the address of a function.
unsafe fn code_at(export: usize) -> &'static [u8] {
    let rest = elf::find_object(|object| {
        object
            .contains(export)
            .then(|| object.extent().1.saturating_sub(export))
    });
    // Segments of code end with a page; what lies behind may not be readable.
    let page = 4096_usize.saturating_sub(export & 4095);
    let readable = if page >= STUB {
        STUB
    } else {
        // The next page belongs to the same segment unless this is its last one.
        let next =
            elf::find_object(|object| object.contains(export.saturating_add(STUB)).then_some(STUB));
        next.unwrap_or(page)
    };
    let len = rest.unwrap_or(0).min(readable);
    // SAFETY: see above.
    unsafe { slice::from_raw_parts(export as *const u8, len) }
}

/// The function that a stub calls for its table, if the code is that of a stub over `slot`.
fn stub(code: &[u8], at: usize, slot: usize) -> Option<usize> {
    const CALL: u8 = 0xe8;
    const LOAD_DISP32: [u8; 3] = [0x48, 0x8b, 0x80];
    const LOAD_DISP8: [u8; 3] = [0x48, 0x8b, 0x40];
    const JUMP_RAX: [u8; 2] = [0xff, 0xe0];
    let wanted = u32::try_from(slot.checked_add(1)?.checked_mul(8)?).ok()?;
    // The first byte of the entry may be a breakpoint: a call is not searched there.
    let call = code.iter().position(|byte| *byte == CALL)?;
    let behind_call = call.checked_add(5)?;
    let offset = i32::from_le_bytes(
        code.get(call.checked_add(1)?..behind_call)?
            .try_into()
            .ok()?,
    );
    let rest = code.get(behind_call..)?;
    let jump = rest.windows(2).position(|two| two == JUMP_RAX)?;
    let body = rest.get(..jump)?;
    let loads = body.windows(7).any(|seven| {
        let (opcode, disp) = seven.split_at(3);
        opcode == LOAD_DISP32 && disp == wanted.to_le_bytes()
    }) || body.windows(4).any(|four| {
        let (opcode, disp) = four.split_at(3);
        opcode == LOAD_DISP8 && wanted < 0x80 && disp == [wanted as u8]
    });
    loads.then(|| {
        at.wrapping_add(behind_call)
            .wrapping_add_signed(offset as isize)
    })
}

/// The table itself.
struct Table {
    start: *mut usize,
    /// How many slots it has.
    slots: usize,
}

impl Table {
    fn of(runtime: &Runtime, stubs: &Stubs) -> Result<Self, String> {
        let start = match registered(runtime) {
            Some(table) => table,
            None => {
                // SAFETY: the function that all stubs call before anything else, without arguments; what it
                // returns they take for the table. It makes the table, and touches no device.
                unsafe {
                    let get: unsafe extern "C-unwind" fn() -> *mut usize =
                        core::mem::transmute(stubs.getter);
                    get()
                }
            }
        };
        if !start.is_aligned() || !runtime.contains(start as usize) {
            return Err(format!("its dispatch table is not in it, but at {start:p}"));
        }
        // SAFETY: it lies in the runtime's data, aligned.
        let size = unsafe { start.read() };
        let slots = (size / 8).saturating_sub(1);
        let highest = stubs.slots.iter().map(|(_, slot)| *slot).max();
        let end = (start as usize).saturating_add(size).saturating_sub(1);
        if size % 8 != 0
            || size > LARGEST
            || highest.is_none_or(|highest| highest >= slots)
            || !runtime.contains(end)
        {
            return Err(format!("its dispatch table cannot have {size} bytes"));
        }
        Ok(Self { start, slots })
    }

    fn swap(&self, runtime: &'static Runtime, api: Api, slot: usize) -> Result<(), String> {
        let function = runtime.function(api).ok_or("it has no number")?;
        let entry = api
            .entry_of(runtime.number())
            .ok_or("there are too many runtimes")?;
        if slot >= self.slots {
            return Err(format!("the table ends before slot {slot}"));
        }
        // SAFETY: a slot of the table, as was looked up above; whoever reads or changes it does so as a whole word.
        let place = unsafe { AtomicUsize::from_ptr(self.start.wrapping_add(slot.wrapping_add(1))) };
        loop {
            let present = place.load(Ordering::Acquire);
            let in_code = || elf::find_object(|object| object.has_code_at(present).then_some(()));
            if present == 0 || in_code().is_none() {
                return Err(format!(
                    "slot {slot} has {present:#x}, which is no function"
                ));
            }
            function.set_original(present);
            // A profiler may have put its own there meanwhile.
            if place
                .compare_exchange(present, entry, Ordering::AcqRel, Ordering::Acquire)
                .is_ok()
            {
                function.set_hooked(HookEngine::Table);
                return Ok(());
            }
        }
    }
}

/// Tables that runtimes have registered, with an address in the runtime.
static REGISTERED: [(AtomicUsize, AtomicPtr<usize>); crate::runtime::MOST_RUNTIMES] =
    [const { (AtomicUsize::new(0), AtomicPtr::new(core::ptr::null_mut())) };
        crate::runtime::MOST_RUNTIMES];

/// Remembers that the runtime in which `address` lies has registered this table.
pub(crate) fn register(address: usize, table: *mut usize) {
    for (whose, place) in &REGISTERED {
        // The table first: who finds the address finds the table.
        if place
            .compare_exchange(
                core::ptr::null_mut(),
                table,
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .is_ok()
        {
            whose.store(address, Ordering::Release);
            return;
        }
    }
}

fn registered(runtime: &Runtime) -> Option<*mut usize> {
    let theirs = REGISTERED.iter().find(|(whose, _)| {
        let address = whose.load(Ordering::Acquire);
        address != 0 && runtime.contains(address)
    });
    theirs.map(|(_, table)| table.load(Ordering::Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// hipMalloc of 6.4.3, `slot` 215, at 0x3a7dd0; its call goes to 0x3a32a0.
    const STUB_OF_6_4: &[u8] = &[
        0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x83, 0xec, 0x18, 0x48, 0x89, 0x7c, 0x24, 0x08, 0x48, 0x89,
        0x34, 0x24, 0xe8, 0xba, 0xb4, 0xff, 0xff, 0x48, 0x8b, 0x34, 0x24, 0x48, 0x8b, 0x7c, 0x24,
        0x08, 0x48, 0x8b, 0x80, 0xc0, 0x06, 0x00, 0x00, 0x48, 0x83, 0xc4, 0x18, 0xff, 0xe0,
    ];

    #[test]
    fn a_stub_tells_its_table_and_its_slot() {
        assert_eq!(stub(STUB_OF_6_4, 0x3a_7dd0, 215), Some(0x3a_32a0));
        assert_eq!(stub(STUB_OF_6_4, 0x3a_7dd0, 214), None);
        let mut probed = STUB_OF_6_4.to_vec();
        probed[0] = 0xcc;
        assert_eq!(stub(&probed, 0x3a_7dd0, 215), Some(0x3a_32a0));
    }

    #[test]
    fn no_stub_is_taken_for_one() {
        for len in 0..STUB_OF_6_4.len() {
            assert_eq!(stub(&STUB_OF_6_4[..len], 0x3a_7dd0, 215), None, "{len}");
        }
        // A call, and a return instead of the jump.
        let mut other = STUB_OF_6_4.to_vec();
        other[42] = 0xc3;
        assert_eq!(stub(&other, 0, 215), None);
    }
}
