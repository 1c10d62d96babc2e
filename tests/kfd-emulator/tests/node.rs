//! Nodes from outside: what they leave alone, how they start and end.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Client, GIB, MIB, is_alive, vram_of, wait_until};
use kfd_emulator::{Inject, Node};

/// What a node could leave on this machine: mounts of its own, and files that it or its programs
/// make. All else is other programs' affair, which run at the same time.
fn traces_on_the_host() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let ours = mounts.lines().filter(|line| line.contains("kfd-emulator"));
    let mut found: Vec<String> = ours.map(str::to_owned).collect();
    for (directory, names) in [
        ("/dev", &["kfd-emulator"][..]),
        ("/dev/shm", &[SHARED, "fuse", "run", "dev", "sys", "etc"]),
        ("/sys/fs/cgroup", &[CGROUP]),
        ("/etc", &["ld.so.preload"]),
        ("/sys/module", &["amdgpu"]),
        ("/sys/class", &["kfd"]),
    ] {
        let paths = names.iter().map(|name| Path::new(directory).join(name));
        found.extend(
            paths
                .filter(|p| p.exists())
                .map(|p| p.display().to_string()),
        );
    }
    found
}

/// What the test's client makes inside the node. No other program has such names.
const SHARED: &str = "kfd_emulator_test_shared";
const CGROUP: &str = "kfd_emulator_test_cgroup";

#[test]
fn the_host_is_not_touched() {
    // What is there before has other reasons: a GPU, a preloaded library.
    let before = traces_on_the_host();
    for inject in [Inject::Seccomp, Inject::Preload] {
        let node = start_or_skip!(Node::builder().gpus(2).inject(inject));
        let mut client = Client::open(&node);
        client.ok(&format!("touch /dev/shm/{SHARED}"));
        client.ok("touch /dev/kfd-emulator/cache/x");
        client.ok(&format!("read /dev/shm/{SHARED}"));
        let cgroup = client.ask(&format!("touch /sys/fs/cgroup/{CGROUP}"));
        assert!(
            matches!(cgroup, Err(libc::EROFS | libc::EACCES | libc::EPERM)),
            "{cgroup:?}"
        );
        assert_eq!(
            traces_on_the_host(),
            before,
            "while a node runs with {inject}"
        );
        let server = node.server_pid();
        drop(node);
        assert!(!is_alive(server));
        wait_until("the client's end", || {
            client.process.try_wait().unwrap().is_some()
        });
        assert_eq!(traces_on_the_host(), before, "after a node with {inject}");
    }
}

#[test]
fn nodes_run_side_by_side() {
    let a = start_or_skip!(Node::builder().profile("mi210").vram(GIB));
    let b = start_or_skip!(Node::builder().profile("rx7900xtx").gpus(2).vram(2 * GIB));
    let (mut in_a, mut in_b) = (Client::open(&a), Client::open(&b));
    in_a.ok(&format!("alloc {GIB}"));
    in_b.ok(&format!("alloc {}", 2 * GIB));
    assert_eq!(in_a.ask("alloc 4096"), Err(libc::ENOMEM));
    assert_eq!(vram_of(&a, in_a.pid()), Some(GIB));
    assert_eq!(vram_of(&a, in_b.pid()), None, "the other node's");
    assert_eq!(b.control().state().unwrap().gpus.len(), 2);
    drop(a);
    assert_eq!(in_b.ok("version"), "1.17", "the other node goes on");
}

#[test]
fn gpus_of_a_node_can_differ_in_size() {
    let node = start_or_skip!(Node::builder().vram_of_each(&[2 * GIB, GIB]));
    let gpus = node.control().state().unwrap().gpus;
    let sizes: Vec<_> = gpus.iter().map(|gpu| gpu.vram_bytes).collect();
    assert_eq!(sizes, [2 * GIB, GIB]);
    for (gpu, bytes) in gpus.iter().zip(sizes) {
        let total = format!("/sys/bus/pci/devices/{}/mem_info_vram_total", gpu.bdf);
        let total = std::fs::read_to_string(node.path(total)).unwrap();
        assert_eq!(total.trim(), bytes.to_string(), "{}", gpu.bdf);
    }
    let wrong = Node::builder().vram_of_each(&[GIB, GIB]).gpus(3).start();
    let told = format!("{:#}", wrong.unwrap_err());
    assert!(
        told.contains("2 sizes of VRAM were given for 3 GPUs"),
        "{told}"
    );
}

#[test]
fn many_threads_start_and_use_nodes() {
    require_node!();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let node = common::start(Node::builder().vram(GIB));
                std::thread::scope(|clients| {
                    for _ in 0..3 {
                        clients.spawn(|| {
                            let mut client = Client::open(&node);
                            let handle = client.ok(&format!("alloc {}", 100 * MIB));
                            let fd = client.ok(&format!("export {handle}"));
                            client.ok(&format!("import {fd}"));
                        });
                    }
                });
                wait_until("all clients' end", || {
                    node.control().state().unwrap().processes.is_empty()
                });
                assert_eq!(node.control().state().unwrap().gpus[0].vram_used, 0);
            });
        }
    });
}

#[test]
fn programs_that_still_run_end_with_their_node() {
    let node = start_or_skip!(Node::builder());
    let mut sleeper = node.command("sleep").arg("1000").spawn().unwrap();
    let mut waiter = Client::open(&node);
    let event = waiter.ok("event");
    waiter.send(&format!("wait {event} 4294967295"));
    drop(node);
    for process in [&mut sleeper, &mut waiter.process] {
        assert!(!process.wait().unwrap().success());
    }
}

#[test]
fn programs_end_with_their_node_even_when_its_server_was_killed() {
    let node = start_or_skip!(Node::builder());
    let mut sleeper = node.command("sleep").arg("1000").spawn().unwrap();
    let server = nix::unistd::Pid::from_raw(node.server_pid() as i32);
    nix::sys::signal::kill(server, nix::sys::signal::SIGKILL).unwrap();
    drop(node);
    assert!(!sleeper.wait().unwrap().success());
}

#[test]
fn a_program_may_run_as_another_user() {
    let node = start_or_skip!(Node::builder().vram(GIB));
    let mut command = node.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    // Programs in a home directory may be out of reach for that user.
    let directory = tempfile::TempDir::with_prefix("kfd-client").unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let copy = directory.path().join("kfd-client");
    std::fs::copy(env!("CARGO_BIN_EXE_kfd-client"), &copy).unwrap();
    let mut client = Client::spawn({
        command.arg(&copy);
        command
    });
    client.ok("open");
    let handle = client.ok("alloc 4096");
    let fd = client.ok(&format!("export {handle}"));
    client.ok(&format!("import {fd}"));
    client.ok(&format!("poke {handle} 5"));
    assert_eq!(
        vram_of(&node, node.control().state().unwrap().processes[0].pid),
        Some(4096)
    );
}

#[test]
fn a_node_ends_with_the_process_that_made_it() {
    require_node!();
    let mut parent = Command::new(env!("CARGO_BIN_EXE_kfd-emulator"))
        .args(["node", "--", "sh", "-c", "echo $$; exec sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = parent.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    let inside: u32 = line.trim().parse().unwrap();
    assert!(is_alive(inside));
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(wait_until("the program's end", || !is_alive(inside)) < Duration::from_secs(2));
}

#[test]
fn the_command_line_passes_the_status_on() {
    require_node!();
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kfd-emulator"))
            .arg("node")
            .args(arguments)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    assert_eq!(run(&["--", "sh", "-c", "exit 7"]).0, Some(7));
    assert_eq!(run(&["--", "sh", "-c", "kill -9 $$"]).0, Some(137));
    assert_eq!(run(&["--", "/nowhere"]).0, Some(127));
    let (code, message) = run(&["--gpu", "voodoo2", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(message.contains("mi210"), "{message}");
    let (code, message) = run(&["--vram", "banana", "--", "true"]);
    assert_eq!(code, Some(2));
    assert!(
        message.contains("banana") && message.contains("4GiB"),
        "{message}"
    );
}

/// A program in the node that has left its leader's thread, and one in a namespace of its own.
#[test]
fn programs_that_hide_end_with_their_node() {
    let node = start_or_skip!(Node::builder());
    let mut leaderless = Client::open(&node);
    leaderless.ok("leave-leader");
    let stat = format!("/proc/{}/stat", leaderless.pid());
    wait_until("a leader that has ended", || {
        std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") Z "))
    });
    let mut private = node
        .command("unshare")
        .args(["-m", "sleep", "1000"])
        .spawn()
        .unwrap();
    let name = format!("/proc/{}/comm", private.id());
    wait_until("its own namespace", || {
        std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n")
    });
    node.stop().unwrap();
    for process in [&mut leaderless.process, &mut private] {
        assert!(
            wait_until("the end", || process.try_wait().unwrap().is_some())
                < Duration::from_secs(1)
        );
    }
}

#[test]
fn who_opened_a_device_from_outside_is_no_program() {
    let node = start_or_skip!(Node::builder());
    let mut outside = Command::new("sleep")
        .arg("1000")
        .stdin(std::fs::File::open(node.path("/dev/kfd")).unwrap())
        .spawn()
        .unwrap();
    let here = std::fs::File::open(node.path("/dev/kfd")).unwrap();
    assert_eq!(node.control().state().unwrap().processes.len(), 1);
    node.stop().unwrap();
    assert!(outside.try_wait().unwrap().is_none());
    drop(here);
    outside.kill().unwrap();
    outside.wait().unwrap();
}

#[test]
fn a_proc_of_another_pid_namespace_is_refused() {
    require_node!();
    let output = Command::new("unshare")
        .args(["--pid", "--fork", env!("CARGO_BIN_EXE_kfd-emulator")])
        .args(["node", "--", "true"])
        .output()
        .unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("--mount-proc"), "{message}");
    let status = Command::new("unshare")
        .args([
            "--pid",
            "--fork",
            "--mount-proc",
            env!("CARGO_BIN_EXE_kfd-emulator"),
        ])
        .args(["node", "--", "true"])
        .status()
        .unwrap();
    assert!(status.success());
}

/// The server opens files of its own mount for its clients. Killed meanwhile, it must still end, and
/// so must they.
#[test]
fn a_killed_server_leaves_nothing_that_cannot_be_killed() {
    for round in 0..8 {
        let node = start_or_skip!(Node::builder().vram(GIB));
        let mut client = Client::open(&node);
        let handle = client.ok("alloc 4096");
        client.send(&format!("export-forever {handle}"));
        std::thread::sleep(Duration::from_millis(5 + 3 * round));
        let server = nix::unistd::Pid::from_raw(node.server_pid() as i32);
        nix::sys::signal::kill(server, nix::sys::signal::SIGKILL).unwrap();
        let since = std::time::Instant::now();
        node.stop().unwrap();
        client.process.wait().unwrap();
        assert!(since.elapsed() < Duration::from_secs(3), "{round}");
    }
}

#[test]
fn a_server_that_is_killed_while_it_starts_ends() {
    require_node!();
    for round in 0..8 {
        let mut server = Command::new(env!("CARGO_BIN_EXE_kfd-emulator"))
            .arg("serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(2 * round));
        server.kill().unwrap();
        wait_until("its end", || server.try_wait().unwrap().is_some());
    }
}

/// Ctrl-C goes to everything at the terminal. The program may handle it and go on.
#[test]
fn a_program_that_handles_an_interrupt_keeps_its_node() {
    require_node!();
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    let script = "trap 'cat /sys/class/kfd/kfd/topology/nodes/1/gpu_id; exit 5' INT
                  echo ready; while :; do sleep 0.05; done";
    let mut parent = Command::new(env!("CARGO_BIN_EXE_kfd-emulator"))
        .args(["node", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut output = BufReader::new(parent.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "ready");
    let group = nix::unistd::Pid::from_raw(parent.id() as i32);
    nix::sys::signal::killpg(group, nix::sys::signal::SIGINT).unwrap();
    let gpu_id: u32 = output.next().unwrap().unwrap().parse().unwrap();
    assert_ne!(gpu_id, 0);
    assert_eq!(parent.wait().unwrap().code(), Some(5));
    // One that does not handle it dies of it.
    let status = Command::new(env!("CARGO_BIN_EXE_kfd-emulator"))
        .args(["node", "--", "sh", "-c", "kill -INT $$"])
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(130));
}

#[test]
fn mi300x_comes_in_eights() {
    for (profile, count) in [("mi300x", 8), ("mi210", 1), ("rx7900xtx", 1)] {
        let node = start_or_skip!(Node::builder().profile(profile));
        assert_eq!(
            node.control().state().unwrap().gpus.len(),
            count,
            "{profile}"
        );
    }
    let node = start_or_skip!(Node::builder().profile("mi300x").gpus(2));
    assert_eq!(node.control().state().unwrap().gpus.len(), 2);
    let help = Command::new(env!("CARGO_BIN_EXE_kfd-emulator"))
        .args(["node", "--help"])
        .output()
        .unwrap();
    assert!(
        String::from_utf8(help.stdout)
            .unwrap()
            .contains("8 for mi300x")
    );
}
