//! The PID by which the driver knows this process.

use core::sync::atomic::{AtomicU32, Ordering};
use std::path::PathBuf;

use hipflex_kfd::{HostPid, Root, host_pid};
use hipflex_ledger::Member;

use crate::clock::Due;
use crate::environment;
use crate::stderr::say_once;

/// Where a container's host `/proc` is looked for.
const HOST_PROC: &str = "/host/proc";
/// How long it is not looked for again after it was not found, in milliseconds.
const PATIENCE: u64 = 1_000;

/// Finds it once, and keeps it.
pub(crate) struct DriverPid {
    /// 0: not known yet.
    known: AtomicU32,
    /// When to look again.
    next: Due,
}

impl DriverPid {
    pub(crate) const fn new() -> Self {
        Self {
            known: AtomicU32::new(0),
            next: Due::at_once(),
        }
    }

    /// The PID, if it can be known: by this process itself, or because an observer has told it.
    pub(crate) fn get(&self, member: &Member) -> Option<u32> {
        let known = self.known.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let pid = member.host_pid().or_else(|| self.look())?;
        self.known.store(pid, Ordering::Relaxed);
        Some(pid)
    }

    #[cold]
    fn look(&self) -> Option<u32> {
        if !self.next.is_now(PATIENCE) {
            return None;
        }
        let named = environment::var("FH_HOST_PROC_PATH").filter(|path| !path.is_empty());
        let is_named = named.is_some();
        let host_proc = named.map_or_else(|| PathBuf::from(HOST_PROC), PathBuf::from);
        let why = match host_pid(&Root::system(), &host_proc) {
            HostPid::Known(pid) => return Some(pid),
            HostPid::Unknown(why) => why,
        };
        if is_named {
            say_once!(
                "the overhead of this process is not known, in spite of FH_HOST_PROC_PATH: {why}"
            );
        } else {
            tracing::info!("the overhead of this process is not known: {why}");
        }
        None
    }
}
