//! Ends waits that must not go on.
//!
//! The kernel holds a thread in a FUSE request until the server answers, killed or not, and fuser
//! does not hand FUSE_INTERRUPT on. So this thread looks, every [`LOOK`], whether a waiting thread
//! has a signal to take, and ends its wait with `EINTR`; the runtimes' thunk then waits again. A
//! group stop or a cgroup freeze does not show as a pending signal: against those, each wait ends
//! after [`LONGEST`] anyway.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::state::Waits;

use super::procfs;
use super::shared::Shared;

/// How often waiting threads are looked at: a killed one gives its memory back after that time and
/// what the kernel needs to tear the process down.
const LOOK: Duration = Duration::from_millis(15);
/// How long a wait lasts at most before the caller has to ask again.
const LONGEST: Duration = Duration::from_secs(1);
/// Shortest sleep before a deadline.
const SHORTEST: Duration = Duration::from_micros(200);

/// Watches until the process ends. Sleeps while nobody waits.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut threads = Threads::default();
    loop {
        let mut driver = shared.driver();
        if driver.waits.is_empty() {
            threads.0.clear();
            driver = shared
                .wait_began
                .wait(driver)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let deadline = driver.waits.until_deadline(Instant::now()).unwrap_or(LOOK);
        let nap = deadline.clamp(SHORTEST, LOOK);
        let woken = shared.wait_began.wait_timeout(driver, nap);
        driver = woken.unwrap_or_else(PoisonError::into_inner).0;
        let now = Instant::now();
        if driver.waits.until_deadline(now) == Some(Duration::ZERO) {
            driver.finish_waits(now);
        }
        // The look itself goes without the lock: no client shall wait for /proc.
        threads.adopt(&driver.waits);
        drop(driver);
        threads.look();
        let is_over = |tid: u32, since: Instant| {
            now.duration_since(since) > LONGEST || threads.has_signal(tid)
        };
        let mut driver = shared.driver();
        if driver.waits.iter().any(|w| is_over(w.tid, w.since)) {
            driver.interrupt_waits(now, |w| is_over(w.tid, w.since));
        }
    }
}

/// The threads that wait.
#[derive(Default)]
struct Threads(Vec<Thread>);

struct Thread {
    tid: u32,
    /// Its open `/proc/TID/status`; `None` when it is gone. An open one stays with its thread, so
    /// a TID that is used again is no danger: reading then fails.
    status: Option<File>,
    /// Where in it the signals are.
    signals_at: usize,
    has_signal: bool,
}

impl Thread {
    fn new(tid: u32) -> Self {
        let status = File::open(format!("/proc/{tid}/status")).ok();
        Self {
            tid,
            status,
            signals_at: 0,
            has_signal: false,
        }
    }
}

impl Threads {
    /// Takes threads in that have begun to wait, and lets go of those that no longer do.
    fn adopt(&mut self, waits: &Waits) {
        self.0
            .retain(|thread| waits.iter().any(|w| w.tid == thread.tid));
        for tid in waits.iter().map(|w| w.tid) {
            if !self.0.iter().any(|thread| thread.tid == tid) {
                self.0.push(Thread::new(tid));
            }
        }
    }

    /// Looks which of them have a signal to take, or are gone.
    fn look(&mut self) {
        let mut buffer = [0; 4096];
        for thread in &mut self.0 {
            let length = thread
                .status
                .as_ref()
                .and_then(|s| s.read_at(&mut buffer, 0).ok());
            let text = length
                .and_then(|length| buffer.get(..length))
                .unwrap_or_default();
            let found = procfs::signals_at(text, thread.signals_at);
            thread.signals_at = found.unwrap_or(0);
            let signals = found.and_then(|at| text.get(at..));
            thread.has_signal = signals.is_none_or(procfs::has_signal);
        }
    }

    fn has_signal(&self, tid: u32) -> bool {
        self.0
            .iter()
            .any(|thread| thread.tid == tid && thread.has_signal)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_thread_that_is_gone_counts_as_signalled() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let tid = child.id();
        let mut threads = Threads(vec![Thread::new(tid)]);
        threads.look();
        assert!(!threads.has_signal(tid));
        child.kill().unwrap();
        child.wait().unwrap();
        threads.look();
        assert!(threads.has_signal(tid));
        threads.adopt(&Waits::default());
        assert!(!threads.has_signal(tid));
    }
}
