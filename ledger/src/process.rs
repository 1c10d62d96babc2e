//! What a process is, and whether one that said so still exists.

use std::ffi::CStr;
use std::io::Write;
use std::os::fd::AsFd;

use crate::sys;
use crate::view::Alive;

/// The effective user ID.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() }
}

/// A process as it can be told from all others that this machine has or had since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Who {
    /// PID in its own namespace.
    pub(crate) pid: u32,
    /// Field 22 of `/proc/PID/stat`, 0 when unknown.
    pub(crate) start_time: u64,
    /// Inode of its PID namespace, 0 when unknown.
    pub(crate) pid_namespace: u64,
    /// Inode of its time namespace (start times are relative to it), 0 when there is none.
    pub(crate) time_namespace: u64,
}

impl Who {
    /// The calling process. Parts that `/proc` does not tell are 0.
    pub(crate) fn this() -> Self {
        let pid = std::process::id();
        let inode =
            |path: &CStr| sys::status_at(None, path, true).map_or(0, |status| status.file.inode());
        // A `/proc` of another PID namespace would speak of another process.
        let start_time = if proc_is_ours() {
            stat_of(pid).map_or(0, |stat| stat.start_time)
        } else {
            0
        };
        Self {
            pid,
            start_time,
            pid_namespace: inode(c"/proc/self/ns/pid"),
            time_namespace: inode(c"/proc/self/ns/time"),
        }
    }

    /// Whether the process exists, as far as that can be said: it may be in another namespace, or its
    /// start time may be unknown.
    ///
    /// An exec keeps PID and start time, so the new image stands for the old.
    pub(crate) fn alive(&self) -> Alive {
        let here = Self::this();
        if self.pid_namespace == 0
            || self.start_time == 0
            || self.pid_namespace != here.pid_namespace
            || self.time_namespace != here.time_namespace
        {
            return Alive::Unknown;
        }
        let Ok(pid) = libc::pid_t::try_from(self.pid) else {
            return Alive::Unknown;
        };
        if sys::no_such_process(pid) {
            return Alive::No;
        }
        // The PID is in use. By the same process? A zombie whose last thread has ended is gone too;
        // one whose leader alone has ended is not.
        match stat_of(self.pid) {
            Some(stat) if here.start_time != 0 => {
                if stat.start_time != self.start_time || stat.zombie && stat.threads <= 1 {
                    Alive::No
                } else {
                    Alive::Yes
                }
            }
            _ => Alive::Unknown,
        }
    }
}

/// Whether `/proc` is that of the caller's PID namespace.
fn proc_is_ours() -> bool {
    let mut target = [0_u8; 16];
    // SAFETY: both pointers are valid, the buffer for its length.
    let length = unsafe {
        libc::readlink(
            c"/proc/self".as_ptr(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    let target = usize::try_from(length)
        .ok()
        .and_then(|n| target.get(..n))
        .unwrap_or_default();
    parse(target) == Some(u64::from(std::process::id()))
}

/// A few fields of `/proc/PID/stat`.
struct Stat {
    zombie: bool,
    threads: u64,
    start_time: u64,
}

/// Reads them without allocating, as this may run below a hook.
fn stat_of(pid: u32) -> Option<Stat> {
    let mut path = [0_u8; 32];
    // One byte stays 0 and ends the string.
    let room = path.split_last_mut().map(|(_, room)| room)?;
    write!(&mut *room, "/proc/{pid}/stat").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = sys::open_at(None, path, libc::O_RDONLY, 0).ok()?;
    let mut text = [0_u8; 1024];
    parse_stat(sys::read_some(file.as_fd(), &mut text).ok()?)
}

fn parse_stat(text: &[u8]) -> Option<Stat> {
    // The name in parentheses may hold anything, parentheses and spaces included.
    let end = text.iter().rposition(|b| *b == b')')?;
    let mut fields = text.get(end.checked_add(2)?..)?.split(|b| *b == b' ');
    let state = fields.next()?; // field 3
    let threads = fields.nth(16)?; // field 20
    let start_time = fields.nth(1)?; // field 22
    Some(Stat {
        zombie: matches!(state, b"Z" | b"X" | b"x"),
        threads: parse(threads)?,
        start_time: parse(start_time)?,
    })
}

fn parse(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_past_a_hostile_name() {
        let text = b"42 (a) Z 1 (b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 7 18 1234 20\n";
        let stat = parse_stat(text).unwrap();
        assert!(!stat.zombie);
        assert_eq!((stat.threads, stat.start_time), (7, 1234));
        assert!(parse_stat(b"").is_none());
        assert!(parse_stat(b"42 (a)").is_none());
        assert!(parse_stat(b"42 (a) S 1 2").is_none());
    }

    #[test]
    fn this_process_lives_and_one_with_another_start_time_does_not() {
        let who = Who::this();
        assert_ne!((who.start_time, who.pid_namespace), (0, 0));
        assert_eq!(who.alive(), Alive::Yes);
        assert_eq!(
            Who {
                start_time: who.start_time + 1,
                ..who
            }
            .alive(),
            Alive::No
        );
        // PIDs end at 2^22.
        assert_eq!(
            Who {
                pid: 1 << 23,
                ..who
            }
            .alive(),
            Alive::No
        );
    }

    #[test]
    fn what_cannot_be_known_is_not_gone() {
        let gone = Who {
            pid: 1 << 23,
            ..Who::this()
        };
        for unknown in [
            Who {
                pid_namespace: gone.pid_namespace + 1,
                ..gone
            },
            Who {
                time_namespace: gone.time_namespace + 1,
                ..gone
            },
            Who {
                pid_namespace: 0,
                ..gone
            },
            Who {
                start_time: 0,
                ..gone
            },
            Who {
                pid: u32::MAX,
                ..gone
            },
        ] {
            assert_eq!(unknown.alive(), Alive::Unknown, "{unknown:?}");
        }
    }

    #[test]
    fn a_zombie_is_gone_before_it_is_waited_for() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let who = loop {
            let stat = stat_of(child.id()).unwrap();
            if stat.zombie {
                break Who {
                    pid: child.id(),
                    start_time: stat.start_time,
                    ..Who::this()
                };
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        assert_eq!(who.alive(), Alive::No);
        child.wait().unwrap();
        assert_eq!(who.alive(), Alive::No);
    }
}
