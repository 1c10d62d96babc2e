//! The layout of a ledger file, version 1. It is final: whatever changes it raises [`VERSION`].
//!
//! ```text
//! 0        header                      one page
//! 4096     GPU records                 64 x 128 bytes
//! 12288    slots                       1,024 x 1 KiB
//! 1060864  cells [GPU][slot]           (room for GPUs) x 1,024 x 64 bytes
//! ```
//!
//! A column of cells is contiguous, so that a sum walks through memory in one direction; a cell is
//! one cache line, so that processes do not slow each other down. Everything is an atomic word;
//! zeroed memory is a ledger with free slots only and limits of 0 (nothing is allowed by mistake).
//! Times are nanoseconds since 1970.

use core::mem::size_of;

use crate::limit::Limit;
use crate::size::MAX_BYTES;
use crate::sync::{AtomicU8, AtomicU64, Ordering, incidental};
use crate::{MAX_GPUS, MAX_HOOKS, MAX_MEMBERS};

/// The first word of a ledger, `HIPFLEXL` in memory.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"HIPFLEXL");

/// The version of this layout.
pub(crate) const VERSION: u64 = 1;

/// For how many GPUs a ledger is made at least, so that processes that see different GPUs can join.
pub(crate) const MIN_GPU_CAPACITY: usize = 16;

pub(crate) const GPUS_OFFSET: usize = 4096;
pub(crate) const SLOTS_OFFSET: usize = GPUS_OFFSET + MAX_GPUS * size_of::<GpuRecord>();
pub(crate) const CELLS_OFFSET: usize = SLOTS_OFFSET + MAX_MEMBERS * size_of::<Slot>();
/// One GPU's cells.
pub(crate) const COLUMN_BYTES: usize = MAX_MEMBERS * size_of::<Cell>();

/// Words of a mask of compute units.
pub const CU_WORDS: usize = 16;

/// Bits of [`Header::flags`].
pub(crate) const FLAG_SHARED: u64 = 1;

/// Values of [`Header::liveness`].
pub(crate) const LIVENESS_LOCKS: u64 = 1;
/// See [`LIVENESS_LOCKS`].
pub(crate) const LIVENESS_WITNESS: u64 = 2;

/// The first page. Written once before the file gets its name, but for the last group.
#[repr(C, align(64))]
#[cfg_attr(all(test, loom), derive(Default))]
pub(crate) struct Header {
    /// [`MAGIC`].
    pub(crate) magic: AtomicU64,
    /// [`VERSION`].
    pub(crate) version: AtomicU64,
    /// Size of the file in bytes.
    pub(crate) file_size: AtomicU64,
    /// `/proc/sys/kernel/random/boot_id`, its 16 bytes.
    pub(crate) boot_id: [AtomicU64; incidental(2)],
    /// Effective UID of the process that made it.
    pub(crate) uid: AtomicU64,
    /// [`FLAG_SHARED`].
    pub(crate) flags: AtomicU64,
    /// [`LIVENESS_LOCKS`] or [`LIVENESS_WITNESS`].
    pub(crate) liveness: AtomicU64,
    pub(crate) slot_count: AtomicU64,
    /// For how many GPUs there are cells.
    pub(crate) gpu_capacity: AtomicU64,
    pub(crate) gpus_offset: AtomicU64,
    pub(crate) gpu_stride: AtomicU64,
    pub(crate) slots_offset: AtomicU64,
    pub(crate) slot_stride: AtomicU64,
    pub(crate) cells_offset: AtomicU64,
    pub(crate) cell_stride: AtomicU64,
    pub(crate) created_at: AtomicU64,
    /// PID of the process that made it, in its own namespace. For people.
    pub(crate) creator_pid: AtomicU64,
    /// Name of the budget, padded with zeros.
    pub(crate) budget: [AtomicU64; incidental(8)],
    /// Version of the library that made it, padded with zeros. For people.
    pub(crate) creator_version: [AtomicU64; incidental(6)],
    /// For what later versions want to know of the whole ledger without a new layout.
    pub(crate) spare: [AtomicU64; incidental(32)],

    /// More than the number of any slot that was ever claimed: raised before the claim, and never lowered. On
    /// a line of its own: every sum reads it.
    pub(crate) high_water: Line,
    /// How many GPU records are valid.
    pub(crate) gpu_count: Line,
    /// Dead members that were reaped, and when the last was.
    pub(crate) reaped: AtomicU64,
    pub(crate) last_reap_at: AtomicU64,
    /// Anomalies of members that are gone.
    pub(crate) anomalies: AtomicU64,
    /// Where the next partial look for dead members begins; its value is of no consequence.
    pub(crate) reap_cursor: AtomicU64,
    pub(crate) spare_counters: [AtomicU64; incidental(60)],
    pub(crate) unused: [AtomicU64; incidental(368)],
}

/// A word on a cache line of its own.
#[repr(C, align(64))]
#[cfg_attr(all(test, loom), derive(Default))]
pub(crate) struct Line {
    pub(crate) word: AtomicU64,
    pub(crate) spare: [AtomicU64; incidental(7)],
}

/// One GPU of the budget.
#[repr(C, align(64))]
#[cfg_attr(all(test, loom), derive(Default))]
pub(crate) struct GpuRecord {
    /// See [`crate::GpuKey`].
    pub(crate) key: AtomicU64,
    /// An encoded limit, see [`encode_limit`]. May change at any time.
    pub(crate) limit: AtomicU64,
    /// VRAM of the board in bytes, 0 when unknown.
    pub(crate) board_bytes: AtomicU64,
    /// The limit that the GPU was entered with, encoded as `limit` is, and never changed: who brings
    /// it has no limit of his own.
    pub(crate) made_limit: AtomicU64,
    pub(crate) spare: [AtomicU64; incidental(12)],
}

/// What is known of one member. Only the figures in its cells count; all this is for observers.
#[repr(C, align(64))]
#[cfg_attr(all(test, loom), derive(Default))]
pub(crate) struct Slot {
    /// A [`crate::slot::Claim`]: generation and state. The slot's lock is on this word's first byte.
    pub(crate) claim: AtomicU64,
    /// PID in the member's own PID namespace, and its start time (field 22 of `/proc/PID/stat`).
    pub(crate) pid: AtomicU64,
    pub(crate) start_time: AtomicU64,
    /// Inodes of the member's namespaces; 0 when unknown.
    pub(crate) pid_namespace: AtomicU64,
    pub(crate) time_namespace: AtomicU64,
    /// PID in the initial namespace, written by an observer: see [`encode_host_pid`]; 0 when unknown.
    pub(crate) host_pid: AtomicU64,
    pub(crate) uid: AtomicU64,
    pub(crate) joined_at: AtomicU64,
    /// Command name, padded with zeros.
    pub(crate) comm: [AtomicU64; incidental(2)],
    /// Version of the library that books, padded with zeros.
    pub(crate) library_version: [AtomicU64; incidental(6)],
    /// [`crate::HookEngine`] of each hook.
    pub(crate) engines: [AtomicU8; incidental(MAX_HOOKS)],
    /// Compute units this member may use, on the first of its GPUs: the first, and the last plus one (0: no
    /// range), then the mask, bit 0 of word 0 being CU 0.
    pub(crate) cu_first: AtomicU64,
    pub(crate) cu_end: AtomicU64,
    pub(crate) cu_mask: [AtomicU64; incidental(CU_WORDS)],
    pub(crate) allocations: AtomicU64,
    pub(crate) frees: AtomicU64,
    pub(crate) refusals: AtomicU64,
    pub(crate) anomalies: AtomicU64,
    pub(crate) last_refusal: RefusalRecord,
    /// An observer's notes on the member's end: when it was seen, and what it was.
    pub(crate) end_seen_at: AtomicU64,
    pub(crate) end_kind: AtomicU64,
    pub(crate) unused: [AtomicU64; incidental(27)],
    /// 256 bytes for what later versions want to know of a member without a new layout.
    pub(crate) spare: [AtomicU64; incidental(32)],
}

/// The last refusal, guarded by a sequence: odd while it is written.
#[repr(C)]
#[cfg_attr(all(test, loom), derive(Default))]
pub(crate) struct RefusalRecord {
    pub(crate) sequence: AtomicU64,
    pub(crate) at: AtomicU64,
    pub(crate) size: AtomicU64,
    /// Index of the GPU in the ledger.
    pub(crate) gpu: AtomicU64,
    /// Name of the call, padded with zeros.
    pub(crate) api: [AtomicU64; incidental(4)],
    /// [`crate::DenialReason`] as a number, and the figures of the [`crate::Denial`].
    pub(crate) reason: AtomicU64,
    /// Encoded, see [`encode_limit`].
    pub(crate) limit: AtomicU64,
    pub(crate) mine: AtomicU64,
    pub(crate) others: AtomicU64,
    pub(crate) overhead: AtomicU64,
}

/// One member's figures on one GPU, in bytes. All are 0 in the cells of a free slot, but for
/// `member_limit`, so that a sum needs no look at the slots.
#[repr(C, align(64))]
#[cfg_attr(all(test, loom), derive(Default))]
pub(crate) struct Cell {
    pub(crate) pending: AtomicU64,
    pub(crate) live: AtomicU64,
    pub(crate) overhead: AtomicU64,
    pub(crate) peak: AtomicU64,
    /// The member's own limit, see [`encode_limit`] and [`FOLLOW`].
    pub(crate) member_limit: AtomicU64,
    /// The part of `live` that the driver's counter does not show (managed memory).
    pub(crate) live_unseen: AtomicU64,
    /// When `overhead` was last measured; 0: it is not known, whatever `overhead` says.
    pub(crate) overhead_at: AtomicU64,
    /// The part of `live` that was freed by the program and is kept by a pool of the runtime. It is shown
    /// apart, and no sum needs it.
    pub(crate) kept: AtomicU64,
}

// What other builds of this library rely on.
#[cfg(not(all(test, loom)))]
const _: () = {
    use core::mem::offset_of;

    assert!(size_of::<Header>() == 4096);
    assert!(offset_of!(Header, magic) == 0);
    assert!(offset_of!(Header, version) == 8);
    assert!(offset_of!(Header, file_size) == 16);
    assert!(offset_of!(Header, boot_id) == 24);
    assert!(offset_of!(Header, uid) == 40);
    assert!(offset_of!(Header, flags) == 48);
    assert!(offset_of!(Header, liveness) == 56);
    assert!(offset_of!(Header, slot_count) == 64);
    assert!(offset_of!(Header, gpu_capacity) == 72);
    assert!(offset_of!(Header, gpus_offset) == 80);
    assert!(offset_of!(Header, cell_stride) == 120);
    assert!(offset_of!(Header, created_at) == 128);
    assert!(offset_of!(Header, creator_pid) == 136);
    assert!(offset_of!(Header, budget) == 144);
    assert!(offset_of!(Header, creator_version) == 208);
    assert!(offset_of!(Header, spare) == 256);
    assert!(offset_of!(Header, high_water) == 512);
    assert!(offset_of!(Header, gpu_count) == 576);
    assert!(offset_of!(Header, reaped) == 640);
    assert!(offset_of!(Header, unused) == 1152);

    assert!(size_of::<GpuRecord>() == 128);
    assert!(offset_of!(GpuRecord, limit) == 8);
    assert!(offset_of!(GpuRecord, board_bytes) == 16);
    assert!(offset_of!(GpuRecord, made_limit) == 24);

    assert!(size_of::<Slot>() == 1024);
    assert!(offset_of!(Slot, claim) == 0);
    assert!(offset_of!(Slot, pid) == 8);
    assert!(offset_of!(Slot, start_time) == 16);
    assert!(offset_of!(Slot, pid_namespace) == 24);
    assert!(offset_of!(Slot, time_namespace) == 32);
    assert!(offset_of!(Slot, host_pid) == 40);
    assert!(offset_of!(Slot, uid) == 48);
    assert!(offset_of!(Slot, joined_at) == 56);
    assert!(offset_of!(Slot, comm) == 64);
    assert!(offset_of!(Slot, library_version) == 80);
    assert!(offset_of!(Slot, engines) == 128);
    assert!(offset_of!(Slot, cu_first) == 256);
    assert!(offset_of!(Slot, cu_mask) == 272);
    assert!(offset_of!(Slot, allocations) == 400);
    assert!(offset_of!(Slot, last_refusal) == 432);
    assert!(size_of::<RefusalRecord>() == 104);
    assert!(offset_of!(RefusalRecord, api) == 32);
    assert!(offset_of!(RefusalRecord, reason) == 64);
    assert!(offset_of!(RefusalRecord, overhead) == 96);
    assert!(offset_of!(Slot, end_seen_at) == 536);
    assert!(offset_of!(Slot, unused) == 552);
    assert!(offset_of!(Slot, spare) == 768);

    assert!(size_of::<Cell>() == 64);
    assert!(offset_of!(Cell, pending) == 0);
    assert!(offset_of!(Cell, live) == 8);
    assert!(offset_of!(Cell, overhead) == 16);
    assert!(offset_of!(Cell, peak) == 24);
    assert!(offset_of!(Cell, member_limit) == 32);
    assert!(offset_of!(Cell, live_unseen) == 40);
    assert!(offset_of!(Cell, overhead_at) == 48);
    assert!(offset_of!(Cell, kept) == 56);

    assert!(SLOTS_OFFSET == 12_288);
    assert!(CELLS_OFFSET == 1_060_864);
    assert!(COLUMN_BYTES == 65_536);
};

/// The encoded form of [`Limit::Unlimited`].
const UNLIMITED: u64 = u64::MAX;

/// What a member's own limit is when the ledger's holds for it, now and after each change.
pub(crate) const FOLLOW: u64 = u64::MAX - 1;

/// A limit as a word.
pub(crate) fn encode_limit(limit: Limit) -> u64 {
    match limit {
        Limit::Unlimited => UNLIMITED,
        Limit::Bytes(bytes) => bytes.min(MAX_BYTES),
    }
}

/// The limit in a word. What no limit was encoded as allows nothing.
pub(crate) fn decode_limit(word: u64) -> Limit {
    match word {
        UNLIMITED => Limit::Unlimited,
        bytes if bytes <= MAX_BYTES => Limit::Bytes(bytes),
        _ => Limit::Bytes(0),
    }
}

/// The own limit of a member that brings `mine` to a ledger with limit `ledger`, which was made with `made`:
/// who brings what the budget was made with wants what the budget has, also after that was changed.
pub(crate) fn own_limit(mine: u64, ledger: u64, made: u64) -> u64 {
    if mine == ledger || mine == made {
        FOLLOW
    } else {
        mine
    }
}

/// The limit that holds for a member whose own limit is `member`, in a ledger with limit `ledger`.
pub(crate) fn effective_limit(member: u64, ledger: u64) -> Limit {
    let ledger = decode_limit(ledger);
    if member == FOLLOW {
        ledger
    } else {
        decode_limit(member).stricter(ledger)
    }
}

/// A member's PID in the initial namespace as a word: with the lower half of the generation it was told
/// to, so that one that comes too late is nobody's, not even for a moment.
pub(crate) fn encode_host_pid(pid: u32, generation: u64) -> u64 {
    generation << 32 | u64::from(pid)
}

/// The PID in such a word, if there is one and it was told to this generation.
pub(crate) fn decode_host_pid(word: u64, generation: u64) -> Option<u32> {
    let pid = u32::try_from(word & u64::from(u32::MAX)).ok()?;
    (pid != 0 && word == encode_host_pid(pid, generation)).then_some(pid)
}

/// Where the parts of a ledger lie. All follows from the number of GPUs it has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    gpu_capacity: usize,
}

impl Geometry {
    /// Room for `gpus` GPUs and a few more, or `None` if a ledger cannot hold so many.
    pub(crate) fn for_gpus(gpus: usize) -> Option<Self> {
        let capacity = gpus.max(MIN_GPU_CAPACITY).checked_next_power_of_two()?;
        Self::with_capacity(capacity)
    }

    /// Room for exactly `capacity` GPUs, or `None` if a ledger cannot have that.
    pub(crate) fn with_capacity(capacity: usize) -> Option<Self> {
        (1..=MAX_GPUS).contains(&capacity).then_some(Self {
            gpu_capacity: capacity,
        })
    }

    pub(crate) fn gpu_capacity(self) -> usize {
        self.gpu_capacity
    }

    /// Size of the file in bytes.
    pub(crate) fn file_size(self) -> usize {
        self.gpu_capacity
            .saturating_mul(COLUMN_BYTES)
            .saturating_add(CELLS_OFFSET)
    }

    /// Writes what [`Self::read`] checks.
    pub(crate) fn write(self, header: &Header) {
        for (word, value) in self.words(header) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// The geometry that a header names, if it is one of this version's; the size of the file is
    /// the caller's to check.
    pub(crate) fn read(header: &Header) -> Option<Self> {
        let capacity = usize::try_from(header.gpu_capacity.load(Ordering::Relaxed)).ok()?;
        let geometry = Self::with_capacity(capacity)?;
        let fits = geometry
            .words(header)
            .into_iter()
            .all(|(word, value)| word.load(Ordering::Relaxed) == value);
        fits.then_some(geometry)
    }

    fn words(self, header: &Header) -> [(&AtomicU64, u64); 9] {
        [
            (&header.file_size, self.file_size() as u64),
            (&header.slot_count, MAX_MEMBERS as u64),
            (&header.gpu_capacity, self.gpu_capacity as u64),
            (&header.gpus_offset, GPUS_OFFSET as u64),
            (&header.gpu_stride, size_of::<GpuRecord>() as u64),
            (&header.slots_offset, SLOTS_OFFSET as u64),
            (&header.slot_stride, size_of::<Slot>() as u64),
            (&header.cells_offset, CELLS_OFFSET as u64),
            (&header.cell_stride, size_of::<Cell>() as u64),
        ]
    }
}

/// Puts bytes into words, padded with zeros or cut to fit.
pub(crate) fn store_bytes(words: &[AtomicU64], bytes: &[u8]) {
    let mut chunks = bytes.chunks(8);
    for word in words {
        let mut padded = [0_u8; 8];
        for (to, from) in padded.iter_mut().zip(chunks.next().unwrap_or_default()) {
            *to = *from;
        }
        word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
    }
}

/// The bytes in words up to the first zero, as text that is safe to show: control characters and
/// what is no UTF-8 are replaced. Whoever wrote them is not trusted.
pub(crate) fn load_text(words: &[AtomicU64]) -> String {
    let mut bytes = Vec::with_capacity(words.len().saturating_mul(8));
    for word in words {
        bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text)
        .chars()
        .map(|c| {
            if c.is_control() {
                char::REPLACEMENT_CHARACTER
            } else {
                c
            }
        })
        .collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn limits_survive_their_encoding_and_nonsense_allows_nothing() {
        for limit in [
            Limit::Unlimited,
            Limit::Bytes(0),
            Limit::Bytes(1),
            Limit::Bytes(MAX_BYTES),
        ] {
            assert_eq!(decode_limit(encode_limit(limit)), limit);
        }
        assert_eq!(decode_limit(MAX_BYTES + 1), Limit::Bytes(0));
        assert_eq!(decode_limit(FOLLOW), Limit::Bytes(0));
        assert_eq!(encode_limit(Limit::Bytes(u64::MAX)), MAX_BYTES);
    }

    #[test]
    fn a_member_has_the_stricter_limit_and_follows_an_equal_one() {
        let word = |bytes| encode_limit(Limit::Bytes(bytes));
        assert_eq!(effective_limit(FOLLOW, word(5)), Limit::Bytes(5));
        assert_eq!(effective_limit(word(3), word(5)), Limit::Bytes(3));
        assert_eq!(effective_limit(word(7), word(5)), Limit::Bytes(5));
        assert_eq!(
            effective_limit(encode_limit(Limit::Unlimited), word(5)),
            Limit::Bytes(5)
        );
        assert_eq!(
            effective_limit(FOLLOW, encode_limit(Limit::Unlimited)),
            Limit::Unlimited
        );
        // A cell that nobody has set up.
        assert_eq!(effective_limit(0, word(5)), Limit::Bytes(0));
    }

    #[test]
    fn a_pid_is_that_of_the_generation_it_was_told_to() {
        let word = encode_host_pid(4242, 7);
        assert_eq!(decode_host_pid(word, 7), Some(4242));
        assert_eq!(decode_host_pid(word, 8), None);
        // No observer has been here, and one that took its word back.
        assert_eq!(decode_host_pid(0, 0), None);
        assert_eq!(decode_host_pid(encode_host_pid(0, 7), 7), None);
        assert_eq!(
            decode_host_pid(encode_host_pid(u32::MAX, u64::MAX), u64::MAX),
            Some(u32::MAX)
        );
    }

    #[test]
    fn a_ledger_has_room_for_16_to_64_gpus() {
        let capacity = |gpus| Geometry::for_gpus(gpus).map(Geometry::gpu_capacity);
        assert_eq!(capacity(1), Some(16));
        assert_eq!(capacity(16), Some(16));
        assert_eq!(capacity(17), Some(32));
        assert_eq!(capacity(64), Some(64));
        assert_eq!(capacity(65), None);
        assert_eq!(Geometry::with_capacity(0), None);
        assert_eq!(Geometry::for_gpus(1).unwrap().file_size(), 2_109_440);
        assert_eq!(Geometry::for_gpus(64).unwrap().file_size() % 4096, 0);
    }

    #[test]
    fn texts_are_bounded_and_safe_to_show() {
        let words = [const { AtomicU64::new(u64::MAX) }; 2];
        store_bytes(&words, b"python3");
        assert_eq!(load_text(&words), "python3");
        store_bytes(&words, b"0123456789abcdefXYZ");
        assert_eq!(load_text(&words), "0123456789abcdef");
        store_bytes(&words, b"\x1b[31m\xff\n");
        assert_eq!(load_text(&words), "\u{fffd}[31m\u{fffd}\u{fffd}");
        store_bytes(&words, b"");
        assert_eq!(load_text(&words), "");
    }
}
