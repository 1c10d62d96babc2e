//! Ends waits that must not go on.
//!
//! The kernel holds a thread in a FUSE request until the server answers, killed or not, and fuser
//! does not hand FUSE_INTERRUPT on. So this thread looks, every [`LOOK`], whether a waiting thread
//! has a signal to take, and ends its wait with `EINTR`; the runtimes' thunk then waits again. A
//! group stop or a cgroup freeze does not show as a pending signal: against those, each wait ends
//! after [`LONGEST`] anyway.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::procfs;
use super::shared::Shared;

/// How often waiting threads are looked at: a killed one gives its memory back after that time and
/// what the kernel needs to tear the process down.
const LOOK: Duration = Duration::from_millis(10);
/// How long a wait lasts at most before the caller has to ask again.
const LONGEST: Duration = Duration::from_secs(1);
/// Shortest sleep before a deadline.
const SHORTEST: Duration = Duration::from_micros(200);

/// Watches until the process ends. Sleeps while nobody waits.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut threads = Threads::default();
    loop {
        let mut driver = shared.driver();
        if driver.waits.iter().next().is_none() {
            threads.0.clear();
            driver = shared
                .wait_began
                .wait(driver)
                .unwrap_or_else(PoisonError::into_inner);
        }
        let deadline = driver.waits.until_deadline(Instant::now()).unwrap_or(LOOK);
        let nap = deadline.clamp(SHORTEST, LOOK);
        drop(shared.wait_began.wait_timeout(driver, nap));

        let mut driver = shared.driver();
        driver.finish_waits(Instant::now());
        let waiting: Vec<u32> = driver.waits.iter().map(|w| w.tid).collect();
        drop(driver);
        let signalled = threads.signalled(&waiting);
        let now = Instant::now();
        shared.driver().interrupt_waits(now, |waiter| {
            signalled.contains(&waiter.tid) || now.duration_since(waiter.since) > LONGEST
        });
    }
}

/// The open `/proc/TID/status` of threads that wait. An open one stays with its thread, so a TID
/// that is used again is no danger: reading then fails.
#[derive(Default)]
struct Threads(HashMap<u32, File>);

impl Threads {
    /// Those of the threads that are gone or have a signal to take.
    fn signalled(&mut self, waiting: &[u32]) -> Vec<u32> {
        self.0.retain(|tid, _| waiting.contains(tid));
        let mut found = Vec::new();
        for &tid in waiting {
            if !self.0.contains_key(&tid)
                && let Ok(file) = File::open(format!("/proc/{tid}/status"))
            {
                self.0.insert(tid, file);
            }
            let status = self.0.get(&tid).and_then(read);
            if status.is_none_or(|status| procfs::has_signal(&status)) {
                self.0.remove(&tid);
                found.push(tid);
            }
        }
        found
    }
}

fn read(file: &File) -> Option<String> {
    let mut buffer = [0; 4096];
    let length = file
        .read_at(&mut buffer, 0)
        .ok()
        .filter(|&length| length > 0)?;
    Some(String::from_utf8_lossy(buffer.get(..length)?).into_owned())
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
        let mut threads = Threads::default();
        assert!(threads.signalled(&[child.id()]).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(threads.signalled(&[child.id()]), [child.id()]);
        assert!(threads.0.is_empty());
    }
}
