//! The programs of a node, and their end.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// How long programs may take to die.
const PATIENCE: Duration = Duration::from_secs(3);

/// Kills every program in a mount namespace, and those that `also` names, until none is left.
/// This process is not touched.
///
/// `namespace` is the inode number of the namespace. Returns those that did not die.
pub(super) fn end(namespace: u64, also: impl Fn() -> Vec<u32>) -> Vec<u32> {
    let since = Instant::now();
    loop {
        let mut programs = inside(namespace);
        programs.extend(also());
        programs.retain(|&pid| pid != std::process::id() && is_alive(pid));
        if programs.is_empty() || since.elapsed() > PATIENCE {
            return programs;
        }
        for pid in programs {
            // One that has ended by itself since is what is wanted.
            let _gone = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes in a mount namespace. Needs the right to look at them.
fn inside(namespace: u64) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| namespace_of(pid) == Some(namespace))
        .collect()
}

/// The mount namespace of a process.
pub(super) fn namespace_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/mnt"))
        .ok()
        .map(|namespace| namespace.st_ino())
}

/// Neither gone nor a zombie.
fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pid = child.id();
        assert_eq!(namespace_of(pid), namespace_of(std::process::id()));
        let nobody_lives_here = 0;
        assert!(end(nobody_lives_here, || vec![pid]).is_empty());
        assert!(!child.wait().unwrap().success());
    }
}
