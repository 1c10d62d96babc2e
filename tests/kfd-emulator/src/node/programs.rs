//! The programs of a node, and their end.
//!
//! A program belongs to a node when a mount of the node's FUSE file system is in its mount
//! namespace: the number of that file system is unique on the machine while it lives, every mount
//! namespace that is made inside the node (`unshare -m`, a container) starts with a copy of its
//! mounts, and nothing outside ever gets one, since all mounts of a node are private. This needs no
//! cgroup and no PID namespace, so it works inside containers and changes no program's PID. Merely
//! having a file of the node open, through `/proc/PID/root`, does not make a process a program of
//! it.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// How long programs may take to die.
const PATIENCE: Duration = Duration::from_secs(3);

/// `/proc` shows the PID namespace that this process is in. Without that, every number that is
/// read there means some other process.
///
/// # Errors
/// When it does not, as under `unshare --pid --fork` without `--mount-proc`, or is not mounted.
pub(super) fn check_proc() -> Result<()> {
    let shown = fs::read_link("/proc/self").context("cannot read /proc/self: is /proc mounted?")?;
    ensure!(
        shown == Path::new(&std::process::id().to_string()),
        "/proc is that of another PID namespace (this process is {}, /proc/self says {}); mount a \
         new one first, as `unshare --mount-proc` does",
        std::process::id(),
        shown.display()
    );
    Ok(())
}

/// The number of a file system, as `/proc/PID/mountinfo` writes it: `major:minor`.
pub(super) fn file_system(device: libc::dev_t) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

/// Kills every program of a node until none is left. `file_system` is the number of the node's
/// FUSE file system.
///
/// This process and its ancestors are not touched, wherever they are: the server must outlive the
/// programs, and whoever started it is not one of them.
///
/// Returns those that did not die.
pub(super) fn end(file_system: &str) -> Vec<u32> {
    let spared = this_and_ancestors();
    let since = Instant::now();
    loop {
        let mut found = programs(file_system);
        found.retain(|pid| !spared.contains(pid));
        if found.is_empty() || since.elapsed() > PATIENCE {
            return found;
        }
        for pid in found {
            // One that has ended by itself since is what is wanted.
            let _gone = kill(pid, file_system);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills a process if it is (still) a program of the node. The descriptor stays with the process,
/// so a PID that is used again in between is no danger.
fn kill(pid: u32, file_system: &str) -> io::Result<()> {
    // SAFETY: plain system call.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    let process = unsafe { OwnedFd::from_raw_fd(descriptor as i32) };
    if !Namespaces::default().has(pid, file_system) {
        return Ok(());
    }
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: plain system call; it takes no information about the signal.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            process.as_raw_fd(),
            libc::SIGKILL,
            no_info,
            0,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The programs of a node. Needs the right to look at them.
fn programs(file_system: &str) -> Vec<u32> {
    let mut known = Namespaces::default();
    numbers(Path::new("/proc"))
        .filter(|&pid| known.has(pid, file_system))
        .collect()
}

/// Which mount namespaces have a mount of a file system: processes share them, and each is read
/// once.
#[derive(Default)]
struct Namespaces(HashMap<u64, bool>);

impl Namespaces {
    /// Whether a live thread of the process is in one that has it. Each thread is looked at: the
    /// first one may have ended while others go on, and a thread can have a namespace of its own.
    fn has(&mut self, pid: u32, file_system: &str) -> bool {
        let threads = PathBuf::from(format!("/proc/{pid}/task"));
        numbers(&threads).any(|tid| {
            let thread = threads.join(tid.to_string());
            // An ended thread has no namespace any more: the kernel lets nobody look.
            let Ok(namespace) = fs::metadata(thread.join("ns/mnt")) else {
                return false;
            };
            let mounts = thread.join("mountinfo");
            let look = || fs::read_to_string(mounts).is_ok_and(|text| has(&text, file_system));
            *self.0.entry(namespace.st_ino()).or_insert_with(look)
        })
    }
}

/// Whether a mount table has a mount of a file system.
fn has(mountinfo: &str, file_system: &str) -> bool {
    mountinfo
        .lines()
        .any(|line| line.split(' ').nth(2) == Some(file_system))
}

/// Names in a directory of `/proc` that are numbers.
fn numbers(directory: &Path) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// This process, the one that started it, and so on up to the first of the PID namespace.
fn this_and_ancestors() -> HashSet<u32> {
    let mut found = HashSet::from([1]);
    let mut next = Some(std::process::id());
    while let Some(pid) = next
        && found.insert(pid)
    {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        next = status
            .lines()
            .find_map(|line| line.strip_prefix("PPid:"))
            .and_then(|parent| parent.trim().parse().ok())
            .filter(|&parent| parent != 0);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mounts_of_a_namespace() {
        let text =
            "36 35 0:99 / /dev/kfd rw - fuse kfd-emulator rw\n37 35 0:9 / / rw - tmpfs x rw\n";
        assert!(has(text, "0:99") && has(text, "0:9"));
        assert!(!has(text, "0:999") && !has(text, "36") && !has("", "0:9"));
    }

    #[test]
    fn processes_outside_are_not_touched() {
        let mut outside = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        assert!(end("0:4294967295").is_empty());
        assert!(outside.try_wait().unwrap().is_none());
        kill(outside.id(), "0:4294967295").unwrap();
        assert!(outside.try_wait().unwrap().is_none(), "not a program");
        outside.kill().unwrap();
        outside.wait().unwrap();
    }

    #[test]
    fn who_shares_a_mount_is_a_program_but_not_this_process_nor_its_ancestors() {
        // The file system of /proc is in everybody's namespace here.
        let proc = file_system(fs::metadata("/proc").unwrap().st_dev());
        assert!(programs(&proc).contains(&std::process::id()));
        let spared = this_and_ancestors();
        let parent = std::os::unix::process::parent_id();
        assert!(spared.contains(&1) && spared.contains(&std::process::id()));
        assert!(parent == 0 || spared.contains(&parent));
    }

    #[test]
    fn proc_is_that_of_this_process() {
        check_proc().unwrap();
    }
}
