//! Trees as a process sees them in namespaces of all kinds. `tests/host_pid.rs` has the kernel's own.

use super::*;
use crate::fixture::Fixture;

const OWN: &str = "proc";
const HOST: &str = "host/proc";
const INITIAL: u64 = 4_026_531_836;
const NESTED: u64 = 4_026_532_281;

/// stat lines of PID 2: the kernel's thread, and a program that took its name.
const KTHREADD: &str = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 24 0 0\n";
const POSER: &str = "2 (kthreadd) S 0 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 24 0 0\n";

/// A `/proc` at `at`, in which the process under test has the PIDs `numbers` and is in `namespace`.
fn myself(tree: &Fixture, at: &str, namespace: u64, numbers: &[u32]) {
    let first = numbers[0];
    let list: String = numbers.iter().map(|n| format!("\t{n}")).collect();
    tree.link(&format!("{at}/self"), &first.to_string());
    tree.link(
        &format!("{at}/{first}/ns/pid"),
        &format!("pid:[{namespace}]"),
    );
    tree.file(
        &format!("{at}/{first}/status"),
        &format!("Name:\tNSpid:\\n\nUmask:\t0022\nPid:\t{first}\nNSpid:{list}\nThreads:\t1\n"),
    );
}

/// A container with the host's `/proc` at its place: 7 inside is 4711 on the host.
fn container() -> Fixture {
    let tree = Fixture::new();
    myself(&tree, OWN, NESTED, &[7]);
    myself(&tree, HOST, NESTED, &[4711, 7]);
    tree.file(&format!("{HOST}/2/stat"), KTHREADD);
    tree
}

fn ask(tree: &Fixture, inner: u32) -> Result<u32, String> {
    let root = tree.root();
    find(inner, &root.path(OWN), &root.path(HOST))
}

fn reason(tree: &Fixture, inner: u32) -> String {
    match ask(tree, inner) {
        Ok(pid) => panic!("{pid} was taken"),
        Err(reason) => reason,
    }
}

#[test]
fn on_the_host_it_is_our_own() {
    let tree = Fixture::new();
    myself(&tree, OWN, INITIAL, &[4711]);
    assert_eq!(ask(&tree, 4711), Ok(4711));
    let root = tree.root();
    let this = std::process::id();
    myself(&tree, "this/proc", INITIAL, &[this]);
    assert_eq!(
        host_pid(&Root::at(root.path("this")), &root.path(HOST)),
        HostPid::Known(this)
    );
}

#[test]
fn in_a_container_the_mounted_proc_tells() {
    assert_eq!(ask(&container(), 7), Ok(4711));
}

#[test]
fn with_three_levels_the_first_number_is_the_hosts() {
    let tree = Fixture::new();
    myself(&tree, OWN, NESTED, &[7]);
    myself(&tree, HOST, NESTED, &[4711, 80, 7]);
    tree.file(&format!("{HOST}/2/stat"), KTHREADD);
    assert_eq!(ask(&tree, 7), Ok(4711));
}

#[test]
fn a_pid_that_is_listed_for_another_process_is_never_taken() {
    let tree = Fixture::new();
    myself(&tree, OWN, NESTED, &[7]);
    tree.file("sys/class/kfd/kfd/proc/7/vram_1", "4096\n");
    let told = reason(&tree, 7);
    assert!(
        told.contains("PID namespace") && told.contains("host/proc"),
        "{told}"
    );
}

#[test]
fn other_processes_of_the_same_inner_pid_do_not_matter() {
    let tree = container();
    for other in [900, 901] {
        tree.file(
            &format!("{HOST}/{other}/status"),
            &format!("NSpid:\t{other}\t7\n"),
        );
    }
    assert_eq!(ask(&tree, 7), Ok(4711));
}

#[test]
fn the_first_process_of_the_mount_says_whose_it_is_if_it_may_be_read() {
    let tree = container();
    tree.file(&format!("{HOST}/2/stat"), POSER);
    tree.link(&format!("{HOST}/1/ns/pid"), "pid:[4026531836]");
    assert_eq!(ask(&tree, 7), Ok(4711));
    let tree = container();
    tree.link(&format!("{HOST}/1/ns/pid"), "pid:[4026532000]");
    let told = reason(&tree, 7);
    assert!(told.contains("not the host's"), "{told}");
}

#[test]
fn the_proc_of_a_namespace_between_is_not_taken_for_the_hosts() {
    let tree = container();
    tree.file(&format!("{HOST}/2/stat"), POSER);
    let told = reason(&tree, 7);
    assert!(told.contains("not the host's"), "{told}");
}

#[test]
fn the_proc_of_our_own_namespace_is_not_taken_for_the_hosts() {
    let tree = Fixture::new();
    myself(&tree, OWN, NESTED, &[7]);
    myself(&tree, HOST, NESTED, &[7]);
    tree.file(&format!("{HOST}/2/stat"), POSER);
    let told = reason(&tree, 7);
    assert!(told.contains("own PID namespace"), "{told}");
}

#[test]
fn what_hidepid_hides_is_unknown() {
    let tree = container();
    tree.remove(&format!("{HOST}/2/stat"));
    let told = reason(&tree, 7);
    assert!(told.contains("hidepid"), "{told}");
    // What another reader would see of it instead of a line.
    tree.file(&format!("{HOST}/2/stat"), "");
    let told = reason(&tree, 7);
    assert!(told.contains("2/stat"), "{told}");
}

#[test]
fn an_own_proc_of_an_outer_namespace_tells_without_another() {
    let tree = Fixture::new();
    myself(&tree, OWN, NESTED, &[4711, 7]);
    tree.file(&format!("{OWN}/2/stat"), KTHREADD);
    assert_eq!(ask(&tree, 7), Ok(4711));
    // If it is of a namespace between, the host's is still asked.
    tree.file(&format!("{OWN}/2/stat"), POSER);
    assert!(ask(&tree, 7).is_err());
    myself(&tree, HOST, NESTED, &[9000, 4711, 7]);
    tree.file(&format!("{HOST}/2/stat"), KTHREADD);
    assert_eq!(ask(&tree, 7), Ok(9000));
}

#[test]
fn without_an_own_proc_only_the_hosts_can_tell() {
    let tree = Fixture::new();
    let told = reason(&tree, 7);
    assert!(told.contains("no /proc is mounted"), "{told}");
    // A container.
    let tree = container();
    tree.remove(&format!("{OWN}/self"));
    assert_eq!(ask(&tree, 7), Ok(4711));
    // The host, from inside a chroot.
    let tree = Fixture::new();
    myself(&tree, HOST, INITIAL, &[4711]);
    assert_eq!(ask(&tree, 4711), Ok(4711));
}

#[test]
fn a_tree_that_speaks_of_another_process_is_not_believed() {
    // Another machine's, with a process of the host there.
    let tree = container();
    tree.relink(&format!("{HOST}/4711/ns/pid"), "pid:[4026531836]");
    let told = reason(&tree, 7);
    assert!(told.contains("no /proc of this system"), "{told}");
    tree.remove(&format!("{OWN}/self"));
    let told = reason(&tree, 7);
    assert!(told.contains("no /proc of this system"), "{told}");
    // A copy that was made by another process.
    let tree = container();
    tree.file(&format!("{HOST}/4711/status"), "NSpid:\t4711\t8\n");
    let told = reason(&tree, 7);
    assert!(told.contains("no /proc of this system"), "{told}");
    tree.file(&format!("{HOST}/4711/status"), "NSpid:\t4710\t7\n");
    reason(&tree, 7);
}

#[test]
fn nonsense_is_unknown_and_says_where() {
    for numbers in ["", "\tx\t7", "\t0\t7", "\t-1\t7", "\t4294967296\t7"] {
        let tree = container();
        tree.file(
            &format!("{HOST}/4711/status"),
            &format!("Name:\ta\nNSpid:{numbers}\n"),
        );
        let told = reason(&tree, 7);
        assert!(told.contains("self/status"), "{numbers:?}: {told}");
    }
    for target in ["0", "banana", "thread-self", "/proc/4711", ""] {
        let tree = container();
        if target.is_empty() {
            tree.remove(&format!("{HOST}/self"));
        } else {
            tree.relink(&format!("{HOST}/self"), target);
        }
        let told = reason(&tree, 7);
        assert!(told.contains("host/proc"), "{target:?}: {told}");
    }
    for target in ["pid:[]", "pid:4026531836", "mnt:[4026531836]", "pid:[x]"] {
        let tree = container();
        tree.relink(&format!("{HOST}/4711/ns/pid"), target);
        reason(&tree, 7);
        tree.relink(&format!("{OWN}/7/ns/pid"), target);
        reason(&tree, 7);
    }
}
