//! The control socket: what tests tell a running node to do, and ask it.
//!
//! One request a connection, each a line of JSON, answered by a line of JSON:
//! `{"op":"state"}` gives `{"state":{...}}`.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::state::view::NodeView;
use crate::trace::Dump;

/// How long a node may be silent before a request fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a node can be told and asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Fail ALLOC_MEMORY_OF_GPU ioctls.
    FailAllocs(FailAllocs),
    /// Hold allocations of VRAM back.
    HoldAllocs(HoldAllocs),
    /// Let go of what is held back, and hold no more.
    LetGo,
    /// Change how much VRAM of a GPU can be allocated. What is allocated already stays.
    SetVram {
        /// The GPU: 0 is the first.
        gpu: usize,
        /// Bytes.
        bytes: u64,
    },
    /// Give the trace.
    Trace {
        /// Whether to empty it.
        #[serde(default)]
        clear: bool,
    },
    /// Give the state.
    State,
    /// Add a mark to the trace.
    Mark {
        /// What it says.
        text: String,
    },
}

/// Which allocations to fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailAllocs {
    /// The first to fail: 1 is the next one. 0 takes an order back.
    pub nth: u32,
    /// How many to fail from there on. ROCr asks a second time when VRAM is full, so a hipMalloc
    /// fails only when two in a row do.
    #[serde(default = "one")]
    pub count: u32,
    /// What they fail with.
    #[serde(default = "enomem")]
    pub errno: i32,
    /// Whether only VRAM counts: a hipMalloc also allocates memory of other kinds now and then.
    #[serde(default)]
    pub vram_only: bool,
}

/// Which allocations of VRAM to hold back, and when. 20 seconds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldAllocs {
    /// From which size on, in bytes.
    pub from: u64,
    /// Whether the memory is given and counted first, so that the caller only waits for the answer; else
    /// nothing is done yet.
    pub given: bool,
}

fn one() -> u32 {
    1
}

fn enomem() -> i32 {
    Errno::ENOMEM as i32
}

impl FailAllocs {
    /// The nth VRAM allocation from now, once, with ENOMEM.
    pub fn nth_vram(nth: u32) -> Self {
        Self {
            nth,
            count: 1,
            errno: enomem(),
            vram_only: true,
        }
    }

    /// The same, but that many in a row.
    pub fn times(self, count: u32) -> Self {
        Self { count, ..self }
    }
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// It is done.
    Done,
    /// The trace.
    Trace(Dump),
    /// The state.
    State(NodeView),
    /// It cannot be done: why.
    Error(String),
}

/// A node to talk to.
#[derive(Clone, Debug)]
pub struct Control {
    path: PathBuf,
}

impl Control {
    /// The node that listens at this path.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The node that this process runs in.
    pub fn of_this_node() -> Self {
        Self::at(Path::new(crate::node::NODE_DIRECTORY).join(crate::node::CONTROL_SOCKET))
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// When the node does not answer (it is gone), or answers that it cannot.
    pub fn request(&self, request: &Request) -> io::Result<Response> {
        let failed = |what: &str, error: io::Error| {
            let path = self.path.display();
            io::Error::new(
                error.kind(),
                format!("{what} the emulated node at {path}: {error}"),
            )
        };
        let stream = UnixStream::connect(&self.path).map_err(|e| failed("cannot reach", e))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        (&stream)
            .write_all(line.as_bytes())
            .map_err(|e| failed("cannot write to", e))?;
        line.clear();
        BufReader::new(&stream)
            .read_line(&mut line)
            .map_err(|e| failed("no answer from", e))?;
        match serde_json::from_str(&line)? {
            Response::Error(message) => Err(io::Error::other(message)),
            response => Ok(response),
        }
    }

    fn done(&self, request: &Request) -> io::Result<()> {
        match self.request(request)? {
            Response::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Fails allocations.
    ///
    /// # Errors
    /// When the node is gone, or the errno is none.
    pub fn fail_allocs(&self, order: FailAllocs) -> io::Result<()> {
        self.done(&Request::FailAllocs(order))
    }

    /// Holds allocations back.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn hold_allocs(&self, order: HoldAllocs) -> io::Result<()> {
        self.done(&Request::HoldAllocs(order))
    }

    /// Lets go of what is held back.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn let_go(&self) -> io::Result<()> {
        self.done(&Request::LetGo)
    }

    /// Sets how much VRAM of the GPU at `gpu` (0 is the first) can be allocated.
    ///
    /// # Errors
    /// When the node is gone, or has no such GPU.
    pub fn set_vram(&self, gpu: usize, bytes: u64) -> io::Result<()> {
        self.done(&Request::SetVram { gpu, bytes })
    }

    /// Adds a mark to the trace.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn mark(&self, text: &str) -> io::Result<()> {
        self.done(&Request::Mark {
            text: text.to_owned(),
        })
    }

    /// A copy of the trace; with `clear` it starts anew.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn trace(&self, clear: bool) -> io::Result<Dump> {
        match self.request(&Request::Trace { clear })? {
            Response::Trace(dump) => Ok(dump),
            other => Err(unexpected(&other)),
        }
    }

    /// The state of the node.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn state(&self) -> io::Result<NodeView> {
        match self.request(&Request::State)? {
            Response::State(view) => Ok(view),
            other => Err(unexpected(&other)),
        }
    }
}

fn unexpected(response: &Response) -> io::Error {
    io::Error::other(format!(
        "the emulated node gave an answer to another question: {response:?}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_format() {
        let parse = |text| serde_json::from_str::<Request>(text).unwrap();
        assert_eq!(parse(r#"{"op":"state"}"#), Request::State);
        assert_eq!(parse(r#"{"op":"trace"}"#), Request::Trace { clear: false });
        assert_eq!(
            parse(r#"{"op":"fail_allocs","nth":3,"vram_only":true}"#),
            Request::FailAllocs(FailAllocs::nth_vram(3))
        );
        assert_eq!(
            parse(r#"{"op":"hold_allocs","from":4096,"given":true}"#),
            Request::HoldAllocs(HoldAllocs {
                from: 4096,
                given: true
            })
        );
        assert_eq!(parse(r#"{"op":"let_go"}"#), Request::LetGo);
        assert!(serde_json::from_str::<Request>(r#"{"op":"explode"}"#).is_err());
        let text = serde_json::to_string(&Response::Error("no".into())).unwrap();
        assert_eq!(text, r#"{"error":"no"}"#);
        assert_eq!(serde_json::to_string(&Response::Done).unwrap(), r#""done""#);
    }

    #[test]
    fn a_node_that_hangs_up_has_not_answered() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("control.sock");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let hang_up = std::thread::spawn(move || drop(listener.accept().unwrap()));
        assert!(Control::at(&path).state().is_err());
        hang_up.join().unwrap();
    }

    #[test]
    fn a_node_that_is_gone_is_named() {
        let error = Control::at("/nowhere/control.sock")
            .state()
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/control.sock"), "{error}");
    }
}
