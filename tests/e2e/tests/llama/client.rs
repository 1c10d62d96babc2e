//! llama.cpp's programs on the node: how they are started, and what they say.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use hipflex_e2e::bench::{Bench, limit_to};
use hipflex_e2e::{paths, runtime};
use kfd_emulator::node::Builder;

use crate::gguf::Model;

/// How long it may take until a program has loaded its model. It takes two seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A node, and a model for programs in it.
pub(crate) struct Llama {
    pub(crate) bench: Bench,
    model: tempfile::NamedTempFile,
}

impl Llama {
    /// On one MI210.
    pub(crate) fn start() -> Result<Llama> {
        Llama::with(|node| node)
    }

    /// On a node of one's own choice.
    pub(crate) fn with(choose: impl FnOnce(Builder) -> Builder) -> Result<Llama> {
        let runtime = runtime::at(&paths::llama())?
            .context("llama.cpp is not there: `cargo xtask rocm llama` fetches it")?;
        let model = tempfile::NamedTempFile::new()?;
        // 81 MiB of weights on the GPU.
        let (width, layers) = (512, 8);
        Model { width, layers }.write(model.path())?;
        Ok(Llama {
            bench: Bench::on(runtime, choose)?,
            model,
        })
    }

    /// One of its programs, on the model, without hipflex.
    pub(crate) fn program(&self, name: &str) -> Result<Command> {
        let runtime = &self.bench.runtime;
        let libraries = &runtime.library_dirs[0];
        let loader = runtime.loader.as_ref().context("no loader")?;
        let own = libraries.join("llama");
        let mut command = self.bench.command(loader);
        command
            .arg("--library-path")
            .arg(format!("{}:{}", runtime.library_path(), own.display()))
            .arg(runtime.root.join("usr/bin").join(name))
            // It looks for backends where Debian installs them, then here.
            .current_dir(backends(libraries)?)
            .arg("--model")
            .arg(self.model.path())
            .stdin(Stdio::null());
        Ok(command)
    }

    /// It goes on with a text, all on the GPU unless `options` say otherwise, and tells what it does. `limit`: under one,
    /// or without hipflex.
    pub(crate) fn completion(&self, limit: Option<&str>, options: &[&str]) -> Result<Command> {
        let mut command = self.program("llama-completion")?;
        command
            .args(["--prompt", "hello", "--predict", "8", "--temp", "0"])
            .args(["--no-warmup", "--no-conversation", "--log-verbosity", "5"])
            .args(["--no-log-prefix", "--no-log-timestamps"])
            .args(options);
        if let Some(limit) = limit {
            limit_to(&mut command, limit);
        }
        Ok(command)
    }

    /// Lets it run to its end.
    pub(crate) fn complete(&self, limit: Option<&str>, options: &[&str]) -> Result<Said> {
        Said::of(self.completion(limit, options)?.output()?)
    }

    /// Starts it, and waits until it has loaded everything and asks for a text.
    pub(crate) fn waiting(&self, limit: &str, options: &[&str]) -> Result<Waiting> {
        let mut command = self.completion(Some(limit), options)?;
        let mut child = command
            .arg("--interactive-first")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("llama-completion does not start")?;
        let stderr = child.stderr.take().context("no stderr")?;
        let (sender, lines) = channel();
        // It ends with the pipe. Not all that comes is text: tokens are single bytes.
        thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut waiting = Waiting {
            child,
            log: String::new(),
        };
        waiting.until(&lines, "== Running in interactive mode. ==")?;
        // The rest is not read by anybody, and must not fill the pipe.
        thread::spawn(move || lines.iter().count());
        Ok(waiting)
    }
}

/// All layers on the GPU, and no attempt to do with less.
pub(crate) const ALL_ON_GPU: [&str; 4] = ["--gpu-layers", "99", "--fit", "off"];

/// The folder with the backends, whose name has a number.
fn backends(libraries: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(libraries.join("ggml"))? {
        let path = entry?.path();
        if path.join("libggml-hip.so").exists() {
            return Ok(path);
        }
    }
    bail!("there is no HIP backend below {}", libraries.display())
}

/// What a program said until it ended.
pub(crate) struct Said {
    pub(crate) output: Output,
    pub(crate) log: String,
}

impl Said {
    fn of(output: Output) -> Result<Said> {
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        Ok(Said { output, log })
    }

    /// The text; it ended well.
    pub(crate) fn text(&self) -> Result<&[u8]> {
        ensure!(
            self.output.status.success(),
            "{}: {}",
            self.output.status,
            self.log
        );
        ensure!(!self.output.stdout.is_empty(), "no text: {}", self.log);
        Ok(&self.output.stdout)
    }
}

/// A program that has loaded its model and waits for a text. Dropping it kills it.
pub(crate) struct Waiting {
    child: Child,
    pub(crate) log: String,
}

impl Waiting {
    fn until(&mut self, lines: &Receiver<Vec<u8>>, wanted: &str) -> Result<()> {
        loop {
            let line = lines.recv_timeout(PATIENCE).with_context(|| {
                format!("it did not come to {wanted:?}, but said: {}", self.log)
            })?;
            let line = String::from_utf8_lossy(&line);
            self.log += &line;
            self.log.push('\n');
            if line.contains(wanted) {
                return Ok(());
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it that no text comes, and waits for its end, which must be a success.
    pub(crate) fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have ended: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What it says that it has allocated on a GPU, in bytes: `ROCm0 KV buffer size = 8.00 MiB`.
pub(crate) fn buffers(log: &str, gpu: usize) -> Result<u64> {
    let device = format!("ROCm{gpu} ");
    let mut sum = 0.0;
    for line in log.lines() {
        let Some((what, size)) = line.split_once(" buffer size = ") else {
            continue;
        };
        if what.contains(&device) {
            let size = size.trim().strip_suffix(" MiB").context(line.to_string())?;
            sum += size.parse::<f64>()?;
        }
    }
    ensure!(sum > 0.0, "it says nothing of {device}: {log}");
    Ok((sum * f64::from(1 << 20)) as u64)
}
