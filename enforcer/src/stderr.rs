//! Lines on the program's stderr that can neither block nor kill it.
//!
//! The program's stderr may be a pipe that nobody empties, or one whose reader is gone. A line of ours
//! is then dropped: the program must go on as if the library were not there.

use std::fmt;
use std::mem::MaybeUninit;

use crate::line::Line;
use crate::signals::{uncancelled, without_write_signals};

/// Writes `hipflex: ` and the text to stderr as one line, if that is possible without waiting.
#[cold]
pub(crate) fn say_line(text: fmt::Arguments<'_>) {
    Line::write(format_args!("hipflex: {text}"), &mut |bytes| {
        write_without_waiting(libc::STDERR_FILENO, bytes);
    });
}

/// Formats a line and writes it to stderr, without waiting and without allocating.
macro_rules! say {
    ($($text:tt)*) => { $crate::stderr::say_line(::core::format_args!($($text)*)) };
}
pub(crate) use say;

/// As [`say!`], at its first use in a process (and those that it forks after).
macro_rules! say_once {
    ($($text:tt)*) => {{
        static SAID: ::core::sync::atomic::AtomicBool = ::core::sync::atomic::AtomicBool::new(false);
        if !SAID.swap(true, ::core::sync::atomic::Ordering::Relaxed) {
            $crate::stderr::say!($($text)*);
        }
    }};
}
pub(crate) use say_once;

/// Writes `bytes` with one call, or not at all. `errno` is left as it was, and no signal is raised.
pub(crate) fn write_without_waiting(fd: libc::c_int, bytes: &[u8]) {
    let _errno = Errno::keep();
    uncancelled(|| without_write_signals(|| write_at_once(fd, bytes)));
}

fn write_at_once(fd: libc::c_int, bytes: &[u8]) {
    if is_regular_file(fd) {
        write(fd, bytes);
        return;
    }
    let part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: `part` describes `bytes`, which outlives the call; the kernel only reads it.
    // The offset -1 means "where the file stands", as write does.
    let written = unsafe { libc::pwritev2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) };
    // Pipes take RWF_NOWAIT since Linux 6.5, terminals not at all.
    if written < 0
        && [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS, libc::ESPIPE].contains(&Errno::now())
        && has_room(fd)
    {
        write(fd, bytes);
    }
}

fn write(fd: libc::c_int, bytes: &[u8]) {
    // SAFETY: the pointer and the length are those of one live slice. A line that cannot be written is
    // dropped.
    let _ = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
}

fn is_regular_file(fd: libc::c_int) -> bool {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat writes a whole `stat` when it returns 0, and only then is it read.
    unsafe {
        libc::fstat(fd, stat.as_mut_ptr()) == 0
            && stat.assume_init_ref().st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Whether a write of at most `PIPE_BUF` bytes would not wait, as far as can be known beforehand.
fn has_room(fd: libc::c_int) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one pollfd, which lives across the call; a timeout of 0 does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents == libc::POLLOUT }
}

/// Puts `errno` back when dropped: programs may read it after a HIP call.
pub(crate) struct Errno(libc::c_int);

impl Errno {
    /// Remembers the present value.
    pub(crate) fn keep() -> Self {
        Self(Self::now())
    }

    fn now() -> libc::c_int {
        // SAFETY: the address of this thread's errno is always valid.
        unsafe { *libc::__errno_location() }
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as in `now`.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{self, Read, Seek, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_pipe_with_room_gets_the_line() {
        let (mut reader, writer) = io::pipe().unwrap();
        write_without_waiting(writer.as_raw_fd(), b"a line\n");
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a line\n");
    }

    #[test]
    fn a_full_pipe_does_not_block_and_its_flags_do_not_change() {
        let (mut reader, mut writer) = io::pipe().unwrap();
        let fd = writer.as_raw_fd();
        // SAFETY: plain fcntl calls on a descriptor that is ours.
        let size = unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, 4096) };
        // SAFETY: as above.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
        let fill = vec![b'x'; usize::try_from(size).unwrap()];
        writer.write_all(&fill).unwrap();
        write_without_waiting(fd, b"dropped\n");
        // SAFETY: as above.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFL) }, flags);
        drop(writer);
        let mut text = Vec::new();
        reader.read_to_end(&mut text).unwrap();
        assert_eq!(text, fill);
    }

    #[test]
    fn a_pipe_without_a_reader_does_not_signal() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        // Rust programs ignore SIGPIPE; a C program does not. The default would end this process.
        // SAFETY: SIGPIPE's disposition is set to one of the two standard ones, here and back below.
        let before = unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        write_without_waiting(writer.as_raw_fd(), b"nobody reads this\n");
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGPIPE, before) };
    }

    #[test]
    fn a_file_gets_the_line_and_errno_survives() {
        let mut file: File = tempfile::tempfile().unwrap();
        // SAFETY: this thread's errno.
        unsafe { *libc::__errno_location() = libc::EXDEV };
        write_without_waiting(file.as_raw_fd(), b"a line\n");
        write_without_waiting(-1, b"no such descriptor\n");
        assert_eq!(Errno::now(), libc::EXDEV);
        file.rewind().unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a line\n");
    }
}
