use std::cell::Cell;

use super::super::fake::{Call, Kernels, Memory};
use super::super::{GpuMemory, QueueKind, Ring, service};
use super::*;

const RING: u64 = 0x10_0000;
const READ_POINTER: u64 = 0x20_0000;
const SIGNAL: u64 = 0x30_0000;
const MAILBOX: u64 = 0x40_0000;
const PLACES: usize = 8;

/// A packet under construction.
struct Bytes([u8; 64]);

impl Bytes {
    fn new(kind: u8) -> Bytes {
        let mut bytes = [0; 64];
        bytes[0] = kind;
        Bytes(bytes)
    }

    fn u64(mut self, at: usize, value: u64) -> Bytes {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn u32(mut self, at: usize, value: u32) -> Bytes {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    fn completes(self, signal: u64) -> Bytes {
        self.u64(56, signal)
    }
}

/// `amd_signal_t` with a value, and an event if it is not 0.
fn signal(value: u64, event: u32) -> Vec<u8> {
    let mailbox = if event == 0 { 0 } else { MAILBOX };
    Bytes::new(0)
        .u64(8, value)
        .u64(16, mailbox)
        .u32(24, event)
        .0
        .to_vec()
}

fn memory(packets: &[Bytes]) -> Memory {
    let mut ring: Vec<u8> = packets.iter().flat_map(|packet| packet.0).collect();
    while ring.len() < PLACES * 64 {
        ring.extend(Bytes::new(packet_type::INVALID).0);
    }
    Memory::new()
        .with(RING, &ring)
        .zeros(READ_POINTER, 8)
        .zeros(MAILBOX, 8)
}

fn ring() -> Ring {
    let bytes = PLACES as u64 * 64;
    Ring {
        kind: QueueKind::Aql,
        base: RING,
        bytes,
        read_pointer_va: READ_POINTER,
        consumed: 0,
    }
}

fn run(memory: &Memory, kernels: &Kernels, ring: &mut Ring, doorbell: u64) -> Pass {
    let clock = Cell::new(100);
    let now = || {
        clock.set(clock.get() + 1);
        clock.get()
    };
    service(memory, kernels, ring, doorbell, &now)
}

fn value_of(memory: &dyn GpuMemory, signal: u64) -> u64 {
    memory.read_u64(signal + 8).unwrap()
}

#[test]
fn nothing_happens_before_the_first_doorbell() {
    let (memory, mut ring) = (memory(&[Bytes::new(packet_type::BARRIER_AND)]), ring());
    let pass = run(&memory, &Kernels::default(), &mut ring, u64::MAX);
    assert_eq!(
        pass,
        Pass {
            idle: true,
            ..Pass::default()
        }
    );
    assert_eq!(ring.consumed, 0);
}

#[test]
fn a_barrier_completes_its_signal_with_timestamps_and_interrupt() {
    let packet = Bytes::new(packet_type::BARRIER_AND).completes(SIGNAL);
    let memory = memory(&[packet]).with(SIGNAL, &signal(1, 42));
    let mut ring = ring();
    let pass = run(&memory, &Kernels::default(), &mut ring, 0);
    assert_eq!(
        (pass.progressed, pass.idle, pass.events),
        (true, true, vec![42])
    );
    assert_eq!(ring.consumed, 1);
    let memory: &dyn GpuMemory = &memory;
    assert_eq!(value_of(memory, SIGNAL), 0);
    assert_eq!(memory.read_u64(MAILBOX), Ok(42));
    assert_eq!(memory.read_u64(SIGNAL + 32), Ok(101));
    assert_eq!(memory.read_u64(SIGNAL + 40), Ok(102));
    assert_eq!(memory.read_u64(READ_POINTER), Ok(1));
    assert_eq!(memory.read_u32(RING), Ok(packet_type::INVALID.into()));
}

#[test]
fn packets_run_up_to_the_doorbell_and_not_further() {
    let packets = [0, 1, 2].map(|_| Bytes::new(packet_type::BARRIER_AND));
    let (memory, mut ring) = (memory(&packets), ring());
    assert!(run(&memory, &Kernels::default(), &mut ring, 1).idle);
    assert_eq!(ring.consumed, 2);
    let pass = run(&memory, &Kernels::default(), &mut ring, 1);
    assert_eq!((pass.progressed, pass.idle), (false, true));
}

#[test]
fn a_packet_that_is_not_written_yet_is_waited_for() {
    let (memory, mut ring) = (memory(&[Bytes::new(packet_type::INVALID)]), ring());
    let pass = run(&memory, &Kernels::default(), &mut ring, 0);
    assert_eq!((pass.progressed, pass.idle), (false, false));
    memory
        .write(RING, &Bytes::new(packet_type::BARRIER_AND).0)
        .unwrap();
    assert!(run(&memory, &Kernels::default(), &mut ring, 0).progressed);
}

#[test]
fn barrier_and_waits_for_all_and_barrier_or_for_one() {
    const OTHER: u64 = SIGNAL + 0x1000;
    for (kind, values, done) in [
        (packet_type::BARRIER_AND, [0, 0], true),
        (packet_type::BARRIER_AND, [0, 1], false),
        (packet_type::BARRIER_OR, [0, 1], true),
        (packet_type::BARRIER_OR, [1, 2], false),
    ] {
        // in places 1 and 4 of the five
        let packet = Bytes::new(kind).u64(16, SIGNAL).u64(40, OTHER);
        let memory = memory(&[packet])
            .with(SIGNAL, &signal(values[0], 0))
            .with(OTHER, &signal(values[1], 0));
        let mut ring = ring();
        let pass = run(&memory, &Kernels::default(), &mut ring, 0);
        assert_eq!(
            (pass.progressed, pass.idle),
            (done, done),
            "{kind} {values:?}"
        );
    }
    let memory = memory(&[Bytes::new(packet_type::BARRIER_OR)]);
    assert!(
        run(&memory, &Kernels::default(), &mut ring(), 0).progressed,
        "no dependency at all"
    );
}

#[test]
fn a_barrier_opens_when_its_dependency_completes() {
    let packet = Bytes::new(packet_type::BARRIER_AND).u64(8, SIGNAL);
    let memory = memory(&[packet]).with(SIGNAL, &signal(1, 0));
    let mut ring = ring();
    assert!(!run(&memory, &Kernels::default(), &mut ring, 0).idle);
    memory.write(SIGNAL + 8, &[0; 8]).unwrap();
    let pass = run(&memory, &Kernels::default(), &mut ring, 0);
    assert_eq!((pass.progressed, pass.idle), (true, true));
}

#[test]
fn barrier_value_compares_masked_and_signed() {
    // condition, value in the signal, mask, operand, holds
    for (condition, current, mask, operand, holds) in [
        (0, 5, u64::MAX, 5, true),
        (0, 5, u64::MAX, 4, false),
        (0, 0xf5, 0x0f, 5, true),
        (1, 5, u64::MAX, 4, true),
        (1, 5, u64::MAX, 5, false),
        (2, -1i64 as u64, u64::MAX, 0, true),
        (2, 0, u64::MAX, 0, false),
        (3, 0, u64::MAX, 0, true),
        (3, -1i64 as u64, u64::MAX, 0, false),
        (9, 0, u64::MAX, 1, true),
    ] {
        let mut packet = Bytes::new(packet_type::VENDOR_SPECIFIC)
            .u64(8, SIGNAL)
            .u64(16, operand)
            .u64(24, mask)
            .u32(32, condition);
        packet.0[2] = amd_format::BARRIER_VALUE;
        let memory = memory(&[packet]).with(SIGNAL, &signal(current, 0));
        let pass = run(&memory, &Kernels::default(), &mut ring(), 0);
        assert_eq!(
            pass.progressed, holds,
            "{condition}: {current:#x} & {mask:#x}, {operand}"
        );
    }
}

#[test]
fn vendor_packets_and_unknown_ones_complete() {
    let mut pm4 = Bytes::new(packet_type::VENDOR_SPECIFIC).completes(SIGNAL);
    pm4.0[2] = amd_format::PM4_INDIRECT_BUFFER;
    let agent_dispatch = Bytes::new(4).completes(SIGNAL);
    let memory = memory(&[pm4, agent_dispatch]).with(SIGNAL, &signal(2, 0));
    let pass = run(&memory, &Kernels::default(), &mut ring(), 1);
    assert_eq!(value_of(&memory, SIGNAL), 0);
    assert!(
        pass.notes[0].contains("PM4 indirect buffer"),
        "{:?}",
        pass.notes
    );
    assert!(
        pass.notes[1].contains("type 4, not executed"),
        "{:?}",
        pass.notes
    );
}

#[test]
fn a_dispatched_blit_kernel_runs() {
    let call = Call::new("__amd_rocclr_copyBuffer")
        .u64("src", 0x5000)
        .u64("dst", 0x6000)
        .u64("size", 16);
    let packet = Bytes::new(packet_type::KERNEL_DISPATCH)
        .u64(32, 0x7000)
        .u64(40, 0x8000)
        .completes(SIGNAL);
    let memory = memory(&[packet])
        .with(SIGNAL, &signal(1, 0))
        .with(0x5000, &[9; 16])
        .zeros(0x6000, 16)
        .with(0x8000, &call.segment);
    let kernels = Kernels([(0x7000, call.kernel.into())].into());
    let pass = run(&memory, &kernels, &mut ring(), 0);
    assert_eq!(memory.bytes(0x6000, 16), [9; 16], "{:?}", pass.notes);
    assert_eq!(value_of(&memory, SIGNAL), 0);
}

#[test]
fn a_kernel_that_waits_holds_its_queue() {
    let call = Call::new("__amd_rocclr_streamOpsWait")
        .u64("ptrInt", 0x5000)
        .u64("value", 1)
        .u64("flags", 0)
        .u64("mask", u64::MAX);
    let packet = Bytes::new(packet_type::KERNEL_DISPATCH)
        .u64(32, 0x7000)
        .u64(40, 0x8000)
        .completes(SIGNAL);
    let memory = memory(&[packet])
        .with(SIGNAL, &signal(1, 0))
        .zeros(0x5000, 4)
        .with(0x8000, &call.segment);
    let kernels = Kernels([(0x7000, call.kernel.into())].into());
    let mut ring = ring();
    let pass = run(&memory, &kernels, &mut ring, 0);
    assert_eq!(
        (pass.progressed, pass.idle, value_of(&memory, SIGNAL)),
        (false, false, 1)
    );
    memory.write(0x5000, &[1]).unwrap();
    let pass = run(&memory, &kernels, &mut ring, 0);
    assert_eq!(
        (pass.progressed, pass.idle, value_of(&memory, SIGNAL)),
        (true, true, 0)
    );
}

#[test]
fn the_ring_wraps_around() {
    let (memory, mut ring) = (memory(&[]), ring());
    for number in 0..PLACES as u64 * 3 {
        let place = RING + number % PLACES as u64 * 64;
        memory
            .write(place, &Bytes::new(packet_type::BARRIER_AND).0)
            .unwrap();
        assert!(run(&memory, &Kernels::default(), &mut ring, number).progressed);
    }
    assert_eq!(ring.consumed, PLACES as u64 * 3);
}

#[test]
fn a_pass_ends_after_its_share_of_packets() {
    let places = PACKETS_PER_PASS * 2;
    let packets = Bytes::new(packet_type::BARRIER_AND).0.repeat(places);
    let memory = Memory::new().with(RING, &packets).zeros(READ_POINTER, 8);
    let mut ring = Ring {
        bytes: packets.len() as u64,
        ..ring()
    };
    let pass = run(&memory, &Kernels::default(), &mut ring, places as u64 - 1);
    assert_eq!((pass.progressed, pass.idle), (true, false));
    assert_eq!(ring.consumed, PACKETS_PER_PASS as u64);
    let pass = run(&memory, &Kernels::default(), &mut ring, places as u64 - 1);
    assert_eq!(ring.consumed, places as u64);
    assert_eq!(pass.notes.len(), PACKETS_PER_PASS);
}

#[test]
fn addresses_without_memory_are_noted_and_the_queue_goes_on() {
    const NOWHERE: u64 = 0xdead_0000;
    let mut value = Bytes::new(packet_type::VENDOR_SPECIFIC).u64(8, NOWHERE);
    value.0[2] = amd_format::BARRIER_VALUE;
    let packets = [
        Bytes::new(packet_type::BARRIER_AND)
            .u64(8, NOWHERE)
            .completes(NOWHERE),
        Bytes::new(packet_type::BARRIER_OR).u64(8, u64::MAX),
        value,
        Bytes::new(packet_type::KERNEL_DISPATCH)
            .u64(32, NOWHERE)
            .u64(40, NOWHERE),
        Bytes::new(packet_type::BARRIER_AND).completes(SIGNAL),
    ];
    // The mailbox of the last signal is nowhere, too.
    let lost = Bytes::new(0).u64(8, 1).u64(16, NOWHERE).u32(24, 7).0;
    let memory = memory(&packets).with(SIGNAL, &lost);
    let mut ring = Ring {
        read_pointer_va: NOWHERE,
        ..ring()
    };
    let pass = run(&memory, &Kernels::default(), &mut ring, 4);
    assert_eq!((ring.consumed, pass.idle, pass.events), (5, true, vec![]));
    let faults = pass
        .notes
        .iter()
        .filter(|note| note.contains("no memory at 0xdead0"));
    assert_eq!(faults.count(), 9, "{:#?}", pass.notes);
}

#[test]
fn a_ring_without_memory_or_without_room_is_left_alone() {
    let memory = Memory::new();
    for broken in [
        Ring {
            base: 0xdead_0000,
            ..ring()
        },
        Ring {
            base: u64::MAX - 63,
            consumed: 3,
            ..ring()
        },
        Ring { bytes: 0, ..ring() },
        Ring {
            bytes: 63,
            ..ring()
        },
    ] {
        let mut ring = broken.clone();
        let pass = run(&memory, &Kernels::default(), &mut ring, 4);
        assert_eq!(
            (pass.progressed, pass.idle, pass.notes.len()),
            (false, true, 1),
            "{broken:?}"
        );
        assert_eq!(ring, broken);
    }
}
