//! The server of a node: answers the kernel, runs the queues, and obeys the control socket.

pub mod apart;
pub mod caller;
pub mod control;
mod fuse;
mod gpu_memory;
pub mod held;
mod processor;
pub mod procfs;
pub mod seccomp;
pub mod shared;
mod staged;
mod watcher;
pub mod workers;

use std::io;
use std::path::Path;
use std::sync::Arc;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};

use crate::profile::Gpu;
use crate::state::{Driver, MemoryFile, Options};
use crate::sysfs::{Tree, TreeOptions};
use crate::trace::Trace;

use shared::Shared;

/// Threads that answer the kernel. One could be held by an answer that needs another request to
/// be answered first: opening a dma-buf for a client.
const FUSE_THREADS: usize = 3;

/// Mounts the node's file tree and starts everything that serves it.
///
/// # Errors
/// When a thread, the backing memory or the mount is refused (no root, no FUSE).
pub fn start(
    gpus: Vec<Gpu>,
    options: Options,
    tree: &TreeOptions,
    trace: Trace,
    mount_point: &Path,
) -> io::Result<(Arc<Shared>, BackgroundSession)> {
    let memory = Arc::new(MemoryFile::create()?);
    let tree = Tree::build(&gpus, tree);
    let driver = Driver::new(gpus, options, Arc::clone(&memory) as _);
    let shared = Shared::new(driver, memory, trace);
    let (watched, served) = (Arc::clone(&shared), Arc::clone(&shared));
    std::thread::Builder::new()
        .name("watcher".into())
        .spawn(move || watcher::run(&watched))?;
    std::thread::Builder::new()
        .name("processor".into())
        .spawn(move || processor::run(&served))?;
    let workers = Arc::clone(&shared.workers);
    std::thread::Builder::new()
        .name("overdue".into())
        .spawn(move || workers.watch())?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("kfd-emulator".into()),
        MountOption::DefaultPermissions,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(FUSE_THREADS);
    let files = fuse::Files::new(Arc::clone(&shared), tree)?;
    let session = fuser::spawn_mount(files, mount_point, &config)?;
    Ok((shared, session))
}
