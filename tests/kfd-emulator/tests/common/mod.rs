//! What the tests of a running node share.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kfd_emulator::Node;
use kfd_emulator::node::Builder;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Returns from the test when this machine cannot run nodes, and says so.
#[macro_export]
macro_rules! require_node {
    () => {
        if let Some(reason) = kfd_emulator::node::missing() {
            $crate::common::skip(&reason);
            return;
        }
    };
}

/// Starts a node, or says that this machine cannot and returns from the test.
#[macro_export]
macro_rules! start_or_skip {
    ($builder:expr) => {{
        $crate::require_node!();
        $crate::common::start($builder)
    }};
}

/// Says that a test did not run, past the test runner's capture: nobody shall take it for passed.
pub(crate) fn skip(reason: &str) {
    let test = std::thread::current();
    let text = format!("SKIPPED {}: {reason}\n", test.name().unwrap_or_default());
    // SAFETY: the text is readable for its length.
    let written = unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    assert_eq!(written, text.len() as isize, "standard error takes no text");
}

pub(crate) fn start(builder: Builder) -> Node {
    builder
        .binary(env!("CARGO_BIN_EXE_kfd-emulator"))
        .start()
        .unwrap()
}

/// A process in a node that does what it is told. It is killed when this is dropped.
pub(crate) struct Client {
    pub(crate) process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    /// A client in that node, with its devices open.
    pub(crate) fn open(node: &Node) -> Self {
        let mut client = Self::spawn(node.command(env!("CARGO_BIN_EXE_kfd-client")));
        client.ok("open");
        client
    }

    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            input,
            output,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    pub(crate) fn answer(&mut self) -> Result<String, i32> {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let line = line.trim_end();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            ("err", errno) => Err(errno.parse().unwrap()),
            _ => panic!("the client said {line:?}"),
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> Result<String, i32> {
        self.send(command);
        self.answer()
    }

    /// Asks what must succeed.
    pub(crate) fn ok(&mut self, command: &str) -> String {
        self.ask(command)
            .unwrap_or_else(|errno| panic!("{command}: errno {errno}"))
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // It may have been killed by the test itself.
        let _killed = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Bytes of VRAM that a process holds, as sysfs in the node shows it; `None` when it is not there.
pub(crate) fn vram_of(node: &Node, pid: u32) -> Option<u64> {
    let gpu_id = node.control().state().unwrap().gpus[0].gpu_id;
    let path = node.path(format!("/sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}"));
    std::fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().parse().unwrap())
}

/// Waits for something and returns how long it took.
pub(crate) fn wait_until(what: &str, mut reached: impl FnMut() -> bool) -> Duration {
    let since = Instant::now();
    while !reached() {
        assert!(
            since.elapsed() < Duration::from_secs(10),
            "{what}: not within 10 s"
        );
        std::thread::sleep(Duration::from_micros(200));
    }
    since.elapsed()
}

pub(crate) fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).exists()
}
