//! Lives that cannot be told by PID, or not by locks.

mod common;

use common::{Child, GIB, Parent, Scene, hold, holder, root_or_skip, skip, spawn};
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
    let member_that_reaps = |parent: &mut Parent| {
        let member = scene.join(8 * GIB);
        hold(&member, GIB);
        assert_eq!(std::process::id(), 1);
        parent.tell(b'j');
        parent.wait();
        let reaped = member.reap();
        assert_eq!(member.view(0).unwrap().charged, 2 * GIB);
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
    let [first, second] = &snapshot.members[..] else {
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
        i32::from(member.view(0).unwrap().charged != GIB)
    });
    restarted.hear();
    restarted.go_on();
    restarted.succeed();
    b.go_on();
    b.succeed();
}

#[test]
fn where_locks_are_not_kept_a_second_witness_is_needed() {
    const TEST: &str = "where_locks_are_not_kept_a_second_witness_is_needed";
    if !root_or_skip(TEST) {
        return;
    }
    let scene = Scene::new();
    let mut child = spawn(|_| match overlay(&scene) {
        Err(why) => {
            skip(TEST, &why);
            0
        }
        Ok(()) => {
            second_witness(&scene);
            0
        }
    });
    child.succeed();
}

/// Mounts an overlay over the root of the ledgers, in a mount namespace of this process.
fn overlay(scene: &Scene) -> Result<(), String> {
    use nix::mount::{MsFlags, mount};
    let none = None::<&str>;
    let base = scene.directory.path();
    for name in ["lower", "upper", "work", "hipflex"] {
        std::fs::create_dir(base.join(name)).unwrap();
    }
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| format!("no private mount namespace: {e}"))?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
    let base = base.display();
    let data = format!("lowerdir={base}/lower,upperdir={base}/upper,workdir={base}/work");
    let target = scene.root();
    mount(
        Some("overlay"),
        &target,
        Some("overlay"),
        MsFlags::empty(),
        Some(data.as_str()),
    )
    .map_err(|error| format!("no overlay file system: {error}"))
}

fn second_witness(scene: &Scene) {
    let me = scene.join(8 * GIB);
    hold(&me, GIB);
    let mode = scene.ledger().snapshot().liveness;
    if mode == LivenessMode::Locks {
        skip("second witness", "this kernel's overlay keeps locks");
        return;
    }
    let child = holder(scene, 2 * GIB);
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
