//! What the tests of the real binary need: a machine with GPUs made of files, a directory for
//! ledgers, a library to preload.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hipflex_ledger::Place;
use nix::unistd::geteuid;
use tempfile::TempDir;

/// The user without any privileges, where tests are run by root.
const NOBODY: u32 = 65_534;

/// A machine, its ledgers and a library, all in one temporary directory.
pub(crate) struct Bench {
    directory: TempDir,
}

impl Bench {
    /// A machine with this many GPUs of 64 GiB, at 0000:03:00.0, 0000:04:00.0 and so on.
    pub(crate) fn with_gpus(count: u32) -> Self {
        let bench = Self {
            directory: tempfile::tempdir().unwrap(),
        };
        if count > 0 {
            bench.file("machine/dev/kfd", "");
        }
        bench.file("machine/sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n");
        for gpu in 1..=count {
            let node = format!("machine/sys/class/kfd/kfd/topology/nodes/{gpu}");
            let (minor, location) = (127 + gpu, (2 + gpu) << 8);
            bench.file(&format!("{node}/gpu_id"), &format!("{}\n", 1000 + gpu));
            let properties = format!(
                "simd_count 416\nsimd_per_cu 4\nlocation_id {location}\ndrm_render_minor {minor}\n"
            );
            bench.file(&format!("{node}/properties"), &properties);
            let bank = "heap_type 1\nsize_in_bytes 68719476736\n";
            bench.file(&format!("{node}/mem_banks/0/properties"), bank);
            bench.file(&format!("machine/dev/dri/renderD{minor}"), "");
        }
        bench
    }

    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.directory.path().join(below)
    }

    pub(crate) fn file(&self, path: &str, text: &str) -> PathBuf {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn place(&self) -> Place {
        Place::new(self.path("ledgers"), false)
    }

    /// A library that has the functions of libhipflex.so and limits nothing, made by the linker that
    /// Rust needs anyway.
    pub(crate) fn library(&self) -> PathBuf {
        let path = self.path("libhipflex.so");
        if !path.exists() {
            link(&path, STUB, &[]);
        }
        path
    }

    /// `hipflex` with these arguments, looking at this machine and these ledgers, in an environment
    /// that nothing else of hipflex is in.
    pub(crate) fn hipflex(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hipflex"));
        for variable in [
            "FH_MEMORY_LIMIT",
            "FH_BUDGET",
            "FH_FAIL_MODE",
            "FH_ENABLE_HOOKS",
            "FH_SHM_SHARED",
            "FH_HIP_LIB_PATH",
            "FH_LOG_PATH",
            "FH_ENABLE_LOG",
            "LD_PRELOAD",
        ] {
            command.env_remove(variable);
        }
        command.env("HIPFLEX_SYSFS_ROOT", self.path("machine"));
        command.env("FH_SHM_PATH", self.path("ledgers"));
        command.env("FH_LIB", self.library());
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Another user than root, if it is root who runs this test: `hipflex` as that user. The program
    /// and the library are where every user reaches them.
    pub(crate) fn hipflex_without_privileges(&self, arguments: &[&str]) -> Command {
        let like = self.hipflex(arguments);
        let mut command = self.command_without_privileges(Path::new(like.get_program()));
        command.args(arguments).stdin(Stdio::null());
        for (name, value) in like.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// A copy of a program where every user reaches it, to be started by another user than root.
    pub(crate) fn command_without_privileges(&self, program: &Path) -> Command {
        let copy = self.path("program-for-all");
        fs::copy(program, &copy).unwrap();
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(self.directory.path(), open).unwrap();
        let mut command = Command::new(copy);
        if geteuid().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// Runs `hipflex` to its end.
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.hipflex(arguments).output().unwrap()
    }
}

/// The functions of libhipflex.so, without what they do. Nobody who looks up a symbol finds one:
/// programs have to live with that, and the few here do.
pub(crate) const STUB: &str = "int hipMalloc(void **p, unsigned long n) { return 2; }
    int hipFree(void *p) { return 0; }
    void *dlsym(void *library, const char *name) { return 0; }";

/// Links a shared object of this C source, with these libraries as its needs.
pub(crate) fn link(path: &Path, source: &str, needs: &[&Path]) {
    let file = path.with_extension("c");
    fs::write(&file, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-Wl,--no-as-needed"])
        .arg(&file);
    let status = cc.args(needs).arg("-o").arg(path).status().unwrap();
    assert!(status.success(), "cc: {status}");
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}
