//! A thread of a client that is held in WAIT_EVENTS.

use std::cell::RefCell;
use std::sync::Arc;

use fuser::ReplyIoctl;
use nix::errno::Errno;
use serde_json::Map;

use crate::abi::kfd::{EventData, WaitEvents};
use crate::abi::{Command, store};
use crate::server::caller::write_memory;
use crate::server::shared::Shared;
use crate::state::WaitClient;
use crate::trace::{Entry, now_ns};

/// A thread that is in WAIT_EVENTS.
pub(super) struct BlockedThread {
    /// For the trace.
    shared: Arc<Shared>,
    /// The answer that it waits for.
    reply: Option<ReplyIoctl>,
    /// Its process.
    pid: u32,
    /// Itself.
    tid: u32,
    /// Where its array of events is.
    events_pointer: u64,
    /// The command as it was called.
    command: Command,
    /// Ages to write, and where.
    ages: RefCell<Vec<(u64, u64)>>,
}

impl BlockedThread {
    pub(super) fn new(
        shared: Arc<Shared>,
        reply: Option<ReplyIoctl>,
        (pid, tid): (u32, u32),
        events_pointer: u64,
        command: Command,
    ) -> Self {
        Self {
            shared,
            reply,
            pid,
            tid,
            events_pointer,
            command,
            ages: RefCell::default(),
        }
    }
}

impl WaitClient for BlockedThread {
    /// The driver's lock is held here, so the age is written later.
    fn write_age(&self, index: usize, age: u64) {
        // The age is the first field of an entry.
        let address = self
            .events_pointer
            .wrapping_add((index * size_of::<EventData>()) as u64);
        self.ages.borrow_mut().push((address, age));
    }

    fn finish(self: Box<Self>, result: Result<(), Errno>, args: &WaitEvents) {
        let result = result.map_or_else(|errno| -(errno as i32), |()| 0);
        let Some(reply) = self.reply else { return };
        let mut bytes = vec![0; self.command.size()];
        store(args, &mut bytes);
        self.shared.trace.add(Entry {
            time_ns: now_ns(),
            pid: self.pid,
            tid: self.tid,
            device: "kfd".to_owned(),
            name: "WAIT_EVENTS_DONE".to_owned(),
            command: self.command.0,
            args: Map::from_iter([("result".to_owned(), args.result.into())]),
            result,
        });
        let ages = self.ages.into_inner();
        if ages.is_empty() {
            return reply.ioctl(result, &bytes);
        }
        // A caller that took its own array away, or whose memory does not come, gets no age; the
        // wait itself goes well, as with a kernel that faults late.
        let refuse =
            |(reply, bytes, result): (ReplyIoctl, Vec<u8>, i32)| reply.ioctl(result, &bytes);
        let tid = self.tid;
        let put_off =
            self.shared
                .workers
                .run(self.pid, (reply, bytes, result), refuse, move |answer| {
                    for (address, age) in ages {
                        let _unmapped = write_memory(tid, address, &age.to_ne_bytes());
                    }
                    if let Some((reply, bytes, result)) = answer.take() {
                        reply.ioctl(result, &bytes);
                    }
                });
        if let Err(unwritten) = put_off {
            refuse(unwritten);
        }
    }
}
