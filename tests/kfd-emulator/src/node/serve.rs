//! `kfd-emulator serve`: the process that is a node.

use std::fs;
use std::io::{self, Read, Write};
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result};

use crate::inject::Inject;
use crate::profile::{Profile, gpus, split};
use crate::server::caller::DMABUF_DIRECTORY;
use crate::server::seccomp::Injector;
use crate::server::{self, apart, control, procfs};
use crate::state::Options;
use crate::sysfs::TreeOptions;
use crate::trace::Trace;

use super::mounts::Scaffold;
use super::{CONTROL_SOCKET, Config, INJECT_SOCKET, Ready, programs};

/// Exit status of a server that could not end all programs of its node.
pub(super) const PROGRAMS_LEFT: i32 = 3;

/// Builds a node, says on standard output that it is ready or why it is not, and serves it until
/// standard input ends. Returns the exit status.
pub fn serve(config: &Config) -> i32 {
    end_on_panic();
    let started = start(config);
    let ready = match &started {
        Ok(file_system) => Ready::Ready {
            file_system: file_system.clone(),
        },
        Err(error) => Ready::Error(format!("{error:#}")),
    };
    if let Err(error) = say(&ready) {
        eprintln!("kfd-emulator: nobody hears that the node is ready: {error}");
        return 1;
    }
    let Ok(file_system) = started else { return 1 };
    // The parent never writes; it lives as long as this read lasts.
    let mut nothing = [0];
    while matches!(io::stdin().read(&mut nothing), Ok(1..)) {}
    let left = programs::end(&file_system);
    if !left.is_empty() {
        eprintln!("kfd-emulator: programs of the node survived SIGKILL: {left:?}");
        return PROGRAMS_LEFT;
    }
    0
}

/// Makes a panic in any thread end the process: a node that has lost a part of itself must not look
/// as if it worked.
fn end_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

fn say(ready: &Ready) -> io::Result<()> {
    let mut line = serde_json::to_string(ready)?;
    line.push('\n');
    io::stdout().write_all(line.as_bytes())?;
    io::stdout().flush()
}

/// Starts everything, and returns the number of the node's FUSE file system.
fn start(config: &Config) -> Result<String> {
    programs::check_proc()?;
    let profile = Profile::by_name(&config.gpu)?;
    // Several sizes say how many GPUs there are, too.
    let several = (config.vram.len() > 1).then_some(config.vram.len());
    let count = config.gpus.or(several).unwrap_or(profile.default_count);
    let boards = gpus(profile, count, &config.vram)?;
    let gpus = split(boards, config.partitions, config.partition_ids)?;
    let trace = match &config.trace {
        None => Trace::default(),
        Some(path) => Trace::to_file(path)
            .with_context(|| format!("cannot write the trace to {}", path.display()))?,
    };
    let library = match config.inject {
        Inject::Preload => Some(find_library()?),
        Inject::Seccomp | Inject::None => None,
    };
    let mut options = Options {
        kfd_minor: config.kfd_minor,
        dkms_ipc: config.dkms_ipc,
        preload: config.inject == Inject::Preload,
        ..Options::default()
    };
    let mut tree = TreeOptions {
        large_bar: !config.small_bar,
        ..TreeOptions::default()
    };
    if let Ok(cores) = std::thread::available_parallelism() {
        tree.cpu_cores = u32::try_from(cores.get()).unwrap_or(u32::MAX);
    }
    if let Some(bytes) = procfs::memory_bytes() {
        tree.memory_bytes = bytes;
        options.system_bytes = bytes;
    }

    // A namespace is entered before there are threads: each would keep its own view otherwise.
    let scaffold = Scaffold::raise()?;
    let (shared, session) = server::start(gpus, options, &tree, trace, &scaffold.fuse())
        .context("cannot mount the emulator's files with FUSE")?;
    // Dropping it would unmount what programs in the node use; the namespace's end does that.
    std::mem::forget(session);

    // What looks at the mounted files does it without /dev/fuse (see `apart`): first the mounts,
    // then the injector.
    let (say, built) = mpsc::channel();
    let injected = Arc::clone(&shared);
    let seccomp = config.inject == Inject::Seccomp;
    spawn("inject", move || {
        let listener = build(&scaffold, library.as_deref(), seccomp);
        let (result, listener) = match listener {
            Ok((file_system, listener)) => (Ok(file_system), listener),
            Err(error) => (Err(error), None),
        };
        // Should the receiver be gone, so is the server.
        let _ended = say.send(result);
        if let Some((listener, file_system)) = listener {
            let injector = Injector {
                shared: injected,
                dmabufs: run().join(DMABUF_DIRECTORY),
                file_system,
            };
            Arc::new(injector).run(&listener);
        }
    })?;
    let file_system = built.recv().context("the thread that mounts has ended")??;

    let listener = listen(&run().join(CONTROL_SOCKET))?;
    spawn("control", move || control::run(&shared, &listener))?;
    Ok(file_system)
}

/// Builds the node around the mounted files. Returns the number of their file system and, if an
/// injector is wanted, its socket and the same number as `stat` gives it.
fn build(
    scaffold: &Scaffold,
    library: Option<&Path>,
    seccomp: bool,
) -> Result<(String, Option<(UnixListener, libc::dev_t)>)> {
    apart::leave_fuse().context("cannot have a table of descriptors without /dev/fuse")?;
    let device = fs::metadata(scaffold.fuse())
        .context("cannot look at the mounted files")?
        .st_dev();
    let file_system = programs::file_system(device);
    scaffold.build(library)?;
    let socket = run().join(INJECT_SOCKET);
    let listener = seccomp.then(|| listen(&socket)).transpose()?;
    Ok((file_system, listener.map(|listener| (listener, device))))
}

fn run() -> PathBuf {
    PathBuf::from(super::NODE_DIRECTORY)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)?;
    Ok(())
}

/// A socket that every user of the node can use.
fn listen(path: &Path) -> Result<UnixListener> {
    let listener =
        UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// The library to preload: cargo puts it beside the program, or among the dependencies.
fn find_library() -> Result<PathBuf> {
    let exe = std::env::current_exe().context("cannot tell where this program is")?;
    let beside = exe.parent().unwrap_or(Path::new("/")).to_owned();
    let places = [beside.join("deps"), beside];
    places
        .iter()
        .map(|directory| directory.join("libkfd_inject.so"))
        .find(|path| path.is_file())
        .with_context(|| {
            format!("--inject=preload needs libkfd_inject.so, which is not in {places:?}; build it (`cargo build -p kfd-inject`)")
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set in a copy of the test program that shall end.
    const ENDS: &str = "KFD_EMULATOR_TEST_ENDS";

    #[test]
    fn a_panic_in_a_thread_ends_the_process() {
        if std::env::var_os(ENDS).is_some() {
            end_on_panic();
            let thread = std::thread::spawn(|| panic!("as it should"));
            // Reached only when the process goes on.
            let _result = thread.join();
            std::process::exit(0);
        }
        let name = "node::serve::tests::a_panic_in_a_thread_ends_the_process";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(ENDS, "1")
            .output()
            .unwrap();
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("as it should"), "{text}");
    }
}
