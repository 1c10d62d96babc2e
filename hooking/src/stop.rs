//! Keeps the program's other threads out of what is going to be overwritten.
//!
//! * A process with one thread needs nothing of it: no signal is sent.
//! * A thread that sleeps in a system call is left alone. A signal would make calls such as `epoll_wait` and
//!   `nanosleep` fail with `EINTR`, which the program may not expect. Where it sleeps is known, and plans allow
//!   no system call under a jump. It can wake up in the microseconds that the writing takes; for that to do
//!   harm it must come to one of the functions within the nanosecond in which its five bytes change.
//! * A thread that runs is stopped with a signal, and goes on afterwards. (If it is just about to sleep in one of
//!   those calls, that one ends with `EINTR`; nothing tells such a moment from others.)
//! * If one stands inside of what is to be overwritten, all go on, and it is tried again.
//! * A thread that runs and blocks the signal cannot be stopped. Such phases are short; if this one is not, the
//!   session is refused.
//!
//! A handler of the program's that interrupted a thread inside of such a place, and sleeps there, is not seen.
//!
//! While threads are stopped, one of them may hold any lock: nothing is allocated then, nothing of libc that
//! could lock is called, and this thread takes no signals, whose handlers might want such a lock.

mod handler;
mod threads;

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

use crate::raw;
use handler::{Handled, Handler, Roll, Slot};
use threads::{At, Threads};

/// How long one attempt may take. Every thread that can run must get a processor once, however many there are.
const ATTEMPT: Duration = Duration::from_millis(500);
/// How long all attempts may take together.
const ALL_ATTEMPTS: Duration = Duration::from_secs(1);
/// How long a thread may run and block the signal.
const BLOCKED: Duration = Duration::from_millis(20);
/// How often threads may stand inside of what is to be overwritten.
const MOST_INSIDE: u32 = 50;
/// The pause before a next attempt, for a thread to get out.
const PAUSE: Duration = Duration::from_micros(200);
/// Room for this many threads more than there are at the start.
const NEWCOMERS: usize = 64;
/// How often it is looked whether a thread stopped, besides when it says so.
const LOOK: Duration = Duration::from_millis(1);

/// Why the threads could not be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    let handler = Handler::install(&quiet.0)?;
    let mut patience = Patience::new(count);
    loop {
        // It allocates, so it is made before anything is stopped.
        let roll = Roll::new(patience.room, raw::now().saturating_add(ATTEMPT));
        let handled = handler.with(roll);
        match stop_all(&threads, &handled, &inside, me) {
            Ok(()) => return Ok(write()),
            Err(failure) => {
                drop(handled);
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
    blocked: Option<Duration>,
    inside: u32,
    /// For how many threads the next attempt is made.
    room: usize,
}

impl Patience {
    fn new(threads: usize) -> Self {
        Self {
            begun: raw::now(),
            blocked: None,
            inside: 0,
            room: threads.saturating_add(NEWCOMERS),
        }
    }

    fn allows(&mut self, failure: &Failure) -> bool {
        let now = raw::now();
        let in_time = now.saturating_sub(self.begun) < ALL_ATTEMPTS;
        let allowed = match failure {
            Failure::Inside { .. } => {
                self.inside = self.inside.saturating_add(1);
                self.inside < MOST_INSIDE
            }
            Failure::Blocks { .. } => {
                let since = *self.blocked.get_or_insert(now);
                now.saturating_sub(since) < BLOCKED
            }
            Failure::TooMany => {
                self.room = self.room.saturating_mul(2);
                true
            }
            Failure::Late { .. } => true,
            _ => false,
        };
        allowed && in_time
    }
}

/// Stops all threads that run; each that sleeps is outside. They go on when `handled` is dropped.
fn stop_all(
    threads: &Threads,
    handled: &Handled<'_>,
    inside: &impl Fn(usize) -> bool,
    me: c_int,
) -> Result<(), Failure> {
    let (roll, signal) = (handled.roll, handled.signal);
    loop {
        let mut told = false;
        let mut blocks = None;
        threads.for_each(|thread| {
            if thread == me || roll.of(thread).is_some() {
                return Ok(());
            }
            match threads::look_at(thread)? {
                At::Gone => {}
                At::Sleeps(address) if inside(address) => return Err(Failure::Inside { thread }),
                At::Sleeps(_) => {}
                At::Runs => match threads::signals(thread)? {
                    // Not sent then: it would stay pending.
                    Some(signals) if signals.block(signal) => {
                        if !threads::is_of_kernel(thread)? {
                            blocks = Some(thread);
                        }
                    }
                    _ => {
                        told = true;
                        roll.request(thread, signal)?;
                    }
                },
            }
            Ok(())
        })?;
        // All signals are out before the first thread is waited for.
        for slot in roll.slots() {
            settle(slot, handled, inside)?;
        }
        if let Some(thread) = blocks {
            return Err(Failure::Blocks { thread, signal });
        }
        // Whoever runs can start further threads: done when a whole round found nobody who did.
        if !told {
            return roll.slots().iter().try_for_each(hold);
        }
        if raw::now() >= roll.deadline {
            return Err(Failure::TooMany);
        }
    }
}

/// Waits until a thread that was told to stop does nothing of its own any more.
fn settle(
    slot: &Slot,
    handled: &Handled<'_>,
    inside: &impl Fn(usize) -> bool,
) -> Result<(), Failure> {
    let thread = slot.thread();
    loop {
        match slot.state() {
            handler::REQUESTED => {}
            handler::STOPPED if inside(slot.address()) => return Err(Failure::Inside { thread }),
            handler::GONE => return Err(Failure::Late { thread }),
            _ => return Ok(()),
        }
        match threads::look_at(thread)? {
            At::Gone => slot.release(),
            At::Sleeps(address) if slot.state() == handler::REQUESTED => {
                // In the kernel, where signals cannot wake it (waiting for a disk). The handler is what it will
                // run first.
                return if inside(address) {
                    Err(Failure::Inside { thread })
                } else {
                    Ok(())
                };
            }
            At::Sleeps(_) => continue,
            At::Runs => {
                // It blocked the signal just before that came. (In the handler all signals are blocked, but
                // this one is not pending.)
                let late = threads::signals(thread)?
                    .is_some_and(|signals| signals.keep_pending(handled.signal));
                if late {
                    let signal = handled.signal;
                    return Err(Failure::Blocks { thread, signal });
                }
            }
        }
        if raw::now() >= handled.roll.deadline {
            return Err(Failure::Late { thread });
        }
        slot.wait(handler::REQUESTED, LOOK);
    }
}

/// From here on the thread does not go on by itself.
fn hold(slot: &Slot) -> Result<(), Failure> {
    if slot.change(handler::STOPPED, handler::HELD) || slot.state() != handler::GONE {
        return Ok(());
    }
    let thread = slot.thread();
    Err(Failure::Late { thread })
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
