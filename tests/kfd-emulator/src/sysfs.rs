//! `/sys` and `/dev` of a node, as the amdkfd topology and the amdgpu PCI devices show them.
//!
//! [`Tree::build`] makes the whole tree from the GPUs, without looking at the machine. What changes while
//! the node runs is only named in it ([`Dynamic`], [`Entry::ProcessRoot`]); the server fills that in.

mod gpu_metrics;
mod pci_device;
mod process;
mod topology;

use std::collections::BTreeMap;

pub use process::{ProcessEntry, ProcessTable, QueueEntry, process_entry};

use crate::profile::Gpu;

/// Number of an entry in a [`Tree`]; the root is 1, as FUSE has it.
pub type Ino = u64;

/// What a path of the tree is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A directory: names and numbers.
    Directory(BTreeMap<String, Ino>),
    /// A file that never changes.
    Text(String),
    /// A file that is not text (`gpu_metrics`).
    Binary(Vec<u8>),
    /// A symbolic link with its (relative) target.
    Symlink(String),
    /// A file whose text depends on the state of the node.
    Dynamic(Dynamic),
    /// A device node: opened, mapped and given ioctls.
    Device(Device),
    /// `/sys/class/kfd/kfd/proc`: what is below it comes from [`process_entry`].
    ProcessRoot,
}

/// Files whose text depends on the state of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dynamic {
    /// Bytes of VRAM in use, [`VRAM_USED_BY_DRIVER`] included.
    VramUsed {
        /// amdkfd's identifier of the GPU.
        gpu_id: u32,
    },
    /// Percentage of time that the GPU was busy.
    BusyPercent {
        /// amdkfd's identifier of the GPU.
        gpu_id: u32,
    },
}

/// Device nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// `/dev/kfd`.
    Kfd,
    /// A render node, or the card node beside it, which answers the same here.
    Render {
        /// amdkfd's identifier of the GPU.
        gpu_id: u32,
    },
}

/// What amdgpu itself holds of the VRAM of an idle GPU (firmware, page tables, ...), in bytes:
/// `mem_info_vram_used` starts here, processes come on top.
pub const VRAM_USED_BY_DRIVER: u64 = 10_924_032;
/// Bytes of GTT, the system memory that amdgpu maps for the GPU: as with its parameter `gttsize=8192`.
pub const GTT_BYTES: u64 = 8 << 30;
/// What amdgpu itself holds of GTT, in bytes.
pub const GTT_USED_BY_DRIVER: u64 = 14_602_240;

impl Dynamic {
    /// The file's text. `vram_used`: bytes that processes hold on that GPU. `busy`: whether it has work.
    pub fn text(self, vram_used: u64, busy: bool) -> String {
        match self {
            Dynamic::VramUsed { .. } => {
                format!("{}\n", VRAM_USED_BY_DRIVER.saturating_add(vram_used))
            }
            Dynamic::BusyPercent { .. } => format!("{}\n", if busy { 99 } else { 0 }),
        }
    }

    /// The GPU that the file belongs to.
    pub fn gpu_id(self) -> u32 {
        match self {
            Dynamic::VramUsed { gpu_id } | Dynamic::BusyPercent { gpu_id } => gpu_id,
        }
    }
}

/// What the tree shows besides the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeOptions {
    /// Whether the CPU can reach all VRAM through the PCI BAR. Without it the memory is private (heap type 2) and
    /// the topology has no link from the CPU to a GPU; a runtime that saw one would copy with the CPU.
    pub large_bar: bool,
    /// The XGMI hive's id of every GPU; `None`: one hive if the model has XGMI, else 0 (no hive).
    pub hive: Option<u64>,
    /// Logical CPUs of node 0.
    pub cpu_cores: u32,
    /// Bytes of system memory of node 0.
    pub memory_bytes: u64,
}

impl Default for TreeOptions {
    fn default() -> TreeOptions {
        TreeOptions {
            large_bar: true,
            hive: None,
            cpu_cores: 8,
            memory_bytes: 64 << 30,
        }
    }
}

impl TreeOptions {
    fn hive_of(&self, gpu: &Gpu) -> u64 {
        const HIVE: u64 = 0x1c2f_00d5_9a3e_77b1;
        self.hive.unwrap_or(if gpu.profile.xgmi { HIVE } else { 0 })
    }
}

/// The files, by number.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Entry of number `i + 1`.
    entries: Vec<Entry>,
}

impl Tree {
    /// The tree of a node: `dev/kfd`, `dev/dri/*` and `sys/...` below the root.
    pub fn build(gpus: &[Gpu], options: &TreeOptions) -> Tree {
        let mut tree = Tree {
            entries: vec![Entry::Directory(BTreeMap::new())],
        };
        tree.insert("dev/kfd", Entry::Device(Device::Kfd));
        tree.directory("dev/dri");
        topology::add(&mut tree, gpus, options);
        pci_device::add(&mut tree, gpus, options);
        tree.text("sys/module/amdgpu/initstate", "live");
        tree.text("sys/module/amdgpu/version", "5.18.2.22.40");
        tree
    }

    /// Number of the root directory.
    pub fn root(&self) -> Ino {
        1
    }

    /// The entry of that number.
    pub fn node(&self, ino: Ino) -> Option<&Entry> {
        self.entries.get(usize::try_from(ino.checked_sub(1)?).ok()?)
    }

    /// The number of `name` in a directory.
    pub fn lookup(&self, parent: Ino, name: &str) -> Option<Ino> {
        match self.node(parent)? {
            Entry::Directory(children) => children.get(name).copied(),
            _ => None,
        }
    }

    /// What is in a directory, by name; nothing for other entries.
    pub fn children(&self, ino: Ino) -> impl Iterator<Item = (&str, Ino)> {
        let children = match self.node(ino) {
            Some(Entry::Directory(children)) => Some(children),
            _ => None,
        };
        children
            .into_iter()
            .flatten()
            .map(|(name, ino)| (name.as_str(), *ino))
    }

    /// The number of a path from the root, such as `sys/class/kfd`; symbolic links are not followed.
    pub fn resolve(&self, path: &str) -> Option<Ino> {
        path.split('/')
            .filter(|part| !part.is_empty())
            .try_fold(self.root(), |at, part| self.lookup(at, part))
    }

    /// Puts an entry at a path and makes the directories above it.
    ///
    /// # Panics
    /// When the tree is built wrongly: a path twice, or below a file.
    fn insert(&mut self, path: &str, entry: Entry) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = self.directory(parent);
        let ino = self.push(entry);
        let Some(Entry::Directory(children)) = self.entry_mut(parent) else {
            unreachable!("directory() returns directories")
        };
        assert!(
            children.insert(name.to_owned(), ino).is_none(),
            "{path} is in the tree already"
        );
    }

    /// A directory at a path, made if it is not there.
    fn directory(&mut self, path: &str) -> Ino {
        let mut at = self.root();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            at = match self.lookup(at, part) {
                Some(ino) => ino,
                None => {
                    let ino = self.push(Entry::Directory(BTreeMap::new()));
                    let Some(Entry::Directory(children)) = self.entry_mut(at) else {
                        panic!("{path} leads through a file");
                    };
                    children.insert(part.to_owned(), ino);
                    ino
                }
            };
        }
        at
    }

    /// A file with one newline at its end, as sysfs attributes have it.
    fn text(&mut self, path: &str, text: impl std::fmt::Display) {
        self.insert(path, Entry::Text(format!("{text}\n")));
    }

    fn symlink(&mut self, path: &str, target: impl Into<String>) {
        self.insert(path, Entry::Symlink(target.into()));
    }

    fn push(&mut self, entry: Entry) -> Ino {
        self.entries.push(entry);
        self.entries.len() as Ino
    }

    fn entry_mut(&mut self, ino: Ino) -> Option<&mut Entry> {
        self.entries
            .get_mut(usize::try_from(ino.checked_sub(1)?).ok()?)
    }
}

#[cfg(test)]
mod tests;
