//! The node's files for the kernel: devices, sysfs, dma-bufs.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BackingId, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use serde_json::Map;
use zerocopy::IntoBytes;

use crate::abi::Command;
use crate::abi::kfd::{EventData, WaitEvents};
use crate::ioctl::{self, Fields, Outcome};
use crate::state::{BlockId, FileId, FileKind, Opener, WaitClient};
use crate::sysfs::{self, Device, Entry, ProcessEntry, Tree};
use crate::trace::{self, now_ns};

use super::caller::{DMABUF_DIRECTORY, RemoteCaller, write_memory};
use super::procfs;
use super::shared::Shared;

/// Name of the file whose lines become entries of the trace.
pub(super) const MARK: &str = "mark";

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
enum Node<'a> {
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
pub(super) struct Files {
    shared: Arc<Shared>,
    tree: Tree,
    process_paths: Mutex<ProcessPaths>,
    /// The memory file, registered with the kernel once: all devices map it.
    backing: Mutex<Option<Arc<BackingId>>>,
}

impl Files {
    pub(super) fn new(shared: Arc<Shared>, tree: Tree) -> Self {
        Self {
            shared,
            tree,
            process_paths: Mutex::default(),
            backing: Mutex::default(),
        }
    }

    fn node(&self, ino: u64) -> Option<Node<'_>> {
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

    fn find(&self, parent: u64, name: &str) -> Option<u64> {
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

    fn attributes(&self, ino: u64) -> Option<(Duration, FileAttr)> {
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
    fn text(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        match self.node(ino).ok_or(Errno::ENODEV)? {
            Node::Tree(Entry::Text(text)) => Ok(text.clone().into_bytes()),
            Node::Tree(Entry::Binary(bytes)) => Ok(bytes.clone()),
            Node::Tree(Entry::Dynamic(dynamic)) => {
                let driver = self.shared.driver();
                let used = driver.device(dynamic.gpu_id()).map_or(0, |d| d.vram_used);
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
    fn list(&self, ino: u64) -> Option<Vec<(u64, FileType, String)>> {
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

    fn open_device(&self, device: Device, tid: u32, reply: ReplyOpen) {
        let backing = {
            let mut known = self.backing.lock().unwrap_or_else(PoisonError::into_inner);
            if known.is_none() {
                match reply.open_backing(self.shared.memory.file()) {
                    Ok(id) => *known = Some(Arc::new(id)),
                    Err(error) => {
                        eprintln!("kfd-emulator: FUSE passthrough was refused: {error}");
                        return reply.error(Errno::ENODEV);
                    }
                }
            }
            known.clone()
        };
        let Some(backing) = backing else {
            return reply.error(Errno::ENODEV);
        };
        let pid = procfs::thread_group(tid);
        let mut driver = self.shared.driver();
        let (file, name) = match device {
            Device::Kfd => {
                let opener = Opener {
                    pid,
                    start_time: procfs::start_time(pid),
                };
                (driver.open_kfd(opener), "kfd".to_owned())
            }
            Device::Render { gpu_id } => {
                let minor = driver.device(gpu_id).map_or(0, |d| d.gpu.render_minor);
                (driver.open_render(gpu_id, pid), format!("renderD{minor}"))
            }
        };
        drop(driver);
        self.note(pid, tid, &name, "OPEN");
        reply.opened_passthrough(FileHandle(file.0), FopenFlags::empty(), &backing);
    }

    fn note(&self, pid: u32, tid: u32, device: &str, name: &str) {
        self.shared.trace.add(trace::Entry {
            time_ns: now_ns(),
            pid,
            tid,
            device: device.to_owned(),
            name: name.to_owned(),
            command: 0,
            args: Map::new(),
            result: 0,
        });
    }
}

impl Filesystem for Files {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let refused = |what: &str| std::io::Error::other(format!("this kernel refuses {what}"));
        config
            .add_capabilities(InitFlags::FUSE_PASSTHROUGH)
            .map_err(|_| refused("FUSE passthrough; it needs Linux 6.9 and root"))?;
        config
            .set_max_stack_depth(1)
            .map_err(|_| refused("a FUSE stack depth of 1"))?;
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = name.to_str().and_then(|name| self.find(parent.0, name));
        match found.and_then(|ino| self.attributes(ino)) {
            Some((ttl, attributes)) => reply.entry(&ttl, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino.0) {
            Some((ttl, attributes)) => reply.attr(&ttl, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Opening with O_TRUNC comes here. Nothing changes.
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.getattr(req, ino, handle, reply);
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.node(ino.0) {
            Some(Node::Tree(Entry::Symlink(target))) => reply.data(target.as_bytes()),
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.node(ino.0) {
            None => reply.error(Errno::ENOENT),
            Some(Node::Tree(&Entry::Device(device))) => self.open_device(device, req.pid(), reply),
            Some(Node::Dmabuf(block)) => match self.shared.driver().open_dmabuf(block) {
                Some(file) => reply.opened(FileHandle(file.0), FopenFlags::empty()),
                None => reply.error(Errno::ENOENT),
            },
            Some(_) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
        }
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let mut driver = self.shared.driver();
        driver.close(FileId(handle.0));
        self.shared.publish_queues(&driver);
        drop(driver);
        reply.ok();
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.text(ino.0) {
            Ok(bytes) => {
                let from = usize::try_from(offset)
                    .unwrap_or(usize::MAX)
                    .min(bytes.len());
                let to = from.saturating_add(size as usize).min(bytes.len());
                reply.data(bytes.get(from..to).unwrap_or_default());
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        _offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if !matches!(self.node(ino.0), Some(Node::Mark)) {
            return reply.error(Errno::EPERM);
        }
        let pid = procfs::thread_group(req.pid());
        for line in String::from_utf8_lossy(data)
            .lines()
            .filter(|line| !line.is_empty())
        {
            self.note(pid, req.pid(), MARK, line);
        }
        reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(entries) = self.list(ino.0) else {
            return reply.error(Errno::ENOTDIR);
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (place, (ino, kind, name)) in (1..).zip(entries).skip(from) {
            if reply.add(INodeNo(ino), place, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn ioctl(
        &self,
        req: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        let (command, file) = (Command(command), FileId(handle.0));
        let mut argument = in_data.to_vec();
        argument.resize(command.size(), 0);

        let mut driver = self.shared.driver();
        let Some(open) = driver.file(file) else {
            return reply.error(Errno::ENOTTY);
        };
        let (opener, name) = (open.pid, ioctl::name(&open.kind, command));
        let device = match open.kind {
            FileKind::Kfd(_) => "kfd".to_owned(),
            FileKind::Dmabuf(_) => DMABUF_DIRECTORY.to_owned(),
            FileKind::Render { gpu_id, .. } => driver
                .device(gpu_id)
                .map_or_else(String::new, |d| format!("renderD{}", d.gpu.render_minor)),
        };
        drop(driver);
        let caller = RemoteCaller::new(req.pid(), Some(opener));
        let entry = |fields: Fields, result: i32| trace::Entry {
            time_ns: now_ns(),
            pid: ioctl::Caller::pid(&caller),
            tid: req.pid(),
            device,
            name: name.to_owned(),
            command: command.0,
            args: fields.0,
            result,
        };

        let mut fields = Fields::default();
        let mut unanswered = Some(reply);
        driver = self.shared.driver();
        let outcome = ioctl::run(
            &mut driver,
            &caller,
            file,
            command,
            &mut argument,
            &mut fields,
            || {
                Box::new(BlockedThread {
                    shared: Arc::clone(&self.shared),
                    reply: unanswered.take(),
                    tid: req.pid(),
                    events_pointer: crate::abi::load::<WaitEvents>(in_data).events_pointer,
                    command,
                })
            },
        );
        self.shared.publish_queues(&driver);
        drop(driver);
        match (outcome, unanswered) {
            (Outcome::Done(result), Some(reply)) => {
                let result = result.map_or_else(|errno| -(errno as i32), |()| 0);
                self.shared.trace.add(entry(fields, result));
                reply.ioctl(result, if command.returns() { &argument } else { &[] });
            }
            // A client that goes to sleep has probably just rung a doorbell.
            _ => {
                self.shared.trace.add(entry(fields, 0));
                self.shared.wait_began.notify_one();
                self.shared.kick();
            }
        }
    }
}

/// A thread that is in WAIT_EVENTS.
struct BlockedThread {
    shared: Arc<Shared>,
    reply: Option<ReplyIoctl>,
    tid: u32,
    events_pointer: u64,
    command: Command,
}

impl WaitClient for BlockedThread {
    fn write_age(&self, index: usize, age: u64) {
        // The age is the first field of an entry. A caller that took its own array away gets no
        // age; the wait itself goes well, as with a kernel that faults late.
        let address = self
            .events_pointer
            .wrapping_add((index * size_of::<EventData>()) as u64);
        let _unmapped = write_memory(self.tid, address, &age.to_ne_bytes());
    }

    fn finish(self: Box<Self>, result: Result<(), nix::errno::Errno>, args: &WaitEvents) {
        let result = result.map_or_else(|errno| -(errno as i32), |()| 0);
        let Some(reply) = self.reply else { return };
        let mut bytes = vec![0; self.command.size()];
        crate::abi::store(args, &mut bytes);
        debug_assert!(bytes.len() >= args.as_bytes().len() || !bytes.is_empty());
        self.shared.trace.add(trace::Entry {
            time_ns: now_ns(),
            pid: 0,
            tid: self.tid,
            device: "kfd".to_owned(),
            name: "WAIT_EVENTS_DONE".to_owned(),
            command: self.command.0,
            args: Map::from_iter([("result".to_owned(), args.result.into())]),
            result,
        });
        reply.ioctl(result, &bytes);
    }
}
