//! The node's files for the kernel: devices, sysfs, dma-bufs.

mod blocked_thread;
mod files;

use std::ffi::OsStr;
use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    IoctlFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use serde_json::Map;

use crate::abi::Command;
use crate::abi::kfd::WaitEvents;
use crate::ioctl::{self, Caller, Fields, Outcome};
use crate::state::{FileId, FileKind, Opener};
use crate::sysfs::{Device, Entry};
use crate::trace::{self, now_ns};

use super::caller::{DMABUF_DIRECTORY, RemoteCaller};
use super::procfs;
use blocked_thread::BlockedThread;
use files::Node;

pub(super) use files::Files;

/// Name of the file whose lines become entries of the trace.
pub(super) const MARK: &str = "mark";

impl Files {
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
            pid: caller.pid(),
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
                    pid: caller.pid(),
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
