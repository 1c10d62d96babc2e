//! AQL packets: "HSA Runtime Programmer's Reference Manual" 1.2, section 2.9 (the packets and `hsa_packet_type_t`),
//! ROCr's `hsa_ext_amd.h` (`hsa_amd_barrier_value_packet_t`) and `amd_hsa_signal.h` (`amd_signal_t`).

use super::memory::{GpuMemory, offset};
use super::{KernelNames, PACKETS_PER_PASS, Pass, Ring, blit_rocclr, blit_rocr};

const PACKET_BYTES: u64 = 64;

/// `hsa_packet_type_t`, the low byte of the header.
mod packet_type {
    pub(super) const VENDOR_SPECIFIC: u8 = 0;
    pub(super) const INVALID: u8 = 1;
    pub(super) const KERNEL_DISPATCH: u8 = 2;
    pub(super) const BARRIER_AND: u8 = 3;
    pub(super) const BARRIER_OR: u8 = 5;
}

/// `AmdFormat` of a vendor-specific packet: the byte after the header.
mod amd_format {
    /// A PM4 indirect buffer: cache control and profiling, which have no effect here.
    pub(super) const PM4_INDIRECT_BUFFER: u8 = 1;
    /// `HSA_AMD_PACKET_TYPE_BARRIER_VALUE`
    pub(super) const BARRIER_VALUE: u8 = 2;
}

/// What became of a packet.
enum Outcome {
    Done,
    /// It waits for memory to change.
    Blocked,
}

/// Runs packets up to and including number `doorbell`.
pub(super) fn run(
    memory: &dyn GpuMemory,
    kernels: &dyn KernelNames,
    ring: &mut Ring,
    doorbell: u64,
    now_ticks: &dyn Fn() -> u64,
    pass: &mut Pass,
) {
    let places = ring.bytes / PACKET_BYTES;
    if places == 0 {
        return pass.note(format_args!(
            "AQL ring of {} bytes holds no packet",
            ring.bytes
        ));
    }
    for _ in 0..PACKETS_PER_PASS {
        // The numbers are 64 bits and do not wrap in practice; the difference is right even if they did.
        if (doorbell.wrapping_sub(ring.consumed) as i64) < 0 {
            return;
        }
        let number = ring.consumed;
        let packet = offset(ring.base, number % places * PACKET_BYTES)
            .and_then(|va| Ok((va, Packet(memory.read_array(va)?))));
        let Some((va, packet)) = pass.note_fault("AQL ring", packet) else {
            return;
        };
        if packet.kind() == packet_type::INVALID {
            // The producer has rung for a packet that it is still writing.
            pass.idle = false;
            return;
        }
        let start = now_ticks();
        if let Outcome::Blocked = packet.execute(memory, kernels, number, pass) {
            pass.idle = false;
            return;
        }
        ring.consumed = number.wrapping_add(1);
        // The place is free again once it reads INVALID.
        let freed = memory.write(va, &u16::from(packet_type::INVALID).to_le_bytes());
        let writable = pass.note_fault("AQL ring", freed).is_some();
        let told = memory.write_u64(ring.read_pointer_va, ring.consumed);
        pass.note_fault("AQL read pointer", told);
        complete(memory, packet.completion_signal(), start, now_ticks, pass);
        if !writable {
            // Else the same packets would be found again and again.
            return;
        }
    }
    pass.idle = false;
}

/// Completes a signal: timestamps first, so that who sees the value sees them; then value - 1 and the interrupt.
fn complete(
    memory: &dyn GpuMemory,
    signal: u64,
    start: u64,
    now_ticks: &dyn Fn() -> u64,
    pass: &mut Pass,
) {
    if signal == 0 {
        return;
    }
    let completed = (|| {
        let bytes = Signal(memory.read_array(signal)?);
        memory.write_u64(offset(signal, Signal::START_TS)?, start)?;
        let end = now_ticks().max(start.saturating_add(1));
        memory.write_u64(offset(signal, Signal::END_TS)?, end)?;
        let value = bytes.value().wrapping_sub(1);
        memory.write_u64(offset(signal, Signal::VALUE)?, value)?;
        if bytes.mailbox() != 0 {
            memory.write_u64(bytes.mailbox(), bytes.event_id().into())?;
            return Ok(Some(bytes.event_id()));
        }
        Ok(None)
    })();
    let event = pass.note_fault("completion signal", completed).flatten();
    pass.events.extend(event);
}

/// `amd_signal_t`
struct Signal([u8; 64]);

impl Signal {
    const VALUE: u64 = 8;
    const START_TS: u64 = 32;
    const END_TS: u64 = 40;

    fn value(&self) -> u64 {
        u64_of(&self.0, 8)
    }

    /// Where the event's number is written before the interrupt; 0: nobody waits by interrupt.
    fn mailbox(&self) -> u64 {
        u64_of(&self.0, 16)
    }

    fn event_id(&self) -> u32 {
        u32_of(&self.0, 24)
    }
}

/// A packet of any kind.
struct Packet([u8; PACKET_BYTES as usize]);

impl Packet {
    fn kind(&self) -> u8 {
        self.0[0]
    }

    /// At the same place in all packets.
    fn completion_signal(&self) -> u64 {
        u64_of(&self.0, 56)
    }

    fn execute(
        &self,
        memory: &dyn GpuMemory,
        kernels: &dyn KernelNames,
        number: u64,
        pass: &mut Pass,
    ) -> Outcome {
        let what = match self.kind() {
            packet_type::KERNEL_DISPATCH => match self.dispatch(memory, kernels) {
                Some(what) => what,
                None => return Outcome::Blocked,
            },
            kind @ (packet_type::BARRIER_AND | packet_type::BARRIER_OR) => {
                let all = kind == packet_type::BARRIER_AND;
                let Some(dependencies) = self.barrier(memory, all, pass) else {
                    return Outcome::Blocked;
                };
                let name = if all { "barrier-and" } else { "barrier-or" };
                format!("{name} of {dependencies}")
            }
            packet_type::VENDOR_SPECIFIC => match self.0[2] {
                amd_format::BARRIER_VALUE => {
                    if !self.barrier_value(memory, pass) {
                        return Outcome::Blocked;
                    }
                    "barrier-value".to_owned()
                }
                amd_format::PM4_INDIRECT_BUFFER => "PM4 indirect buffer".to_owned(),
                other => format!("vendor packet of format {other:#x}, not executed"),
            },
            other => format!("packet of type {other}, not executed"),
        };
        pass.note(format_args!(
            "AQL[{number}] {what} signal={:#x}",
            self.completion_signal()
        ));
        Outcome::Done
    }

    /// `hsa_kernel_dispatch_packet_t`: what was done, or `None` if the kernel waits for memory to change.
    fn dispatch(&self, memory: &dyn GpuMemory, kernels: &dyn KernelNames) -> Option<String> {
        let workgroup = [4, 6, 8].map(|at| u16::from_le_bytes([self.0[at], self.0[at + 1]]));
        let grid = [12, 16, 20].map(|at| u32_of(&self.0, at));
        let (kernel_object, arguments) = (u64_of(&self.0, 32), u64_of(&self.0, 40));
        let ran = match kernels.kernel(kernel_object) {
            Some(kernel) => blit_rocclr::run(memory, &kernel, arguments)?,
            None => blit_rocr::run(memory, kernel_object, arguments),
        };
        Some(format!(
            "dispatch grid={grid:?} workgroup={workgroup:?} {ran}"
        ))
    }

    /// `hsa_barrier_and_packet_t`, `hsa_barrier_or_packet_t`: the number of dependencies once all, or one, of them
    /// are 0; `None` before. One that cannot be read counts as 0, so that the queue goes on.
    fn barrier(&self, memory: &dyn GpuMemory, all: bool, pass: &mut Pass) -> Option<usize> {
        let signals = [8, 16, 24, 32, 40].map(|at| u64_of(&self.0, at));
        let signals: Vec<u64> = signals.into_iter().filter(|signal| *signal != 0).collect();
        let mut is_zero = |signal: &u64| {
            let value = offset(*signal, Signal::VALUE).and_then(|va| memory.read_u64(va));
            pass.note_fault("barrier dependency", value).unwrap_or(0) == 0
        };
        let met = if all {
            signals.iter().all(&mut is_zero)
        } else {
            signals.is_empty() || signals.iter().any(&mut is_zero)
        };
        met.then_some(signals.len())
    }

    /// `hsa_amd_barrier_value_packet_t`: whether `(signal & mask) condition value` holds.
    fn barrier_value(&self, memory: &dyn GpuMemory, pass: &mut Pass) -> bool {
        let [signal, value, mask] = [8, 16, 24].map(|at| u64_of(&self.0, at));
        if signal == 0 {
            return true;
        }
        let read = offset(signal, Signal::VALUE).and_then(|va| memory.read_u64(va));
        let Some(current) = pass.note_fault("barrier value", read) else {
            return true;
        };
        let (current, value) = ((current & mask) as i64, value as i64);
        // hsa_signal_condition_t
        match u32_of(&self.0, 32) {
            0 => current == value,
            1 => current != value,
            2 => current < value,
            3 => current >= value,
            other => {
                pass.note(format_args!("barrier-value with unknown condition {other}"));
                true
            }
        }
    }
}

fn u64_of(bytes: &[u8; 64], at: usize) -> u64 {
    super::memory::u64_at(bytes, at).unwrap_or_else(|| unreachable!("{at} is a constant"))
}

fn u32_of(bytes: &[u8; 64], at: usize) -> u32 {
    super::memory::u32_at(bytes, at).unwrap_or_else(|| unreachable!("{at} is a constant"))
}

#[cfg(test)]
mod tests;
