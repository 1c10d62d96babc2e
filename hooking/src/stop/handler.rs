//! The signal that stops threads, and what a thread does when it gets it.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;

use super::Failure;
use crate::raw;

/// The signal was sent. The thread makes it [`STOPPED`], or the session [`RELEASED`].
pub(super) const REQUESTED: u32 = 1;
/// The thread waits in the handler, until its time is over ([`GONE`]) or the session says how it goes on.
pub(super) const STOPPED: u32 = 2;
/// It waits without a time limit: code is being written.
pub(super) const HELD: u32 = 3;
/// It may go on. Set by the session.
pub(super) const RELEASED: u32 = 4;
/// It went on by itself.
pub(super) const GONE: u32 = 5;

/// How often a waiting thread looks by itself whether it may go on.
const LOOK: Duration = Duration::from_millis(20);

/// A thread that was told to stop.
pub(super) struct Slot {
    thread: AtomicI32,
    state: AtomicU32,
    /// Where it was interrupted.
    address: AtomicUsize,
}

impl Slot {
    pub(super) fn thread(&self) -> c_int {
        self.thread.load(Ordering::Acquire)
    }

    pub(super) fn state(&self) -> u32 {
        self.state.load(Ordering::Acquire)
    }

    pub(super) fn address(&self) -> usize {
        self.address.load(Ordering::Acquire)
    }

    /// Changes the state, if it is `from`.
    pub(super) fn change(&self, from: u32, to: u32) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Lets the thread go on, or its signal come to nothing.
    pub(super) fn release(&self) {
        let before = self.state.swap(RELEASED, Ordering::AcqRel);
        if matches!(before, STOPPED | HELD) {
            raw::wake(&self.state);
        }
    }

    /// Waits a little for a change of the state.
    pub(super) fn wait(&self, while_it_is: u32, at_most: Duration) {
        raw::wait(&self.state, while_it_is, at_most);
    }
}

/// The threads of one attempt that were told to stop. Slots are used once.
pub(super) struct Roll {
    slots: Box<[Slot]>,
    used: AtomicUsize,
    /// When threads that are not [`HELD`] go on by themselves: were this session itself stopped (a debugger, a
    /// machine that sleeps), the program must go on.
    pub(super) deadline: Duration,
}

impl Roll {
    /// Room for so many threads, for good.
    pub(super) fn new(capacity: usize, deadline: Duration) -> &'static Self {
        let slot = || Slot {
            thread: AtomicI32::new(0),
            state: AtomicU32::new(0),
            address: AtomicUsize::new(0),
        };
        Box::leak(Box::new(Self {
            slots: (0..capacity).map(|_| slot()).collect(),
            used: AtomicUsize::new(0),
            deadline,
        }))
    }

    /// The slots in use.
    pub(super) fn slots(&self) -> &[Slot] {
        let used = self.used.load(Ordering::Acquire);
        self.slots.get(..used).unwrap_or_default()
    }

    /// The slot of a thread.
    pub(super) fn of(&self, thread: c_int) -> Option<&Slot> {
        self.slots().iter().find(|slot| slot.thread() == thread)
    }

    /// Tells a thread to stop.
    pub(super) fn request(&self, thread: c_int, signal: c_int) -> Result<(), Failure> {
        let used = self.used.load(Ordering::Acquire);
        let slot = self.slots.get(used).ok_or(Failure::TooMany)?;
        slot.thread.store(thread, Ordering::Release);
        slot.state.store(REQUESTED, Ordering::Release);
        // The thread finds its slot as soon as it has the signal.
        self.used.store(used.saturating_add(1), Ordering::Release);
        match raw::signal_thread(thread, signal) {
            Ok(()) => Ok(()),
            Err(error) => {
                slot.release();
                // It ended meanwhile.
                if error == libc::ESRCH {
                    return Ok(());
                }
                Err(Failure::System("cannot signal a thread", error))
            }
        }
    }
}

/// The roll that the handler looks at.
static CURRENT: AtomicPtr<Roll> = AtomicPtr::new(ptr::null_mut());

/// What the signal does. It takes no lock, allocates nothing, and keeps `errno`.
extern "C" fn stop_here(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: rolls are never given back.
    let Some(roll) = (unsafe { CURRENT.load(Ordering::SeqCst).as_ref() }) else {
        return;
    };
    let me = raw::thread_id();
    let is_mine = |slot: &&Slot| slot.thread() == me && slot.state() == REQUESTED;
    let Some(slot) = roll.slots().iter().find(is_mine) else {
        return;
    };
    let errno = raw::errno();
    // SAFETY: the third argument of a handler that was installed with SA_SIGINFO.
    let registers = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let address = registers.get(libc::REG_RIP as usize).copied();
    slot.address
        .store(address.unwrap_or_default() as usize, Ordering::Release);
    if slot.change(REQUESTED, STOPPED) {
        raw::wake(&slot.state);
        loop {
            let state = slot.state();
            match state {
                STOPPED if raw::now() >= roll.deadline => {
                    slot.change(STOPPED, GONE);
                }
                STOPPED | HELD => slot.wait(state, LOOK),
                _ => break,
            }
        }
    }
    raw::set_errno(errno);
}

/// The handler, while it is installed.
pub(super) struct Handler {
    pub(super) signal: c_int,
    before: libc::sigaction,
}

impl Handler {
    /// Installs the handler for a signal that nobody uses.
    ///
    /// From SIGRTMIN + 6 on: libraries take the first ones, and a few of the last are missing under emulators.
    /// Its action must be the default one. What this thread had `blocked` is likely to be blocked by others, too,
    /// and one of them may wait for it: those are looked at last.
    pub(super) fn install(blocked: &libc::sigset_t) -> Result<Self, Failure> {
        let candidates = libc::SIGRTMIN().saturating_add(6)..=libc::SIGRTMAX();
        // SAFETY: a set that was filled in.
        let is_blocked = |signal| unsafe { libc::sigismember(blocked, signal) } == 1;
        let open = candidates.clone().filter(|signal| !is_blocked(*signal));
        let others = candidates.filter(|signal| is_blocked(*signal));
        let mut free = open
            .chain(others)
            .filter_map(|signal| Some((signal, action(signal)?)))
            .filter(|(_, action)| action.sa_sigaction == libc::SIG_DFL);
        let (signal, before) = free.next().ok_or(Failure::NoSignal)?;
        // SAFETY: a zeroed action is a valid one.
        let mut ours: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ours.sa_sigaction = stop_here as *const () as usize;
        // On the alternate stack, where a thread has one: its own may be tiny (goroutines that call C).
        // System calls that can go on after a signal do.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        // SAFETY: no other handler runs in a stopped thread: the set is initialised by the call, the action
        // valid.
        let installed = unsafe {
            libc::sigfillset(&raw mut ours.sa_mask);
            libc::sigaction(signal, &raw const ours, ptr::null_mut())
        };
        if installed != 0 {
            return Err(Failure::System("cannot handle a signal", raw::errno()));
        }
        Ok(Self { signal, before })
    }

    /// Lets the handler use `roll`.
    pub(super) fn with(&self, roll: &'static Roll) -> Handled<'_> {
        CURRENT.store(ptr::from_ref(roll).cast_mut(), Ordering::SeqCst);
        Handled {
            roll,
            signal: self.signal,
            _handler: self,
        }
    }
}

impl Drop for Handler {
    /// Puts the action back that was there before.
    ///
    /// A signal may still be pending, where a thread blocked it just before it was sent. With the default action
    /// it would end the process one day. Ignoring a signal discards all that are pending (`sigaction(2)`), so
    /// that comes in between. A thread that is on its way into the handler finds its slot released.
    fn drop(&mut self) {
        let ours = action(self.signal)
            .is_some_and(|now| now.sa_sigaction == stop_here as *const () as usize);
        if !ours {
            return; // The program took it over meanwhile.
        }
        // SAFETY: a zeroed action is a valid one.
        let mut ignore: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        ignore.sa_sigaction = libc::SIG_IGN;
        // SAFETY: both actions are valid, the second is the one that was there.
        unsafe {
            libc::sigaction(self.signal, &raw const ignore, ptr::null_mut());
            libc::sigaction(self.signal, &raw const self.before, ptr::null_mut());
        }
    }
}

/// A roll that the handler looks at. All its threads are released when it is dropped.
pub(super) struct Handled<'h> {
    pub(super) roll: &'static Roll,
    pub(super) signal: c_int,
    _handler: &'h Handler,
}

impl Drop for Handled<'_> {
    fn drop(&mut self) {
        self.roll.slots().iter().for_each(Slot::release);
        CURRENT.store(ptr::null_mut(), Ordering::SeqCst);
    }
}

/// The action of a signal now.
fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::zeroed();
    // SAFETY: asks only; the out-pointer is valid.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: it was filled in; a zeroed one is valid, too.
    (asked == 0).then(|| unsafe { now.assume_init() })
}
