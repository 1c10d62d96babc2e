//! A node: a private mount namespace with an emulated GPU in it.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! let node = kfd_emulator::Node::builder().profile("mi210").start()?;
//! let status = node.command("rocminfo").status()?;
//! # Ok(()) }
//! ```
//!
//! Inside, `/dev/kfd`, `/dev/dri` and the GPU's parts of `/sys` are the emulator's, `/dev/shm` and
//! the runtimes' caches are private, and the cgroup root is read-only; all else is the host's, whose
//! own mounts and files do not change. The node ends with its [`Node`], or with the process that
//! made it, however that ends. Programs that still run inside are killed then: every process that has
//! a mount of the node in its mount namespace, also in one that was made inside.

mod config;
mod enter;
mod mounts;
mod programs;
mod serve;

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

pub use config::{Config, parse_size};
pub use serve::serve;

use crate::control::Control;
use crate::inject::Inject;
use crate::profile::PartitionIds;

/// Where a node has its own files, inside the node.
pub const NODE_DIRECTORY: &str = "/dev/kfd-emulator";
/// The control socket in there.
pub const CONTROL_SOCKET: &str = "control.sock";
/// Lines written to this file in there become marks of the trace.
pub const MARK_FILE: &str = "mark";
const INJECT_SOCKET: &str = "inject.sock";
const CACHE_DIRECTORY: &str = "cache";
const PROGRAM_DIRECTORY: &str = "bin";

/// The directory that has the `kfd-emulator` program, for callers that are elsewhere.
pub const BINARY_DIRECTORY_VARIABLE: &str = "KFD_EMULATOR_BIN";
const BINARY: &str = "kfd-emulator";

/// How long a server may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the server says when it is ready, or why it is not.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Ready {
    Ready {
        /// Number of the node's FUSE file system, by which its programs are known.
        file_system: String,
    },
    Error(String),
}

/// Why nodes cannot be started on this machine, or `None` when they can.
///
/// For tests: a machine without root, FUSE or a new enough kernel skips them, and says what is
/// missing.
pub fn missing() -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        return Some("emulated nodes need root (mount namespaces, FUSE passthrough)".to_owned());
    }
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!(
            "emulated nodes need /dev/fuse: {error} (try `modprobe fuse`)"
        ));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if !has_passthrough(&release) {
        let release = release.trim();
        return Some(format!(
            "emulated nodes need Linux 6.9 (FUSE passthrough), this is {release}"
        ));
    }
    if let Err(error) = programs::check_proc() {
        return Some(format!("emulated nodes cannot run here: {error:#}"));
    }
    // Only the thread that tries leaves its namespace, and ends.
    let tried = std::thread::spawn(|| unshare(CloneFlags::CLONE_NEWNS)).join();
    match tried {
        Ok(Ok(())) => None,
        _ => Some("emulated nodes need a mount namespace, which is refused here".to_owned()),
    }
}

/// Whether a kernel of that release can have FUSE passthrough.
fn has_passthrough(release: &str) -> bool {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    (next(), next()) >= (6, 9)
}

/// Describes a node.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    config: Config,
    binary: Option<PathBuf>,
}

impl Builder {
    /// The kind of GPU: `mi210` (the default), `mi300x`, `rx7900xtx`, ..., or its gfx name.
    pub fn profile(mut self, name: &str) -> Self {
        self.config.gpu = name.to_owned();
        self
    }

    /// How many GPUs; what the profile says by default: 8 of `mi300x`, 1 of others.
    pub fn gpus(mut self, count: usize) -> Self {
        self.config.gpus = Some(count);
        self
    }

    /// Bytes of VRAM of each GPU; what the board has by default.
    pub fn vram(mut self, bytes: u64) -> Self {
        self.config.vram = vec![bytes];
        self
    }

    /// Bytes of VRAM of the first GPU, the second, and so on; there are as many GPUs.
    pub fn vram_of_each(mut self, bytes: &[u64]) -> Self {
        self.config.vram = bytes.to_vec();
        self.config.gpus = Some(bytes.len());
        self
    }

    /// Into how many partitions each board is split, and how the topology tells them apart.
    pub fn partitions(mut self, count: u32, ids: PartitionIds) -> Self {
        self.config.partitions = count;
        self.config.partition_ids = ids;
        self
    }

    /// How programs get descriptors from ioctls; by seccomp by default.
    pub fn inject(mut self, inject: Inject) -> Self {
        self.config.inject = inject;
        self
    }

    /// Minor version of the KFD interface; 17 by default.
    pub fn kfd_minor(mut self, minor: u32) -> Self {
        self.config.kfd_minor = minor;
        self
    }

    /// Also writes the trace to this file, a line of JSON for each entry.
    pub fn trace(mut self, path: impl Into<PathBuf>) -> Self {
        self.config.trace = Some(path.into());
        self
    }

    /// Whether the IPC ioctls exist that only AMD's DKMS driver has. Off by default.
    pub fn dkms_ipc(mut self, on: bool) -> Self {
        self.config.dkms_ipc = on;
        self
    }

    /// Whether the CPU reaches all VRAM through the PCI BAR. On by default.
    pub fn large_bar(mut self, on: bool) -> Self {
        self.config.small_bar = !on;
        self
    }

    /// The `kfd-emulator` program to run the server with. By default it is looked for in
    /// `$KFD_EMULATOR_BIN`, beside this program, and one directory up (where cargo puts it).
    pub fn binary(mut self, path: impl Into<PathBuf>) -> Self {
        self.binary = Some(path.into());
        self
    }

    /// Everything as the command line has it.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Starts the node and waits until it is ready.
    ///
    /// # Errors
    /// When the program is not found, or the server cannot start: no root, no FUSE, an unknown
    /// profile, ...
    pub fn start(self) -> anyhow::Result<Node> {
        let binary = self.binary.map_or_else(find_binary, Ok)?;
        let mut server = Command::new(&binary)
            .arg("serve")
            .args(self.config.arguments())
            // The server ends when this pipe does: with the Node, or with this process. (The
            // parent-death signal would come when the *thread* ends that started the server.)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C at a terminal is for the program in the node, not for its server.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let answer = read_answer(&mut server);
        let ready = answer.and_then(|answer| match answer {
            Ready::Ready { file_system } => Ok(file_system),
            Ready::Error(reason) => Err(anyhow!(reason)),
        });
        let file_system = match ready {
            Ok(file_system) => file_system,
            Err(error) => {
                end(&mut server);
                return Err(error.context("the emulated node did not start"));
            }
        };
        let path = format!("/proc/{}/ns/mnt", server.id());
        let namespace = match File::open(&path) {
            Ok(file) => Arc::new(file.into()),
            Err(error) => {
                end(&mut server);
                return Err(error).context(format!("cannot open {path}"));
            }
        };
        Ok(Node {
            server,
            namespace,
            file_system,
            inject: self.config.inject,
            is_over: false,
        })
    }
}

fn read_answer(server: &mut Child) -> anyhow::Result<Ready> {
    let output = server.stdout.take().context("the server has no output")?;
    let mut line = String::new();
    BufReader::new(output)
        .read_line(&mut line)
        .context("cannot read the server's output")?;
    if line.is_empty() {
        bail!("its server ended before it was ready");
    }
    serde_json::from_str(&line).with_context(|| format!("the server said {line:?}"))
}

fn find_binary() -> anyhow::Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = exe.parent().map(Path::to_owned);
    let above = beside.as_deref().and_then(Path::parent).map(Path::to_owned);
    let named = std::env::var_os(BINARY_DIRECTORY_VARIABLE).map(PathBuf::from);
    let places: Vec<PathBuf> = [named, beside, above].into_iter().flatten().collect();
    places
        .iter()
        .map(|directory| directory.join(BINARY))
        .find(|path| path.is_file())
        .with_context(|| {
            format!(
                "there is no {BINARY} program in {places:?}; build it (`cargo build -p \
                 kfd-emulator`) or name its directory in {BINARY_DIRECTORY_VARIABLE}"
            )
        })
}

/// Ends a server: closes its lifeline and waits; kills it when that takes too long. Whether it
/// ended by itself, and so has cleaned up.
fn end(server: &mut Child) -> bool {
    drop(server.stdin.take());
    match wait(server) {
        Some(status) => status.success(),
        None => {
            eprintln!("the server of an emulated node did not end in {PATIENCE:?} and is killed");
            if server.kill().is_err() || wait(server).is_none() {
                eprintln!(
                    "the server of an emulated node survived SIGKILL: {}",
                    server.id()
                );
            }
            false
        }
    }
}

/// How a process ended; `None` when it does not in time.
fn wait(process: &mut Child) -> Option<ExitStatus> {
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        match process.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Ok(ended) => return ended,
            Err(_) => return None,
        }
    }
    None
}

/// A running node. Dropping it ends everything in it.
#[derive(Debug)]
pub struct Node {
    server: Child,
    namespace: Arc<std::os::fd::OwnedFd>,
    file_system: String,
    inject: Inject,
    is_over: bool,
}

impl Node {
    /// Describes a node; [`Builder::start`] starts it.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// A command that will run inside the node. Any number of them can run at once.
    ///
    /// Its variables are the caller's, but for `PATH` (an `lsmod` that knows amdgpu comes first)
    /// and `AMD_COMGR_CACHE_DIR` (inside the node). Entering the node takes root: to run as
    /// somebody else, let the command change user itself (`setpriv`).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        enter::prepare(&mut command, Arc::clone(&self.namespace), self.inject);
        command
    }

    /// The node's control socket.
    pub fn control(&self) -> Control {
        Control::at(self.path(NODE_DIRECTORY).join(CONTROL_SOCKET))
    }

    /// A path inside the node, as this process can open it: `/sys/class/kfd/...`, `/dev/kfd`.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        let inside = inside.as_ref();
        let root = PathBuf::from(format!("/proc/{}/root", self.server.id()));
        root.join(inside.strip_prefix("/").unwrap_or(inside))
    }

    /// Process id of the server, for measuring what it costs.
    pub fn server_pid(&self) -> u32 {
        self.server.id()
    }
}

impl Node {
    /// Ends the node and everything in it, as dropping it does, and tells what went wrong.
    ///
    /// # Errors
    /// When programs of the node survived SIGKILL: the kernel holds them.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.is_over, true) || end(&mut self.server) {
            return Ok(());
        }
        // It was killed, or could not end them all.
        let left = programs::end(&self.file_system);
        if left.is_empty() {
            return Ok(());
        }
        bail!("programs of the emulated node survived SIGKILL: {left:?}")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_with_passthrough() {
        assert!(
            has_passthrough("6.9.0-1-amd64")
                && has_passthrough("6.18.44")
                && has_passthrough("7.0")
        );
        assert!(!has_passthrough("6.8.12") && !has_passthrough("5.15.0") && !has_passthrough(""));
    }

    #[test]
    fn a_program_that_is_missing_is_told_with_the_places() {
        let error = Node::builder()
            .binary("/nowhere/kfd-emulator")
            .start()
            .unwrap_err();
        assert!(
            format!("{error:#}").contains("/nowhere/kfd-emulator"),
            "{error:#}"
        );
    }

    #[test]
    fn a_server_that_says_nothing() {
        let error = Node::builder().binary("/bin/true").start().unwrap_err();
        assert!(
            format!("{error:#}").contains("ended before it was ready"),
            "{error:#}"
        );
    }
}
