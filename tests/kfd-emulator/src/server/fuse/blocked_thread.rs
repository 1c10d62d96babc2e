//! A thread of a client that is held in WAIT_EVENTS.

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
    pub(super) shared: Arc<Shared>,
    /// The answer that it waits for.
    pub(super) reply: Option<ReplyIoctl>,
    /// Its process.
    pub(super) pid: u32,
    /// Itself.
    pub(super) tid: u32,
    /// Where its array of events is.
    pub(super) events_pointer: u64,
    /// The command as it was called.
    pub(super) command: Command,
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
        reply.ioctl(result, &bytes);
    }
}
