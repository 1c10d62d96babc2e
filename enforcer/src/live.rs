//! The blocks that this process holds: which pointer was booked with how many bytes on which GPU.
//!
//! They are kept in the order of their addresses, so that the block that an address lies in is found as fast
//! as one that begins there: runtimes free a block by any address inside of it, and are also given addresses
//! that are none of ours. Arrays lie at no address that a program could offset: they are known by what the runtime
//! named them, in a table of their own. Physical memory has more than a name: [`crate::physical`]. All this belongs to one process: a forked child must not look at its parent's (whose lock
//! may be held by a thread that the child does not have), it starts one of its own.

use crate::lock::{Lock, Locked};
use crate::physical::{Change, Physical};
use crate::tally::Tally;

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
    pub(crate) gpu: u32,
    /// The number of the runtime that it is of.
    pub(crate) runtime: u8,
    pub(crate) sort: Sort,
    pub(crate) class: Class,
}

/// How a block is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By an address at which it lies, or that lies inside of it.
    Memory,
    /// By what the runtime calls it, and nothing else does.
    Object,
    /// By a handle, and by the addresses that it is mapped at.
    Physical,
}

/// How the runtime gets a block from the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// As a buffer, or a part of one.
    Buffer,
    /// From a device's default pool, which takes larger pieces from the driver and keeps what is freed.
    Pooled,
    /// From a pool that the program has made. (There may be several; all count as one.)
    OwnPool,
    /// As managed memory, which the driver does not count as VRAM of the process.
    Managed,
}

/// There was no memory to remember a block.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// All blocks of this process.
pub(crate) struct LiveBlocks(Lock<Tables>);

struct Tables {
    memory: Ordered,
    objects: Ordered,
    physical: Physical,
    /// Blocks of GPUs that are being reset, with the number of the call.
    leaving: Vec<(u64, Vec<Block>)>,
    /// Of the last such call.
    resets: u64,
    /// What the blocks come to, by GPU.
    tallies: Vec<Tally>,
}

impl LiveBlocks {
    /// Of a process with this many GPUs.
    pub(crate) fn new(gpus: usize) -> Self {
        Self(Lock::new(Tables {
            memory: Ordered::default(),
            objects: Ordered::default(),
            physical: Physical::default(),
            leaving: Vec::new(),
            resets: 0,
            tallies: vec![Tally::default(); gpus],
        }))
    }

    /// Remembers a block. What was known to lie there, in whole or in part, goes to `gone`: it must have been
    /// freed in a way that was not seen, since the runtime has given its addresses again.
    pub(crate) fn insert(
        &self,
        block: Block,
        gone: &mut dyn FnMut(Block),
    ) -> Result<(), OutOfMemory> {
        // One at a time, told when the lock is released: there may be many, and telling may take long.
        loop {
            let mut locked = self.lock();
            let tables = &mut *locked;
            let table = match block.sort {
                Sort::Memory => &mut tables.memory,
                Sort::Object | Sort::Physical => &mut tables.objects,
            };
            let old = match block.sort {
                Sort::Memory => table.take_overlapping(&block),
                Sort::Object | Sort::Physical => table.take_exactly(block.pointer),
            };
            let Some(old) = old else {
                table.insert(block)?;
                tally(&mut tables.tallies, &block, Tally::add);
                return Ok(());
            };
            tally(&mut tables.tallies, &old, Tally::remove);
            drop(locked);
            gone(old);
        }
    }

    /// Forgets a block and returns it: the object of this name, or the memory that `name` points into, most
    /// often to its beginning.
    pub(crate) fn take(&self, sort: Sort, name: usize) -> Option<Block> {
        let tables = &mut *self.lock();
        let block = match sort {
            Sort::Memory => tables.memory.take(name)?,
            Sort::Object => tables.objects.take_exactly(name)?,
            // Its bytes go when the last of all that keeps it does.
            Sort::Physical => return None,
        };
        tally(&mut tables.tallies, &block, Tally::take);
        Some(block)
    }

    /// Takes out all blocks of a runtime on a GPU that a reset frees, and answers with the number to ask for them by. Without
    /// memory for that they stay, until their addresses are given again.
    pub(crate) fn take_all(&self, gpu: u32, runtime: u8) -> Option<u64> {
        let tables = &mut *self.lock();
        let mut blocks = Vec::new();
        tables.leaving.try_reserve(1).ok()?;
        // Managed memory survives, as arrays do.
        let wanted = |block: &Block| {
            (block.gpu, block.runtime) == (gpu, runtime) && block.class != Class::Managed
        };
        tables.memory.take_all(wanted, &mut blocks).ok()?;
        for block in &blocks {
            tally(&mut tables.tallies, block, Tally::take);
        }
        tables.resets = tables.resets.wrapping_add(1);
        tables.leaving.push((tables.resets, blocks));
        Some(tables.resets)
    }

    /// The blocks that were taken out under a number.
    pub(crate) fn taken(&self, number: u64) -> Vec<Block> {
        let leaving = &mut self.lock().leaving;
        let at = leaving.iter().position(|(reset, _)| *reset == number);
        at.map_or_else(Vec::new, |at| leaving.swap_remove(at).1)
    }

    /// Remembers physical memory. What becomes of other blocks by that is told as in
    /// [`LiveBlocks::with_physical`].
    pub(crate) fn create_physical(
        &self,
        block: Block,
        tell: &mut dyn FnMut(Change),
    ) -> Result<(), OutOfMemory> {
        let Tables {
            physical, tallies, ..
        } = &mut *self.lock();
        physical.create(block, &mut |change| {
            count(tallies, &change);
            tell(change);
        })?;
        tally(tallies, &block, Tally::add);
        Ok(())
    }

    /// A step of a call that is about physical memory. What becomes of its blocks is told under the lock: `tell`
    /// must not wait, nor come back here.
    pub(crate) fn with_physical<R>(
        &self,
        step: impl FnOnce(&mut Physical, &mut dyn FnMut(Change)) -> R,
        tell: &mut dyn FnMut(Change),
    ) -> R {
        let Tables {
            physical, tallies, ..
        } = &mut *self.lock();
        step(physical, &mut |change| {
            count(tallies, &change);
            tell(change);
        })
    }

    /// What the blocks on a GPU come to.
    pub(crate) fn tally(&self, gpu: usize) -> Tally {
        self.lock().tallies.get(gpu).copied().unwrap_or_default()
    }

    /// Changes what the blocks on a GPU come to.
    pub(crate) fn change_tally<R>(
        &self,
        gpu: usize,
        change: impl FnOnce(&mut Tally) -> R,
    ) -> Option<R> {
        self.lock().tallies.get_mut(gpu).map(change)
    }

    /// (A panic inside would leave the blocks as they were or with one block more or less.)
    fn lock(&self) -> Locked<'_, Tables> {
        self.0.lock()
    }
}

fn count(tallies: &mut [Tally], change: &Change) {
    match change {
        Change::Leaving(block) => tally(tallies, block, Tally::take),
        Change::Stays(block) => tally(tallies, block, Tally::add),
        Change::Gone(_) => {}
    }
}

fn tally(tallies: &mut [Tally], block: &Block, change: impl FnOnce(&mut Tally, &Block)) {
    if let Some(tally) = tallies.get_mut(block.gpu as usize) {
        change(tally, block);
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
    /// Takes out the last of the blocks that overlap this one.
    fn take_overlapping(&mut self, block: &Block) -> Option<Block> {
        let bytes = usize::try_from(block.bytes.max(1)).unwrap_or(usize::MAX);
        let last = block.pointer.saturating_add(bytes).saturating_sub(1);
        self.take_if(last, |old| reaches(old, block.pointer))
    }

    /// Inserts a block in the place of one of that name, which it returns.
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
        self.take_if(address, |block| contains(block, address))
    }

    /// Takes out the last block that begins at or below `address`, if it is `wanted`.
    fn take_if(&mut self, address: usize, wanted: impl FnOnce(&Block) -> bool) -> Option<Block> {
        let at = self.run_of(address)?;
        let run = self.runs.get_mut(at)?;
        let behind = run.blocks.partition_point(|block| block.pointer <= address);
        // None here: the blocks before it were taken. Those of the run before end below this run's start,
        // unless one reaches across it.
        match behind.checked_sub(1) {
            Some(place) => {
                if !wanted(run.blocks.get(place)?) {
                    return None;
                }
                let block = run.blocks.remove(place);
                self.drop_if_empty(at);
                Some(block)
            }
            None => {
                let before = at.checked_sub(1)?;
                let run = self.runs.get_mut(before)?;
                let block = *run.blocks.last().filter(|block| wanted(block))?;
                run.blocks.pop();
                self.drop_if_empty(before);
                Some(block)
            }
        }
    }

    /// Moves all blocks that are `wanted`.
    fn take_all(
        &mut self,
        wanted: impl Fn(&Block) -> bool,
        taken: &mut Vec<Block>,
    ) -> Result<(), OutOfMemory> {
        let all = self.runs.iter().flat_map(|run| &run.blocks);
        let count = all.filter(|block| wanted(block)).count();
        taken.try_reserve(count).map_err(|_| OutOfMemory)?;
        for run in &mut self.runs {
            taken.extend(run.blocks.extract_if(.., |block| wanted(block)));
        }
        self.runs.retain(|run| !run.blocks.is_empty());
        if let Some(first) = self.runs.first_mut() {
            first.from = 0;
        }
        Ok(())
    }

    fn take_exactly(&mut self, name: usize) -> Option<Block> {
        let at = self.run_of(name)?;
        let run = self.runs.get_mut(at)?;
        let place = run.blocks.binary_search_by_key(&name, |b| b.pointer).ok()?;
        let block = run.blocks.remove(place);
        self.drop_if_empty(at);
        Some(block)
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

/// Whether a block that begins before it reaches to `address`.
fn reaches(block: &Block, address: usize) -> bool {
    address
        .checked_sub(block.pointer)
        .is_none_or(|offset| offset == 0 || (offset as u64) < block.bytes)
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
            runtime: 0,
            sort: Sort::Memory,
            class: Class::Buffer,
        }
    }

    /// Nothing was to be there.
    fn none(old: Block) {
        panic!("{old:?} was there");
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
                        let end = p + n as usize;
                        let mut over: Vec<Block> = model.values().copied().collect();
                        over.retain(|o: &Block| o.pointer < end && p < o.pointer + o.bytes as usize);
                        over.reverse();
                        let gone: Vec<Block> =
                            std::iter::from_fn(|| blocks.take_overlapping(&b)).collect();
                        prop_assert!(blocks.insert(b).unwrap().is_none());
                        prop_assert_eq!(&gone, &over);
                        model.retain(|p, _| over.iter().all(|o| o.pointer != *p));
                        model.insert(p, b);
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
        let live = LiveBlocks::new(1);
        let pointer = |n: usize| ((n * 7919) % 50_021 + 1) << 21;
        for n in 0..50_000_usize {
            live.insert(block(pointer(n), 4096), &mut none).unwrap();
        }
        assert_eq!(live.take(Sort::Memory, 1 << 20), None);
        for n in (0..50_000_usize).rev() {
            assert_eq!(live.take(Sort::Memory, pointer(n) + 4096), None);
            assert_eq!(
                live.take(Sort::Memory, pointer(n) + n % 4096),
                Some(block(pointer(n), 4096))
            );
        }
        assert!(
            live.lock()
                .memory
                .runs
                .iter()
                .all(|run| run.blocks.is_empty())
        );
    }

    #[test]
    fn a_reset_takes_the_blocks_of_its_gpu() {
        let live = LiveBlocks::new(2);
        for n in 1..=2_000_usize {
            let other = Block {
                gpu: u32::from(n % 3 == 0),
                class: if n % 2 == 0 {
                    Class::Managed
                } else {
                    Class::Buffer
                },
                ..block(n << 12, 4096)
            };
            live.insert(other, &mut none).unwrap();
        }
        let number = live.take_all(1).unwrap();
        assert_eq!(
            live.take_all(1).map(|other| live.taken(other).len()),
            Some(0)
        );
        let taken = live.taken(number);
        assert_eq!(taken.len(), 333);
        assert!(live.taken(number).is_empty());
        for n in (1..=2_000_usize).rev() {
            let is_taken = n % 3 == 0 && n % 2 == 1;
            assert_eq!(live.take(Sort::Memory, n << 12).is_none(), is_taken, "{n}");
        }
        live.insert(block(4096, 1), &mut none).unwrap();
    }

    #[test]
    fn the_end_of_a_block_is_outside_of_it() {
        let live = LiveBlocks::new(1);
        live.insert(block(0x1000, 0x100), &mut none).unwrap();
        assert_eq!(live.take(Sort::Memory, 0x1100), None);
        assert_eq!(live.take(Sort::Memory, 0xfff), None);
        assert_eq!(live.take(Sort::Memory, 0x10ff), Some(block(0x1000, 0x100)));
    }

    #[test]
    fn objects_are_known_by_their_names_only() {
        let live = LiveBlocks::new(1);
        let object = Block {
            sort: Sort::Object,
            ..block(0x1000, 0x100)
        };
        live.insert(object, &mut none).unwrap();
        live.insert(block(0x1000, 0x200), &mut none).unwrap();
        assert_eq!(live.take(Sort::Object, 0x1010), None);
        assert_eq!(live.take(Sort::Object, 0x1000), Some(object));
        assert_eq!(live.take(Sort::Object, 0x1000), None);
        assert_eq!(live.take(Sort::Memory, 0x1010), Some(block(0x1000, 0x200)));
    }

    #[test]
    fn threads_do_not_lose_blocks() {
        let live = LiveBlocks::new(1);
        std::thread::scope(|scope| {
            for thread in 1..=4_usize {
                let live = &live;
                scope.spawn(move || {
                    for n in 1..=2_000_usize {
                        let b = block((thread << 40) + (n << 12), n as u64);
                        live.insert(b, &mut none).unwrap();
                        if n % 3 == 0 {
                            assert_eq!(live.take(Sort::Memory, b.pointer), Some(b));
                        }
                    }
                });
            }
        });
        let left: usize = live
            .lock()
            .memory
            .runs
            .iter()
            .map(|run| run.blocks.len())
            .sum();
        assert_eq!(left, 4 * (2_000 - 666));
    }
}
