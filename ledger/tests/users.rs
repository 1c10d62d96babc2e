//! Several users: accounts of their own, one for all, and what belongs to the wrong one.

mod common;

use std::fs;

use common::{Child, GIB, MIB, Scene, gpu, hold, leftover, message, root_or_skip, set_mode, spawn};
use hipflex_ledger::{Ledger, Limit};
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

/// A member of another user, which has left without a word.
fn former_member_of(scene: &Scene, uid: u32, limit: u64) {
    spawn(|_| {
        become_user(uid);
        hold(&scene.join(limit), MIB);
        0
    })
    .succeed();
}

#[test]
fn a_shared_account_outlives_its_first_user() {
    if !root_or_skip("a_shared_account_outlives_its_first_user") {
        return;
    }
    let mut scene = Scene::new();
    scene.shared = true;
    set_mode(scene.directory.path(), 0o777);
    former_member_of(&scene, 2001, GIB);
    let first = scene.ledger().snapshot();
    assert_eq!((first.uid, first.members[0].generation), (2001, 1));
    spawn(|_| {
        become_user(2002);
        // The other's file cannot be removed from a sticky directory, so it is made anew.
        let member = scene.join(4 * GIB);
        assert_eq!(member.limit(0), Some(Limit::Bytes(4 * GIB)));
        assert_eq!(member.view(0).unwrap().charged, 0);
        let snapshot = scene.ledger().snapshot();
        assert_eq!((snapshot.uid, snapshot.reaped), (2002, 0));
        assert_eq!(snapshot.gpus.len(), 1);
        assert_eq!(snapshot.members[0].generation, 2, "generations go on");
        assert!(snapshot.created > first.created);
        member.leave().unwrap();
        assert!(!scene.ledger().remove_if_empty().unwrap());
        assert!(scene.path().exists());

        // It has room for 16 GPUs, as it was made for one.
        let many: Vec<_> = (0..17).map(|n| gpu(n, Limit::Unlimited)).collect();
        let text = scene.try_join(&many).unwrap_err().to_string();
        assert!(
            text.contains("room for 16 GPUs") && text.contains("only user 2001"),
            "{text}"
        );
        let other: Vec<_> = (3..19).map(|n| gpu(n, Limit::Bytes(n * MIB))).collect();
        let member = scene.try_join(&other).unwrap().member;
        assert_eq!(member.limit(15), Some(Limit::Bytes(18 * MIB)));
        0
    })
    .succeed();
    // Its owner may remove it, whoever has the directory and the owners file.
    chown(scene.path().parent().unwrap(), Some(Uid::from_raw(0)), None).unwrap();
    let owners = scene.path().with_file_name(".default.owners");
    chown(&owners, Some(Uid::from_raw(2002)), None).unwrap();
    spawn(|_| {
        become_user(2001);
        assert!(scene.ledger().remove_if_empty().unwrap());
        0
    })
    .succeed();
    assert!(!scene.path().exists() && owners.exists());
    former_member_of(&scene, 2003, GIB);
}

#[test]
fn a_directory_that_a_killed_creator_left_half_made_is_mended_by_its_owner() {
    if !root_or_skip("a_directory_that_a_killed_creator_left_half_made_is_mended_by_its_owner") {
        return;
    }
    let mut scene = Scene::new();
    scene.shared = true;
    set_mode(scene.directory.path(), 0o777);
    former_member_of(&scene, 2001, GIB);
    let shared = scene.path().parent().unwrap().to_owned();
    for mode in [0o700, 0o755, 0o500] {
        set_mode(&shared, mode);
        let joins = |uid| {
            let mut child = spawn(|_| {
                become_user(uid);
                i32::from(scene.try_join(&[gpu(0, Limit::Bytes(GIB))]).is_err())
            });
            child.wait() == nix::sys::wait::WaitStatus::Exited(child.pid, 0)
        };
        assert!(!joins(2002), "{mode:o}");
        assert!(joins(2001), "{mode:o}");
        assert!(joins(2002), "{mode:o}");
    }
    // So is a private one that the umask left too little.
    scene.shared = false;
    former_member_of(&scene, 2001, GIB);
    set_mode(scene.root().join("2001").as_path(), 0o500);
    former_member_of(&scene, 2001, GIB);
}

#[test]
fn users_who_make_the_root_at_the_same_moment_all_join_whatever_their_umask() {
    if !root_or_skip("users_who_make_the_root_at_the_same_moment_all_join_whatever_their_umask") {
        return;
    }
    let scene = Scene::new();
    set_mode(scene.directory.path(), 0o777);
    for _ in 0..40 {
        let _ = fs::remove_dir_all(scene.root());
        let mut children: Vec<_> = (2001..2005)
            .map(|uid| {
                let mut child = spawn(|parent| {
                    become_user(uid);
                    // SAFETY: the umask of this child only.
                    unsafe { libc::umask(0o077) };
                    parent.tell(b'r');
                    parent.wait();
                    scene.join(GIB);
                    0
                });
                child.hear();
                child
            })
            .collect();
        children.iter_mut().for_each(Child::go_on);
        children.iter_mut().for_each(Child::succeed);
        // Nothing half made is left.
        let left = fs::read_dir(scene.directory.path()).unwrap().count();
        assert_eq!(left, 1);
    }
}
