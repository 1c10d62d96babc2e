//! Files, directories and neighbours that are not what they should be: clear errors, no harm.

mod common;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use common::{GIB, Scene, gpu, hold, leftover, message, root_or_skip, set_mode, skip, spawn};
use hipflex_ledger::{BudgetName, JoinError, Ledger, Limit, Place};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

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
        assert!(error.to_string().contains("(2.0 MiB)"), "{error}");
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
fn a_pipe_in_the_place_of_a_helper_file_holds_nobody_up() {
    let mut scene = Scene::new();
    scene.shared = true;
    leftover(&scene);
    let path = scene.path();
    let pipe = |name: &str| {
        let path = path.with_file_name(name);
        let _ = fs::remove_file(&path);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
        path
    };
    let in_time = |what: &str, body: &dyn Fn()| {
        let mut child = spawn(|_| {
            // SAFETY: ends this child if it is held up.
            unsafe { libc::alarm(3) };
            body();
            0
        });
        let end = child.wait();
        assert!(
            matches!(end, nix::sys::wait::WaitStatus::Exited(_, 0)),
            "{what}: {end:?}"
        );
    };
    fs::remove_file(&path).unwrap();
    pipe(".default.owners");
    in_time("joining", &|| {
        let member = scene.join(GIB);
        hold(&member, GIB);
        assert_eq!(scene.ledger().snapshot().gpus[0].charged, GIB);
    });
    pipe(".default.owners");
    in_time("removing", &|| {
        assert!(scene.ledger().remove_if_empty().unwrap());
    });
    pipe(".lock");
    in_time("locking", &|| {
        let text = message(&scene);
        assert!(
            text.contains(".lock") && text.contains("device or pipe"),
            "{text}"
        );
    });
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_and_no_signal() {
    let scene = Scene::new();
    let mut child = spawn(|_| {
        let limit = libc::rlimit {
            rlim_cur: 1 << 20,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: of this child only.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let text = message(&scene);
        assert!(
            text.contains("at most 1.0 MiB (RLIMIT_FSIZE, ulimit -f)") && text.contains("2.0 MiB"),
            "{text}"
        );
        0
    });
    child.succeed();
    // One that exists is large enough already.
    let _member = scene.join(GIB);
}
