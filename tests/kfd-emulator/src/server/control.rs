//! The server's end of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use serde_json::Map;

use crate::control::{Request, Response};
use crate::state::FailAllocs;
use crate::trace::{Entry, now_ns};

use super::fuse::MARK;
use super::shared::Shared;

/// Longest request in bytes.
const LONGEST: u64 = 1 << 20;
/// How long a client may take to send its request, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Most clients at a time; others are hung up on.
const MOST: usize = 64;

/// Answers requests, each connection in a thread of its own, until the process ends.
pub fn run(shared: &Arc<Shared>, listener: &UnixListener) {
    let clients = Arc::new(());
    for stream in listener.incoming() {
        // A client that hung up has no use for an answer, and the next one may come.
        let Ok(stream) = stream else { continue };
        // One count is this function's own.
        if Arc::strong_count(&clients) > MOST {
            eprintln!("kfd-emulator: more than {MOST} control clients: one is hung up on");
            continue;
        }
        let (shared, client) = (Arc::clone(shared), Arc::clone(&clients));
        let serve = move || {
            if let Err(error) = answer(&shared, &stream, PATIENCE) {
                eprintln!("kfd-emulator: a control request was not answered: {error}");
            }
            drop(client);
        };
        if let Err(error) = std::thread::Builder::new().spawn(serve) {
            eprintln!("kfd-emulator: no thread for a control client: {error}");
        }
    }
}

fn answer(shared: &Shared, stream: &UnixStream, patience: Duration) -> io::Result<()> {
    let mut line = String::new();
    let input = Timed::new(stream, patience);
    BufReader::new(input.take(LONGEST)).read_line(&mut line)?;
    let response = match serde_json::from_str(&line) {
        Ok(request) => obey(shared, request),
        Err(error) => Response::Error(format!("this is no request: {error}")),
    };
    let mut text = serde_json::to_string(&response)?;
    text.push('\n');
    Timed::new(stream, patience).write_all(text.as_bytes())
}

/// A stream that must be done by a point in time, however little each call moves.
struct Timed<'a> {
    stream: &'a UnixStream,
    end: Instant,
}

impl<'a> Timed<'a> {
    fn new(stream: &'a UnixStream, patience: Duration) -> Self {
        let end = Instant::now() + patience;
        Self { stream, end }
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        Ok(left)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Does what a request asks.
pub fn obey(shared: &Shared, request: Request) -> Response {
    match request {
        Request::FailAllocs(order) => {
            let errno = Errno::from_raw(order.errno);
            if errno == Errno::UnknownErrno {
                return Response::Error(format!("{} is no errno", order.errno));
            }
            shared.driver().fail_allocs = (order.nth > 0 && order.count > 0).then(|| FailAllocs {
                skip: order.nth - 1,
                count: order.count,
                errno,
                vram_only: order.vram_only,
            });
            Response::Done
        }
        Request::HoldAllocs(order) => {
            shared.held.order(Some(order));
            Response::Done
        }
        Request::LetGo => {
            shared.held.order(None);
            Response::Done
        }
        Request::SetVram { gpu, bytes } => {
            let mut driver = shared.driver();
            let gpus = driver.devices.len();
            match driver.devices.get_mut(gpu) {
                Some(device) => {
                    device.vram_limit = bytes;
                    Response::Done
                }
                None => Response::Error(format!("there is no GPU {gpu}: the node has {gpus}")),
            }
        }
        Request::Trace { clear } => Response::Trace(shared.trace.dump(clear)),
        Request::State => Response::State(shared.driver().view()),
        Request::Mark { text } => {
            shared.trace.add(Entry {
                time_ns: now_ns(),
                pid: 0,
                tid: 0,
                device: MARK.to_owned(),
                name: text,
                command: 0,
                args: Map::new(),
                result: 0,
            });
            Response::Done
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::control::{self, Control};
    use crate::state::MemoryFile;
    use crate::state::testing::driver;
    use crate::trace::Trace;

    /// A server, its state, and the directory of its socket.
    fn serve() -> (Arc<Shared>, Control, TempDir) {
        let memory = Arc::new(MemoryFile::create().unwrap());
        let shared = Shared::new(driver().0, memory, Trace::default());
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let served = Arc::clone(&shared);
        std::thread::spawn(move || run(&served, &listener));
        (shared, Control::at(path), directory)
    }

    #[test]
    fn orders_reach_the_state() {
        let (shared, control, _directory) = serve();
        control.set_vram(0, 4096).unwrap();
        assert_eq!(shared.driver().devices[0].vram_limit, 4096);
        assert!(
            control
                .set_vram(1, 4096)
                .unwrap_err()
                .to_string()
                .contains("the node has 1")
        );
        control
            .fail_allocs(control::FailAllocs::nth_vram(3).times(2))
            .unwrap();
        let expected = FailAllocs {
            skip: 2,
            count: 2,
            errno: Errno::ENOMEM,
            vram_only: true,
        };
        assert_eq!(shared.driver().fail_allocs, Some(expected));
        control
            .fail_allocs(control::FailAllocs::nth_vram(0))
            .unwrap();
        assert_eq!(shared.driver().fail_allocs, None);
        let (from, given) = (4096, true);
        control
            .hold_allocs(control::HoldAllocs { from, given })
            .unwrap();
        assert!(shared.held.holds(4096, true));
        control.let_go().unwrap();
        assert!(!shared.held.holds(4096, true));
        let wrong = control::FailAllocs {
            errno: 99_999,
            ..control::FailAllocs::nth_vram(1)
        };
        assert!(control.fail_allocs(wrong).is_err());
        assert_eq!(control.state().unwrap().gpus[0].vram_bytes, 4096);
    }

    #[test]
    fn marks_and_traces() {
        let (_shared, control, _directory) = serve();
        control.mark("here").unwrap();
        let dump = control.trace(true).unwrap();
        assert_eq!(
            (
                dump.entries[0].device.as_str(),
                dump.entries[0].name.as_str()
            ),
            (MARK, "here")
        );
        assert!(control.trace(false).unwrap().entries.is_empty());
    }

    #[test]
    fn a_client_that_is_slow_is_given_up_and_holds_up_no_other() {
        let (shared, control, directory) = serve();
        let silent = UnixStream::connect(directory.path().join("control.sock")).unwrap();
        control.state().unwrap();
        drop(silent);
        // One that sends a byte now and then.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let trickle = std::thread::spawn(move || {
            while (&theirs).write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let since = Instant::now();
        let patience = Duration::from_millis(100);
        answer(&shared, &ours, patience).unwrap_err();
        // One that does not take its answer, which is longer than what a socket holds.
        drop(ours);
        trickle.join().unwrap();
        for _ in 0..1000 {
            control.mark(&"x".repeat(4000)).unwrap();
        }
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"{\"op\":\"trace\"}\n").unwrap();
        answer(&shared, &ours, patience).unwrap_err();
        assert!(since.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn nonsense_is_answered() {
        let (_shared, control, directory) = serve();
        let mut stream = UnixStream::connect(directory.path().join("control.sock")).unwrap();
        stream.write_all(b"hello\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.starts_with(r#"{"error":"#), "{line}");
        control.state().unwrap();
    }
}
