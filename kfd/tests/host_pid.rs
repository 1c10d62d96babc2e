//! What PID a process finds for itself, in real PID namespaces: it must be the one that it has out here.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hipflex_kfd::{HostPid, Root, host_pid};

/// Set in the process that is looked at: where the host's `/proc` may be.
const PROBE: &str = "HIPFLEX_TEST_HOST_PROC";

/// A new PID namespace with a `/proc`, and one without.
const INSIDE: &str = "unshare --pid --fork --kill-child --mount-proc";
const INSIDE_BARE: &str = "unshare --pid --fork --kill-child";
const NOBODY: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups";
/// Mounts the `/proc` of here.
const MOUNT: &str = r#"mount --bind /proc "$HOST_PROC""#;
/// Takes `/proc` away, and all that is mounted below it.
const UNMOUNT: &str = "umount --lazy --recursive /proc";

/// A folder that anybody can enter, with this test program in it, and a place for the host's `/proc`.
struct Scene(tempfile::TempDir);

/// What a process said of itself, and what is true.
struct Answer {
    found: HostPid,
    truth: u32,
}

impl Scene {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let scene = Self(directory);
        fs::copy(std::env::current_exe().unwrap(), scene.program()).unwrap();
        fs::create_dir_all(scene.host_proc()).unwrap();
        scene
    }

    fn program(&self) -> PathBuf {
        self.0.path().join("probe")
    }

    fn host_proc(&self) -> PathBuf {
        self.0.path().join("host/proc")
    }

    /// Runs a script in a mount namespace of its own. Where it says `probe`, the process is started that
    /// looks for its PID.
    fn ask(&self, script: &str) -> Answer {
        let program = self.program();
        let probe = format!("{} --exact the_probe --nocapture", program.display());
        let script = format!("set -e; {}", script.replace("probe", &probe));
        let mut child = Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .env(PROBE, self.host_proc())
            .env("HOST_PROC", self.host_proc())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let found = lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| {
                let (_, answer) = line.split_once("FOUND ")?;
                Some(match answer.split_once(' ') {
                    Some(("known", pid)) => HostPid::Known(pid.parse().unwrap()),
                    _ => HostPid::Unknown(answer.to_owned()),
                })
            })
            .unwrap_or_else(|| panic!("no answer from: {script}"));
        let truth = pid_of(&program);
        // It waits for the end of its input.
        drop(child.stdin.take());
        child.wait().unwrap();
        Answer { found, truth }
    }

    fn known(&self, script: &str) {
        let Answer { found, truth } = self.ask(script);
        assert_eq!(found, HostPid::Known(truth), "{script}");
    }

    fn unknown(&self, script: &str, because: &str) {
        match self.ask(script).found {
            HostPid::Unknown(why) => assert!(why.contains(because), "{script}: {why}"),
            HostPid::Known(pid) => panic!("{script}: {pid} was taken"),
        }
    }
}

/// The process that runs `program`, which nobody else does, by the `/proc` of here.
fn pid_of(program: &Path) -> u32 {
    let start = format!("{}\0", program.display());
    let runs = |pid: u32| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|line| line.starts_with(&start))
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(|pid| runs(*pid))
        .unwrap_or_else(|| panic!("nobody runs {}", program.display()))
}

/// Whether this test can run; if not, says so where nobody overlooks it.
fn host_or_skip(test: &str) -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    // PROC_PID_INIT_INO of linux/proc_ns.h.
    let host = fs::read_link("/proc/self/ns/pid").unwrap() == Path::new("pid:[4026531836]");
    if !root || !host {
        let why = if root {
            "it would have to run outside of containers"
        } else {
            "it needs root"
        };
        // Past the test runner's capture, which holds for the macros alone.
        let line = format!("SKIPPED {test}: {why}\n");
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    root && host
}

/// No test by itself: the process that the tests look at.
#[test]
fn the_probe() {
    let Some(host_proc) = std::env::var_os(PROBE) else {
        return;
    };
    match host_pid(&Root::system(), Path::new(&host_proc)) {
        HostPid::Known(pid) => println!("FOUND known {pid}"),
        HostPid::Unknown(why) => println!("FOUND {why}"),
    }
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn on_the_host() {
    if !host_or_skip("on_the_host") {
        return;
    }
    let scene = Scene::new();
    scene.known("exec probe");
    scene.known(&format!("{MOUNT}; exec {NOBODY} probe"));
    scene.known(&format!("{MOUNT}; {UNMOUNT}; exec probe"));
    scene.unknown(&format!("{UNMOUNT}; exec probe"), "no /proc is mounted");
}

#[test]
fn in_a_pid_namespace_with_the_hosts_proc() {
    if !host_or_skip("in_a_pid_namespace_with_the_hosts_proc") {
        return;
    }
    let scene = Scene::new();
    scene.known(&format!("{MOUNT}; exec {INSIDE} probe"));
    scene.known(&format!("{MOUNT}; exec {INSIDE} {NOBODY} probe"));
    scene.known(&format!("{MOUNT}; exec {INSIDE} {INSIDE} probe"));
    scene.known(&format!(
        "{MOUNT}; exec {INSIDE} {INSIDE} {INSIDE} {NOBODY} probe"
    ));
    scene.known(&format!("{MOUNT}; {UNMOUNT}; exec {INSIDE_BARE} probe"));
    // Its own /proc is the host's, as it was not mounted anew.
    scene.known(&format!("exec {INSIDE_BARE} probe"));
}

#[test]
fn in_a_pid_namespace_without_it() {
    if !host_or_skip("in_a_pid_namespace_without_it") {
        return;
    }
    let scene = Scene::new();
    // PID 1, which the host has as well.
    scene.unknown(
        &format!("exec {INSIDE} probe"),
        "in a PID namespace of its own",
    );
    scene.unknown(
        &format!("exec {INSIDE} {INSIDE} probe"),
        "in a PID namespace of its own",
    );
    scene.unknown(
        &format!("{UNMOUNT}; exec {INSIDE_BARE} probe"),
        "which PID namespace",
    );
    // The /proc of the namespace between is no substitute, nor is its own. `sleep` is PID 2 there.
    scene.unknown(
        &format!("exec {INSIDE} sh -c '{MOUNT}; exec {INSIDE} probe'"),
        "is not the host's",
    );
    scene.unknown(
        &format!("exec {INSIDE} sh -c 'sleep 60 & {MOUNT}; exec {INSIDE} {NOBODY} probe'"),
        "is not the host's",
    );
    scene.unknown(
        &format!("exec {INSIDE} sh -c '{MOUNT}; exec probe'"),
        "own PID namespace",
    );
}

#[test]
fn a_mount_that_hides_processes_is_not_believed() {
    if !host_or_skip("a_mount_that_hides_processes_is_not_believed") {
        return;
    }
    let scene = Scene::new();
    let hiding = r#"mount -t proc -o hidepid=2 proc "$HOST_PROC""#;
    scene.unknown(
        &format!("{hiding}; exec {INSIDE} {NOBODY} probe"),
        "hidepid",
    );
    scene.known(&format!("{hiding}; exec {INSIDE} probe"));
}
