//! SDMA packets: Linux's `drivers/gpu/drm/amd/amdgpu/navi10_sdma_pkt_open.h` and `vega10_sdma_pkt_open.h`,
//! as far as ROCr uses them (its `sdma_registers.h`).

use super::copy::{self, Extent, Side, TransferError};
use super::memory::{Fault, GpuMemory, offset};
use super::{PACKETS_PER_PASS, Pass, Ring};

/// Bits 7:0 of the first word.
mod operation {
    pub(super) const NOP: u32 = 0;
    pub(super) const COPY: u32 = 1;
    pub(super) const WRITE: u32 = 2;
    pub(super) const FENCE: u32 = 5;
    pub(super) const TRAP: u32 = 6;
    pub(super) const POLL_REGMEM: u32 = 8;
    pub(super) const ATOMIC: u32 = 10;
    pub(super) const CONST_FILL: u32 = 11;
    pub(super) const TIMESTAMP: u32 = 13;
    pub(super) const GCR_REQUEST: u32 = 17;
}
/// Bits 15:8 of the first word of a COPY.
mod copy_kind {
    pub(super) const LINEAR: u32 = 0;
    pub(super) const LINEAR_SUB_WINDOW: u32 = 4;
}
/// `TC_OP_ATOMIC_ADD_RTN_64` and `TC_OP_ATOMIC_ADD_64`, which differ only in what comes back.
const ATOMIC_ADD_64: [u32; 2] = [0x2f, 0x6f];
/// Words of the longest packet, apart from the data of WRITE.
const LONGEST: usize = 13;
const WORD: u64 = 4;

/// Runs packets up to the write pointer `doorbell`.
pub(super) fn run(
    memory: &dyn GpuMemory,
    ring: &mut Ring,
    doorbell: u64,
    now_ticks: &dyn Fn() -> u64,
    pass: &mut Pass,
) {
    if ring.bytes < WORD || !ring.bytes.is_multiple_of(WORD) {
        return pass.note(format_args!(
            "SDMA ring of {} bytes holds no packet",
            ring.bytes
        ));
    }
    // At most the whole ring can be pending; with more, the same packets would run over and over.
    if doorbell.wrapping_sub(ring.consumed) > ring.bytes {
        return pass.note(format_args!(
            "SDMA doorbell {doorbell:#x} is more than a ring ({:#x} bytes) from {:#x}",
            ring.bytes, ring.consumed
        ));
    }
    let before = ring.consumed;
    packets(memory, ring, doorbell, now_ticks, pass);
    if ring.consumed != before {
        let told = memory.write_u64(ring.read_pointer_va, ring.consumed);
        pass.note_fault("SDMA read pointer", told);
    }
}

fn packets(
    memory: &dyn GpuMemory,
    ring: &mut Ring,
    doorbell: u64,
    now_ticks: &dyn Fn() -> u64,
    pass: &mut Pass,
) {
    for _ in 0..PACKETS_PER_PASS {
        let left = doorbell.wrapping_sub(ring.consumed) / WORD;
        if left == 0 {
            return;
        }
        let at = ring.consumed;
        let Some(packet) = pass.note_fault("SDMA ring", Packet::read(memory, ring)) else {
            return;
        };
        let Some(words) = packet.words() else {
            // Where the next packet starts is unknown. Real engines stop here, too.
            return pass.note(format_args!(
                "SDMA[{at:#x}] unknown packet {:#010x}: the queue stops",
                packet.word(0)
            ));
        };
        if words > left {
            return pass.note(format_args!(
                "SDMA[{at:#x}] the packet's end is not written yet"
            ));
        }
        match packet.execute(memory, ring, now_ticks, pass) {
            Ok(Outcome::Done(what)) => pass.note(format_args!("SDMA[{at:#x}] {what}")),
            Ok(Outcome::Blocked) => {
                pass.idle = false;
                return;
            }
            Err(error) => pass.note(format_args!(
                "SDMA[{at:#x}] operation {:#x}: {error}",
                packet.word(0) & 0xffff
            )),
        }
        ring.consumed = ring.consumed.wrapping_add(words * WORD);
    }
    pass.idle = doorbell.wrapping_sub(ring.consumed) < WORD;
}

/// What became of a packet.
enum Outcome {
    /// It is done; what it was.
    Done(String),
    /// It waits for memory to change.
    Blocked,
}

/// The words of a packet and, behind a shorter one, of what follows in the ring.
struct Packet([u32; LONGEST]);

impl Packet {
    fn read(memory: &dyn GpuMemory, ring: &Ring) -> Result<Packet, Fault> {
        let mut words = [0; LONGEST];
        // Word by word where the ring's end may be inside.
        let start = ring.consumed % ring.bytes;
        if ring.bytes - start >= LONGEST as u64 * WORD {
            let bytes: [u8; LONGEST * 4] = memory.read_array(offset(ring.base, start)?)?;
            let (chunks, _) = bytes.as_chunks::<4>();
            for (word, chunk) in words.iter_mut().zip(chunks) {
                *word = u32::from_le_bytes(*chunk);
            }
        } else {
            for (index, word) in (0u64..).zip(&mut words) {
                let at = start.wrapping_add(index * WORD) % ring.bytes;
                *word = memory.read_u32(offset(ring.base, at)?)?;
            }
        }
        Ok(Packet(words))
    }

    fn word(&self, index: usize) -> u32 {
        self.0[index]
    }

    /// An address or another value in two words, low word first.
    fn long(&self, index: usize) -> u64 {
        u64::from(self.word(index)) | u64::from(self.word(index + 1)) << 32
    }

    /// A field of a word.
    fn bits(&self, index: usize, low: u32, width: u32) -> u64 {
        u64::from(self.word(index) >> low) & ((1 << width) - 1)
    }

    fn operation(&self) -> u32 {
        self.word(0) & 0xff
    }

    fn sub_operation(&self) -> u32 {
        self.word(0) >> 8 & 0xff
    }

    /// A copy to two places.
    fn is_broadcast(&self) -> bool {
        self.bits(0, 27, 1) == 1
    }

    /// The packet's length in words, if it is one that is known.
    fn words(&self) -> Option<u64> {
        Some(match (self.operation(), self.sub_operation()) {
            (operation::NOP, _) => 1 + self.bits(0, 16, 14),
            (operation::COPY, copy_kind::LINEAR) if self.is_broadcast() => 9,
            (operation::COPY, copy_kind::LINEAR) => 7,
            (operation::COPY, copy_kind::LINEAR_SUB_WINDOW) => 13,
            (operation::WRITE, 0) => 4 + self.written_words(),
            (operation::FENCE, _) => 4,
            (operation::TRAP, _) => 2,
            (operation::POLL_REGMEM, 0) => 6,
            (operation::ATOMIC, _) => 8,
            (operation::CONST_FILL, 0) => 5,
            (operation::TIMESTAMP, _) => 3,
            (operation::GCR_REQUEST, _) => 5,
            _ => return None,
        })
    }

    /// Words of data in a WRITE packet.
    fn written_words(&self) -> u64 {
        self.bits(3, 0, 20) + 1
    }

    fn execute(
        &self,
        memory: &dyn GpuMemory,
        ring: &Ring,
        now_ticks: &dyn Fn() -> u64,
        pass: &mut Pass,
    ) -> Result<Outcome, TransferError> {
        let what = match (self.operation(), self.sub_operation()) {
            (operation::NOP, _) => "nop".to_owned(),
            (operation::COPY, copy_kind::LINEAR) => {
                let (bytes, source) = (self.bits(1, 0, 30) + 1, self.long(3));
                copy::linear(memory, source, self.long(5), bytes)?;
                if self.is_broadcast() {
                    copy::linear(memory, source, self.long(7), bytes)?;
                }
                format!("copy {source:#x} -> {:#x}, {bytes} bytes", self.long(5))
            }
            (operation::COPY, _) => self.sub_window(memory)?,
            (operation::WRITE, _) => self.write(memory, ring)?,
            (operation::FENCE, _) => {
                memory.write_u32(self.long(1), self.word(3))?;
                format!("fence {:#x} = {:#x}", self.long(1), self.word(3))
            }
            (operation::TRAP, _) => {
                let event = self.bits(1, 0, 28) as u32;
                pass.events.push(event);
                format!("trap, event {event}")
            }
            (operation::POLL_REGMEM, _) => {
                if !self.poll(memory)? {
                    return Ok(Outcome::Blocked);
                }
                "poll".to_owned()
            }
            (operation::ATOMIC, _) => self.atomic(memory)?,
            (operation::CONST_FILL, _) => {
                // The count is that of the last byte's word: ROCr fills whole words.
                let bytes = self.bits(4, 0, 30) + WORD;
                copy::fill(memory, self.long(1), bytes, &self.word(3).to_le_bytes())?;
                format!(
                    "fill {:#x}, {bytes} bytes of {:#x}",
                    self.long(1),
                    self.word(3)
                )
            }
            (operation::TIMESTAMP, _) => {
                memory.write_u64(self.long(1), now_ticks())?;
                "timestamp".to_owned()
            }
            (_, _) => "cache control".to_owned(),
        };
        Ok(Outcome::Done(what))
    }

    /// COPY_LINEAR_SUB_WINDOW: coordinates, pitches (minus one) and sizes (minus one) in elements.
    fn sub_window(&self, memory: &dyn GpuMemory) -> Result<String, TransferError> {
        let element = 1u64 << self.bits(0, 29, 3);
        let side = |at: usize| -> Result<Side, TransferError> {
            let row_pitch = (self.bits(at + 3, 13, 19) + 1) * element;
            let slice_pitch = (self.bits(at + 4, 0, 28) + 1) * element;
            let (x, y) = (self.bits(at + 2, 0, 14), self.bits(at + 2, 16, 14));
            let z = self.bits(at + 3, 0, 13);
            // All fields are short: this sum is below 2^57.
            let origin = x * element + y * row_pitch + z * slice_pitch;
            Ok(Side {
                start: offset(self.long(at), origin)?,
                row_pitch,
                slice_pitch,
            })
        };
        let (source, destination) = (side(1)?, side(6)?);
        let extent = Extent {
            row_bytes: (self.bits(11, 0, 14) + 1) * element,
            rows: self.bits(11, 16, 14) + 1,
            slices: self.bits(12, 0, 13) + 1,
        };
        copy::rectangle(memory, source, destination, extent)?;
        Ok(format!("copy {source:x?} -> {destination:x?}, {extent:?}"))
    }

    /// WRITE_UNTILED: the data is in the ring, behind the packet.
    fn write(&self, memory: &dyn GpuMemory, ring: &Ring) -> Result<String, TransferError> {
        let bytes = self.written_words() * WORD;
        let start = ring.consumed.wrapping_add(4 * WORD) % ring.bytes;
        let first = bytes.min(ring.bytes - start);
        copy::linear(memory, offset(ring.base, start)?, self.long(1), first)?;
        copy::linear(
            memory,
            ring.base,
            offset(self.long(1), first)?,
            bytes - first,
        )?;
        Ok(format!("write {:#x}, {bytes} bytes", self.long(1)))
    }

    /// POLL_REGMEM: whether `(memory & mask) function reference` holds.
    fn poll(&self, memory: &dyn GpuMemory) -> Result<bool, TransferError> {
        let polls_memory = self.bits(0, 31, 1) == 1;
        if !polls_memory {
            // A register: only ROCr's flush of the host data path, of which there is none.
            return Ok(true);
        }
        let value = memory.read_u32(self.long(1))? & self.word(4);
        let reference = self.word(3);
        Ok(match self.bits(0, 28, 3) {
            0 => true,
            1 => value < reference,
            2 => value <= reference,
            3 => value == reference,
            4 => value != reference,
            5 => value >= reference,
            _ => value > reference,
        })
    }

    fn atomic(&self, memory: &dyn GpuMemory) -> Result<String, TransferError> {
        let operation = self.bits(0, 25, 7) as u32;
        if !ATOMIC_ADD_64.contains(&operation) {
            return Ok(format!("atomic {operation:#x}, not executed"));
        }
        let (va, addend) = (self.long(1), self.long(3));
        let value = memory.read_u64(va)?.wrapping_add(addend);
        memory.write_u64(va, value)?;
        Ok(format!("atomic add {va:#x} = {value:#x}"))
    }
}

#[cfg(test)]
mod tests;
