//! The blocks that this process holds: which pointer was booked with how many bytes on which GPU.
//!
//! A hash table in shards, so that threads that allocate and free at the same time seldom meet. It belongs
//! to one process: a forked child must not look at its parent's (whose locks may be held by threads that
//! the child does not have), it starts a table of its own.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A power of two.
const SHARDS: usize = 16;
/// Slots of a shard at its first insertion. A power of two, as every later size.
const FIRST_CAPACITY: usize = 64;

/// What is known of one allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// What the runtime returned. Never 0.
    pub(crate) pointer: usize,
    /// Bytes booked.
    pub(crate) bytes: u64,
    /// The GPU that they are booked on, by its index in the account.
    pub(crate) gpu: usize,
}

/// There was no memory to remember a block.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// All blocks of this process.
pub(crate) struct LiveBlocks {
    shards: [Shard; SHARDS],
}

/// One shard on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Shard(Mutex<Slots>);

impl LiveBlocks {
    pub(crate) fn new() -> Self {
        Self {
            shards: Default::default(),
        }
    }

    /// Remembers a block. If one at the same pointer was known, that one is returned: it must have been
    /// freed in a way that was not seen, since the runtime has given its address again.
    pub(crate) fn insert(&self, block: Block) -> Result<Option<Block>, OutOfMemory> {
        let hash = hash(block.pointer);
        match self.shard(hash) {
            Some(shard) => shard.lock().insert(hash, block),
            None => Err(OutOfMemory),
        }
    }

    /// Forgets the block at `pointer` and returns it.
    pub(crate) fn take(&self, pointer: usize) -> Option<Block> {
        let hash = hash(pointer);
        self.shard(hash)?.lock().take(hash, pointer)
    }

    /// Forgets the block that `address` points into and returns it. Looks at every block: for the
    /// addresses that [`LiveBlocks::take`] does not know (the runtime also frees by an address inside of a
    /// block).
    pub(crate) fn take_containing(&self, address: usize) -> Option<Block> {
        self.shards.iter().find_map(|shard| {
            let mut slots = shard.lock();
            let block = slots.containing(address)?;
            slots.take(hash(block.pointer), block.pointer)
        })
    }

    fn shard(&self, hash: u64) -> Option<&Shard> {
        self.shards.get((hash >> 60) as usize % SHARDS)
    }
}

impl Shard {
    fn lock(&self) -> MutexGuard<'_, Slots> {
        // A panic inside would leave the slots as they were or with one block more or less.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Open addressing with linear probing, at most three quarters full, without tombstones: taking a block
/// moves those behind it up. Pointers of allocations are aligned, so their high bits are mixed in.
#[derive(Default)]
struct Slots {
    /// Empty, or a power of two of slots.
    slots: Vec<Option<Block>>,
    used: usize,
}

impl Slots {
    fn insert(&mut self, hash: u64, block: Block) -> Result<Option<Block>, OutOfMemory> {
        self.make_room()?;
        let mut at = self.home(hash);
        loop {
            match self.slots.get_mut(at) {
                None => return Err(OutOfMemory),
                Some(slot @ None) => {
                    *slot = Some(block);
                    self.used = self.used.saturating_add(1);
                    return Ok(None);
                }
                Some(Some(known)) if known.pointer == block.pointer => {
                    return Ok(Some(std::mem::replace(known, block)));
                }
                Some(Some(_)) => at = self.after(at),
            }
        }
    }

    fn take(&mut self, hash: u64, pointer: usize) -> Option<Block> {
        let mut at = self.home(hash);
        let taken = loop {
            let block = self.slots.get(at).copied().flatten()?;
            if block.pointer == pointer {
                break block;
            }
            at = self.after(at);
        };
        self.used = self.used.saturating_sub(1);
        self.close_gap(at);
        Some(taken)
    }

    fn containing(&self, address: usize) -> Option<Block> {
        self.slots.iter().flatten().copied().find(|block| {
            address
                .checked_sub(block.pointer)
                .is_some_and(|offset| (offset as u64) < block.bytes)
        })
    }

    /// Empties slot `gap`, and fills it with a later block of the same run that may stand there; then
    /// that one's place likewise.
    fn close_gap(&mut self, mut gap: usize) {
        let mut at = gap;
        loop {
            at = self.after(at);
            let Some(block) = self.slots.get(at).copied().flatten() else {
                break;
            };
            // It may move up to the gap unless its home lies behind the gap.
            let home = self.home(hash(block.pointer));
            if self.distance(home, at) >= self.distance(gap, at) {
                self.put(gap, Some(block));
                gap = at;
            }
        }
        self.put(gap, None);
    }

    fn make_room(&mut self) -> Result<(), OutOfMemory> {
        let capacity = self.slots.len();
        if self.used < capacity.saturating_sub(capacity / 4) {
            return Ok(());
        }
        let larger = capacity.saturating_mul(2).max(FIRST_CAPACITY);
        let mut slots = Vec::new();
        slots.try_reserve_exact(larger).map_err(|_| OutOfMemory)?;
        slots.resize(larger, None);
        let old = std::mem::replace(&mut self.slots, slots);
        for block in old.into_iter().flatten() {
            let mut at = self.home(hash(block.pointer));
            while self.slots.get(at).is_some_and(Option::is_some) {
                at = self.after(at);
            }
            self.put(at, Some(block));
        }
        Ok(())
    }

    fn put(&mut self, at: usize, block: Option<Block>) {
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = block;
        }
    }

    fn mask(&self) -> usize {
        self.slots.len().saturating_sub(1)
    }

    /// Where a block of this hash stands if nothing is in its way.
    fn home(&self, hash: u64) -> usize {
        // The highest bits choose the shard.
        (hash >> 16) as usize & self.mask()
    }

    fn after(&self, at: usize) -> usize {
        at.wrapping_add(1) & self.mask()
    }

    /// How many steps lie between two slots.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & self.mask()
    }
}

/// Multiplicative hashing: the high half of the product depends on all bits of the pointer.
fn hash(pointer: usize) -> u64 {
    // 2^64 divided by the golden ratio.
    (pointer as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn block(pointer: usize, bytes: u64) -> Block {
        Block {
            pointer,
            bytes,
            gpu: 0,
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(usize, u64),
        Take(usize),
        TakeContaining(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few pointers, so that they are met again; enough of them that the slots grow twice.
        let pointer = (1_usize..150).prop_map(|n| n << 12);
        let inside = (1_usize..150, 0_usize..8192).prop_map(|(n, offset)| (n << 12) + offset);
        proptest::collection::vec(
            prop_oneof![
                3 => (pointer.clone(), 1_u64..4096).prop_map(|(p, n)| Step::Insert(p, n)),
                1 => pointer.prop_map(Step::Take),
                1 => inside.prop_map(Step::TakeContaining),
            ],
            1..600,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// One shard, so that many blocks stand close together.
        #[test]
        fn it_answers_as_a_plain_map_does(steps in steps()) {
            let (mut slots, mut model) = (Slots::default(), HashMap::new());
            for step in steps {
                match step {
                    Step::Insert(p, n) => {
                        let b = block(p, n);
                        prop_assert_eq!(slots.insert(hash(p), b).unwrap(), model.insert(p, b));
                    }
                    Step::Take(p) => prop_assert_eq!(slots.take(hash(p), p), model.remove(&p)),
                    Step::TakeContaining(a) => {
                        let p = a & !0xfff; // blocks are smaller than their distance
                        let expected = model.get(&p).copied().filter(|b| (a - p) < b.bytes as usize);
                        prop_assert_eq!(slots.containing(a), expected);
                        if expected.is_some() {
                            model.remove(&p);
                            prop_assert_eq!(slots.take(hash(p), p), expected);
                        }
                    }
                }
                prop_assert_eq!(slots.used, model.len());
            }
            for (p, b) in model {
                prop_assert_eq!(slots.take(hash(p), p), Some(b));
            }
        }
    }

    #[test]
    fn it_grows_and_shards_share_the_load() {
        let live = LiveBlocks::new();
        for n in 1..=50_000_usize {
            assert!(live.insert(block(n << 21, n as u64)).unwrap().is_none());
        }
        for shard in &live.shards {
            let used = shard.lock().used;
            assert!(
                (1_500..5_000).contains(&used),
                "{used} of 50000 in one of 16 shards"
            );
        }
        for n in 1..=50_000_usize {
            assert_eq!(live.take(n << 21), Some(block(n << 21, n as u64)));
        }
        assert_eq!(live.take(1 << 21), None);
    }

    #[test]
    fn the_end_of_a_block_is_outside_of_it() {
        let live = LiveBlocks::new();
        live.insert(block(0x1000, 0x100)).unwrap();
        assert_eq!(live.take_containing(0x1100), None);
        assert_eq!(live.take_containing(0xfff), None);
        assert_eq!(live.take_containing(0x10ff), Some(block(0x1000, 0x100)));
    }

    #[test]
    fn threads_do_not_lose_blocks() {
        let live = LiveBlocks::new();
        std::thread::scope(|scope| {
            for thread in 1..=4_usize {
                let live = &live;
                scope.spawn(move || {
                    for n in 1..=2_000_usize {
                        let b = block((thread << 40) + (n << 12), n as u64);
                        assert!(live.insert(b).unwrap().is_none());
                        if n % 3 == 0 {
                            assert_eq!(live.take(b.pointer), Some(b));
                        }
                    }
                });
            }
        });
        let left: usize = live.shards.iter().map(|shard| shard.lock().used).sum();
        assert_eq!(left, 4 * (2_000 - 666));
    }
}
