//! Open file descriptions of the node's devices.

use std::collections::BTreeMap;

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
        handles: BTreeMap<u32, BlockId>,
    },
    /// A dma-buf.
    Dmabuf(BlockId),
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
                handles: BTreeMap::new(),
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
    pub fn handles(&mut self, id: FileId) -> Option<&mut BTreeMap<u32, BlockId>> {
        match &mut self.files.get_mut(&id)?.kind {
            FileKind::Render { handles, .. } => Some(handles),
            _ => None,
        }
    }

    /// The block behind a GEM handle of a process, whichever of its open files has it.
    pub fn find_handle(&self, pid: u32, gpu_id: u32, handle: u32) -> Option<BlockId> {
        self.files
            .values()
            .filter(|f| f.pid == pid)
            .find_map(|f| match &f.kind {
                FileKind::Render {
                    gpu_id: of,
                    handles,
                } if *of == gpu_id => handles.get(&handle).copied(),
                _ => None,
            })
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
    fn closing_a_render_node_drops_its_handles() {
        let (mut driver, _) = driver();
        let gpu_id = driver.devices[0].gpu.gpu_id;
        let file = driver.open_render(gpu_id, 10);
        let (block, _) = driver.allocate(gpu_id, Domain::Vram, PAGE, 0).unwrap();
        driver.handles(file).unwrap().insert(1, block);
        assert_eq!(driver.find_handle(10, gpu_id, 1), Some(block));
        assert_eq!(driver.find_handle(11, gpu_id, 1), None);
        driver.close(file);
        assert_eq!(driver.devices[0].vram_used, 0);
    }
}
