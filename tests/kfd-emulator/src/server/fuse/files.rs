//! What the node's files are: inode numbers, attributes, contents.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{BackingId, Errno, FileAttr, FileType, INodeNo, ReplyOpen};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::server::caller::DMABUF_DIRECTORY;
use crate::server::shared::Shared;
use crate::state::BlockId;
use crate::sysfs::{self, Entry, ProcessEntry, Tree};

use super::MARK;

/// How long the kernel may remember what does not change.
const STABLE: Duration = Duration::from_secs(1);

// Inode numbers: those of the tree as they are; the rest from these on.
const PROCESS_INODES: u64 = 1 << 40;
const DMABUF_INODES: u64 = 1 << 41;
const DMABUF_DIRECTORY_INODE: u64 = 1 << 42;
const MARK_INODE: u64 = DMABUF_DIRECTORY_INODE + 1;
/// Paths below the process directory that are remembered before those of ended processes go.
const MANY_PATHS: usize = 10_000;

/// What an inode number stands for.
pub(super) enum Node<'a> {
    Tree(&'a Entry),
    Process(Vec<String>),
    DmabufDirectory,
    Dmabuf(BlockId),
    Mark,
}

/// Inode numbers of paths below the process directory.
#[derive(Default)]
struct ProcessPaths {
    numbers: HashMap<Vec<String>, u64>,
    paths: HashMap<u64, Vec<String>>,
    last: u64,
}

impl ProcessPaths {
    fn number(&mut self, path: Vec<String>) -> u64 {
        if let Some(&number) = self.numbers.get(&path) {
            return number;
        }
        self.last += 1;
        let number = PROCESS_INODES | self.last;
        self.numbers.insert(path.clone(), number);
        self.paths.insert(number, path);
        number
    }

    fn retain(&mut self, alive: impl Fn(&[String]) -> bool) {
        self.numbers.retain(|path, _| alive(path));
        self.paths.retain(|_, path| alive(path));
    }
}

/// The file tree of a node.
pub(in crate::server) struct Files {
    pub(super) shared: Arc<Shared>,
    tree: Tree,
    process_paths: Mutex<ProcessPaths>,
    /// The memory file: all devices map it.
    pub(super) backing: Registered,
    /// An empty file, that all other files map.
    pub(super) empty: OwnedFd,
    pub(super) nothing: Registered,
}

/// A file that the kernel shall map in place of ours. It is registered once.
#[derive(Default)]
pub(super) struct Registered(Mutex<Option<Arc<BackingId>>>);

impl Registered {
    pub(super) fn get(&self, reply: &ReplyOpen, file: impl AsFd) -> Result<Arc<BackingId>, Errno> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = &*known {
            return Ok(Arc::clone(id));
        }
        match reply.open_backing(file) {
            Ok(id) => Ok(Arc::clone(known.insert(Arc::new(id)))),
            Err(error) => {
                eprintln!("kfd-emulator: FUSE passthrough was refused: {error}");
                Err(Errno::ENODEV)
            }
        }
    }
}

impl Files {
    /// # Errors
    /// When the kernel has no room for an empty file.
    pub(in crate::server) fn new(shared: Arc<Shared>, tree: Tree) -> io::Result<Self> {
        Ok(Self {
            shared,
            tree,
            process_paths: Mutex::default(),
            backing: Registered::default(),
            empty: memfd_create("kfd-emulator-empty", MFdFlags::MFD_CLOEXEC)?,
            nothing: Registered::default(),
        })
    }

    pub(super) fn node(&self, ino: u64) -> Option<Node<'_>> {
        Some(match ino {
            MARK_INODE => Node::Mark,
            DMABUF_DIRECTORY_INODE => Node::DmabufDirectory,
            _ if ino & DMABUF_INODES != 0 => Node::Dmabuf(BlockId(ino & !DMABUF_INODES)),
            _ if ino & PROCESS_INODES != 0 => {
                let paths = self
                    .process_paths
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                Node::Process(paths.paths.get(&ino)?.clone())
            }
            _ => match self.tree.node(ino)? {
                Entry::ProcessRoot => Node::Process(Vec::new()),
                entry => Node::Tree(entry),
            },
        })
    }

    fn process_entry(&self, path: &[String]) -> Option<ProcessEntry> {
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        sysfs::process_entry(&*self.shared.driver(), &path)
    }

    /// The number of a path below the process directory.
    fn process_ino(&self, path: Vec<String>) -> u64 {
        let mut paths = self
            .process_paths
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if paths.paths.len() > MANY_PATHS {
            let driver = self.shared.driver();
            let is_alive = |pid: &String| {
                pid.parse()
                    .is_ok_and(|pid| driver.process_of_pid(pid).is_some())
            };
            paths.retain(|path| path.first().is_some_and(is_alive));
        }
        paths.number(path)
    }

    pub(super) fn find(&self, parent: u64, name: &str) -> Option<u64> {
        match self.node(parent)? {
            Node::Process(mut path) => {
                path.push(name.to_owned());
                self.process_entry(&path)?;
                Some(self.process_ino(path))
            }
            Node::DmabufDirectory => {
                let id = name
                    .parse()
                    .ok()
                    .filter(|id| id & !(DMABUF_INODES - 1) == 0)?;
                self.shared.driver().blocks.get(BlockId(id))?;
                Some(DMABUF_INODES | id)
            }
            Node::Tree(_) if parent == self.tree.root() && name == DMABUF_DIRECTORY => {
                Some(DMABUF_DIRECTORY_INODE)
            }
            Node::Tree(_) if parent == self.tree.root() && name == MARK => Some(MARK_INODE),
            Node::Tree(_) => self.tree.lookup(parent, name),
            Node::Dmabuf(_) | Node::Mark => None,
        }
    }

    pub(super) fn attributes(&self, ino: u64) -> Option<(Duration, FileAttr)> {
        // A file of sysfs shows a page, whatever is in it.
        const SYSFS_SIZE: u64 = 4096;
        let (kind, perm, size) = match self.node(ino)? {
            Node::Tree(Entry::Directory(_)) | Node::DmabufDirectory => {
                (FileType::Directory, 0o755, 0)
            }
            Node::Tree(Entry::Symlink(target)) => (FileType::Symlink, 0o777, target.len() as u64),
            // A character device of a FUSE mount would be opened by the kernel's own driver, so
            // these are files.
            Node::Tree(Entry::Device(_)) => (FileType::RegularFile, 0o666, 0),
            Node::Tree(_) => (FileType::RegularFile, 0o444, SYSFS_SIZE),
            Node::Process(path) => match self.process_entry(&path)? {
                ProcessEntry::Directory(_) => (FileType::Directory, 0o755, 0),
                ProcessEntry::File(_) => (FileType::RegularFile, 0o444, SYSFS_SIZE),
            },
            Node::Dmabuf(block) => {
                let driver = self.shared.driver();
                (FileType::RegularFile, 0o666, driver.blocks.get(block)?.size)
            }
            Node::Mark => (FileType::RegularFile, 0o666, 0),
        };
        let changes = ino & (PROCESS_INODES | DMABUF_INODES) != 0;
        let attributes = FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            flags: 0,
            blksize: 4096,
        };
        Some((if changes { Duration::ZERO } else { STABLE }, attributes))
    }

    /// What a file holds now.
    pub(super) fn text(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        match self.node(ino).ok_or(Errno::ENODEV)? {
            Node::Tree(Entry::Text(text)) => Ok(text.clone().into_bytes()),
            Node::Tree(Entry::Binary(bytes)) => Ok(bytes.clone()),
            Node::Tree(Entry::Dynamic(dynamic)) => {
                let driver = self.shared.driver();
                let used = driver.board_vram_used(dynamic.gpu_id());
                Ok(dynamic
                    .text(used, driver.is_busy(dynamic.gpu_id()))
                    .into_bytes())
            }
            // A file that was opened before its process ended answers as kernfs does.
            Node::Process(path) => match self.process_entry(&path) {
                Some(ProcessEntry::File(text)) => Ok(text.into_bytes()),
                Some(ProcessEntry::Directory(_)) => Err(Errno::EISDIR),
                None => Err(Errno::ENODEV),
            },
            Node::Mark => Ok(Vec::new()),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Names in a directory, with their inode numbers and kinds.
    pub(super) fn list(&self, ino: u64) -> Option<Vec<(u64, FileType, String)>> {
        match self.node(ino)? {
            Node::Tree(Entry::Directory(_)) => Some(
                self.tree
                    .children(ino)
                    .map(|(name, child)| {
                        let kind = match self.tree.node(child) {
                            Some(Entry::Directory(_) | Entry::ProcessRoot) => FileType::Directory,
                            Some(Entry::Symlink(_)) => FileType::Symlink,
                            _ => FileType::RegularFile,
                        };
                        (child, kind, name.to_owned())
                    })
                    .collect(),
            ),
            Node::Process(path) => {
                let ProcessEntry::Directory(names) = self.process_entry(&path)? else {
                    return None;
                };
                let entry = |(name, is_directory): (String, bool)| {
                    let mut path = path.clone();
                    path.push(name.clone());
                    let kind = if is_directory {
                        FileType::Directory
                    } else {
                        FileType::RegularFile
                    };
                    (self.process_ino(path), kind, name)
                };
                Some(names.into_iter().map(entry).collect())
            }
            Node::DmabufDirectory => Some(Vec::new()),
            _ => None,
        }
    }
}
