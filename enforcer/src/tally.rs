//! What the blocks of a process on one GPU come to in the driver's counter.
//!
//! The runtimes do not ask the driver for what a program asks for (seen in HIP 5.2.3, 5.7.1, 6.4.3 and 7.2.4):
//! * a request of 2 MiB and more becomes a buffer of its own, rounded up to 2 MiB;
//! * smaller ones share buffers of 2 MiB, which are kept for the next ones when blocks are freed;
//! * a pool keeps what is freed until it is trimmed, and it stays booked as long; in some releases it takes buffers that many blocks share, in
//!   others each block is a buffer;
//! * managed memory is not in the counter.
//!
//! What a buffer has beyond its blocks is room for the next ones, and must not be taken for overhead. How
//! much there is of it can only be bounded from here: buffers were needed for the most that there ever was of small
//! blocks at a time, plus one that is begun.

use crate::helpers::Reserved;
use crate::live::{Block, Class};

/// What the runtimes round buffers up to, in bytes.
const BUFFER: u64 = 2 << 20;
/// What blocks that share a buffer are rounded up to, in bytes.
const PAGE: u64 = 4096;

/// What the blocks on one GPU come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Blocks that share buffers, each with the part of a buffer that blocks of its size get.
    shared: Peaked,
    /// Blocks of the default pool.
    pooled: Pool,
    /// Blocks of pools that the program made.
    own: Pool,
    /// How often a block came or went.
    pub(crate) changes: u64,
    /// How many bytes came or went (it wraps).
    pub(crate) moved: u64,
    /// How many bytes were taken out to be freed (it wraps).
    pub(crate) taken: u64,
}

/// The blocks of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pool {
    now: u64,
    /// What of freed blocks the pool may have kept for the next ones. It stays booked.
    kept: u64,
    /// What they take beyond their bytes if each is a buffer.
    rounding: Peaked,
    was_used: bool,
}

impl Pool {
    fn add(&mut self, bytes: u64) {
        self.now = self.now.saturating_add(bytes);
        self.rounding.add(rounding(bytes));
        self.was_used = true;
    }

    fn subtract(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(bytes);
        self.rounding.subtract(rounding(bytes));
    }

    /// Bytes that it may have beyond what is booked; `reserved` is what it says itself to have taken.
    fn room(&self, reserved: Option<Reserved>) -> u64 {
        let said = match reserved {
            Some(reserved) if self.was_used && reserved.buffers => reserved.bytes,
            Some(reserved) if self.was_used => reserved.bytes.saturating_add(self.rounding.most),
            _ => 0,
        };
        let booked = self.now.saturating_add(self.kept);
        // What says how much it has may be another pool, set in the place of the default one.
        said.saturating_sub(booked).max(self.rounding.most)
    }

    /// Lowers what is kept by at most `bytes`, and answers by how much.
    fn lower(&mut self, bytes: u64) -> u64 {
        let lowered = self.kept.min(bytes);
        self.kept = self.kept.saturating_sub(lowered);
        lowered
    }
}

/// A sum, and the most that it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Peaked {
    now: u64,
    most: u64,
}

impl Peaked {
    fn add(&mut self, bytes: u64) {
        self.now = self.now.saturating_add(bytes);
        self.most = self.most.max(self.now);
    }

    fn subtract(&mut self, bytes: u64) {
        self.now = self.now.saturating_sub(bytes);
    }

    /// Lowers the peak by at most `bytes`, and answers by how much.
    fn lower(&mut self, bytes: u64) -> u64 {
        let before = self.most;
        self.most = self.now.max(before.saturating_sub(bytes));
        before.saturating_sub(self.most)
    }
}

impl Tally {
    pub(crate) fn add(&mut self, block: &Block) {
        self.changes = self.changes.wrapping_add(1);
        self.moved = self.moved.wrapping_add(block.bytes);
        match block.class {
            Class::Buffer if block.bytes < BUFFER => self.shared.add(part_of_buffer(block.bytes)),
            Class::Pooled => self.pooled.add(block.bytes),
            Class::OwnPool => self.own.add(block.bytes),
            Class::Buffer | Class::Managed => {}
        }
    }

    /// A block is about to be freed.
    pub(crate) fn take(&mut self, block: &Block) {
        self.taken = self.taken.wrapping_add(block.bytes);
        self.remove(block);
    }

    pub(crate) fn remove(&mut self, block: &Block) {
        self.changes = self.changes.wrapping_add(1);
        self.moved = self.moved.wrapping_add(block.bytes);
        match block.class {
            Class::Buffer if block.bytes < BUFFER => {
                self.shared.subtract(part_of_buffer(block.bytes));
            }
            Class::Pooled => self.pooled.subtract(block.bytes),
            Class::OwnPool => self.own.subtract(block.bytes),
            Class::Buffer | Class::Managed => {}
        }
    }

    /// Bytes that the driver may count for shared buffers and pools beyond the blocks in them.
    /// `reserved` is what the default pool says to have taken from the driver, where it does.
    pub(crate) fn room(&self, reserved: Option<Reserved>) -> u64 {
        let buffers = match self.shared.most {
            0 => 0,
            most => most
                .checked_next_multiple_of(BUFFER)
                .unwrap_or(most)
                .saturating_add(BUFFER),
        };
        let in_buffers = buffers.saturating_sub(self.shared.now);
        in_buffers
            .saturating_add(self.pooled.room(reserved))
            .saturating_add(self.own.room(None))
    }

    /// Whether the default pool was used.
    pub(crate) fn has_default_pool(&self) -> bool {
        self.pooled.was_used
    }

    fn pool(&mut self, class: Class) -> Option<&mut Pool> {
        match class {
            Class::Pooled => Some(&mut self.pooled),
            Class::OwnPool => Some(&mut self.own),
            Class::Buffer | Class::Managed => None,
        }
    }

    /// A block of a pool was freed: its memory is kept. False if that is none of a pool.
    pub(crate) fn keep(&mut self, class: Class, bytes: u64) -> bool {
        let pool = self.pool(class);
        pool.is_some_and(|pool| {
            pool.kept = pool.kept.saturating_add(bytes);
            true
        })
    }

    /// Takes of what a pool has kept, for a block of `bytes`; answers how much of it that is.
    pub(crate) fn reuse(&mut self, class: Class, bytes: u64) -> u64 {
        self.pool(class).map_or(0, |pool| pool.lower(bytes))
    }

    /// The default pool has kept no more than this. Answers what was let go of since.
    pub(crate) fn lower_default_pool(&mut self, kept: u64) -> u64 {
        self.pooled.lower(self.pooled.kept.saturating_sub(kept))
    }

    /// The pools are empty. Answers what they had kept.
    pub(crate) fn empty_pools(&mut self) -> u64 {
        let pools = [&mut self.pooled, &mut self.own];
        pools
            .into_iter()
            .fold(0_u64, |sum, pool| sum.saturating_add(pool.lower(u64::MAX)))
    }

    /// What pools have kept.
    pub(crate) fn kept(&self) -> u64 {
        self.pooled.kept.saturating_add(self.own.kept)
    }

    /// Whether pools that the program made have kept anything.
    pub(crate) fn has_kept_of_own_pools(&self) -> bool {
        self.own.kept != 0
    }

    /// The driver counts `missing` bytes less than it would if all the room were there, and all that pools have
    /// kept: so that was given back. What is left of it then is not more than what the driver counts. Answers
    /// what of it was booked.
    pub(crate) fn settle(&mut self, missing: u64) -> u64 {
        let mut left = missing;
        let mut booked = 0_u64;
        for pool in [&mut self.pooled, &mut self.own] {
            let lowered = pool.lower(left);
            left = left.saturating_sub(lowered);
            booked = booked.saturating_add(lowered);
        }
        for peaked in [
            &mut self.shared,
            &mut self.pooled.rounding,
            &mut self.own.rounding,
        ] {
            left = left.saturating_sub(peaked.lower(left));
        }
        booked
    }
}

/// What a block takes beyond its bytes: of a buffer of its own what that is rounded up by, of a shared one
/// the part that no other block of that size could use.
pub(crate) fn slack(class: Class, bytes: u64) -> u64 {
    match class {
        // Pools say themselves what they take.
        Class::Pooled | Class::OwnPool | Class::Managed => 0,
        Class::Buffer => rounding(bytes),
    }
}

/// What a block takes beyond its bytes as a buffer of its own, or as a part of one.
fn rounding(bytes: u64) -> u64 {
    let given = if bytes < BUFFER {
        part_of_buffer(bytes)
    } else {
        bytes.checked_next_multiple_of(BUFFER).unwrap_or(bytes)
    };
    given.saturating_sub(bytes)
}

/// The part of a buffer that a small block takes, if the buffer has blocks of one size.
fn part_of_buffer(bytes: u64) -> u64 {
    let pages = bytes
        .max(1)
        .checked_next_multiple_of(PAGE)
        .unwrap_or(BUFFER);
    let blocks = BUFFER.checked_div(pages).unwrap_or(1);
    BUFFER.checked_div(blocks).unwrap_or(BUFFER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Sort;

    fn block(class: Class, bytes: u64) -> Block {
        Block {
            pointer: 1,
            bytes,
            gpu: 0,
            runtime: 0,
            sort: Sort::Memory,
            class,
        }
    }

    #[test]
    fn a_block_of_its_own_is_rounded_up() {
        let slack = |bytes| slack(Class::Buffer, bytes);
        assert_eq!([slack(BUFFER), slack(4 * BUFFER)], [0; 2]);
        assert_eq!(slack(BUFFER + 1), BUFFER - 1);
        assert_eq!(slack(u64::MAX), 0);
    }

    #[test]
    fn small_blocks_take_parts_of_a_buffer() {
        let slack = |bytes| slack(Class::Buffer, bytes);
        assert_eq!(slack(4096), 0);
        assert_eq!(slack(1), 4095);
        assert_eq!(slack(BUFFER / 2 + 1), BUFFER / 2 - 1, "one in a buffer");
        assert_eq!(slack(BUFFER / 2), 0);
    }

    #[test]
    fn pools_and_managed_memory_are_counted_otherwise() {
        for class in [Class::Pooled, Class::OwnPool, Class::Managed] {
            assert_eq!(slack(class, BUFFER + 1), 0);
        }
        let mut tally = Tally::default();
        tally.add(&block(Class::Managed, 5 * BUFFER));
        tally.add(&block(Class::Buffer, 5 * BUFFER));
        assert_eq!(tally.room(None), 0);
    }

    #[test]
    fn room_is_what_was_needed_at_most() {
        let mut tally = Tally::default();
        let small = block(Class::Buffer, BUFFER / 2);
        (0..5).for_each(|_| tally.add(&small));
        // Three buffers and a begun one, of which two and a half are used.
        assert_eq!(tally.room(None), BUFFER * 3 / 2);
        (0..5).for_each(|_| tally.remove(&small));
        assert_eq!(tally.room(None), 4 * BUFFER);
        // The runtime gave two of them back.
        tally.settle(2 * BUFFER);
        assert_eq!(tally.room(None), 2 * BUFFER);
        tally.settle(100 * BUFFER);
        assert_eq!(tally.room(None), 0);
    }

    #[test]
    fn pools_say_what_they_have() {
        let reserved = |mib: u64, buffers| {
            Some(Reserved {
                bytes: mib << 20,
                unused: 0,
                buffers,
            })
        };
        let mut tally = Tally::default();
        assert_eq!(
            tally.room(reserved(32, true)),
            0,
            "of nobody who counts here"
        );
        let piece = block(Class::Pooled, 5 << 20);
        tally.add(&piece);
        tally.add(&piece);
        assert!(tally.has_default_pool());
        assert_eq!(tally.room(reserved(32, true)), 22 << 20);
        assert_eq!(tally.room(reserved(10, false)), BUFFER, "two of 6 MiB");
        assert_eq!(tally.room(None), BUFFER);
        for _ in 0..2 {
            tally.remove(&piece);
            assert!(tally.keep(piece.class, piece.bytes));
        }
        assert_eq!(
            tally.room(reserved(32, true)),
            22 << 20,
            "what is kept is booked"
        );
        tally.settle(u64::MAX);
        assert_eq!(tally.room(reserved(0, false)), 0);
    }

    #[test]
    fn what_a_pool_has_kept_is_used_again_or_given_back() {
        let mut tally = Tally::default();
        assert!(!tally.keep(Class::Buffer, 5));
        assert!(tally.keep(Class::Pooled, 10) && tally.keep(Class::OwnPool, 20));
        assert_eq!(tally.reuse(Class::Buffer, 5), 0);
        assert_eq!(tally.reuse(Class::Pooled, 4), 4);
        assert_eq!(tally.reuse(Class::OwnPool, 100), 20);
        assert_eq!((tally.kept(), tally.lower_default_pool(10)), (6, 0));
        assert_eq!((tally.lower_default_pool(1), tally.kept()), (5, 1));
        assert!(tally.keep(Class::OwnPool, 3));
        assert_eq!((tally.settle(2), tally.kept()), (2, 2));
        assert_eq!((tally.empty_pools(), tally.kept()), (2, 0));
    }
}
