//! The threads of this process, as `/proc/self/task` shows them. Allocates nothing.

use core::ffi::{CStr, c_int};

use super::Failure;
use crate::raw::Fd;

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// It is on a processor, or waits for one.
    Runs,
    /// It sleeps in the kernel, and will go on at this address.
    Sleeps(usize),
    /// There is no such thread any more.
    Gone,
}

/// The folder of all threads.
pub(super) struct Threads(Fd);

impl Threads {
    pub(super) fn open() -> Result<Self, Failure> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        Fd::open(c"/proc/self/task", flags)
            .map(Self)
            .map_err(|error| Failure::Proc("cannot open /proc/self/task", error))
    }

    /// How many there are, and whether `me` is one of them.
    pub(super) fn count(&self, me: c_int) -> Result<(usize, bool), Failure> {
        let (mut count, mut seen) = (0_usize, false);
        self.for_each(|thread| {
            count = count.saturating_add(1);
            seen |= thread == me;
            Ok(())
        })?;
        Ok((count, seen))
    }

    /// Shows the number of every thread to `visit`, this one's too.
    pub(super) fn for_each(
        &self,
        mut visit: impl FnMut(c_int) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let failed = |error| Failure::Proc("cannot read /proc/self/task", error);
        self.0.rewind().map_err(failed)?;
        let mut buffer = [0; 4096];
        loop {
            let length = self.0.entries(&mut buffer).map_err(failed)?;
            let mut records = match buffer.get(..length) {
                Some(records) if !records.is_empty() => records,
                _ => return Ok(()),
            };
            while let Some((name, rest)) = first_entry(records) {
                if let Some(thread) = number(name) {
                    visit(thread)?;
                }
                records = rest;
            }
        }
    }
}

/// The name in the first `struct linux_dirent64` (`getdents64(2)`: 8 bytes inode, 8 offset, 2 length of the
/// record, 1 type, then the name and a 0), and the records behind it.
fn first_entry(records: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u16::from_ne_bytes(*records.get(16..)?.first_chunk()?);
    let (record, rest) = records.split_at_checked(usize::from(length))?;
    let name = record.get(19..)?.split(|byte| *byte == 0).next()?;
    Some((name, rest))
}

fn number(digits: &[u8]) -> Option<c_int> {
    let number = |number: c_int, digit: &u8| {
        let digit = char::from(*digit).to_digit(10)? as c_int;
        number.checked_mul(10)?.checked_add(digit)
    };
    digits.iter().try_fold(0, number).filter(|n| *n > 0)
}

/// Where a thread is: `/proc/PID/syscall`, `proc_pid_syscall(5)`. It holds `running`, or the number of a system
/// call (-1: sleeps for another reason), then its arguments, and last stack and instruction pointer.
pub(super) fn look_at(thread: c_int) -> Result<At, Failure> {
    const UNREADABLE: &str = "cannot read /proc/self/task/*/syscall";
    let mut buffer = [0; 256];
    let Some(text) = read(thread, b"syscall", &mut buffer, UNREADABLE)? else {
        return Ok(At::Gone);
    };
    if text.starts_with(b"running") {
        return Ok(At::Runs);
    }
    let last = text.trim_ascii().rsplit(|byte| *byte == b' ').next();
    last.and_then(|field| hexadecimal(field.strip_prefix(b"0x")?))
        .map(|address| At::Sleeps(address as usize))
        .ok_or(Failure::Proc(UNREADABLE, libc::EINVAL))
}

/// Signals of a thread, as masks: bit 0 is signal 1.
pub(super) struct Signals {
    blocked: u64,
    pending: u64,
}

impl Signals {
    /// Whether the thread blocks a signal.
    pub(super) fn block(&self, signal: c_int) -> bool {
        is_in(self.blocked, signal)
    }

    /// Whether the thread was sent a signal, and blocks it.
    pub(super) fn keep_pending(&self, signal: c_int) -> bool {
        is_in(self.blocked & self.pending, signal)
    }
}

fn is_in(mask: u64, signal: c_int) -> bool {
    let bit = signal.saturating_sub(1).unsigned_abs();
    mask.checked_shr(bit).is_some_and(|mask| mask & 1 != 0)
}

/// The signals of a thread, if it still is there: `SigBlk` and `SigPnd` in `/proc/PID/status`,
/// `proc_pid_status(5)`.
pub(super) fn signals(thread: c_int) -> Result<Option<Signals>, Failure> {
    const UNREADABLE: &str = "cannot read /proc/self/task/*/status";
    let mut buffer = [0; 4096];
    let Some(text) = read(thread, b"status", &mut buffer, UNREADABLE)? else {
        return Ok(None);
    };
    let mask = |key| {
        text.split(|byte| *byte == b'\n')
            .find_map(|line| line.strip_prefix(key))
            .and_then(|mask| hexadecimal(mask.trim_ascii()))
            .ok_or(Failure::Proc(UNREADABLE, libc::EINVAL))
    };
    Ok(Some(Signals {
        blocked: mask(&b"SigBlk:"[..])?,
        pending: mask(&b"SigPnd:"[..])?,
    }))
}

/// `PF_IO_WORKER` of the kernel's `include/linux/sched.h`.
const PF_IO_WORKER: u64 = 0x10;

/// Whether a thread is one that the kernel made for io_uring: it never runs code of the program. Flags are the
/// seventh field behind the name in brackets in `/proc/PID/stat`, `proc_pid_stat(5)`.
pub(super) fn is_of_kernel(thread: c_int) -> Result<bool, Failure> {
    let mut buffer = [0; 1024];
    let text = read(
        thread,
        b"stat",
        &mut buffer,
        "cannot read /proc/self/task/*/stat",
    )?;
    let behind_name = text.and_then(|text| text.rsplit(|byte| *byte == b')').next());
    let flags = behind_name
        .and_then(|fields| fields.trim_ascii().split(|byte| *byte == b' ').nth(6))
        .and_then(|flags| str::from_utf8(flags).ok()?.parse::<u64>().ok());
    Ok(flags.is_some_and(|flags| flags & PF_IO_WORKER != 0))
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(16)?;
        number.checked_mul(16)?.checked_add(u64::from(digit))
    })
}

/// Reads a file of a thread's folder; nothing if the thread is gone.
fn read<'b>(
    thread: c_int,
    file: &[u8],
    buffer: &'b mut [u8],
    failed: &'static str,
) -> Result<Option<&'b [u8]>, Failure> {
    let mut path = Path::default();
    path.push(b"/proc/self/task/");
    path.push_number(thread.unsigned_abs());
    path.push(b"/");
    path.push(file);
    let path = path
        .as_c_str()
        .ok_or(Failure::Proc(failed, libc::ENAMETOOLONG))?;
    match Fd::open(path, libc::O_RDONLY).and_then(|file| file.read(buffer)) {
        Ok(length) => Ok(Some(buffer.get(..length).unwrap_or_default())),
        Err(libc::ENOENT | libc::ESRCH) => Ok(None),
        Err(error) => Err(Failure::Proc(failed, error)),
    }
}

/// A short path. What does not fit makes it none.
struct Path {
    bytes: [u8; 64],
    length: usize,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            bytes: [0; 64],
            length: 0,
        }
    }
}

impl Path {
    fn push(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if let Some(place) = self.bytes.get_mut(self.length) {
                *place = *byte;
            }
            self.length = self.length.saturating_add(1);
        }
    }

    fn push_number(&mut self, number: u32) {
        if let Some(tens) = number.checked_div(10).filter(|tens| *tens != 0) {
            self.push_number(tens);
        }
        self.push(&[b'0'.wrapping_add((number % 10) as u8)]);
    }

    fn as_c_str(&self) -> Option<&CStr> {
        let with_end = self.bytes.get(..self.length.checked_add(1)?)?;
        CStr::from_bytes_with_nul(with_end).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};
    use std::thread;

    use super::*;
    use crate::raw;

    #[test]
    fn paths_are_made_and_too_long_ones_are_none() {
        let mut path = Path::default();
        path.push(b"/task/");
        path.push_number(4_294_967_295);
        path.push(b"/");
        path.push_number(0);
        assert_eq!(path.as_c_str(), Some(c"/task/4294967295/0"));
        path.push(&[b'x'; 64]);
        assert_eq!(path.as_c_str(), None);
    }

    #[test]
    fn numbers_are_read_and_nonsense_is_not() {
        assert_eq!(number(b"1234"), Some(1234));
        for nonsense in [&b""[..], b".", b"..", b"12x", b"99999999999", b"0"] {
            assert_eq!(number(nonsense), None, "{nonsense:?}");
        }
        assert_eq!(hexadecimal(b"7fFf"), Some(0x7fff));
        for nonsense in [&b""[..], b"0x1", b"11111111111111111"] {
            assert_eq!(hexadecimal(nonsense), None, "{nonsense:?}");
        }
    }

    #[test]
    fn threads_are_seen_asleep_awake_and_gone() {
        let (say, hear) = mpsc::channel();
        let (end, wait) = mpsc::channel::<()>();
        let said = say.clone();
        let sleeper = thread::spawn(move || {
            said.send(raw::thread_id()).unwrap();
            let _ = wait.recv();
        });
        let asleep = hear.recv().unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let runner = thread::spawn(move || {
            say.send(raw::thread_id()).unwrap();
            while !is_done.load(Ordering::Relaxed) {
                core::hint::spin_loop();
            }
        });
        let awake = hear.recv().unwrap();
        until(
            asleep,
            |at| matches!(at, At::Sleeps(address) if address != 0),
        );
        until(awake, |at| at == At::Runs);
        let threads = Threads::open().unwrap();
        // The folder is read from its start each time.
        for _ in 0..2 {
            let mut seen = Vec::new();
            threads
                .for_each(|thread| {
                    seen.push(thread);
                    Ok(())
                })
                .unwrap();
            for thread in [asleep, awake, raw::thread_id()] {
                assert!(seen.contains(&thread), "{thread}: {seen:?}");
            }
        }
        drop(end);
        sleeper.join().unwrap();
        until(asleep, |at| at == At::Gone);
        done.store(true, Ordering::Relaxed);
        runner.join().unwrap();
    }

    /// Waits until a thread is where it is expected. A thread that sleeps for good is seen there sooner or later.
    fn until(thread: c_int, expected: impl Fn(At) -> bool) {
        while !expected(look_at(thread).unwrap()) {
            thread::yield_now();
        }
    }

    #[test]
    fn blocked_signals_are_seen() {
        let blocks = |signal| {
            let signals = signals(raw::thread_id()).unwrap().unwrap();
            (signals.block(signal), signals.keep_pending(signal))
        };
        thread::spawn(move || {
            assert_eq!(blocks(libc::SIGUSR1), (false, false));
            let _quiet = super::super::Quiet::begin();
            assert_eq!(blocks(libc::SIGUSR1), (true, false));
            assert_eq!(blocks(64), (true, false));
            raw::signal_thread(raw::thread_id(), libc::SIGURG).unwrap();
            assert_eq!(blocks(libc::SIGURG), (true, true));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn threads_of_the_program_are_not_the_kernel_s() {
        assert_eq!(is_of_kernel(raw::thread_id()), Ok(false));
    }
}
