//! Lives that cannot be told by PID, or not by locks.

mod common;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use common::{Child, GIB, Parent, Scene, hold, holder, root_or_skip, spawn};
use hipflex_ledger::{Alive, LivenessMode};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// Runs `body` in a new PID namespace, as its PID 1. The outer child is told to wait for it.
fn in_pid_namespace(body: impl FnOnce(&mut Parent) -> i32) -> Child {
    spawn(|parent| {
        unshare(CloneFlags::CLONE_NEWPID).unwrap();
        // SAFETY: the process has one thread.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => body(parent),
            ForkResult::Parent { child } => {
                // Dies with it, so that killing the outer one is enough.
                match waitpid(child, None).unwrap() {
                    WaitStatus::Exited(_, code) => code,
                    _ => 102,
                }
            }
        }
    })
}

#[test]
fn members_in_different_pid_namespaces_never_take_each_other_for_dead() {
    if !root_or_skip("members_in_different_pid_namespaces_never_take_each_other_for_dead") {
        return;
    }
    let scene = Scene::new();
    // Its PID is nobody's in the namespaces below.
    let outside = scene.join(8 * GIB);
    hold(&outside, GIB);
    let member_that_reaps = |parent: &mut Parent| {
        let member = scene.join(8 * GIB);
        hold(&member, GIB);
        assert_eq!(std::process::id(), 1);
        parent.tell(b'j');
        parent.wait();
        let reaped = member.reap();
        assert_eq!(member.view(0).unwrap().charged, 3 * GIB);
        parent.tell(u8::try_from(reaped).unwrap());
        parent.wait();
        0
    };
    let mut a = in_pid_namespace(member_that_reaps);
    a.hear();
    let mut b = in_pid_namespace(member_that_reaps);
    b.hear();
    for child in [&mut a, &mut b] {
        child.go_on();
        assert_eq!(child.hear(), 0, "a live member was reaped");
    }
    let ledger = scene.ledger();
    assert_eq!(ledger.reap().unwrap(), []);
    let snapshot = ledger.snapshot();
    let [_, first, second] = &snapshot.members[..] else {
        panic!("{snapshot:?}")
    };
    // Both are PID 1 at home; here they have PIDs of their own.
    assert_eq!((first.pid, second.pid), (1, 1));
    assert_ne!(first.pid_namespace, second.pid_namespace);
    let (first, second) = (first.pid_here.unwrap(), second.pid_here.unwrap());
    assert!(first != second && first > 1 && second > 1);
    // A container that is restarted has PID 1 again, and that is no sign of life.
    kill(Pid::from_raw(first.cast_signed()), Signal::SIGKILL).unwrap();
    a.wait();
    let mut restarted = in_pid_namespace(|parent| {
        let member = scene.join(8 * GIB);
        parent.tell(b'j');
        parent.wait();
        i32::from(member.view(0).unwrap().charged != 2 * GIB)
    });
    restarted.hear();
    restarted.go_on();
    restarted.succeed();
    b.go_on();
    b.succeed();
}

#[test]
fn where_locks_are_not_kept_a_second_witness_is_needed() {
    if !root_or_skip("where_locks_are_not_kept_a_second_witness_is_needed") {
        return;
    }
    let scene = Scene::new();
    let me = scene.join(8 * GIB);
    hold(&me, GIB);
    // As if the ledger had been made on a file system that does not keep locks.
    OpenOptions::new()
        .write(true)
        .open(scene.path())
        .unwrap()
        .write_all_at(&2_u64.to_le_bytes(), 56)
        .unwrap();
    let mode = scene.ledger().snapshot().liveness;
    assert_eq!(mode, LivenessMode::Witness);
    let child = holder(&scene, 2 * GIB);
    assert_eq!(me.reap(), 0);
    let snapshot = scene.ledger().snapshot();
    assert!(
        snapshot
            .members
            .iter()
            .all(|member| member.alive == Alive::Yes),
        "{snapshot:?}"
    );
    child.kill_into_zombie();
    assert_eq!(me.view(0).unwrap().charged, 3 * GIB);
    assert_eq!(me.reap(), 1);
    assert_eq!(me.view(0).unwrap().charged, GIB);

    // One in another PID namespace cannot be judged from here, nor judge those here.
    let mut other = in_pid_namespace(|parent| {
        let member = scene.join(8 * GIB);
        hold(&member, GIB);
        assert_eq!(member.reap(), 0);
        assert_eq!(member.view(0).unwrap().charged, 2 * GIB);
        parent.tell(b'r');
        parent.wait();
        0
    });
    other.hear();
    assert_eq!(scene.ledger().snapshot().members[1].alive, Alive::Unknown);
    other.go_on();
    other.succeed();
    assert_eq!(me.reap(), 0);
    assert_eq!(me.view(0).unwrap().charged, 2 * GIB);
    assert!(!scene.ledger().remove_if_empty().unwrap());
}
