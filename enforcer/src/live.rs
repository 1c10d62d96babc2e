//! The blocks that this process holds: which pointer was booked with how many bytes on which GPU.
//!
//! They are kept in the order of their addresses, so that the block that an address lies in is found as fast
//! as one that begins there: runtimes free a block by any address inside of it, and are also given addresses
//! that are none of ours. It belongs to one process: a forked child must not look at its parent's (whose lock
//! may be held by a thread that the child does not have), it starts one of its own.

use crate::lock::{Lock, Locked};

/// Blocks of a run before it is divided. Inserting moves half of them on average: some 3 KiB.
const LONGEST_RUN: usize = 256;
/// Room of a run when it is made.
const FIRST_CAPACITY: usize = 32;

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
pub(crate) struct LiveBlocks(Lock<Ordered>);

impl LiveBlocks {
    pub(crate) fn new() -> Self {
        Self(Lock::new(Ordered::default()))
    }

    /// Remembers a block. If one at the same pointer was known, that one is returned: it must have been
    /// freed in a way that was not seen, since the runtime has given its address again.
    pub(crate) fn insert(&self, block: Block) -> Result<Option<Block>, OutOfMemory> {
        self.lock().insert(block)
    }

    /// Forgets the block that `address` points into, most often to its beginning, and returns it.
    pub(crate) fn take(&self, address: usize) -> Option<Block> {
        self.lock().take(address)
    }

    /// (A panic inside would leave the blocks as they were or with one block more or less.)
    fn lock(&self) -> Locked<'_, Ordered> {
        self.0.lock()
    }
}

/// Runs of blocks. Every block of a run is at or above its `from` and below that of the next run.
#[derive(Default)]
struct Ordered {
    runs: Vec<Run>,
}

struct Run {
    from: usize,
    /// By pointer, at most [`LONGEST_RUN`], and not empty unless there is no other run.
    blocks: Vec<Block>,
}

impl Ordered {
    fn insert(&mut self, block: Block) -> Result<Option<Block>, OutOfMemory> {
        let Some(at) = self.run_of(block.pointer) else {
            return self.insert_first(block).map(|()| None);
        };
        let Some(run) = self.runs.get_mut(at) else {
            return Err(OutOfMemory);
        };
        // Only the first run takes what is below it.
        run.from = run.from.min(block.pointer);
        match run
            .blocks
            .binary_search_by_key(&block.pointer, |b| b.pointer)
        {
            Ok(known) => Ok(run
                .blocks
                .get_mut(known)
                .map(|known| std::mem::replace(known, block))),
            Err(place) => {
                run.blocks.try_reserve(1).map_err(|_| OutOfMemory)?;
                run.blocks.insert(place, block);
                let blocks = run.blocks.len();
                if blocks > LONGEST_RUN {
                    // Addresses that only go up fill the runs.
                    let at_end = place.saturating_add(1) == blocks;
                    self.divide(at, if at_end { place } else { blocks / 2 });
                }
                Ok(None)
            }
        }
    }

    fn take(&mut self, address: usize) -> Option<Block> {
        let at = self.run_of(address)?;
        let run = self.runs.get_mut(at)?;
        let behind = run.blocks.partition_point(|block| block.pointer <= address);
        // None here: the blocks before it were taken. Those of the run before end below this run's start,
        // unless one reaches across it.
        match behind.checked_sub(1) {
            Some(place) if contains(run.blocks.get(place)?, address) => {
                let block = run.blocks.remove(place);
                self.drop_if_empty(at);
                Some(block)
            }
            Some(_) => None,
            None => {
                let before = at.checked_sub(1)?;
                let run = self.runs.get_mut(before)?;
                let block = *run.blocks.last().filter(|block| contains(block, address))?;
                run.blocks.pop();
                self.drop_if_empty(before);
                Some(block)
            }
        }
    }

    /// An only run stays: programs that hold a block at a time would make it anew each time.
    fn drop_if_empty(&mut self, at: usize) {
        if self.runs.len() > 1 && self.runs.get(at).is_some_and(|run| run.blocks.is_empty()) {
            self.runs.remove(at);
        }
    }

    /// The run in which an address has its place; `None` if there never was a block.
    fn run_of(&self, address: usize) -> Option<usize> {
        let behind = self.runs.partition_point(|run| run.from <= address);
        // The first run takes what is below it, too.
        (!self.runs.is_empty()).then(|| behind.saturating_sub(1))
    }

    fn insert_first(&mut self, block: Block) -> Result<(), OutOfMemory> {
        let mut blocks = Vec::new();
        blocks
            .try_reserve(FIRST_CAPACITY)
            .map_err(|_| OutOfMemory)?;
        self.runs.try_reserve(1).map_err(|_| OutOfMemory)?;
        blocks.push(block);
        // Whatever comes below goes to the first run.
        self.runs.push(Run { from: 0, blocks });
        Ok(())
    }

    /// Makes two runs of one, the first with `keep` blocks. Without memory for that it stays as it is, which is slower and no fault.
    fn divide(&mut self, at: usize, keep: usize) {
        let mut upper = Vec::new();
        if upper.try_reserve(LONGEST_RUN).is_err() || self.runs.try_reserve(1).is_err() {
            return;
        }
        let Some(run) = self.runs.get_mut(at) else {
            return;
        };
        upper.extend(run.blocks.drain(keep.min(run.blocks.len())..));
        if let (Some(first), Some(behind)) = (upper.first(), at.checked_add(1)) {
            let from = first.pointer;
            self.runs.insert(
                behind,
                Run {
                    from,
                    blocks: upper,
                },
            );
        }
    }
}

fn contains(block: &Block, address: usize) -> bool {
    address
        .checked_sub(block.pointer)
        .is_some_and(|offset| offset == 0 || (offset as u64) < block.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

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
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few pointers, so that they are met again; enough of them that runs are divided.
        let pointer = (1_usize..900).prop_map(|n| n << 12);
        let inside = (1_usize..900, 0_usize..8192).prop_map(|(n, offset)| (n << 12) + offset);
        proptest::collection::vec(
            prop_oneof![
                // Blocks may reach over those behind them, as ones do that were freed unseen.
                5 => (pointer.clone(), 1_u64..3 * 4096).prop_map(|(p, n)| Step::Insert(p, n)),
                1 => pointer.prop_map(Step::Take),
                1 => inside.prop_map(Step::Take),
            ],
            1..3000,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn it_answers_as_a_plain_map_does(steps in steps()) {
            let (mut blocks, mut model) = (Ordered::default(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(p, n) => {
                        let b = block(p, n);
                        prop_assert_eq!(blocks.insert(b).unwrap(), model.insert(p, b));
                    }
                    Step::Take(a) => {
                        let nearest = model.range(..=a).next_back().map(|(_, b)| *b);
                        let expected = nearest.filter(|b| contains(b, a));
                        prop_assert_eq!(blocks.take(a), expected);
                        if let Some(b) = expected {
                            model.remove(&b.pointer);
                        }
                    }
                }
                let only = blocks.runs.len() <= 1;
                prop_assert!(only || blocks.runs.iter().all(|run| !run.blocks.is_empty()));
                prop_assert!(blocks.runs.iter().all(|run| run.blocks.len() <= LONGEST_RUN));
            }
            for (p, b) in model {
                prop_assert_eq!(blocks.take(p), Some(b));
            }
            prop_assert!(blocks.runs.iter().all(|run| run.blocks.is_empty()));
        }
    }

    #[test]
    fn many_blocks_in_any_order_are_found_again() {
        let live = LiveBlocks::new();
        let pointer = |n: usize| ((n * 7919) % 50_021 + 1) << 21;
        for n in 0..50_000_usize {
            assert!(live.insert(block(pointer(n), 4096)).unwrap().is_none());
        }
        assert_eq!(live.take(1 << 20), None);
        for n in (0..50_000_usize).rev() {
            assert_eq!(live.take(pointer(n) + 4096), None);
            assert_eq!(
                live.take(pointer(n) + n % 4096),
                Some(block(pointer(n), 4096))
            );
        }
        assert!(live.lock().runs.iter().all(|run| run.blocks.is_empty()));
    }

    #[test]
    fn the_end_of_a_block_is_outside_of_it() {
        let live = LiveBlocks::new();
        live.insert(block(0x1000, 0x100)).unwrap();
        assert_eq!(live.take(0x1100), None);
        assert_eq!(live.take(0xfff), None);
        assert_eq!(live.take(0x10ff), Some(block(0x1000, 0x100)));
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
        let left: usize = live.lock().runs.iter().map(|run| run.blocks.len()).sum();
        assert_eq!(left, 4 * (2_000 - 666));
    }
}
