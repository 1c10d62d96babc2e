//! The thread that runs queues: polls doorbells and hands rings to the command processor.

use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::command_processor::{QueueKind, Ring, service};
use crate::ioctl::kfd::gpu_ticks;
use crate::state::backing::{DOORBELL_PAGE, DOORBELL_STRIDE, DOORBELL_UNRUNG};
use crate::state::{MemoryFile, ProcessKey};
use crate::trace::{Entry, now_ns};

use super::gpu_memory::{KernelCache, ProcessKernels, ProcessMemory};
use super::shared::Shared;

/// A doorbell page, mapped into the server.
struct DoorbellPage {
    start: NonNull<libc::c_void>,
}

impl DoorbellPage {
    fn map(memory: &MemoryFile, offset: u64) -> io::Result<Self> {
        let length = std::num::NonZeroUsize::MIN.saturating_add(DOORBELL_PAGE as usize - 1);
        // SAFETY: a new shared mapping at an address of the kernel's choice touches no memory that
        // exists; the file keeps its size for good, so no access past its end can happen.
        let start = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                memory.file(),
                offset as i64,
            )
        }?;
        Ok(Self { start })
    }

    /// What a doorbell was last rung with.
    fn value(&self, place: u64) -> u64 {
        let index = (place / 8) as usize;
        if place >= DOORBELL_PAGE {
            return DOORBELL_UNRUNG;
        }
        // SAFETY: `index` is inside the mapping, which lives as long as `self`, is page-aligned
        // (so each doorbell is aligned to 8 bytes), and is only ever accessed atomically here. The
        // client writes it from another process, with 8-byte stores.
        let doorbell = unsafe { &*self.start.as_ptr().cast::<AtomicU64>().add(index) };
        doorbell.load(Ordering::Acquire)
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and no reference into it
        // outlives `self`.
        let result = unsafe { munmap(self.start, DOORBELL_PAGE as usize) };
        debug_assert!(result.is_ok());
    }
}

/// A queue that is served.
struct Lane {
    key: ProcessKey,
    pid: u32,
    queue_id: u32,
    serial: u64,
    ring: Ring,
    page: Rc<DoorbellPage>,
    /// Place of the doorbell in its page.
    doorbell: u64,
    /// The value up to which nothing is left to do.
    done: u64,
}

/// Serves the queues of all processes until the process ends. Sleeps while there is none.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut lanes: Vec<Lane> = Vec::new();
    let cache = KernelCache::default();
    let mut known = 0;
    let mut last_work = Instant::now();
    loop {
        let serial = shared.queues_serial();
        if serial != known {
            known = serial;
            lanes = refresh(shared, lanes);
            cache.retain(|key| lanes.iter().any(|lane| lane.key == key));
        }
        let mut worked = false;
        for lane in &mut lanes {
            let value = lane.page.value(lane.doorbell);
            if value != lane.done {
                worked |= serve(shared, &cache, lane, value);
            }
        }
        if worked {
            last_work = Instant::now();
        }
        let nap = (!lanes.is_empty()).then(|| nap(last_work.elapsed()));
        shared.await_kick(nap);
    }
}

/// A doorbell is plain memory, so it must be polled: often while there is work, then ever more
/// seldom. Clients that go to sleep in WAIT_EVENTS kick the thread, so a long nap delays only
/// those that spin on a signal.
fn nap(since_work: Duration) -> Duration {
    match since_work.as_millis() {
        0..5 => Duration::from_micros(20),
        5..100 => Duration::from_micros(500),
        100..1000 => Duration::from_millis(2),
        1000..2000 => Duration::from_millis(10),
        _ => Duration::from_millis(20),
    }
}

/// The queues that there are now; those that were there before go on where they are.
fn refresh(shared: &Shared, lanes: Vec<Lane>) -> Vec<Lane> {
    let mut pages: HashMap<u64, Rc<DoorbellPage>> = HashMap::new();
    let mut before: HashMap<u64, Lane> = lanes.into_iter().map(|l| (l.serial, l)).collect();
    let mut now = Vec::new();
    let driver = shared.driver();
    for process in driver.processes.values() {
        // A queue without a share of time is stopped.
        for (&queue_id, queue) in process.queues.iter().filter(|(_, q)| q.percentage > 0) {
            let Some(kind) = QueueKind::from_ioctl(queue.kind) else {
                continue;
            };
            let offset = queue.doorbell - queue.doorbell % DOORBELL_STRIDE;
            let kept = before.remove(&queue.serial);
            let page = match kept
                .as_ref()
                .map(|l| &l.page)
                .or_else(|| pages.get(&offset))
            {
                Some(page) => Rc::clone(page),
                None => match DoorbellPage::map(&shared.memory, offset) {
                    Ok(page) => Rc::new(page),
                    Err(error) => {
                        eprintln!("kfd-emulator: a doorbell page cannot be mapped: {error}");
                        continue;
                    }
                },
            };
            pages.insert(offset, Rc::clone(&page));
            now.push(Lane {
                key: process.key,
                pid: process.opener.pid,
                queue_id,
                serial: queue.serial,
                ring: Ring {
                    kind,
                    base: queue.ring_base,
                    bytes: queue.ring_bytes,
                    read_pointer_va: queue.read_pointer,
                    consumed: kept.as_ref().map_or(0, |l| l.ring.consumed),
                },
                page,
                doorbell: queue.doorbell - offset,
                done: kept.map_or(DOORBELL_UNRUNG, |l| l.done),
            });
        }
    }
    now
}

/// One pass over a queue. Whether it went ahead.
fn serve(shared: &Shared, cache: &KernelCache, lane: &mut Lane, doorbell: u64) -> bool {
    let memory = ProcessMemory::new(shared, lane.key, lane.pid);
    let kernels = ProcessKernels {
        memory: &memory,
        cache,
    };
    let pass = service(&memory, &kernels, &mut lane.ring, doorbell, &gpu_ticks);
    if pass.idle {
        lane.done = doorbell;
    }
    if !pass.events.is_empty() {
        let mut driver = shared.driver();
        for id in pass.events {
            // The event may be gone by now; hardware would raise nothing either.
            let _gone = driver.raise_event(lane.key, id);
        }
        driver.finish_waits(Instant::now());
    }
    for note in pass.notes {
        shared.trace.add(Entry {
            time_ns: now_ns(),
            pid: lane.pid,
            tid: 0,
            device: "queue".to_owned(),
            name: note,
            command: 0,
            args: serde_json::Map::from_iter([("queue_id".to_owned(), lane.queue_id.into())]),
            result: 0,
        });
    }
    pass.progressed
}
