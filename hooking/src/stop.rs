//! Keeps the program's other threads out of what is going to be overwritten.
//!
//! * A process with one thread needs nothing of it: no signal is sent.
//! * A thread that sleeps in a system call is left alone. A signal would make calls such as `epoll_wait` and
//!   `nanosleep` fail with `EINTR`, which the program may not expect. Where it sleeps is known, and plans allow
//!   no system call under a jump. It must sleep soundly: for some time, without having run in between. It can
//!   still wake up in the microseconds that the writing takes; for that to do harm it must come to one of the
//!   functions within the nanosecond in which its five bytes change.
//! * A thread that runs, or waits for a page of memory, is stopped with a signal, and goes on afterwards. (If it is
//!   just about to sleep in one of those calls, that one ends with `EINTR`; nothing tells such a moment from others.)
//! * One that stands inside of what is to be overwritten goes on for a moment, and is stopped again.
//! * A thread that runs and blocks the signal cannot be stopped. Such phases are short (a thread that begins, or
//!   ends, or handles another signal), and their end is waited for; if one is not short, the session is refused.
//!
//! A handler of the program's that interrupted a thread inside of such a place, and sleeps there, is not seen.
//!
//! While threads are stopped, one of them may hold any lock: nothing is allocated then, nothing of libc that
//! could lock is called, and this thread takes no signals, whose handlers might want such a lock.

mod handler;
mod sleepers;
mod threads;

use core::cell::RefCell;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::raw;
use handler::{Handled, Handler, Roll, Slot};
use sleepers::Sleepers;
use threads::{At, Threads};

/// How long one attempt may take. Every thread that can run must get a processor once, however many there are.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long all attempts may take together.
const ALL_ATTEMPTS: Duration = Duration::from_secs(1);
/// How long a thread may run and block the signal, in one attempt. The others are stopped meanwhile and leave the
/// processors to it. Since it may wait for one of them, there is another attempt after a pause.
const BLOCKED: Duration = Duration::from_millis(30);
const MOST_BLOCKED: u32 = 3;
/// The pause for a thread to get on.
const PAUSE: Duration = Duration::from_micros(200);
/// How many signals a thread may get on average: more than one, if it stands inside.
const SIGNALS: usize = 4;
/// For threads that are not there yet at the start.
const NEWCOMERS: usize = 128;
/// How often it is looked whether a thread stopped, besides when it says so.
const LOOK: Duration = Duration::from_millis(1);

/// Why the threads could not be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Something of `/proc` cannot be read.
    Proc(&'static str, c_int),
    /// `/proc` shows another PID namespace than this process is in.
    OtherNamespace,
    /// No real-time signal is free.
    NoSignal,
    /// A thread runs and blocks the signal.
    Blocks { thread: c_int, signal: c_int },
    /// A thread did not take the signal in time.
    Late { thread: c_int },
    /// Threads were inside of what is to be overwritten, over and over.
    Inside { thread: c_int },
    /// More threads came than there was room for.
    TooMany,
    /// Another session is at it.
    Busy,
    /// A system call failed.
    System(&'static str, c_int),
}

impl core::fmt::Display for Failure {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Proc(what, error) | Self::System(what, error) => {
                write!(f, "{what}: {}", raw::error(*error))
            }
            Self::OtherNamespace => f.write_str("/proc is that of another PID namespace"),
            Self::NoSignal => f.write_str("no real-time signal is free"),
            Self::Blocks { thread, signal } => {
                write!(f, "thread {thread} runs and blocks signal {signal}")
            }
            Self::Late { thread } => write!(f, "thread {thread} did not stop in time"),
            Self::Inside { thread } => write!(
                f,
                "thread {thread} was inside of the code to be overwritten at every try"
            ),
            Self::TooMany => f.write_str("threads are started faster than they can be stopped"),
            Self::Busy => f.write_str("another thread is installing hooks"),
        }
    }
}

/// Runs `write` while no other thread is inside, and returns what it returned.
///
/// `inside` and `write` must keep to what may be done while threads are stopped (see above).
pub(crate) fn while_outside<T>(
    inside: impl Fn(usize) -> bool,
    write: impl FnOnce() -> T,
) -> Result<T, Failure> {
    let _turn = Turn::take()?;
    let quiet = Quiet::begin();
    let threads = Threads::open()?;
    let me = raw::thread_id();
    let (count, me_seen) = threads.count(me)?;
    // The only one stays the only one: nobody else could start another.
    if count == 1 {
        return Ok(write());
    }
    if !me_seen {
        return Err(Failure::OtherNamespace);
    }
    let handler = Handler::new(&quiet.0);
    let mut patience = Patience::new(count);
    loop {
        // They allocate, so they are made before anything is stopped.
        let sleepers = Sleepers::with_capacity(patience.room);
        let roll = Roll::new(patience.room, raw::now().saturating_add(ATTEMPT));
        let attempt = Attempt {
            me,
            threads: &threads,
            handled: handler.with(roll),
            sleepers: RefCell::new(sleepers),
            inside: &inside,
        };
        match attempt.stop_all() {
            Ok(()) => return Ok(write()),
            Err(failure) => {
                drop(attempt);
                if !patience.allows(&failure) {
                    return Err(failure);
                }
            }
        }
        raw::sleep(PAUSE);
    }
}

/// Which failures are worth another attempt.
struct Patience {
    begun: Duration,
    blocked: u32,
    /// How many signals the next attempt may send.
    room: usize,
}

impl Patience {
    fn new(threads: usize) -> Self {
        Self {
            begun: raw::now(),
            blocked: 0,
            room: threads.saturating_mul(SIGNALS).saturating_add(NEWCOMERS),
        }
    }

    fn allows(&mut self, failure: &Failure) -> bool {
        let in_time = raw::now().saturating_sub(self.begun) < ALL_ATTEMPTS;
        let allowed = match failure {
            Failure::Blocks { .. } => {
                self.blocked = self.blocked.saturating_add(1);
                self.blocked < MOST_BLOCKED
            }
            Failure::TooMany => {
                self.room = self.room.saturating_mul(2);
                true
            }
            Failure::Late { .. } | Failure::Inside { .. } => true,
            _ => false,
        };
        allowed && in_time
    }
}

/// One attempt to stop all threads that run. They go on when it is dropped.
struct Attempt<'a, I> {
    me: c_int,
    threads: &'a Threads,
    handled: Handled<'a>,
    sleepers: RefCell<Sleepers>,
    inside: &'a I,
}

/// What is still in the way after a look at all threads.
#[derive(Clone, Copy, Default)]
struct Rest {
    /// Threads were told to stop. Others may have been started by them meanwhile.
    told: bool,
    /// Such a thread has to get on by itself, and why.
    wait: Option<Failure>,
    /// Such a thread runs and blocks the signal.
    blocks: Option<c_int>,
}

impl<I: Fn(usize) -> bool> Attempt<'_, I> {
    /// Stops all threads that run, and finds those that sleep outside.
    fn stop_all(&self) -> Result<(), Failure> {
        let roll = self.handled.roll;
        // Who is in the handler from an attempt before is not where he seems to be.
        while handler::is_in_use() {
            if raw::now() >= roll.deadline {
                return Err(Failure::Late { thread: 0 });
            }
            raw::sleep(PAUSE);
        }
        let mut blocks: Option<(c_int, Duration)> = None;
        loop {
            let rest = self.look()?;
            // All signals are out before the first thread is waited for.
            for slot in roll.slots() {
                self.settle(slot)?;
            }
            let now = raw::now();
            if let Some(thread) = rest.blocks {
                let before = blocks.filter(|(before, _)| *before == thread);
                let since = before.map_or(now, |(_, since)| since);
                blocks = Some((thread, since));
                if now.saturating_sub(since) >= BLOCKED {
                    let signal = self.handled.signal()?;
                    return Err(Failure::Blocks { thread, signal });
                }
            } else {
                blocks = None;
            }
            match rest.wait {
                // A whole round found nobody who could do anything.
                None if !rest.told && blocks.is_none() => {
                    return roll.slots().iter().try_for_each(|slot| self.hold(slot));
                }
                Some(failure) if now >= roll.deadline => return Err(failure),
                _ if now >= roll.deadline => return Err(Failure::TooMany),
                None if blocks.is_none() => {}
                _ => raw::sleep(PAUSE),
            }
        }
    }

    /// Looks at all threads, and tells those to stop that run.
    fn look(&self) -> Result<Rest, Failure> {
        let mut rest = Rest::default();
        self.threads.for_each(|thread| {
            if thread == self.me {
                return Ok(());
            }
            let slot = self.handled.roll.of(thread);
            match slot.map(Slot::state) {
                Some(handler::REQUESTED) => return Ok(()),
                Some(handler::STOPPED) => {
                    // One that is inside goes on alone, and is told again once it is out of the handler.
                    if let Some(slot) = slot.filter(|slot| (self.inside)(slot.address())) {
                        slot.release();
                        rest.wait = Some(Failure::Inside { thread });
                    }
                    return Ok(());
                }
                Some(handler::GONE) => return Err(Failure::Late { thread }),
                // None yet; or it was inside; or it ended, and another one has its number.
                _ => {}
            }
            let at = threads::look_at(thread)?;
            let Some(status) = threads::status(thread)? else {
                return Ok(());
            };
            let blocks = status.block(self.handled.signal().unwrap_or_default());
            match at {
                At::Gone => {}
                // Still in the handler: it will go on elsewhere.
                _ if slot.is_some() && blocks => rest.blocks = Some(thread),
                At::Sleeps(address) if (self.inside)(address) => {
                    rest.wait = Some(Failure::Inside { thread });
                }
                At::Sleeps(_) => {
                    let mut sleepers = self.sleepers.borrow_mut();
                    if !sleepers.sleeps_soundly(thread, status.switches, raw::now())? {
                        rest.wait = Some(Failure::Late { thread });
                    }
                }
                At::Runs | At::Faults(_) if threads::is_of_kernel(thread)? => {}
                // Not sent then: it would stay pending.
                At::Runs | At::Faults(_) if blocks => rest.blocks = Some(thread),
                At::Runs | At::Faults(_) => {
                    rest.told = true;
                    self.handled.request(thread)?;
                }
            }
            Ok(())
        })?;
        Ok(rest)
    }

    /// Waits until a thread that was told to stop does nothing of its own any more.
    fn settle(&self, slot: &Slot) -> Result<(), Failure> {
        let thread = slot.thread();
        let signal = self.handled.signal()?;
        let begun = raw::now();
        while slot.state() == handler::REQUESTED {
            let at = threads::look_at(thread)?;
            let Some(status) = threads::status(thread)?.filter(|_| at != At::Gone) else {
                slot.release();
                return Ok(());
            };
            let now = raw::now();
            match at {
                // In the kernel, where signals cannot wake it (waiting for a disk, or for a lock there). The handler
                // is what it will run first. One that has taken the signal already is not where it seems to be.
                At::Sleeps(address) | At::Faults(address)
                    if status.has_pending(signal) && !status.block(signal) =>
                {
                    return if (self.inside)(address) {
                        Err(Failure::Inside { thread })
                    } else {
                        Ok(())
                    };
                }
                // It blocked the signal just before that came, and takes it when that is over.
                _ if status.has_pending(signal)
                    && status.block(signal)
                    && now.saturating_sub(begun) >= BLOCKED =>
                {
                    return Err(Failure::Blocks { thread, signal });
                }
                _ if now >= self.handled.roll.deadline => return Err(Failure::Late { thread }),
                _ => slot.wait(handler::REQUESTED, LOOK),
            }
        }
        Ok(())
    }

    /// From here on the thread does not go on by itself.
    fn hold(&self, slot: &Slot) -> Result<(), Failure> {
        let thread = slot.thread();
        if slot.change(handler::STOPPED, handler::HELD) {
            return if (self.inside)(slot.address()) {
                Err(Failure::Inside { thread })
            } else {
                Ok(())
            };
        }
        match slot.state() {
            handler::GONE => Err(Failure::Late { thread }),
            _ => Ok(()),
        }
    }
}

/// One session at a time, in this process.
struct Turn;

/// The process and thread that has the turn; 0: nobody. A child that was forked meanwhile inherits the number of
/// its parent, and knows by it that nobody has the turn.
static TURN: AtomicU64 = AtomicU64::new(0);

impl Turn {
    fn take() -> Result<Self, Failure> {
        let process = u64::from(raw::process_id().unsigned_abs());
        let ours = process << 32 | u64::from(raw::thread_id().unsigned_abs());
        let begun = raw::now();
        loop {
            let holder = TURN.load(Ordering::Acquire);
            let free = holder >> 32 != process;
            if free
                && TURN
                    .compare_exchange(holder, ours, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
            {
                return Ok(Self);
            }
            if raw::now().saturating_sub(begun) >= ALL_ATTEMPTS.saturating_mul(2) {
                return Err(Failure::Busy);
            }
            raw::sleep(PAUSE);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN.store(0, Ordering::Release);
    }
}

/// Keeps signals from this thread until dropped.
struct Quiet(libc::sigset_t);

impl Quiet {
    fn begin() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::zeroed();
        // SAFETY: the first set is initialised by sigfillset, the second is filled in by the call; a zeroed one
        // is valid, too.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}
