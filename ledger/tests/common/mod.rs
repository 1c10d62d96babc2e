//! What the tests of this folder share: a place of their own, and real processes.

#![allow(
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "each test uses a part of it"
)]

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hipflex_ledger::{
    BudgetName, GpuKey, GpuSpec, Identity, JoinError, Joined, Ledger, Limit, Member, Place,
};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// One test of a binary at a time: they fork, and a child of one would hold descriptors of another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A root of ledgers that is removed at the end.
pub struct Scene {
    pub directory: tempfile::TempDir,
    pub shared: bool,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    pub fn new() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        // Where ledgers lie in earnest, if this machine has it.
        let directory = tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .unwrap();
        Self {
            directory,
            shared: false,
            _alone: alone,
        }
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("hipflex")
    }

    pub fn place(&self) -> Place {
        Place::new(self.root(), self.shared)
    }

    pub fn budget(&self) -> BudgetName {
        BudgetName::new("default").unwrap()
    }

    pub fn path(&self) -> PathBuf {
        self.place().ledger_path(&self.budget())
    }

    pub fn try_join(&self, gpus: &[GpuSpec]) -> Result<Joined, JoinError> {
        Member::join(&self.place(), &self.budget(), gpus, &identity())
    }

    /// Joins with one GPU and this limit.
    pub fn join(&self, limit: u64) -> Member {
        self.try_join(&[gpu(0, Limit::Bytes(limit))])
            .unwrap()
            .member
    }

    pub fn ledger(&self) -> Ledger {
        Ledger::open(&self.path()).unwrap()
    }

    /// What is charged to all on the first GPU.
    pub fn charged(&self) -> u64 {
        self.ledger().snapshot().gpus[0].charged
    }
}

pub fn identity() -> Identity {
    Identity {
        comm: b"test".to_vec(),
        library_version: "0.1.0".to_owned(),
    }
}

/// The nth GPU.
pub fn gpu(n: u64, limit: Limit) -> GpuSpec {
    GpuSpec {
        key: GpuKey((n + 1) << 8),
        limit,
        board_bytes: 64 * GIB,
    }
}

/// Reserves and commits.
pub fn hold(member: &Member, bytes: u64) {
    let reservation = member.reserve(0, bytes).unwrap();
    member.commit(reservation, bytes);
}

/// The child's end of a conversation with its parent.
pub struct Parent {
    reader: std::fs::File,
    writer: std::fs::File,
}

impl Parent {
    /// Tells the parent something.
    pub fn tell(&mut self, byte: u8) {
        self.writer.write_all(&[byte]).unwrap();
    }

    pub fn tell_number(&mut self, number: i32) {
        self.writer.write_all(&number.to_le_bytes()).unwrap();
    }

    /// The descriptors that this conversation needs.
    pub fn descriptors(&self) -> [i32; 2] {
        [self.reader.as_raw_fd(), self.writer.as_raw_fd()]
    }

    /// Waits until the parent says go on. A parent that is gone says it too.
    pub fn wait(&mut self) {
        let _ = self.reader.read(&mut [0]).unwrap();
    }

    /// Says that it is ready and waits to be killed.
    pub fn stay(&mut self) -> ! {
        self.tell(b'r');
        loop {
            self.wait();
        }
    }
}

/// A forked child; killed and waited for when dropped.
pub struct Child {
    pub pid: Pid,
    reader: std::fs::File,
    writer: std::fs::File,
    ended: bool,
}

fn pipe() -> (std::fs::File, std::fs::File) {
    let (reader, writer): (OwnedFd, OwnedFd) = nix::unistd::pipe().unwrap();
    (reader.into(), writer.into())
}

/// Runs `body` in a forked child, which then `_exit`s with its result (101 if it panics).
pub fn spawn(body: impl FnOnce(&mut Parent) -> i32) -> Child {
    let (from_child, to_parent) = pipe();
    let (from_parent, to_child) = pipe();
    // SAFETY: the child runs plain code; what other threads of the test runner held at this moment
    // (its output lock) it does not use, apart from a panic message.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => Child {
            pid: child,
            reader: from_child,
            writer: to_child,
            ended: false,
        },
        ForkResult::Child => {
            drop((from_child, to_child));
            std::panic::set_hook(Box::new(|info| {
                let text = format!("in a child: {info}\n");
                // SAFETY: the text is readable for its length.
                unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
            }));
            let mut parent = Parent {
                reader: from_parent,
                writer: to_parent,
            };
            let code = catch_unwind(AssertUnwindSafe(|| body(&mut parent))).unwrap_or(101);
            // SAFETY: ends the child without running the test runner's exit handlers.
            unsafe { libc::_exit(code) }
        }
    }
}

impl Child {
    /// Waits until the child tells something.
    pub fn hear(&mut self) -> u8 {
        let mut byte = [0];
        self.reader
            .read_exact(&mut byte)
            .expect("the child ended without a word");
        byte[0]
    }

    pub fn hear_number(&mut self) -> i32 {
        let mut bytes = [0; 4];
        self.reader
            .read_exact(&mut bytes)
            .expect("the child ended without a word");
        i32::from_le_bytes(bytes)
    }

    /// Lets a waiting child go on.
    pub fn go_on(&mut self) {
        self.writer.write_all(b"g").unwrap();
    }

    pub fn kill(&self) {
        kill(self.pid, Signal::SIGKILL).unwrap();
    }

    /// Kills it and leaves a zombie.
    pub fn kill_into_zombie(&self) {
        self.kill();
        let path = format!("/proc/{}/stat", self.pid);
        eventually("it is a zombie", || {
            std::fs::read_to_string(&path).unwrap().contains(") Z")
        });
    }

    pub fn wait(&mut self) -> WaitStatus {
        self.ended = true;
        waitpid(self.pid, None).unwrap()
    }

    /// Waits for its end, which must be a success.
    pub fn succeed(&mut self) {
        assert_eq!(self.wait(), WaitStatus::Exited(self.pid, 0));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended {
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }
}

/// A child that joins, holds `bytes` and stays until it is killed.
pub fn holder(scene: &Scene, bytes: u64) -> Child {
    let mut child = spawn(|parent| {
        let member = scene.join(8 * GIB);
        hold(&member, bytes);
        parent.stay()
    });
    child.hear();
    child
}

/// A moment of the calling thread, from which on time is counted that stands still while the thread
/// could run and has no processor: it tells how long something took or was waited for, whatever
/// else the machine does.
#[derive(Clone, Copy)]
pub struct OwnTime {
    at: Instant,
    queued: Duration,
}

impl OwnTime {
    pub fn now() -> Self {
        // Nanoseconds on a processor, nanoseconds of waiting for one, number of turns (schedstat, see
        // `Documentation/scheduler/sched-stats.rst`). Without it that waiting counts too.
        let queued = std::fs::read_to_string("/proc/thread-self/schedstat")
            .ok()
            .and_then(|text| text.split(' ').nth(1)?.parse().ok())
            .map_or(Duration::ZERO, Duration::from_nanos);
        let at = Instant::now();
        Self { at, queued }
    }

    pub fn since(self, earlier: Self) -> Duration {
        (self.at - earlier.at).saturating_sub(self.queued.saturating_sub(earlier.queued))
    }
}

/// What a refused joiner is told.
pub fn message(scene: &Scene) -> String {
    match scene.try_join(&[gpu(0, Limit::Bytes(GIB))]) {
        Ok(_) => panic!("joined"),
        Err(error) => error.to_string(),
    }
}

/// A ledger whose only member has ended without a word, so that the next one would replace it.
pub fn leftover(scene: &Scene) {
    spawn(|_| {
        hold(&scene.join(GIB), MIB);
        0
    })
    .succeed();
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Waits until something is so, at most a minute: a machine may be busy.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "after a minute it is not so that {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether this test can run; if not, says so where nobody overlooks it.
pub fn root_or_skip(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip(test, "it needs root");
    }
    root
}

/// Says that a test did not run, past the test runner's capture.
pub fn skip(test: &str, why: &str) {
    let text = format!("SKIPPED {test}: {why}\n");
    // SAFETY: the text is readable for its length.
    unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
}

/// Counters in memory that all processes share.
pub struct Counters(pub &'static [AtomicU64; 64]);

impl Counters {
    pub fn new() -> Self {
        // SAFETY: a new anonymous mapping, large enough, aligned to a page, zeroed, never unmapped.
        let memory = unsafe {
            let memory = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            &*memory.cast::<[AtomicU64; 64]>()
        };
        Self(memory)
    }
}
