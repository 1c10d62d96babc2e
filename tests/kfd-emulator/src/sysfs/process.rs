//! `/sys/class/kfd/kfd/proc`: one directory for each process that has `/dev/kfd` open.
//!
//! Layout and formats of Linux's `drivers/gpu/drm/amd/amdkfd/kfd_process.c` (`kfd_procfs_show`,
//! `kfd_procfs_queue_show`, `kfd_procfs_stats_show`):
//! ```text
//! PID/pasid
//! PID/vram_GPUID            bytes
//! PID/sdma_GPUID            microseconds of SDMA activity
//! PID/stats_GPUID/          evicted_ms, cu_occupancy
//! PID/counters_GPUID/       faults, page_in, page_out
//! PID/queues/ID/            gpuid, size, type
//! ```

use crate::command_processor::QueueKind;

/// What the tree needs to know of the processes.
pub trait ProcessTable {
    /// Processes that have `/dev/kfd` open.
    fn pids(&self) -> Vec<u32>;
    /// The node's GPUs: each has its files in every process's directory.
    fn gpu_ids(&self) -> Vec<u32>;
    /// The process's address space identifier; `None`: no such process.
    fn pasid(&self, pid: u32) -> Option<u32>;
    /// Bytes of VRAM that the process holds on a GPU; `None`: no such process or GPU.
    fn vram(&self, pid: u32, gpu_id: u32) -> Option<u64>;
    /// The process's queues.
    fn queues(&self, pid: u32) -> Vec<QueueEntry>;
}

/// A queue, as its directory shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueEntry {
    /// Its number in the process.
    pub id: u32,
    /// The GPU that it is on.
    pub gpu_id: u32,
    /// Bytes of its ring.
    pub bytes: u64,
    /// What it takes.
    pub kind: QueueKind,
}

/// An entry below `proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEntry {
    /// Names, and whether each is a directory.
    Directory(Vec<(String, bool)>),
    /// A file's text.
    File(String),
}

/// The entry at a path below `proc` (an empty path: `proc` itself), or `None` if there is none now.
pub fn process_entry(table: &impl ProcessTable, path: &[&str]) -> Option<ProcessEntry> {
    let Some((pid, rest)) = path.split_first() else {
        return directory(table.pids().into_iter().map(|pid| (pid.to_string(), true)));
    };
    let pid = number(pid)?;
    let pasid = table.pasid(pid)?;
    match *rest {
        [] => {
            let gpus = table.gpu_ids().into_iter().flat_map(|gpu| {
                [
                    ("vram", false),
                    ("sdma", false),
                    ("stats", true),
                    ("counters", true),
                ]
                .map(|(kind, is_directory)| (format!("{kind}_{gpu}"), is_directory))
            });
            directory(
                [("pasid".into(), false), ("queues".into(), true)]
                    .into_iter()
                    .chain(gpus),
            )
        }
        ["pasid"] => line(pasid),
        ["queues"] => directory(table.queues(pid).iter().map(|q| (q.id.to_string(), true))),
        ["queues", id] => {
            queue(table, pid, id)?;
            files(&["gpuid", "size", "type"])
        }
        ["queues", id, file] => {
            let queue = queue(table, pid, id)?;
            // No newline: the kernel prints none here.
            Some(ProcessEntry::File(match file {
                "gpuid" => queue.gpu_id.to_string(),
                "size" => queue.bytes.to_string(),
                "type" => queue.kind.driver_type().to_string(),
                _ => return None,
            }))
        }
        [entry] => {
            let (kind, gpu) = of_gpu(table, entry)?;
            match kind {
                "vram" => line(table.vram(pid, gpu)?),
                "sdma" => line(0),
                "stats" => files(STATS),
                "counters" => files(COUNTERS),
                _ => None,
            }
        }
        [entry, file] => match of_gpu(table, entry)?.0 {
            "stats" if STATS.contains(&file) => line(0),
            "counters" if COUNTERS.contains(&file) => line(0),
            _ => None,
        },
        _ => None,
    }
}

const STATS: &[&str] = &["evicted_ms", "cu_occupancy"];
const COUNTERS: &[&str] = &["faults", "page_in", "page_out"];

/// `vram` and 35383 of `vram_35383`, if that GPU exists.
fn of_gpu<'a>(table: &impl ProcessTable, entry: &'a str) -> Option<(&'a str, u32)> {
    let (kind, gpu) = entry.split_once('_')?;
    let gpu = number(gpu)?;
    table.gpu_ids().contains(&gpu).then_some((kind, gpu))
}

fn queue(table: &impl ProcessTable, pid: u32, id: &str) -> Option<QueueEntry> {
    let id = number(id)?;
    table.queues(pid).into_iter().find(|queue| queue.id == id)
}

/// A number as the kernel would have printed it: so `+1` and `01` name nothing.
fn number(text: &str) -> Option<u32> {
    text.parse()
        .ok()
        .filter(|number: &u32| number.to_string() == text)
}

fn directory(entries: impl IntoIterator<Item = (String, bool)>) -> Option<ProcessEntry> {
    Some(ProcessEntry::Directory(entries.into_iter().collect()))
}

fn files(names: &[&str]) -> Option<ProcessEntry> {
    directory(names.iter().map(|name| ((*name).to_owned(), false)))
}

fn line(value: impl std::fmt::Display) -> Option<ProcessEntry> {
    Some(ProcessEntry::File(format!("{value}\n")))
}
