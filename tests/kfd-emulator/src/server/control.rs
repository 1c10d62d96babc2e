//! The server's end of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use serde_json::Map;

use crate::control::{Request, Response};
use crate::state::FailAllocs;
use crate::trace::{Entry, now_ns};

use super::fuse::MARK;
use super::shared::Shared;

/// Longest request in bytes.
const LONGEST: u64 = 1 << 20;
/// How long a client may take to send its request, since it holds up the others.
const PATIENCE: Duration = Duration::from_secs(2);

/// Answers requests, one after the other, until the process ends.
pub fn run(shared: &Arc<Shared>, listener: &UnixListener) {
    for stream in listener.incoming() {
        // A client that hung up has no use for an answer, and the next one may come.
        if let Ok(stream) = stream
            && let Err(error) = answer(shared, &stream)
        {
            eprintln!("kfd-emulator: a control request was not answered: {error}");
        }
    }
}

fn answer(shared: &Shared, mut stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(LONGEST)).read_line(&mut line)?;
    let response = match serde_json::from_str(&line) {
        Ok(request) => obey(shared, request),
        Err(error) => Response::Error(format!("this is no request: {error}")),
    };
    let mut text = serde_json::to_string(&response)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
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
