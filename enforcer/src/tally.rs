//! What the blocks of a process on one GPU come to in the driver's counter.
//!
//! The runtimes do not ask the driver for what a program asks for (seen in HIP 5.2.3, 5.7.1, 6.4.3 and 7.2.4):
//! * a request of 2 MiB and more becomes a buffer of its own, rounded up to 2 MiB;
//! * smaller ones share buffers of 2 MiB, which are kept for the next ones when blocks are freed;
//! * a pool keeps what is freed until it is trimmed; in some releases it takes buffers that many blocks share, in
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
    /// Blocks of pools.
    pooled: Peaked,
    /// What these take beyond their bytes if each is a buffer.
    rounding: Peaked,
    /// How often a block came or went.
    pub(crate) changes: u64,
    /// How many bytes came or went (it wraps).
    pub(crate) moved: u64,
    /// How many bytes were taken out to be freed (it wraps).
    pub(crate) taken: u64,
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
            Class::Pooled => {
                self.pooled.add(block.bytes);
                self.rounding.add(rounding(block.bytes));
            }
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
            Class::Pooled => {
                self.pooled.subtract(block.bytes);
                self.rounding.subtract(rounding(block.bytes));
            }
            Class::Buffer | Class::Managed => {}
        }
    }

    /// Bytes that the driver may count for shared buffers and pools beyond the blocks in them.
    /// `reserved` is what the pools themselves say to have taken from the driver, where they do.
    pub(crate) fn room(&self, reserved: Option<Reserved>) -> u64 {
        let buffers = match self.shared.most {
            0 => 0,
            most => most
                .checked_next_multiple_of(BUFFER)
                .unwrap_or(most)
                .saturating_add(BUFFER),
        };
        // The pools that are asked may not be all, and those of the program keep what is freed, too.
        let kept = match self.pooled.most {
            0 => 0,
            most => most.saturating_add(self.rounding.most),
        };
        let said = match reserved {
            _ if !self.has_pools() => 0,
            None => 0,
            Some(reserved) if reserved.buffers => reserved.bytes,
            Some(reserved) => reserved.bytes.saturating_add(self.rounding.most),
        };
        let pools = kept.max(said);
        let in_buffers = buffers.saturating_sub(self.shared.now);
        in_buffers.saturating_add(pools.saturating_sub(self.pooled.now))
    }

    /// Whether pools were used.
    pub(crate) fn has_pools(&self) -> bool {
        self.pooled.most != 0
    }

    /// The driver counts `missing` bytes less than it would if all the room were there: so it was given
    /// back. What is left of it then is not more than what the driver counts.
    pub(crate) fn settle(&mut self, missing: u64) {
        let mut left = missing;
        for peaked in [&mut self.shared, &mut self.pooled, &mut self.rounding] {
            left = left.saturating_sub(peaked.lower(left));
        }
    }
}

/// What a block takes beyond its bytes: of a buffer of its own what that is rounded up by, of a shared one
/// the part that no other block of that size could use.
pub(crate) fn slack(class: Class, bytes: u64) -> u64 {
    match class {
        // Pools say themselves what they take.
        Class::Pooled | Class::Managed => 0,
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
        for class in [Class::Pooled, Class::Managed] {
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
        assert!(tally.has_pools());
        assert_eq!(tally.room(reserved(32, true)), 22 << 20);
        assert_eq!(tally.room(reserved(10, false)), BUFFER, "two of 6 MiB");
        assert_eq!(tally.room(None), BUFFER);
        tally.remove(&piece);
        tally.remove(&piece);
        assert_eq!(tally.room(reserved(32, true)), 32 << 20);
        // It may be that another pool keeps it.
        assert_eq!(tally.room(reserved(0, false)), (10 << 20) + BUFFER);
        tally.settle(u64::MAX);
        assert_eq!(tally.room(reserved(0, false)), 0);
    }
}
