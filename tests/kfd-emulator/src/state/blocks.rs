//! Blocks: the memory that buffers, GEM handles and dma-bufs refer to.

use std::collections::HashMap;

use crate::abi::drm::Metadata;

use super::backing::{BUFFERS, DOORBELLS};
use super::extents::Extents;

/// Names a block; never used again within a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u64);

/// Where a block's memory would be on a real board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// On the board of a GPU: counts against its VRAM.
    Vram,
    /// System memory that the GPU reaches.
    Gtt,
}

/// A run of the backing file. It lives as long as something refers to it.
#[derive(Debug)]
pub struct Block {
    /// Where it starts in the backing file.
    pub offset: u64,
    /// Bytes, whole pages.
    pub size: u64,
    /// The GPU that it was allocated on.
    pub gpu_id: u32,
    /// What kind of memory it is.
    pub domain: Domain,
    /// The `ALLOC_*` flags that it was allocated with (0 for GEM).
    pub flags: u32,
    /// What `GEM_METADATA` keeps for it.
    pub metadata: Metadata,
    references: u32,
}

/// Every block of a node, and the free room of the backing file.
#[derive(Debug)]
pub struct Blocks {
    blocks: HashMap<BlockId, Block>,
    extents: Extents,
    last: u64,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            blocks: HashMap::new(),
            extents: Extents::new(BUFFERS, DOORBELLS),
            last: 0,
        }
    }
}

impl Blocks {
    /// A new block with one reference; `None` when no free run is long enough.
    pub fn create(
        &mut self,
        gpu_id: u32,
        domain: Domain,
        size: u64,
        flags: u32,
    ) -> Option<(BlockId, &Block)> {
        let offset = self.extents.take(size)?;
        self.last += 1;
        let id = BlockId(self.last);
        let metadata = zerocopy::FromZeros::new_zeroed();
        let block = Block {
            offset,
            size,
            gpu_id,
            domain,
            flags,
            metadata,
            references: 1,
        };
        Some((id, self.blocks.entry(id).or_insert(block)))
    }

    /// The block of that name, while it lives.
    pub fn get(&self, id: BlockId) -> Option<&Block> {
        self.blocks.get(&id)
    }

    /// The block of that name, to change its metadata.
    pub fn get_mut(&mut self, id: BlockId) -> Option<&mut Block> {
        self.blocks.get_mut(&id)
    }

    /// One more reference; `None` when the block is gone.
    pub fn acquire(&mut self, id: BlockId) -> Option<&Block> {
        let block = self.blocks.get_mut(&id)?;
        block.references += 1;
        Some(block)
    }

    /// One reference less. With the last one the block goes, and is returned for what the caller
    /// has to undo.
    pub fn release(&mut self, id: BlockId) -> Option<Block> {
        let block = self.blocks.get_mut(&id)?;
        block.references -= 1;
        if block.references > 0 {
            return None;
        }
        let block = self.blocks.remove(&id)?;
        self.extents.give_back(block.offset, block.size);
        Some(block)
    }

    /// How many blocks live.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no block lives.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reference_frees_the_run() {
        let mut blocks = Blocks::default();
        let free = blocks.extents.free();
        let (id, block) = blocks.create(1, Domain::Vram, 4096, 0).unwrap();
        assert_eq!((block.offset, block.size), (BUFFERS, 4096));
        assert!(blocks.acquire(id).is_some());
        assert!(blocks.release(id).is_none());
        assert!(blocks.get(id).is_some());
        assert_eq!(blocks.release(id).map(|b| b.size), Some(4096));
        assert!(blocks.is_empty());
        assert_eq!(blocks.extents.free(), free);
    }

    #[test]
    fn a_block_that_is_gone_stays_gone() {
        let mut blocks = Blocks::default();
        let (id, _) = blocks.create(1, Domain::Gtt, 4096, 0).unwrap();
        blocks.release(id);
        assert!(blocks.release(id).is_none());
        assert!(blocks.acquire(id).is_none());
        assert_ne!(blocks.create(1, Domain::Gtt, 4096, 0).unwrap().0, id);
    }
}
