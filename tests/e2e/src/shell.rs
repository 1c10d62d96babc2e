//! A running `hipsh`: the tests and the demo tell it line by line what to do with HIP.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How long a reply may take. The slowest, the first call of a runtime, takes well under a second
/// on an idle machine; a hang shall still end, and say where.
const PATIENCE: Duration = Duration::from_secs(60);

/// What `hipMemGetInfo` said, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Info {
    /// What a program could still get.
    pub free: u64,
    /// What the device has.
    pub total: u64,
}

/// A running `hipsh`. Dropping it kills it.
pub struct Shell {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: Receiver<String>,
    /// The pipe, and what has been read from it.
    stderr: RefCell<(ChildStderr, Vec<u8>)>,
}

impl Shell {
    /// Starts the command, which must be a `hipsh`, and waits until it is ready.
    ///
    /// # Errors
    /// It does not start, or ends or hangs before it is ready.
    pub fn start(mut command: Command) -> Result<Shell> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("no stdout")?;
        let stderr = child.stderr.take().context("no stderr")?;
        do_not_wait(&stderr)?;
        let (sender, replies) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut shell = Shell {
            child,
            stdin,
            replies,
            stderr: RefCell::new((stderr, Vec::new())),
        };
        let greeting = shell.reply("starting")?;
        if greeting != "ready" {
            bail!("hipsh began with {greeting:?}: {}", shell.messages());
        }
        Ok(shell)
    }

    /// Sends a command and returns the reply.
    ///
    /// # Errors
    /// The process has ended, or does not answer.
    pub fn say(&mut self, command: &str) -> Result<String> {
        self.tell(command)?;
        self.reply(command)
    }

    /// Sends a command which has no reply, or whose reply is fetched later.
    ///
    /// # Errors
    /// The process has ended.
    pub fn tell(&mut self, command: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().context("its stdin is closed")?;
        if writeln!(stdin, "{command}").is_err() {
            let status = self.child.wait()?;
            bail!(
                "hipsh ended ({status}) before {command:?}: {}",
                self.messages()
            );
        }
        Ok(())
    }

    /// Waits for the next reply; `after` says to what, for the message.
    ///
    /// # Errors
    /// The process has ended, or does not answer.
    pub fn reply(&mut self, after: &str) -> Result<String> {
        match self.replies.recv_timeout(PATIENCE) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                bail!(
                    "no reply to {after:?} within {PATIENCE:?}: {}",
                    self.messages()
                )
            }
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait()?;
                bail!("hipsh ended ({status}) at {after:?}: {}", self.messages())
            }
        }
    }

    /// `hipMalloc`; whether it was granted.
    ///
    /// # Errors
    /// As [`Shell::say`], and any reply but success and out of memory.
    pub fn malloc(&mut self, name: &str, bytes: u64) -> Result<bool> {
        match self.say(&format!("malloc {name} {bytes}"))?.as_str() {
            "ok" => Ok(true),
            "error 2" => Ok(false),
            other => bail!("hipMalloc of {bytes} bytes: {other}: {}", self.messages()),
        }
    }

    /// `hipFree` of what was allocated under this name.
    ///
    /// # Errors
    /// As [`Shell::say`], and a refusal.
    pub fn free(&mut self, name: &str) -> Result<()> {
        match self.say(&format!("free {name}"))?.as_str() {
            "ok" => Ok(()),
            other => bail!("hipFree: {other}"),
        }
    }

    /// `hipMemGetInfo`.
    ///
    /// # Errors
    /// As [`Shell::say`], and a refusal.
    pub fn info(&mut self) -> Result<Info> {
        let reply = self.say("info")?;
        let words: Vec<_> = reply.split(' ').collect();
        match words[..] {
            ["free", free, "total", total] => Ok(Info {
                free: free.parse()?,
                total: total.parse()?,
            }),
            _ => bail!("hipMemGetInfo: {reply}"),
        }
    }

    /// What it has written to stderr so far. All that it wrote before its last reply is there.
    pub fn messages(&self) -> String {
        let (pipe, all) = &mut *self.stderr.borrow_mut();
        // Ends with "would block", or with the end of the pipe; what came before is kept.
        let _ = pipe.read_to_end(all);
        String::from_utf8_lossy(all).into_owned()
    }

    /// Its process id, as the host counts.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills it with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// It cannot be killed or waited for.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Tells it to end in this way (`quit`, `_exit`, `abort`) and waits for it.
    ///
    /// # Errors
    /// It has ended before, or cannot be waited for.
    pub fn end(mut self, how: &str) -> Result<ExitStatus> {
        self.tell(how)?;
        Ok(self.child.wait()?)
    }
}

/// Reading gives what is there, and never waits.
fn do_not_wait(pipe: &ChildStderr) -> Result<()> {
    // SAFETY: fcntl with F_SETFL has no pointer arguments; the descriptor is open.
    let result = unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    if result < 0 {
        return Err(std::io::Error::last_os_error()).context("cannot make the pipe non-blocking");
    }
    Ok(())
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended long ago: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
