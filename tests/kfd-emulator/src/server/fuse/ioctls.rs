//! The way of an ioctl: through the state under the lock, through the caller's memory without it.

use std::sync::Arc;

use fuser::ReplyIoctl;
use nix::errno::Errno;

use crate::abi::kfd::{ALLOC_VRAM, AllocMemory, WaitEvents, number};
use crate::abi::{self, Command, load};
use crate::ioctl::{self, Caller, Fields, Outcome};
use crate::server::shared::Shared;
use crate::server::staged::StagedCaller;
use crate::state::FileId;
use crate::trace::{self, now_ns};

use super::blocked_thread::BlockedThread;

/// An ioctl that is to be answered.
pub(super) struct Ioctl {
    pub(super) shared: Arc<Shared>,
    pub(super) caller: StagedCaller,
    pub(super) file: FileId,
    /// For the trace: `kfd`, `renderD128`.
    pub(super) device: String,
    /// Without prefix.
    pub(super) name: &'static str,
    pub(super) command: Command,
    /// As the caller passed it, in the size that the command names.
    pub(super) argument: Vec<u8>,
}

/// What is left to do of an ioctl that has run.
enum Left {
    /// It wants memory of the caller first.
    Memory(ReplyIoctl),
    /// To write memory of the caller, and to answer.
    Answer(ReplyIoctl, Result<(), Errno>, Vec<u8>, Fields),
    /// Nothing: it waits, or is answered.
    Nothing,
}

/// What a caller gets whose memory does not come.
fn refuse(reply: ReplyIoctl) {
    reply.ioctl(-libc::EFAULT, &[]);
}

/// What a caller gets that has too many such ioctls at a time: it shall ask again.
fn put_off(reply: ReplyIoctl) {
    reply.ioctl(-libc::EAGAIN, &[]);
}

impl Ioctl {
    /// Answers it, now or later. Does not wait for the caller's memory.
    pub(super) fn start(self, reply: ReplyIoctl) {
        if self.is_held(false) {
            self.hold(|ioctl| ioctl.go_on(reply));
        } else {
            self.go_on(reply);
        }
    }

    fn go_on(self, reply: ReplyIoctl) {
        match self.run(reply) {
            Left::Nothing => {}
            Left::Memory(reply) => self.later(reply, |mut ioctl, take| {
                ioctl.caller.fetch();
                if let Some(reply) = take() {
                    ioctl.go_on(reply);
                }
            }),
            Left::Answer(reply, result, argument, fields) if self.caller.has_written() => {
                self.later(reply, move |ioctl, take| {
                    let written = ioctl.caller.write_back();
                    if let Some(reply) = take() {
                        ioctl.answer(reply, result.and(written), &argument, fields);
                    }
                });
            }
            Left::Answer(reply, Ok(()), argument, fields) if self.is_held(true) => {
                self.hold(move |ioctl| ioctl.answer(reply, Ok(()), &argument, fields));
            }
            Left::Answer(reply, result, argument, fields) => {
                self.answer(reply, result, &argument, fields);
            }
        }
    }

    /// Whether it allocates VRAM, and so much that it is to be held back at this point: the memory is `given`
    /// or not.
    fn is_held(&self, given: bool) -> bool {
        if self.command.kind() != abi::kfd::TYPE
            || self.command.number() != number::ALLOC_MEMORY_OF_GPU
        {
            return false;
        }
        let memory = load::<AllocMemory>(&self.argument);
        memory.flags & ALLOC_VRAM != 0 && self.shared.held.holds(memory.size, given)
    }

    /// Goes on when the order to hold it back ends. Not a worker's job: those are answered for when they take
    /// long.
    fn hold(self, go_on: impl FnOnce(Self) + Send + 'static) {
        std::thread::spawn(move || {
            self.shared.held.wait();
            go_on(self);
        });
    }

    /// Goes on in a worker, which takes the reply when it is done with the caller's memory.
    fn later(
        self,
        reply: ReplyIoctl,
        go_on: impl FnOnce(Self, &dyn Fn() -> Option<ReplyIoctl>) + Send + 'static,
    ) {
        let workers = Arc::clone(&self.shared.workers);
        let pid = self.caller.pid();
        let job = move |answer: &crate::server::workers::Answer<ReplyIoctl>| {
            go_on(self, &|| answer.take());
        };
        if let Err(reply) = workers.run(pid, reply, refuse, job) {
            put_off(reply);
        }
    }

    fn run(&self, reply: ReplyIoctl) -> Left {
        let mut argument = self.argument.clone();
        let mut fields = Fields::default();
        let mut unanswered = Some(reply);
        let mut driver = self.shared.driver();
        let outcome = ioctl::run(
            &mut driver,
            &self.caller,
            self.file,
            self.command,
            &mut argument,
            &mut fields,
            || {
                Box::new(BlockedThread::new(
                    Arc::clone(&self.shared),
                    unanswered.take(),
                    (self.caller.pid(), self.caller.tid()),
                    load::<WaitEvents>(&self.argument).events_pointer,
                    self.command,
                ))
            },
        );
        self.shared.publish_queues(&driver);
        drop(driver);
        match (outcome, unanswered) {
            (_, Some(reply)) if self.caller.wants_memory() => Left::Memory(reply),
            (Outcome::Done(result), Some(reply)) => Left::Answer(reply, result, argument, fields),
            // A client that goes to sleep has probably just rung a doorbell.
            _ => {
                self.note(fields, 0);
                self.shared.wait_began.notify_one();
                self.shared.kick();
                Left::Nothing
            }
        }
    }

    fn answer(
        &self,
        reply: ReplyIoctl,
        result: Result<(), Errno>,
        argument: &[u8],
        fields: Fields,
    ) {
        let result = result.map_or_else(|errno| -(errno as i32), |()| 0);
        self.note(fields, result);
        let returned = if self.command.returns() {
            argument
        } else {
            &[]
        };
        reply.ioctl(result, returned);
    }

    fn note(&self, fields: Fields, result: i32) {
        self.shared.trace.add(trace::Entry {
            time_ns: now_ns(),
            pid: self.caller.pid(),
            tid: self.caller.tid(),
            device: self.device.clone(),
            name: self.name.to_owned(),
            command: self.command.0,
            args: fields.0,
            result,
        });
    }
}
