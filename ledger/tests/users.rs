//! Several users: accounts of their own, one for all, and what belongs to the wrong one.

mod common;

use std::fs;

use common::{Child, GIB, MIB, Scene, hold, leftover, message, root_or_skip, set_mode, spawn};
use hipflex_ledger::Ledger;
use nix::unistd::{Gid, Uid, chown, setgid, setuid};

#[test]
fn what_belongs_to_another_user_is_refused() {
    if !root_or_skip("what_belongs_to_another_user_is_refused") {
        return;
    }
    let scene = Scene::new();
    leftover(&scene);
    let path = scene.path();
    let stranger = Some(Uid::from_raw(1234));
    chown(&path, stranger, None).unwrap();
    let text = message(&scene);
    assert!(
        text.contains("belongs to user 1234, not to user 0"),
        "{text}"
    );
    chown(&path, Some(Uid::from_raw(0)), None).unwrap();

    set_mode(&path, 0o644);
    assert!(
        message(&scene).contains("has mode 0644; a ledger has 0600"),
        "{}",
        message(&scene)
    );
    set_mode(&path, 0o600);

    chown(path.parent().unwrap(), stranger, None).unwrap();
    let text = message(&scene);
    assert!(
        text.contains("belongs to user 1234, not to user 0"),
        "{text}"
    );
}

fn become_user(uid: u32) {
    setgid(Gid::from_raw(uid)).unwrap();
    setuid(Uid::from_raw(uid)).unwrap();
}

/// A member of another user, which stays.
fn member_of(scene: &Scene, uid: u32, bytes: u64) -> Child {
    let mut child = spawn(|parent| {
        become_user(uid);
        hold(&scene.join(GIB), bytes);
        parent.stay()
    });
    child.hear();
    child
}

#[test]
fn users_have_accounts_of_their_own_and_root_sees_all() {
    if !root_or_skip("users_have_accounts_of_their_own_and_root_sees_all") {
        return;
    }
    let scene = Scene::new();
    set_mode(scene.directory.path(), 0o777);
    let _root_was_first = scene.join(GIB);
    let _a = member_of(&scene, 2001, GIB);
    let b = member_of(&scene, 2002, GIB);
    spawn(|_| {
        become_user(2003);
        hold(&scene.join(GIB), GIB);
        let listed = Ledger::list(&scene.place()).unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].uid, Some(2003));
        let path = scene.root().join("2001/default");
        let error = Ledger::open(&path).unwrap_err().to_string();
        assert!(error.contains("ermission denied"), "{error}");
        0
    })
    .succeed();
    let listed = Ledger::list(&scene.place()).unwrap();
    let uids: Vec<_> = listed.iter().map(|one| one.uid.unwrap()).collect();
    assert_eq!(uids, [0, 2001, 2002, 2003]);
    for one in &listed {
        let ledger = one.ledger.as_ref().unwrap();
        assert_eq!(ledger.snapshot().uid, one.uid.unwrap());
    }
    // Root reaps for others and removes what is left, and leaves no file of root's behind.
    drop(b);
    fs::remove_file(scene.root().join("2002/.lock")).unwrap();
    let ledger = listed[2].ledger.as_ref().unwrap();
    assert_eq!(ledger.reap().unwrap().len(), 1);
    assert!(ledger.remove_if_empty().unwrap());
    assert!(!ledger.path().exists());
    assert!(!ledger.remove_if_empty().unwrap());
    drop(member_of(&scene, 2002, MIB));
    assert!(
        !listed[1]
            .ledger
            .as_ref()
            .unwrap()
            .remove_if_empty()
            .unwrap()
    );
}

#[test]
fn a_shared_account_is_one_for_all_users() {
    if !root_or_skip("a_shared_account_is_one_for_all_users") {
        return;
    }
    let mut scene = Scene::new();
    scene.shared = true;
    set_mode(scene.directory.path(), 0o777);
    let a = member_of(&scene, 2001, 600 * MIB);
    let _b = member_of(&scene, 2002, 400 * MIB);
    spawn(|_| {
        become_user(2003);
        let member = scene.join(GIB);
        assert_eq!(member.view(0).unwrap().charged, 1000 * MIB);
        assert!(member.reserve(0, 100 * MIB).is_err());
        let ledger = scene.ledger();
        let snapshot = ledger.snapshot();
        assert!(snapshot.shared);
        let uids: Vec<_> = snapshot.members.iter().map(|member| member.uid).collect();
        assert_eq!(uids, [2001, 2002, 2003]);
        0
    })
    .succeed();
    a.kill_into_zombie();
    // Any user reaps for any other.
    spawn(|_| {
        become_user(2003);
        let member = scene.join(GIB);
        assert_eq!(member.view(0).unwrap().charged, 400 * MIB);
        hold(&member, 624 * MIB);
        0
    })
    .succeed();
    // A private budget of the same name is another account.
    scene.shared = false;
    assert_eq!(scene.join(GIB).view(0).unwrap().charged, 0);
    assert_eq!(Ledger::list(&scene.place()).unwrap().len(), 2);
}
