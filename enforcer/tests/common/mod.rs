//! Runs C programs with the library preloaded, on the builds of the stand-in runtime.
//!
//! Programs are compiled at test time with `cc`, once for each content of their sources; the library is
//! built by cargo in the profile of the test, so that no stale one is ever tested.

#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test file uses a part of this"
)]

mod each;

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};
use std::thread;

use hip_standin::Build;
use hipflex_ledger::{Ledger, LedgerSnapshot, Place};

pub(crate) use each::on_each_standin;

pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;
/// VRAM of the stand-in's devices.
pub const BOARD: u64 = 64 * GIB;

/// The library under test: the one that `HIPFLEX_LIB` names, else the one of this test's profile,
/// brought up to date first.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| match std::env::var_os("HIPFLEX_LIB") {
        Some(path) => PathBuf::from(path),
        None => built_library(),
    })
}

fn built_library() -> PathBuf {
    // This executable is TARGET/PROFILE/deps/NAME.
    let executable = std::env::current_exe().unwrap();
    let directory = executable.parent().and_then(Path::parent).unwrap();
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => panic!(
            "{} is not in the directory of a profile",
            executable.display()
        ),
    };
    let output = Command::new(env!("CARGO"))
        .args([
            "build",
            "--quiet",
            "--package",
            "hipflex-enforcer",
            "--profile",
            profile,
        ])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(directory.parent().unwrap())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    directory.join("libhipflex.so")
}

fn compiler(source: &str) -> &'static str {
    if source.ends_with(".cpp") {
        "c++"
    } else {
        "cc"
    }
}

/// Whether there is a C++ compiler.
pub fn has_cpp() -> bool {
    Command::new("c++").arg("--version").output().is_ok()
}

/// Compiles `sources` of `tests/programs` into a file `name`, in a directory of its own that depends on what
/// goes in (libraries that `arguments` name included), and returns that directory.
fn compile(name: &str, sources: &[&str], arguments: &[&str]) -> PathBuf {
    static COMPILED: Mutex<BTreeMap<Vec<String>, PathBuf>> = Mutex::new(BTreeMap::new());
    let all = [&[name], sources, arguments].concat();
    let key: Vec<String> = all.into_iter().map(String::from).collect();
    if let Some(directory) = COMPILED.lock().unwrap().get(&key) {
        return directory.clone();
    }
    let directory = compile_anew(name, sources, arguments);
    COMPILED.lock().unwrap().insert(key, directory.clone());
    directory
}

fn compile_anew(name: &str, sources: &[&str], arguments: &[&str]) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut hash = DefaultHasher::new();
    (name, sources, arguments).hash(&mut hash);
    for entry in fs::read_dir(&programs).unwrap() {
        let path = entry.unwrap().path();
        (path.file_name(), fs::read(&path).unwrap()).hash(&mut hash);
    }
    for library in arguments
        .iter()
        .filter(|argument| argument.starts_with('/'))
    {
        fs::read(library).unwrap().hash(&mut hash);
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{:016x}", hash.finish()));
    let file = directory.join(name);
    if file.exists() {
        return directory;
    }
    fs::create_dir_all(&directory).unwrap();
    // Tests in this and in other processes may be here at the same time.
    let made = directory.join(format!(
        "{name}.{:?}",
        (std::process::id(), thread::current().id())
    ));
    let compiler = compiler(sources[0]);
    let output = Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&made)
        .args(sources.iter().map(|source| programs.join(source)))
        .args(arguments)
        .current_dir(&programs)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} is needed to build the test programs: {error}"));
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::rename(made, file).unwrap();
    directory
}

/// A shared library made of one source, with these among its libraries.
pub fn shared_library(source: &str, libraries: &[&Path]) -> PathBuf {
    let name = format!("lib{}.so", source.trim_end_matches(".c"));
    let soname = format!("-Wl,-soname,{name}");
    let arguments = ["-shared", "-fPIC", &soname];
    compile(&name, &[source], &with_libraries(&arguments, libraries)).join(name)
}

/// A program made of one source. `libraries` are linked to it, in this order.
pub fn program(source: &str, arguments: &[&str], libraries: &[&Path]) -> PathBuf {
    let name = source.split('.').next().unwrap();
    compile(name, &[source], &with_libraries(arguments, libraries)).join(name)
}

fn with_libraries<'a>(arguments: &[&'a str], libraries: &[&'a Path]) -> Vec<&'a str> {
    let libraries = libraries.iter().map(|path| path.to_str().unwrap());
    let arguments = arguments.iter().copied();
    arguments
        .chain(["-Wl,--no-as-needed"])
        .chain(libraries)
        .collect()
}

/// The test client: linked to a build of the runtime, or finding any by the name in HIP_RUNTIME.
pub fn client(linked_to: Option<Build>, arguments: &[&str]) -> PathBuf {
    let sources = ["client.c", "allocate.c", "find.c"];
    let library = linked_to.map(Build::path);
    let libraries: Vec<&Path> = library.as_deref().into_iter().collect();
    let linked = library.iter().map(|_| "-DLINKED");
    let arguments: Vec<&str> = arguments.iter().copied().chain(linked).collect();
    compile("client", &sources, &with_libraries(&arguments, &libraries)).join("client")
}

/// The client as a library that is linked to a build of the runtime, for `client_host`.
pub fn client_plugin(linked_to: Build) -> PathBuf {
    let name = "libclient.so";
    let sources = ["client.c", "allocate.c", "find.c"];
    let arguments = ["-shared", "-fPIC", "-DLINKED", "-Dmain=client_main"];
    let library = linked_to.path();
    compile(name, &sources, &with_libraries(&arguments, &[&library])).join(name)
}

/// `two_plugin.c`, linked to a build of the runtime and finding it wherever it is loaded from.
pub fn plugin_of(build: Build) -> PathBuf {
    let name = format!("libplugin-{build}.so");
    let run_path = format!("-Wl,-rpath,{}", build.directory().display());
    let soname = format!("-Wl,-soname,{name}");
    let arguments = ["-shared", "-fPIC", &run_path, &soname];
    let library = build.path();
    compile(
        &name,
        &["two_plugin.c"],
        &with_libraries(&arguments, &[&library]),
    )
    .join(name)
}

/// A budget of its own: a directory for ledgers and logs, which goes away with this value. Its programs run on
/// one build of the runtime.
pub struct Bench {
    pub build: Build,
    pub directory: tempfile::TempDir,
}

impl Bench {
    pub fn new(build: Build) -> Self {
        Self {
            build,
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub fn ledgers(&self) -> PathBuf {
        self.directory.path().join("shm")
    }

    /// What stands in the one ledger that there is.
    pub fn snapshot(&self) -> LedgerSnapshot {
        let ledgers = Ledger::list(&Place::new(self.ledgers(), false)).unwrap();
        assert_eq!(ledgers.len(), 1, "{ledgers:?}");
        Ledger::open(&ledgers[0].path).unwrap().snapshot()
    }

    pub fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// `program` with the library preloaded, and no limit yet.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("FH_") || text.starts_with("HIP_") {
                command.env_remove(name);
            }
        }
        command
            .env("LD_PRELOAD", library())
            .env("LD_LIBRARY_PATH", self.build.directory())
            .env("HIP_RUNTIME", self.build.soname())
            .env("FH_SHM_PATH", self.ledgers())
            .env("FH_LOG_PATH", self.log())
            .env("FH_VISIBLE_DEVICES", "0000:03:00.0");
        command
    }

    /// A program made of one source and linked to the runtime, with the library preloaded.
    pub fn linked(&self, source: &str, arguments: &[&str]) -> Command {
        self.command(program(source, arguments, &[&self.build.path()]))
    }

    /// The client under a limit, finding its functions in this `way`.
    pub fn client(&self, limit: &str, way: &str, commands: &[&str]) -> Command {
        let linked_to = (way == "linked").then_some(self.build);
        let mut command = self.command(client(linked_to, &[]));
        command
            .env("FH_MEMORY_LIMIT", limit)
            .arg(way)
            .args(commands);
        command
    }
}

/// The client's questions for the properties of a device that this build can answer.
pub fn properties_of(build: Build) -> &'static [&'static str] {
    const ALL: [&str; 3] = ["props", "props0600", "props0000"];
    if build.generation() >= 6 {
        &ALL
    } else {
        &ALL[..1]
    }
}

/// What one of these questions must print where the total is this one: everything else is as the runtime says it,
/// which is asked without the library.
pub fn properties(build: Build, question: &str, total: u64) -> String {
    let bench = Bench::new(build);
    let mut command = bench.client("unlimited", "linked", &[question]);
    let native = lines(command.env_remove("LD_PRELOAD")).remove(0);
    let start = format!("{question} = 0 total {BOARD}, others ");
    let rest = native.strip_prefix(&start).expect(&native);
    assert!(rest.ends_with(", 0 bytes around"), "{native}");
    format!("{question} = 0 total {total}, others {rest}")
}

/// What a program printed. Fails the test if the program did not end with success.
pub fn lines(command: &mut Command) -> Vec<String> {
    run(command).0
}

/// What a program printed on stdout and stderr. Fails the test if it did not end with success.
pub fn run(command: &mut Command) -> (Vec<String>, Vec<String>) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = both(&output);
    assert!(
        output.status.success(),
        "{:?}: {} {text:.2000?}",
        command.get_program(),
        output.status
    );
    text
}

/// The lines of stdout and stderr.
pub fn both(output: &Output) -> (Vec<String>, Vec<String>) {
    let lines = |bytes: &[u8]| {
        let text = std::str::from_utf8(bytes).unwrap();
        text.lines().map(String::from).collect()
    };
    (lines(&output.stdout), lines(&output.stderr))
}

/// A program that stops at `wait` until it is told to go on.
pub struct Running {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        }
    }

    /// The next line that the program prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Ends the present `wait`.
    pub fn go_on(&mut self) {
        self.input.write_all(b"\n").unwrap();
    }

    /// Kills the program and waits until it is gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the program's end; it must be a success.
    pub fn finish(mut self) {
        assert!(self.child.wait().unwrap().success());
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }
}
