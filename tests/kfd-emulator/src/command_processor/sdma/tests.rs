use super::super::fake::{Kernels, Memory};
use super::super::{QueueKind, Ring, service};
use super::*;

const RING: u64 = 0x10_0000;
const RING_BYTES: u64 = 4096;
const READ_POINTER: u64 = 0x20_0000;
const SOURCE: u64 = 0x30_0000;
const DESTINATION: u64 = 0x1_0000_0000;
const NOWHERE: u64 = 0xdead_0000;

fn low_high(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// A packet: its first word, then values of 32 or (as two words) 64 bits.
macro_rules! packet {
    ($header:expr $(, $kind:ident $value:expr)*) => {{
        #[allow(unused_mut)]
        let mut words: Vec<u32> = vec![$header];
        $(packet!(@ words $kind $value);)*
        words
    }};
    (@ $words:ident word $value:expr) => { $words.push($value) };
    (@ $words:ident long $value:expr) => { $words.extend(low_high($value)) };
}

fn copy(source: u64, destination: u64, bytes: u32) -> Vec<u32> {
    packet!(operation::COPY, word bytes - 1, word 0, long source, long destination)
}

fn fence(va: u64, value: u32) -> Vec<u32> {
    packet!(operation::FENCE, long va, word value)
}

struct Bench {
    memory: Memory,
    ring: Ring,
    doorbell: u64,
}

impl Bench {
    fn new() -> Bench {
        let memory = Memory::new()
            .zeros(RING, RING_BYTES as usize)
            .zeros(READ_POINTER, 8)
            .with(SOURCE, &(0..128).collect::<Vec<u8>>())
            .zeros(DESTINATION, 128);
        let ring = Ring {
            kind: QueueKind::Sdma,
            base: RING,
            bytes: RING_BYTES,
            read_pointer_va: READ_POINTER,
            consumed: 0,
        };
        Bench {
            memory,
            ring,
            doorbell: 0,
        }
    }

    /// A queue that has already gone so far.
    fn at(consumed: u64) -> Bench {
        let mut bench = Bench::new();
        bench.ring.consumed = consumed;
        bench.doorbell = consumed;
        bench
    }

    fn put(&mut self, words: &[u32]) -> &mut Bench {
        for word in words {
            let place = RING + self.doorbell % RING_BYTES;
            self.memory.write(place, &word.to_le_bytes()).unwrap();
            self.doorbell += 4;
        }
        self
    }

    fn run(&mut self) -> Pass {
        service(
            &self.memory,
            &Kernels::default(),
            &mut self.ring,
            self.doorbell,
            &|| 777,
        )
    }

    /// Runs to the end, without trouble.
    fn finish(&mut self) -> Pass {
        let pass = self.run();
        assert_eq!(
            (self.ring.consumed, pass.idle),
            (self.doorbell, true),
            "{:#?}",
            pass.notes
        );
        let memory: &dyn GpuMemory = &self.memory;
        assert_eq!(memory.read_u64(READ_POINTER), Ok(self.doorbell));
        pass
    }

    fn destination(&self, bytes: usize) -> Vec<u8> {
        self.memory.bytes(DESTINATION, bytes)
    }
}

#[test]
fn a_linear_copy_arrives() {
    let mut bench = Bench::new();
    bench.put(&copy(SOURCE + 1, DESTINATION, 5)).finish();
    assert_eq!(bench.destination(6), [1, 2, 3, 4, 5, 0]);
}

#[test]
fn a_broadcast_copy_arrives_twice() {
    let header = operation::COPY | 1 << 27;
    let packet =
        packet!(header, word 1, word 0, long SOURCE + 8, long DESTINATION, long DESTINATION + 4);
    let mut bench = Bench::new();
    bench.put(&packet).finish();
    assert_eq!(bench.destination(6), [8, 9, 0, 0, 8, 9]);
}

#[test]
fn a_sub_window_is_copied_in_its_elements() {
    let two_bytes = 1u32 << 29;
    let header = operation::COPY | copy_kind::LINEAR_SUB_WINDOW << 8 | two_bytes;
    let packet = packet!(
        header,
        // source: x 1, y 1, z 1; 8 elements a row, 32 a slice
        long SOURCE, word 1 | 1 << 16, word 1 | 7 << 13, word 31,
        // destination: x 2; 4 elements a row, 16 a slice
        long DESTINATION, word 2, word 3 << 13, word 15,
        // 2 elements, 2 rows, 1 slice
        word 1 | 1 << 16, word 0
    );
    let mut bench = Bench::new();
    bench.put(&packet).finish();
    // 64 (slice) + 16 (row) + 2 (x), and a row further
    assert_eq!(
        bench.destination(16),
        [0, 0, 0, 0, 82, 83, 84, 85, 0, 0, 0, 0, 98, 99, 100, 101]
    );
}

#[test]
fn fill_writes_whole_words() {
    let mut bench = Bench::new();
    let packet = packet!(
        operation::CONST_FILL | 2 << 30, long DESTINATION, word 0x0403_0201, word 4
    );
    bench.put(&packet).finish();
    assert_eq!(bench.destination(9), [1, 2, 3, 4, 1, 2, 3, 4, 0]);
}

#[test]
fn fence_trap_timestamp_and_atomic_do_what_a_completion_needs() {
    let mut bench = Bench::new();
    bench
        .put(&packet!(operation::TIMESTAMP | 2 << 8, long DESTINATION))
        .put(&packet!(
            operation::ATOMIC | 0x2f << 25,
            long DESTINATION + 8, long u64::MAX, long 0, word 0
        ))
        .put(&fence(DESTINATION + 16, 0xabcd))
        .put(&packet!(operation::TRAP, word 0xf000_0005))
        .put(&packet!(operation::GCR_REQUEST, word 0, word 0, word 0, word 0));
    let pass = bench.finish();
    assert_eq!(pass.events, [5]);
    let memory: &dyn GpuMemory = &bench.memory;
    assert_eq!(memory.read_u64(DESTINATION), Ok(777));
    assert_eq!(memory.read_u64(DESTINATION + 8), Ok(u64::MAX), "0 - 1");
    assert_eq!(memory.read_u64(DESTINATION + 16), Ok(0xabcd));
}

#[test]
fn an_unknown_atomic_is_passed_over() {
    let mut bench = Bench::new();
    bench
        .put(&packet!(operation::ATOMIC | 8 << 25, long DESTINATION, long 1, long 0, word 0))
        .put(&fence(DESTINATION + 8, 1));
    let pass = bench.finish();
    assert_eq!(bench.destination(9), [0, 0, 0, 0, 0, 0, 0, 0, 1]);
    assert!(
        pass.notes[0].contains("atomic 0x8, not executed"),
        "{:?}",
        pass.notes
    );
}

#[test]
fn polling_memory_blocks_until_the_condition_holds() {
    // function, value in memory, holds for reference 5
    for (function, value, holds) in [
        (0, 0, true),
        (1, 4, true),
        (1, 5, false),
        (2, 5, true),
        (2, 6, false),
        (3, 5, true),
        (3, 4, false),
        (4, 4, true),
        (4, 5, false),
        (5, 5, true),
        (5, 4, false),
        (6, 6, true),
        (6, 5, false),
    ] {
        let header = operation::POLL_REGMEM | function << 28 | 1 << 31;
        let mut bench = Bench::new();
        // The mask hides the upper half.
        bench
            .memory
            .write(DESTINATION, &(value | 0x7_0000u32).to_le_bytes())
            .unwrap();
        bench.put(&packet!(header, long DESTINATION, word 5, word 0xffff, word 0));
        let pass = bench.run();
        assert_eq!(
            (pass.progressed, pass.idle),
            (holds, holds),
            "function {function}: {value}"
        );
    }
}

#[test]
fn a_blocked_poll_holds_what_is_behind_it() {
    let poll = packet!(
        operation::POLL_REGMEM | 3 << 28 | 1 << 31,
        long DESTINATION, word 1, word u32::MAX, word 0
    );
    let mut bench = Bench::new();
    bench
        .put(&fence(DESTINATION + 8, 1))
        .put(&poll)
        .put(&fence(DESTINATION + 9, 1));
    let pass = bench.run();
    assert_eq!(
        (pass.progressed, pass.idle, bench.ring.consumed),
        (true, false, 16)
    );
    assert_eq!(bench.destination(10)[8..], [1, 0]);
    bench.memory.write(DESTINATION, &[1]).unwrap();
    bench.finish();
    assert_eq!(bench.destination(10)[8..], [1, 1]);
}

#[test]
fn a_host_data_path_flush_does_not_wait() {
    let mut bench = Bench::new();
    let flush = operation::POLL_REGMEM | 1 << 26 | 3 << 28;
    bench
        .put(&packet!(flush, long NOWHERE, word 1, word 1, word 0))
        .finish();
}

#[test]
fn nops_are_as_long_as_they_say() {
    let mut bench = Bench::new();
    bench.put(&packet!(operation::NOP | 2 << 16, word u32::MAX, word u32::MAX));
    bench.put(&fence(DESTINATION, 1)).finish();
    assert_eq!(bench.destination(1), [1]);
}

#[test]
fn packets_and_their_data_wrap_around_the_ring() {
    for before in [4, 8, 12, 16, 20, 24] {
        let mut bench = Bench::at(RING_BYTES * 5 - before);
        bench.put(&copy(SOURCE + 1, DESTINATION, 2)).finish();
        assert_eq!(
            bench.destination(3),
            [1, 2, 0],
            "{before} bytes before the end"
        );

        let mut bench = Bench::at(RING_BYTES * 5 - before);
        let write = packet!(
            operation::WRITE, long DESTINATION, word 1, word 0x0403_0201, word 0x0807_0605
        );
        bench.put(&write).put(&fence(DESTINATION + 8, 9)).finish();
        let expected = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0];
        assert_eq!(
            bench.destination(10),
            expected,
            "{before} bytes before the end"
        );
    }
}

#[test]
fn a_packet_waits_for_its_end() {
    let mut bench = Bench::new();
    let packet = copy(SOURCE + 1, DESTINATION, 2);
    let pass = bench.put(&packet[..4]).run();
    assert_eq!((pass.progressed, pass.idle), (false, true));
    bench.put(&packet[4..]).finish();
    assert_eq!(bench.destination(2), [1, 2]);
}

#[test]
fn an_unknown_packet_stops_the_queue() {
    let mut bench = Bench::new();
    bench
        .put(&fence(DESTINATION, 1))
        .put(&[0xff])
        .put(&fence(DESTINATION, 2));
    let pass = bench.run();
    assert_eq!((bench.ring.consumed, pass.idle), (16, true));
    assert_eq!(bench.destination(1), [1]);
    assert!(
        pass.notes[1].contains("unknown packet 0x000000ff"),
        "{:?}",
        pass.notes
    );
}

#[test]
fn a_fault_ends_its_packet_only() {
    let atomic = packet!(operation::ATOMIC | 0x2f << 25, long NOWHERE, long 1, long 0, word 0);
    let poll = operation::POLL_REGMEM | 3 << 28 | 1 << 31;
    let window = operation::COPY | copy_kind::LINEAR_SUB_WINDOW << 8;
    let mut sub_window = vec![window];
    sub_window.resize(13, u32::MAX);
    let mut bench = Bench::new();
    bench
        .put(&copy(SOURCE, NOWHERE, 0x3fff_ffff))
        .put(&copy(u64::MAX, DESTINATION, 8))
        .put(&fence(NOWHERE, 1))
        .put(&atomic)
        .put(&packet!(poll, long NOWHERE, word 1, word 1, word 0))
        .put(&packet!(operation::CONST_FILL, long u64::MAX - 8, word 1, word 0x3fff_ffff))
        .put(&packet!(operation::TIMESTAMP, long NOWHERE))
        .put(&packet!(operation::WRITE, long NOWHERE, word 0, word 1))
        .put(&sub_window)
        .put(&fence(DESTINATION, 5));
    let pass = bench.finish();
    assert_eq!(bench.destination(1), [5]);
    assert_eq!(pass.notes.len(), 10, "{:#?}", pass.notes);
    let failed = |note: &&String| note.contains("no memory at") || note.contains("no card could");
    assert_eq!(
        pass.notes.iter().filter(failed).count(),
        9,
        "{:#?}",
        pass.notes
    );
}

#[test]
fn a_doorbell_further_than_the_ring_is_not_believed() {
    for doorbell in [RING_BYTES + 4, u64::MAX - 3, 1 << 60] {
        let mut bench = Bench::new();
        bench.doorbell = doorbell;
        let pass = bench.run();
        assert_eq!(
            (pass.progressed, pass.idle, pass.notes.len()),
            (false, true, 1)
        );
    }
    // Nor one that is behind.
    let mut bench = Bench::at(64);
    bench.doorbell = 32;
    assert!(!bench.run().progressed);
}

#[test]
fn a_pass_ends_after_its_share_of_packets() {
    let bytes = PACKETS_PER_PASS as u64 * 8;
    let mut bench = Bench::new();
    bench.memory = Memory::new()
        .zeros(RING, bytes as usize)
        .zeros(READ_POINTER, 8);
    bench.ring.bytes = bytes;
    bench.doorbell = bytes;
    let pass = bench.run();
    assert_eq!((pass.idle, bench.ring.consumed), (false, bytes / 2));
    let pass = bench.finish();
    assert_eq!(pass.notes.len(), PACKETS_PER_PASS);
}

#[test]
fn a_ring_that_cannot_be_is_left_alone() {
    for (base, bytes) in [(NOWHERE, 4096), (u64::MAX - 7, 4096), (RING, 0), (RING, 6)] {
        let mut bench = Bench::new();
        bench.put(&fence(DESTINATION, 1));
        (bench.ring.base, bench.ring.bytes) = (base, bytes);
        let pass = bench.run();
        assert_eq!(
            (pass.progressed, pass.idle, pass.notes.len()),
            (false, true, 1)
        );
    }
}
