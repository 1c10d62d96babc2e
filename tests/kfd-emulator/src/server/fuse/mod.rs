//! The node's files for the kernel: devices, sysfs, dma-bufs.

mod blocked_thread;
mod files;
mod ioctls;

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use serde_json::Map;

use crate::abi::Command;
use crate::ioctl;
use crate::state::{FileId, FileKind, Opener};
use crate::sysfs::{Device, Entry};
use crate::trace::{self, now_ns};

use super::caller::{DMABUF_DIRECTORY, RemoteCaller};
use super::procfs;
use super::staged::StagedCaller;
use files::Node;
use ioctls::Ioctl;

pub(super) use files::Files;

/// Name of the file whose lines become entries of the trace.
pub(super) const MARK: &str = "mark";

/// An ioctl of this server's own: answers with the [`FileId`] of the open file. It is for the
/// injector, which has only a descriptor; to others it tells nothing.
pub(super) const WHICH_FILE: Command = Command::new(2, 0xfe, 1, size_of::<u64>());

impl Files {
    fn open_device(&self, device: Device, tid: u32, reply: ReplyOpen) {
        let backing = match self.backing.get(&reply, self.shared.memory.file()) {
            Ok(backing) => backing,
            Err(errno) => return reply.error(errno),
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
        // mmap goes to the memory; with direct I/O, read and write come here.
        reply.opened_passthrough(FileHandle(file.0), FopenFlags::FOPEN_DIRECT_IO, &backing);
    }

    /// Opens a file whose contents nobody may map: a mapping is of an empty file, so touching it is
    /// a bus error, where sysfs refuses to map. A mapping of the file itself would be filled by this
    /// server, which could then come to wait for itself when it reads a client's memory.
    fn open_unmappable(&self, handle: u64, reply: ReplyOpen) {
        match self.nothing.get(&reply, &self.empty) {
            Ok(backing) => {
                reply.opened_passthrough(FileHandle(handle), FopenFlags::FOPEN_DIRECT_IO, &backing);
            }
            Err(errno) => reply.error(errno),
        }
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
            Some(Node::Dmabuf(block)) => {
                let opened = self.shared.driver().open_dmabuf(block);
                match opened {
                    Some(file) => self.open_unmappable(file.0, reply),
                    None => reply.error(Errno::ENOENT),
                }
            }
            Some(_) => self.open_unmappable(0, reply),
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
        let file = FileId(handle.0);
        let mut driver = self.shared.driver();
        let of_kfd = driver
            .file(file)
            .filter(|f| matches!(f.kind, FileKind::Kfd(_)));
        let opener = of_kfd.map(|f| f.pid);
        driver.close(file);
        self.shared.publish_queues(&driver);
        drop(driver);
        if let Some(pid) = opener {
            self.note(pid, 0, "kfd", "RELEASE");
        }
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
        match self.node(ino.0) {
            Some(Node::Mark) => {}
            // As for a character device without a write function.
            Some(Node::Tree(Entry::Device(_)) | Node::Dmabuf(_)) => {
                return reply.error(Errno::EINVAL);
            }
            _ => return reply.error(Errno::EPERM),
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
        if command.0 == WHICH_FILE.0 {
            return reply.ioctl(0, &file.0.to_ne_bytes());
        }
        let mut argument = in_data.to_vec();
        argument.resize(command.size(), 0);

        let driver = self.shared.driver();
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
        let ioctl = Ioctl {
            shared: Arc::clone(&self.shared),
            caller: StagedCaller::new(caller),
            file,
            device,
            name,
            command,
            argument,
        };
        ioctl.start(reply);
    }
}
