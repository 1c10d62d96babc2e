//! Under which PID the driver lists this process.
//!
//! amdkfd names the directories of `/sys/class/kfd/kfd/proc` by the PIDs of the initial PID namespace
//! (`kfd_create_process_sysfs` in `drivers/gpu/drm/amd/amdkfd/kfd_process.c`), whoever reads them. What
//! `getpid` says inside a container is another number, and may well be the one under which the driver
//! lists *another* process: it is never taken there.
//!
//! The link `self` of a mounted `/proc` is the caller's PID as the PID namespace of that mount counts
//! (`proc_self_get_link` in `fs/proc/self.c`). In the host's `/proc` it is thus the number wanted, by the
//! kernel's own word: nothing is searched for, and nothing can be mistaken for this process. What
//! remains is to make sure that the mount is the host's.

mod procfs;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::root::Root;
use procfs::{Myself, Origin, Procfs};

/// The PID of this process in the initial PID namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPid {
    /// This one, as `process_vram` wants it.
    Known(u32),
    /// It cannot be said for sure. The text says why and, where something helps, what.
    Unknown(String),
}

/// Finds the PID under which the driver lists the calling process.
///
/// `host_proc` is where the host's `/proc` may be mounted; it is looked at only if this process turns out
/// not to be in the initial PID namespace, or its own `/proc` cannot tell. A child by `fork` has another PID
/// and must ask anew.
pub fn host_pid(root: &Root, host_proc: &Path) -> HostPid {
    find(std::process::id(), &root.path("proc"), host_proc)
        .map_or_else(HostPid::Unknown, HostPid::Known)
}

/// `inner` is what `getpid` says.
fn find(inner: u32, own_proc: &Path, host_proc: &Path) -> Result<u32, String> {
    let own = Procfs::at(own_proc);
    let myself = own.myself();
    let namespace = match &myself {
        Ok(me) if me.is_of_the_host() => return the_same(inner, me, own),
        // A PID namespace was made, but no `/proc` mounted for it: this one is of an outer namespace.
        Ok(me) if me.pid != inner => match seen_from(own, inner, me) {
            Ok(pid) => return Ok(pid),
            Err(_) => Some(me.namespace),
        },
        Ok(me) => Some(me.namespace),
        Err(_) => None,
    };
    let host = Procfs::at(host_proc);
    let lacking = || match &myself {
        Ok(_) => format!(
            "this process is in a PID namespace of its own (a container), where it does not see the PID that \
             the driver knows; mount the host's /proc at {host} (docker: -v /proc:{host}:ro)"
        ),
        Err(why) => format!("which PID namespace this process is in is not known: {why}"),
    };
    if host.is_missing() {
        return Err(lacking());
    }
    let me = host
        .myself()
        .map_err(|why| format!("{}. What is there does not do: {why}", lacking()))?;
    if namespace.is_some_and(|known| known != me.namespace) {
        return Err(format!(
            "{host} takes this process for one of another PID namespace than {own} does: it is no /proc of \
             this system"
        ));
    }
    if me.is_of_the_host() {
        return the_same(inner, &me, host);
    }
    seen_from(host, inner, &me)
}

/// The PID of a process in the initial namespace: there is but one number.
fn the_same(inner: u32, me: &Myself, proc: Procfs<'_>) -> Result<u32, String> {
    if me.pid == inner {
        return Ok(inner);
    }
    Err(format!(
        "this process has PID {inner}, but {proc} says {}: it is no /proc of this system",
        me.pid
    ))
}

/// The PID of a process in a namespace of its own, as a `/proc` from outside of it shows it.
fn seen_from(proc: Procfs<'_>, inner: u32, me: &Myself) -> Result<u32, String> {
    // From the namespace of the mount to that of the process, outermost first.
    let numbers = proc.numbers_of_myself()?;
    let (first, last) = (numbers.first(), numbers.last());
    if numbers.len() == 1 {
        return Err(format!(
            "{proc} is the /proc of this process's own PID namespace; mount the host's there instead"
        ));
    }
    if first != Some(&me.pid) || last != Some(&inner) {
        return Err(format!(
            "this process has PID {inner}, but {proc} says {} and {numbers:?}: it is no /proc of this system",
            me.pid
        ));
    }
    match proc.origin() {
        Origin::Host => Ok(me.pid),
        Origin::Nested => Err(format!(
            "{proc} is not the host's /proc, but that of a PID namespace between this process's and the \
             host's; mount the host's there instead"
        )),
        Origin::Untold(why) => Err(format!(
            "whether {proc} is the host's /proc cannot be told: {why}"
        )),
    }
}
