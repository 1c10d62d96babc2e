//! Files, directories and neighbours that are not what they should be: clear errors, no harm.

mod common;

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Child, GIB, MIB, Parent, Scene, gpu, hold, root_or_skip, skip, spawn};
use hipflex_ledger::{BudgetName, JoinError, Ledger, Limit, Place};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Uid, chown, setgid, setuid};

fn message(scene: &Scene) -> String {
    match scene.try_join(&[gpu(0, Limit::Bytes(GIB))]) {
        Ok(_) => panic!("joined"),
        Err(error) => error.to_string(),
    }
}

/// A ledger whose only member has ended without a word, so that the next one would replace it.
fn leftover(scene: &Scene) {
    spawn(|_| {
        hold(&scene.join(GIB), MIB);
        0
    })
    .succeed();
}

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    OpenOptions::new()
        .write(true)
        .open(path)
        .unwrap()
        .write_all_at(bytes, offset)
        .unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn directories_and_files_have_their_modes_whatever_the_umask() {
    let scene = Scene::new();
    for (umask, shared) in [(0o077, false), (0o000, false), (0o077, true), (0o277, true)] {
        let _ = fs::remove_dir_all(scene.root());
        spawn(|_| {
            // SAFETY: the umask of this child only.
            unsafe { libc::umask(umask) };
            let place = Place::new(scene.root(), shared);
            let joined = hipflex_ledger::Member::join(
                &place,
                &scene.budget(),
                &[gpu(0, Limit::Bytes(GIB))],
                &common::identity(),
            );
            joined.unwrap();
            // SAFETY: the umask of this child only.
            i32::from(unsafe { libc::umask(0) } != umask)
        })
        .succeed();
        let path = Place::new(scene.root(), shared).ledger_path(&scene.budget());
        let (directory, file) = if shared {
            (0o1777, 0o666)
        } else {
            (0o700, 0o600)
        };
        assert_eq!(mode(&scene.root()), 0o1777);
        assert_eq!(mode(path.parent().unwrap()), directory);
        for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
            let path = entry.unwrap().path();
            assert_eq!(mode(&path), file, "{}", path.display());
        }
    }
}

#[test]
fn what_is_no_ledger_is_refused_and_left_alone() {
    let scene = Scene::new();
    leftover(&scene);
    let path = scene.path();
    let good = fs::read(&path).unwrap();
    type Spoil<'a> = Box<dyn Fn() + 'a>;
    let cases: [(&str, Spoil<'_>, &str); 10] = [
        (
            "empty",
            Box::new(|| fs::write(&path, b"").unwrap()),
            "not a hipflex ledger",
        ),
        (
            "text",
            Box::new(|| fs::write(&path, "x".repeat(9999)).unwrap()),
            "not a hipflex ledger",
        ),
        (
            "cut",
            Box::new(|| fs::write(&path, &good[..good.len() - 1]).unwrap()),
            "its size is not what it says itself",
        ),
        (
            "cut after the header",
            Box::new(|| fs::write(&path, &good[..4096]).unwrap()),
            "its size is not what it says itself",
        ),
        (
            "magic",
            Box::new(|| overwrite(&path, 0, b"HIPFLEXX")),
            "not a hipflex ledger",
        ),
        (
            "version",
            Box::new(|| overwrite(&path, 8, &7_u64.to_le_bytes())),
            "has ledger layout 7, this hipflex has layout 1",
        ),
        (
            "boot",
            Box::new(|| overwrite(&path, 24, &[1; 16])),
            "before the last start of this machine",
        ),
        (
            "GPUs",
            Box::new(|| overwrite(&path, 72, &u64::MAX.to_le_bytes())),
            "its offsets are wrong",
        ),
        (
            "high water",
            Box::new(|| overwrite(&path, 512, &u64::MAX.to_le_bytes())),
            "more members than slots",
        ),
        (
            "name",
            Box::new(|| overwrite(&path, 144, b"another\0")),
            "made for a budget of another name",
        ),
    ];
    for (name, spoil, said) in cases {
        fs::write(&path, &good).unwrap();
        spoil();
        let before = fs::read(&path).unwrap();
        let text = message(&scene);
        assert!(text.contains(said), "{name}: {text}");
        assert!(
            text.contains(path.to_str().unwrap()) && !text.contains('\n'),
            "{name}: {text}"
        );
        let opened = Ledger::open(&path).unwrap_err().to_string();
        assert_eq!(opened, text, "{name}");
        let listed = Ledger::list(&scene.place()).unwrap();
        assert_eq!(listed.len(), 1, "{name}");
        assert!(listed[0].ledger.is_err(), "{name}");
        assert_eq!(fs::read(&path).unwrap(), before, "{name}");
    }
}

#[test]
fn links_pipes_and_directories_in_a_ledgers_place_are_refused() {
    let scene = Scene::new();
    leftover(&scene);
    let path = scene.path();
    let moved = path.with_file_name("moved");
    fs::rename(&path, &moved).unwrap();
    let inode_of_moved = fs::read(&moved).unwrap();

    symlink(&moved, &path).unwrap();
    assert!(
        message(&scene).contains("is a symbolic link"),
        "{}",
        message(&scene)
    );
    fs::remove_file(&path).unwrap();

    // A second name of another budget's ledger.
    fs::hard_link(&moved, &path).unwrap();
    scene.ledger();
    let other = Place::new(scene.root(), false).ledger_path(&BudgetName::new("other").unwrap());
    fs::hard_link(&moved, &other).unwrap();
    let error = Ledger::open(&other).unwrap_err().to_string();
    assert!(
        error.contains("made for a budget of another name"),
        "{error}"
    );
    fs::remove_file(&other).unwrap();
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(
        message(&scene).contains("is a directory"),
        "{}",
        message(&scene)
    );
    fs::remove_dir(&path).unwrap();

    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let started = Instant::now();
    assert!(
        message(&scene).contains("not a ledger"),
        "{}",
        message(&scene)
    );
    assert!(started.elapsed() < Duration::from_secs(1));
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(&moved).unwrap(), inode_of_moved);

    // So is a link in the place of the lock file.
    let lock = path.with_file_name(".lock");
    fs::remove_file(&lock).unwrap();
    symlink("/dev/null", &lock).unwrap();
    assert!(message(&scene).contains(".lock"), "{}", message(&scene));
}

#[test]
fn directories_that_others_could_reach_are_refused() {
    let scene = Scene::new();
    let root = scene.root();
    let own = scene.path().parent().unwrap().to_owned();
    leftover(&scene);

    set_mode(&own, 0o755);
    assert!(
        message(&scene).contains("has mode 0755; it must be 0700"),
        "{}",
        message(&scene)
    );
    set_mode(&own, 0o700);
    scene.join(GIB);

    set_mode(&root, 0o777);
    let text = message(&scene);
    assert!(text.contains("has mode 0777; it must be 1777"), "{text}");
    // One that nobody else can write to will do.
    set_mode(&root, 0o700);
    scene.join(GIB);
    set_mode(&root, 0o1777);

    let elsewhere = scene.directory.path().join("elsewhere");
    fs::rename(&own, &elsewhere).unwrap();
    symlink(&elsewhere, &own).unwrap();
    assert!(
        message(&scene).contains("symbolic link"),
        "{}",
        message(&scene)
    );
    fs::remove_file(&own).unwrap();
    fs::write(&own, b"").unwrap();
    assert!(
        message(&scene).contains("is no directory"),
        "{}",
        message(&scene)
    );

    let moved = scene.directory.path().join("root");
    fs::rename(&root, &moved).unwrap();
    symlink(&moved, &root).unwrap();
    assert!(
        message(&scene).contains("symbolic link"),
        "{}",
        message(&scene)
    );
    fs::remove_file(&root).unwrap();

    let nowhere = Place::new(scene.directory.path().join("a/b"), false);
    let error = hipflex_ledger::Member::join(
        &nowhere,
        &scene.budget(),
        &[gpu(0, Limit::Unlimited)],
        &common::identity(),
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("cannot make") && text.contains("FH_SHM_PATH"),
        "{text}"
    );
}

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

#[test]
fn a_stopped_holder_of_the_lock_is_named_and_a_killed_one_forgotten() {
    let scene = Scene::new();
    leftover(&scene);
    let lock = scene.path().with_file_name(".lock");
    let mut holder = spawn(|parent: &mut Parent| {
        use std::os::fd::AsRawFd;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&lock)
            .unwrap();
        for (byte, command) in [(0, libc::F_OFD_SETLK), (1, libc::F_SETLK)] {
            // SAFETY: all fields of flock are integers, for which zero is valid.
            let mut record: libc::flock = unsafe { std::mem::zeroed() };
            record.l_type = libc::F_WRLCK as libc::c_short;
            (record.l_start, record.l_len) = (byte, 1);
            // SAFETY: a valid record for these commands.
            let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &record) };
            assert_eq!(result, 0);
        }
        parent.stay()
    });
    holder.hear();
    kill(holder.pid, Signal::SIGSTOP).unwrap();
    let started = Instant::now();
    let error = scene.try_join(&[gpu(0, Limit::Bytes(GIB))]).unwrap_err();
    let waited = started.elapsed();
    assert!(
        (Duration::from_millis(1900)..Duration::from_secs(4)).contains(&waited),
        "{waited:?}"
    );
    let named = holder.pid.as_raw() as u32;
    assert!(matches!(error, JoinError::LockBusy { holder: Some(pid), .. } if pid == named));
    assert!(
        error.to_string().contains(&format!("process {named}")),
        "{error}"
    );

    let waiting = spawn(|_| {
        scene.join(GIB);
        0
    });
    std::thread::sleep(Duration::from_millis(50));
    let killed = Instant::now();
    holder.kill();
    let mut waiting = waiting;
    waiting.succeed();
    assert!(
        killed.elapsed() < Duration::from_secs(1),
        "{:?}",
        killed.elapsed()
    );
}

#[test]
fn a_full_file_system_is_an_error_and_no_signal() {
    const TEST: &str = "a_full_file_system_is_an_error_and_no_signal";
    if !root_or_skip(TEST) {
        return;
    }
    let scene = Scene::new();
    let mut child = spawn(|_| {
        let none = None::<&str>;
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
            skip(TEST, &format!("no private mount namespace: {error}"));
            return 0;
        }
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        fs::create_dir(scene.root()).unwrap();
        let tmpfs = Some("tmpfs");
        mount(
            tmpfs,
            &scene.root(),
            tmpfs,
            MsFlags::empty(),
            Some("size=1m,mode=1777"),
        )
        .unwrap();
        let error = scene.try_join(&[gpu(0, Limit::Bytes(GIB))]).unwrap_err();
        assert!(matches!(error, JoinError::NoSpace { .. }), "{error}");
        assert!(error.to_string().contains("(1.5 MiB)"), "{error}");
        // Nothing is left behind, and with room it works.
        let own = scene.path().parent().unwrap().to_owned();
        let left: Vec<_> = fs::read_dir(own)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, [".lock"]);
        let again = MsFlags::MS_REMOUNT;
        mount(none, &scene.root(), none, again, Some("size=4m")).unwrap();
        hold(&scene.join(GIB), GIB);
        0
    });
    child.succeed();
}

#[test]
fn a_ledger_that_is_removed_under_its_members_is_noticed() {
    let scene = Scene::new();
    let mut child = spawn(|parent| {
        hold(&scene.join(GIB), GIB);
        parent.stay()
    });
    child.hear();
    let watching = scene.ledger();
    fs::remove_file(scene.path()).unwrap();
    assert!(!watching.is_current());
    assert!(!watching.remove_if_empty().unwrap());
    let error = scene.try_join(&[gpu(0, Limit::Bytes(GIB))]).unwrap_err();
    let pid = child.pid.as_raw() as u32;
    assert!(matches!(error, JoinError::Removed { holder: Some(holder), .. } if holder == pid));
    assert!(
        error
            .to_string()
            .contains(&format!("process {pid} still uses it")),
        "{error}"
    );
    child.kill_into_zombie();
    assert_eq!(scene.join(GIB).view(0).unwrap().charged, 0);
}

#[test]
fn a_draft_that_a_dead_creator_left_is_no_hindrance() {
    let scene = Scene::new();
    leftover(&scene);
    let uid = nix::unistd::geteuid();
    let draft = scene.path().with_file_name(format!(".default.draft.{uid}"));
    fs::write(&draft, b"half").unwrap();
    scene.join(GIB);
    assert!(!draft.exists());
    // One that died between giving the ledger its name and removing the draft's.
    fs::hard_link(scene.path(), &draft).unwrap();
    scene.join(GIB);
    assert!(!draft.exists());
}

#[test]
fn an_empty_ledger_is_removed_with_all_its_files_and_a_used_one_is_not() {
    let scene = Scene::new();
    leftover(&scene);
    let ledger = scene.ledger();
    assert!(ledger.remove_if_empty().unwrap());
    let own = scene.path().parent().unwrap().to_owned();
    let left: Vec<_> = fs::read_dir(own)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, [".lock"]);
    assert!(Ledger::list(&scene.place()).unwrap().is_empty());
    let _member = scene.join(GIB);
    assert!(!ledger.remove_if_empty().unwrap());
    assert!(!scene.ledger().remove_if_empty().unwrap());
    assert!(scene.path().exists());
    let nothing = Place::new(scene.directory.path().join("nothing"), false);
    assert!(Ledger::list(&nothing).unwrap().is_empty());
}

#[test]
fn a_ledger_can_be_looked_at_without_permission_to_write() {
    let scene = Scene::new();
    let member = scene.join(GIB);
    hold(&member, MIB);
    let ledger = Ledger::open_read_only(&scene.path()).unwrap();
    assert!(!ledger.writable());
    let snapshot = ledger.snapshot();
    assert_eq!(snapshot.gpus[0].charged, MIB);
    assert_eq!(snapshot.members[0].alive, hipflex_ledger::Alive::Yes);
    for error in [
        ledger.reap().map(drop).unwrap_err(),
        ledger.remove_if_empty().map(drop).unwrap_err(),
        ledger
            .set_limit(gpu(0, Limit::Unlimited).key, Limit::Unlimited)
            .unwrap_err(),
        ledger.set_host_pid(0, 1, 1).unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("can only be read by this user"),
            "{error}"
        );
    }
}

#[test]
fn joining_and_removing_at_once_leaves_nobody_in_a_removed_ledger() {
    let scene = Scene::new();
    let mut removers: Vec<_> = (0..2)
        .map(|_| {
            spawn(|_| {
                loop {
                    for one in Ledger::list(&scene.place()).unwrap() {
                        one.ledger.unwrap().remove_if_empty().unwrap();
                    }
                }
            })
        })
        .collect();
    let mut joiners: Vec<_> = (0..3)
        .map(|_| {
            spawn(|_| {
                for _ in 0..100 {
                    let member = scene.join(GIB);
                    hold(&member, MIB);
                    // Whoever opens the budget now sees this member.
                    let snapshot = scene.ledger().snapshot();
                    let me = std::process::id();
                    assert!(snapshot.members.iter().any(|member| member.pid == me));
                    member.release(0, MIB);
                    member.leave().unwrap();
                }
                0
            })
        })
        .collect();
    joiners.iter_mut().for_each(Child::succeed);
    for remover in &mut removers {
        remover.kill();
        assert!(matches!(
            remover.wait(),
            nix::sys::wait::WaitStatus::Signaled(..)
        ));
    }
}
