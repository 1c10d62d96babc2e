//! What `/proc` tells about the threads that call.

use std::fs;
use std::path::Path;

/// Bit of SIGKILL in a signal mask.
const SIGKILL: u64 = 1 << 8;

/// A field of `/proc/TID/status`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// The thread group of a thread; the thread itself when it is gone.
pub fn thread_group(tid: u32) -> u32 {
    fs::read_to_string(format!("/proc/{tid}/status"))
        .ok()
        .and_then(|status| field(&status, "Tgid")?.parse().ok())
        .unwrap_or(tid)
}

/// Whether a thread belongs to a thread group. One look-up, no parsing: this is on the path of
/// every ioctl.
pub fn is_thread_of(pid: u32, tid: u32) -> bool {
    pid == tid || Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

/// When a process started, in clock ticks since boot; 0 when it is gone.
pub fn start_time(pid: u32) -> u64 {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| parse_start_time(&stat))
        .unwrap_or(0)
}

/// Field 22; the fields are counted from behind the command, which may hold anything.
fn parse_start_time(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

/// The first of the four lines of `/proc/TID/status` that tell about signals.
const SIGNALS: &[u8] = b"SigPnd:";

/// Where the lines about signals are in the text of `/proc/TID/status`. They seldom move (the
/// numbers before them have a fixed width), so `hint`, where they were last, is tried first.
pub fn signals_at(status: &[u8], hint: usize) -> Option<usize> {
    let is_at = |at: usize| {
        status
            .get(at..)
            .is_some_and(|text| text.starts_with(SIGNALS))
    };
    if is_at(hint) {
        Some(hint)
    } else {
        (0..status.len()).find(|&at| is_at(at))
    }
}

/// Whether a thread would take a signal if it were not held in an ioctl: SIGKILL (also another
/// thread's exit_group), or one that is neither blocked nor ignored.
///
/// `signals` is the text of `/proc/TID/status` from [`signals_at`] on.
pub fn has_signal(signals: &[u8]) -> bool {
    // The kernel writes these four lines one after the other (task_sig of fs/proc/array.c).
    let mut masks = signals.split(|&byte| byte == b'\n').map(|line| {
        let digits = line
            .rsplit(|&byte| byte == b'\t')
            .next()
            .unwrap_or_default();
        let value = |digit: u8| u64::from(char::from(digit).to_digit(16).unwrap_or(0));
        digits
            .iter()
            .fold(0_u64, |mask, &digit| mask << 4 | value(digit))
    });
    let mut next = || masks.next().unwrap_or(0);
    let (own, shared, blocked, ignored) = (next(), next(), next(), next());
    let pending = own | shared;
    pending & SIGKILL != 0 || pending & !blocked & !ignored != 0
}

/// Bytes of system memory.
pub fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let kib: u64 = field(&text, "MemTotal")?
        .strip_suffix("kB")?
        .trim()
        .parse()
        .ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_and_process() {
        let pid = std::process::id();
        let tid = std::thread::spawn(|| nix::unistd::gettid().as_raw() as u32);
        let (tid, inside) = (nix::unistd::gettid().as_raw() as u32, tid);
        assert_eq!(thread_group(tid), pid);
        assert!(is_thread_of(pid, tid));
        assert!(!is_thread_of(1, tid));
        assert!(start_time(pid) > 0);
        assert!(memory_bytes().unwrap() > 1 << 20);
        assert_ne!(inside.join().unwrap(), tid);
    }

    #[test]
    fn a_command_may_look_like_anything() {
        let numbers: Vec<String> = (3..60).map(|n| n.to_string()).collect();
        let stat = format!("12 (a) b) S {}", numbers[1..].join(" "));
        assert_eq!(parse_start_time(&stat), Some(22));
        assert_eq!(parse_start_time("12 (a"), None);
    }

    #[test]
    fn signals_that_would_be_taken() {
        let taken = |pnd: u64, shd: u64, blk: u64, ign: u64| {
            let status = format!(
                "Name:\tx\nSigQ:\t0/9\nSigPnd:\t{pnd:016x}\nShdPnd:\t{shd:016x}\n\
                 SigBlk:\t{blk:016x}\nSigIgn:\t{ign:016x}\nSigCgt:\t0\n"
            );
            let at = signals_at(status.as_bytes(), 0).unwrap();
            assert_eq!(signals_at(status.as_bytes(), at), Some(at));
            has_signal(&status.as_bytes()[at..])
        };
        assert!(!taken(0, 0, 0, 0));
        assert!(taken(0, 1 << 14, 0, 0), "SIGTERM to the process");
        assert!(taken(1 << 63, 0, 0, 0), "a signal of its own");
        assert!(!taken(0, 1 << 14, 1 << 14, 0), "blocked");
        assert!(!taken(0, 1 << 16, 0, 1 << 16), "ignored");
        assert!(taken(SIGKILL, 0, u64::MAX, u64::MAX));
        assert_eq!(signals_at(b"Name:\tx\n", 3), None);
    }
}
