//! What onlookers are told that never join: the limit that would hold for them, and what is charged.

mod common;

use common::{GIB, Scene, gpu, hold, holder, leftover, spawn};
use hipflex_ledger::{Ledger, Limit, Prospect};

fn prospect(scene: &Scene, limit: Limit) -> Prospect {
    let ledger = Ledger::open_read_only(&scene.path()).unwrap();
    ledger.prospect(&gpu(0, limit))
}

fn told(limit: u64, charged: u64) -> Prospect {
    Prospect {
        limit: Limit::Bytes(limit),
        charged,
    }
}

#[test]
fn the_stricter_limit_and_what_all_members_are_charged() {
    let scene = Scene::new();
    let mine = scene.join(8 * GIB);
    hold(&mine, GIB);
    let pending = mine.reserve(0, GIB).unwrap();
    let _other = holder(&scene, 2 * GIB);
    for (brought, holds) in [(2, 2), (8, 8), (16, 8)] {
        let limit = Limit::Bytes(brought * GIB);
        assert_eq!(prospect(&scene, limit), told(holds * GIB, 4 * GIB));
    }
    assert_eq!(prospect(&scene, Limit::Unlimited), told(8 * GIB, 4 * GIB));
    mine.commit(pending, GIB);
    mine.set_overhead(0, GIB);
    assert_eq!(prospect(&scene, Limit::Unlimited), told(8 * GIB, 5 * GIB));
    assert_eq!(scene.ledger().snapshot().members.len(), 2);
}

#[test]
fn a_limit_that_was_changed_holds_for_those_who_bring_the_first() {
    let scene = Scene::new();
    let _member = scene.join(8 * GIB);
    let key = gpu(0, Limit::Unlimited).key;
    scene
        .ledger()
        .set_limit(key, Limit::Bytes(12 * GIB))
        .unwrap();
    for (brought, holds) in [(8, 12), (10, 10), (16, 12)] {
        let limit = Limit::Bytes(brought * GIB);
        assert_eq!(prospect(&scene, limit), told(holds * GIB, 0));
    }
}

#[test]
fn the_dead_hold_nothing_and_a_ledger_of_theirs_has_no_limit_any_more() {
    let scene = Scene::new();
    leftover(&scene);
    assert_eq!(
        prospect(&scene, Limit::Bytes(3 * GIB)),
        told(3 * GIB, 0),
        "the next who comes replaces it"
    );
    let _lives = scene.join(8 * GIB);
    let dead = holder(&scene, 2 * GIB);
    dead.kill_into_zombie();
    assert_eq!(prospect(&scene, Limit::Unlimited), told(8 * GIB, 0));
}

#[test]
fn a_gpu_that_the_ledger_does_not_know_has_the_limit_that_is_brought() {
    let scene = Scene::new();
    let member = scene.join(8 * GIB);
    hold(&member, GIB);
    let ledger = Ledger::open_read_only(&scene.path()).unwrap();
    let other = gpu(1, Limit::Bytes(GIB));
    assert_eq!(ledger.prospect(&other), Prospect::unused(&other));
}

/// Whoever closes a descriptor of the file by which members' PIDs are told loses its lock on it.
#[test]
fn a_member_that_looks_can_still_be_told_by_others() {
    let scene = Scene::new();
    let mut member = spawn(|parent| {
        let scene = &scene;
        let _member = scene.join(8 * GIB);
        let told = prospect(scene, Limit::Unlimited);
        assert_eq!(told.limit, Limit::Bytes(8 * GIB));
        parent.stay()
    });
    member.hear();
    let names = scene.path();
    let owners = names.with_file_name(format!(".{}.owners", scene.budget().as_str()));
    let file = std::fs::File::open(owners).unwrap();
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: a descriptor that is open, and a lock that is filled in.
    let asked = unsafe {
        libc::fcntl(
            std::os::fd::AsRawFd::as_raw_fd(&file),
            libc::F_GETLK,
            &raw mut lock,
        )
    };
    assert_eq!((asked, lock.l_pid), (0, member.pid.as_raw()));
}
