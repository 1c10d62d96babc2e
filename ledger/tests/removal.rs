//! The lock of a directory, and ledgers that are left, removed or only looked at.

mod common;

use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

use common::{Child, GIB, MIB, Parent, Scene, gpu, hold, leftover, spawn};
use hipflex_ledger::{JoinError, Ledger, Limit, Place};
use nix::sys::signal::{Signal, kill};

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

#[test]
fn who_looks_at_a_ledger_survives_that_its_owner_cuts_it() {
    let scene = Scene::new();
    let member = spawn(|parent| {
        hold(&scene.join(GIB), MIB);
        parent.stay()
    });
    let mut member = member;
    member.hear();
    let path = scene.path();
    let good = fs::read(&path).unwrap();
    // It would not survive it.
    drop(member);
    let mut looking = spawn(|parent| {
        let kept = scene.ledger();
        parent.tell(b'r');
        let started = Instant::now();
        let (mut whole, mut cut) = (0, 0);
        while started.elapsed() < Duration::from_millis(1500) {
            assert_eq!(kept.snapshot().path, path);
            match Ledger::open(&path) {
                Ok(ledger) => {
                    whole += 1;
                    assert_eq!(ledger.snapshot().path, path);
                }
                Err(_) => cut += 1,
            }
            Ledger::list(&scene.place()).unwrap();
        }
        assert!(whole > 0 && cut > 0, "{whole} times whole, {cut} times cut");
        0
    });
    looking.hear();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        file.set_len(0).unwrap();
        std::thread::sleep(Duration::from_micros(50));
        std::os::unix::fs::FileExt::write_all_at(&file, &good, 0).unwrap();
        std::thread::sleep(Duration::from_micros(200));
    }
    looking.succeed();

    // One that is cut is not changed either, nor taken for an empty one.
    let ledger = scene.ledger();
    file.set_len(8192).unwrap();
    for error in [
        ledger.reap().map(drop).unwrap_err(),
        ledger.remove_if_empty().map(drop).unwrap_err(),
        ledger
            .set_limit(gpu(0, Limit::Unlimited).key, Limit::Unlimited)
            .unwrap_err(),
    ] {
        assert!(
            error.to_string().contains("its size has changed"),
            "{error}"
        );
    }
    assert!(path.exists());
}
