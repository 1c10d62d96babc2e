//! Open file descriptions of the node's devices.

use std::collections::{BTreeMap, BTreeSet};

use super::{BlockId, Driver, Opener, Process, ProcessKey};

/// Names an open file description; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// What was opened.
#[derive(Debug)]
pub enum FileKind {
    /// `/dev/kfd`, by this process.
    Kfd(ProcessKey),
    /// A render or card node.
    Render {
        /// Whose node.
        gpu_id: u32,
        /// GEM handles and the blocks that they name.
        handles: Handles,
    },
    /// A dma-buf.
    Dmabuf(BlockId),
}

/// GEM handles of an open file description and the blocks that they name. The lowest free number
/// is given, as the kernel's IDR does.
#[derive(Debug, Default)]
pub struct Handles {
    blocks: BTreeMap<u32, BlockId>,
    /// Numbers below the highest that was given and that are free again.
    free: BTreeSet<u32>,
    highest: u32,
}

impl Handles {
    /// A new handle; `None` when there are no numbers left.
    pub fn add(&mut self, block: BlockId) -> Option<u32> {
        let handle = match self.free.pop_first() {
            Some(handle) => handle,
            None => {
                self.highest = self.highest.checked_add(1)?;
                self.highest
            }
        };
        self.blocks.insert(handle, block);
        Some(handle)
    }

    /// What a handle names.
    pub fn get(&self, handle: u32) -> Option<BlockId> {
        self.blocks.get(&handle).copied()
    }

    /// Takes a handle out.
    pub fn remove(&mut self, handle: u32) -> Option<BlockId> {
        let block = self.blocks.remove(&handle)?;
        self.free.insert(handle);
        Some(block)
    }

    /// A handle that names this block.
    pub fn of(&self, block: BlockId) -> Option<u32> {
        let mut all = self.blocks.iter();
        all.find(|&(_, &known)| known == block)
            .map(|(&handle, _)| handle)
    }
}

/// An open file description.
#[derive(Debug)]
pub struct OpenFile {
    /// Thread-group id of who opened it.
    pub pid: u32,
    /// What was opened.
    pub kind: FileKind,
}

impl Driver {
    /// `/dev/kfd` is opened. A process that opens it again gets the state it has already.
    pub fn open_kfd(&mut self, opener: Opener) -> FileId {
        let known = self
            .processes
            .values()
            .find(|p| p.opener == opener)
            .map(|p| p.key);
        let key = known.unwrap_or_else(|| {
            let key = ProcessKey(self.next());
            let slot = self
                .slots
                .iter()
                .position(|used| !used)
                .unwrap_or(self.slots.len());
            if slot == self.slots.len() {
                self.slots.push(true);
            } else if let Some(used) = self.slots.get_mut(slot) {
                *used = true;
            }
            self.processes
                .insert(key, Process::new(key, opener, slot as u32));
            key
        });
        if let Some(process) = self.processes.get_mut(&key) {
            process.opens += 1;
        }
        self.add_file(OpenFile {
            pid: opener.pid,
            kind: FileKind::Kfd(key),
        })
    }

    /// A render node is opened.
    pub fn open_render(&mut self, gpu_id: u32, pid: u32) -> FileId {
        self.add_file(OpenFile {
            pid,
            kind: FileKind::Render {
                gpu_id,
                handles: Handles::default(),
            },
        })
    }

    /// A dma-buf is opened; `None` when its block is gone.
    pub fn open_dmabuf(&mut self, block: BlockId) -> Option<FileId> {
        self.blocks.acquire(block)?;
        Some(self.add_file(OpenFile {
            pid: 0,
            kind: FileKind::Dmabuf(block),
        }))
    }

    fn add_file(&mut self, file: OpenFile) -> FileId {
        let id = FileId(self.next());
        self.files.insert(id, file);
        id
    }

    /// The last descriptor of an open file description is closed: by close, exec or the end of
    /// the last process that has it.
    pub fn close(&mut self, id: FileId) {
        let Some(file) = self.files.remove(&id) else {
            return;
        };
        match file.kind {
            FileKind::Kfd(key) => {
                let left = self.processes.get_mut(&key).map_or(0, |process| {
                    process.opens = process.opens.saturating_sub(1);
                    process.opens
                });
                if left == 0 {
                    self.end_process(key);
                }
            }
            FileKind::Render { handles, .. } => {
                handles
                    .blocks
                    .into_values()
                    .for_each(|block| self.release_block(block));
            }
            FileKind::Dmabuf(block) => self.release_block(block),
        }
    }

    /// An open file description.
    pub fn file(&self, id: FileId) -> Option<&OpenFile> {
        self.files.get(&id)
    }

    /// The GEM handles of a render node's open file description.
    pub fn handles(&mut self, id: FileId) -> Option<&mut Handles> {
        match &mut self.files.get_mut(&id)?.kind {
            FileKind::Render { handles, .. } => Some(handles),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::driver;
    use super::super::{Domain, PAGE};
    use super::*;

    const ME: Opener = Opener {
        pid: 10,
        start_time: 5,
    };

    #[test]
    fn a_process_ends_with_its_last_close() {
        let (mut driver, _) = driver();
        let (first, second) = (driver.open_kfd(ME), driver.open_kfd(ME));
        assert_eq!(driver.processes.len(), 1);
        driver.close(first);
        assert_eq!(driver.processes.len(), 1);
        driver.close(second);
        assert!(driver.processes.is_empty());
        driver.close(second);
    }

    #[test]
    fn a_pid_that_is_used_again_is_another_process() {
        let (mut driver, _) = driver();
        driver.open_kfd(ME);
        driver.open_kfd(Opener {
            pid: 10,
            start_time: 6,
        });
        assert_eq!(driver.processes.len(), 2);
        assert_eq!(driver.process_of_pid(10).unwrap().opener.start_time, 6);
    }

    #[test]
    fn doorbell_slots_are_used_again() {
        let (mut driver, _) = driver();
        let file = driver.open_kfd(ME);
        driver.open_kfd(Opener {
            pid: 11,
            start_time: 5,
        });
        driver.close(file);
        driver.open_kfd(Opener {
            pid: 12,
            start_time: 5,
        });
        assert_eq!(driver.process_of_pid(12).unwrap().slot, 0);
        assert_eq!(driver.process_of_pid(11).unwrap().slot, 1);
    }

    #[test]
    fn a_dmabuf_keeps_its_block() {
        let (mut driver, _) = driver();
        let gpu_id = driver.devices[0].gpu.gpu_id;
        let (block, _) = driver.allocate(gpu_id, Domain::Vram, PAGE, 0).unwrap();
        let file = driver.open_dmabuf(block).unwrap();
        driver.release_block(block);
        assert_eq!(driver.devices[0].vram_used, PAGE);
        driver.close(file);
        assert_eq!(driver.devices[0].vram_used, 0);
        assert!(driver.open_dmabuf(block).is_none());
    }

    #[test]
    fn handles_are_the_lowest_free_numbers_however_many_there_are() {
        let mut handles = Handles::default();
        let since = std::time::Instant::now();
        for number in 1..=200_000 {
            assert_eq!(handles.add(BlockId(u64::from(number))), Some(number));
        }
        // Looking through all of them each time would take minutes.
        assert!(since.elapsed() < std::time::Duration::from_secs(10));
        assert_eq!(handles.remove(70), Some(BlockId(70)));
        assert_eq!(handles.remove(7), Some(BlockId(7)));
        assert_eq!(handles.remove(7), None);
        assert_eq!(handles.add(BlockId(1)), Some(7));
        assert_eq!(handles.add(BlockId(1)), Some(70));
        assert_eq!(handles.of(BlockId(9)), Some(9));
    }

    #[test]
    fn closing_a_render_node_drops_its_handles() {
        let (mut driver, _) = driver();
        let gpu_id = driver.devices[0].gpu.gpu_id;
        let file = driver.open_render(gpu_id, 10);
        let (block, _) = driver.allocate(gpu_id, Domain::Vram, PAGE, 0).unwrap();
        assert_eq!(driver.handles(file).unwrap().add(block), Some(1));
        let other = driver.open_render(gpu_id, 10);
        assert_eq!(driver.handles(file).unwrap().get(1), Some(block));
        assert_eq!(driver.handles(other).unwrap().get(1), None);
        driver.close(file);
        assert_eq!(driver.devices[0].vram_used, 0);
    }
}
