//! Whose booking goes when, shown with real processes.

mod common;

use std::ffi::CString;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use common::{GIB, MIB, Parent, Scene, eventually, hold, holder, spawn};
use hipflex_ledger::{Alive, DenialReason, ForkGuard, MAX_MEMBERS, Member, Stayed};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

/// What a process may do that must not touch the booking of the one that did it. Runs in a child of
/// the test that is a member; whatever children it makes have ended when it returns.
type Deed = fn();

fn wait_for(pid: libc::pid_t) {
    waitpid(Pid::from_raw(pid), None).unwrap();
}

/// Forks a child that ends in the given way, without exec.
fn fork_and(end: fn()) {
    // SAFETY: the process has one thread.
    match unsafe { fork() }.unwrap() {
        ForkResult::Parent { child } => wait_for(child.as_raw()),
        ForkResult::Child => {
            end();
            // SAFETY: the child ends here.
            unsafe { libc::_exit(3) }
        }
    }
}

fn exec_true() {
    let path = CString::new("/bin/true").unwrap();
    let _ = nix::unistd::execv(&path, &[&path]);
}

fn by_exit() {
    // SAFETY: runs the exit handlers of the process, which is what this is about.
    fork_and(|| unsafe { libc::exit(0) });
}

fn by_underscore_exit() {
    fork_and(|| {});
}

fn by_abort() {
    fork_and(|| {
        let none = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: no core file, then the end.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
        std::process::abort();
    });
}

fn by_kill() {
    fork_and(|| kill(nix::unistd::getpid(), Signal::SIGKILL).unwrap());
}

fn by_exec() {
    fork_and(exec_true);
}

/// The member of a process that is about to have children; null after that.
static MEMBER: AtomicPtr<Member> = AtomicPtr::new(std::ptr::null_mut());

/// What a library of the process does when it ends, and so in each of its children that runs exit handlers.
extern "C" fn at_exit() {
    // SAFETY: null, or the member of this process or of the one that it was forked from, which is on a stack that
    // the child has a copy of.
    if let Some(member) = unsafe { MEMBER.load(Ordering::Relaxed).as_ref() } {
        member.release(0, 100 * MIB);
        let _ = member.leave();
    }
}

/// Runs `body` in a child as vfork makes it: it shares the memory of its parent, which waits for its
/// end (or exec). Returns how it ended.
fn vforked(body: extern "C" fn(*mut libc::c_void) -> libc::c_int, with: *mut libc::c_void) -> i32 {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut stack = vec![0_u128; 4096];
    // SAFETY: the child runs on a stack of its own, whose end is aligned to 16 bytes and which
    // outlives it, as the parent waits; `with` is what `body` expects.
    let pid = unsafe { libc::clone(body, stack.as_mut_ptr_range().end.cast(), flags, with) };
    assert!(pid > 0);
    match waitpid(Pid::from_raw(pid), None).unwrap() {
        WaitStatus::Exited(_, code) => code,
        other => panic!("{other:?}"),
    }
}

/// Ends a vforked child and nothing else; the memory it shares stays as it is.
fn end_vforked(code: i32) -> libc::c_int {
    // SAFETY: has no preconditions and does not return.
    unsafe { libc::syscall(libc::SYS_exit, code) };
    code
}

fn by_vfork_and_exec() {
    extern "C" fn exec(_: *mut libc::c_void) -> libc::c_int {
        let arguments = [c"/bin/true".as_ptr(), std::ptr::null()];
        // SAFETY: path and arguments are terminated as execve wants them.
        unsafe { libc::execve(arguments[0], arguments.as_ptr(), arguments[1..].as_ptr()) };
        end_vforked(9)
    }
    assert_eq!(vforked(exec, std::ptr::null_mut()), 0);
}

fn by_vfork_and_underscore_exit() {
    extern "C" fn end(_: *mut libc::c_void) -> libc::c_int {
        end_vforked(3)
    }
    assert_eq!(vforked(end, std::ptr::null_mut()), 3);
}

fn by_posix_spawn() {
    let path = CString::new("/bin/true").unwrap();
    let mut pid = 0;
    let arguments = [path.as_ptr().cast_mut(), std::ptr::null_mut()];
    let environment = [std::ptr::null_mut()];
    // SAFETY: path, arguments and environment are terminated as posix_spawn wants them.
    let error = unsafe {
        libc::posix_spawn(
            &mut pid,
            path.as_ptr(),
            std::ptr::null(),
            std::ptr::null(),
            arguments.as_ptr(),
            environment.as_ptr(),
        )
    };
    assert_eq!(error, 0);
    wait_for(pid);
}

const DEEDS: [(&str, Deed); 8] = [
    ("fork, exit", by_exit),
    ("fork, _exit", by_underscore_exit),
    ("fork, abort", by_abort),
    ("fork, kill", by_kill),
    ("fork, exec", by_exec),
    ("vfork, exec", by_vfork_and_exec),
    ("vfork, _exit", by_vfork_and_underscore_exit),
    ("posix_spawn", by_posix_spawn),
];

#[test]
fn no_end_of_a_child_changes_its_parents_booking() {
    let scene = Scene::new();
    for (name, deed) in DEEDS {
        let mut child = spawn(|parent| {
            let member = scene.join(8 * GIB);
            hold(&member, 100 * MIB);
            let pending = member.reserve(0, 20 * MIB).unwrap();
            // SAFETY: the handler may run at any exit.
            assert_eq!(unsafe { libc::atexit(at_exit) }, 0);
            MEMBER.store((&raw const member).cast_mut(), Ordering::Relaxed);
            deed();
            MEMBER.store(std::ptr::null_mut(), Ordering::Relaxed);
            parent.tell(b'd');
            parent.wait();
            member.cancel(pending);
            member.release(0, 100 * MIB);
            i32::from(member.leave().is_err())
        });
        child.hear();
        let ledger = scene.ledger();
        assert_eq!(ledger.reap().unwrap(), [], "{name}");
        let snapshot = ledger.snapshot();
        assert_eq!(snapshot.gpus[0].charged, 120 * MIB, "{name}");
        assert_eq!(snapshot.members[0].alive, Alive::Yes, "{name}");
        child.go_on();
        child.succeed();
        assert_eq!(scene.charged(), 0, "{name}");
    }
}

#[test]
fn a_forked_child_cannot_touch_the_inherited_booking_and_joins_anew() {
    let scene = Scene::new();
    let mut child = spawn(|_| {
        let member = scene.join(8 * GIB);
        hold(&member, 100 * MIB);
        let pending = member.reserve(0, MIB).unwrap();
        let mut grandchild = spawn(|_| {
            assert!(member.is_stale_after_fork());
            assert_eq!(
                member.reserve(0, MIB).unwrap_err().reason,
                DenialReason::NotAMember
            );
            member.commit(pending, MIB);
            member.release(0, 100 * MIB);
            member.set_overhead(0, MIB);
            let denial = member.reserve(0, 1).unwrap_err();
            member.record_refusal(0, &denial, "x");
            assert_eq!(member.reap(), 0);
            assert!(member.view(0).is_none());
            assert_eq!(member.leave(), Err(Stayed::NotAMember));
            let own = scene.join(8 * GIB);
            assert_eq!(own.view(0).unwrap().others, 101 * MIB);
            hold(&own, 7 * MIB);
            assert_eq!(own.view(0).unwrap().charged, 108 * MIB);
            // Its end without a word gives back what is its own.
            0
        });
        grandchild.succeed();
        assert!(!member.is_stale_after_fork());
        assert_eq!(member.reap(), 1);
        let view = member.view(0).unwrap();
        assert_eq!(
            (view.mine.live, view.mine.pending, view.others),
            (100 * MIB, MIB, 0)
        );
        assert_eq!(scene.ledger().snapshot().members[0].frees, 0);
        0
    });
    child.succeed();
}

#[test]
fn a_fork_guard_tells_a_forked_child_from_its_parent_and_from_a_vforked_one() {
    let _alone = Scene::new();
    let guard = ForkGuard::new().unwrap();
    assert!(!guard.in_forked_child());
    spawn(|_| i32::from(!guard.in_forked_child())).succeed();
    // A vforked child acts on its parent's behalf, in its memory.
    extern "C" fn ask(guard: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it is the guard below, which outlives the child.
        let guard = unsafe { &*guard.cast::<ForkGuard>() };
        end_vforked(4 + i32::from(guard.in_forked_child()))
    }
    let told = vforked(ask, std::ptr::from_ref(&guard).cast_mut().cast());
    assert_eq!(told, 4, "a vforked child was taken for a forked one");
    assert!(!guard.in_forked_child());
}

#[test]
fn kill_9_gives_back_exactly_the_share_of_the_killed() {
    let scene = Scene::new();
    let me = scene.join(8 * GIB);
    hold(&me, GIB);
    let a = holder(&scene, 3 * GIB);
    let b = holder(&scene, 4 * GIB);
    assert_eq!(me.view(0).unwrap().charged, 8 * GIB);
    assert_eq!(me.reserve(0, MIB).unwrap_err().available, 0);

    // Not waited for: a zombie holds nothing. The next request finds that out by itself.
    a.kill_into_zombie();
    let snapshot = scene.ledger().snapshot();
    let dead = snapshot
        .members
        .iter()
        .find(|member| member.pid == a.pid.as_raw() as u32)
        .unwrap();
    assert_eq!(dead.alive, Alive::No);
    hold(&me, 3 * GIB);
    assert_eq!(me.view(0).unwrap().charged, 8 * GIB);
    assert!(me.reserve(0, 1).is_err());

    b.kill_into_zombie();
    let ledger = scene.ledger();
    let reaped = ledger.reap().unwrap();
    let [reaped] = &reaped[..] else {
        panic!("{reaped:?}")
    };
    assert_eq!(reaped.pid, b.pid.as_raw() as u32);
    assert_eq!(reaped.comm, "test");
    assert_eq!(reaped.returned, [(ledger.snapshot().gpus[0].key, 4 * GIB)]);
    // Exactly once.
    assert_eq!(ledger.reap().unwrap(), []);
    assert_eq!(me.view(0).unwrap().charged, 4 * GIB);
    assert_eq!(ledger.snapshot().reaped, 2);
}

#[test]
fn kill_9_between_reserve_and_commit_leaks_nothing() {
    let scene = Scene::new();
    let me = scene.join(8 * GIB);
    let mut child = spawn(|parent: &mut Parent| {
        let member = scene.join(8 * GIB);
        hold(&member, GIB);
        let _in_flight = member.reserve(0, 7 * GIB).unwrap();
        member.set_overhead(0, MIB);
        parent.stay()
    });
    child.hear();
    assert_eq!(me.view(0).unwrap().others, 8 * GIB + MIB);
    child.kill_into_zombie();
    hold(&me, 8 * GIB);
    assert_eq!(me.view(0).unwrap().charged, 8 * GIB);
}

#[test]
fn exec_ends_the_old_images_booking_though_the_pid_lives_on() {
    let scene = Scene::new();
    let me = scene.join(8 * GIB);
    let mut child = spawn(|parent| {
        let member = scene.join(8 * GIB);
        hold(&member, 5 * GIB);
        parent.tell(b'r');
        parent.wait();
        let path = CString::new("/bin/sleep").unwrap();
        let _ = nix::unistd::execv(&path, &[path.as_c_str(), c"60"]);
        1
    });
    child.hear();
    assert_eq!(me.reap(), 0);
    child.go_on();
    eventually("the old image is reaped", || me.reap() == 1);
    assert!(kill(child.pid, None).is_ok(), "the process lives");
    assert_eq!(me.view(0).unwrap().charged, 0);
}

#[test]
fn closing_all_descriptors_does_not_make_a_member_look_dead() {
    let scene = Scene::new();
    let me = scene.join(8 * GIB);
    let mut child = spawn(|parent| {
        let member = scene.join(8 * GIB);
        hold(&member, GIB);
        let mine = parent.descriptors();
        for fd in (3..2048).filter(|fd| !mine.contains(fd)) {
            // SAFETY: nothing in this child but `parent` uses a descriptor above 2.
            unsafe { libc::close(fd) };
        }
        parent.tell(b'c');
        parent.wait();
        // It can still book, be refused and leave.
        member.release(0, GIB);
        assert!(member.reserve(0, 9 * GIB).is_err());
        i32::from(member.leave().is_err())
    });
    child.hear();
    assert_eq!(me.reap(), 0);
    assert_eq!(scene.ledger().snapshot().members[1].alive, Alive::Yes);
    assert_eq!(me.view(0).unwrap().charged, GIB);
    child.go_on();
    child.succeed();
    assert_eq!(me.view(0).unwrap().charged, 0);
}

#[test]
fn a_reused_descriptor_number_misleads_nobody() {
    let scene = Scene::new();
    let mut child = spawn(|_| {
        let member = scene.join(8 * GIB);
        // The program closes what it does not know, and has its own files under these numbers then.
        let file = std::fs::File::open("/dev/null").unwrap();
        for fd in 500..1500 {
            // SAFETY: nothing in this child uses these numbers but the member, whose care is tested.
            unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&file), fd) };
        }
        assert_eq!(member.reap(), 0);
        assert_eq!(member.leave(), Ok(()));
        // They are still the program's.
        // SAFETY: only asks.
        i32::from((500..1500).any(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0))
    });
    child.succeed();
}

#[test]
fn a_child_that_outlives_its_parent_does_not_keep_the_booking_alive() {
    let scene = Scene::new();
    let me = scene.join(8 * GIB);
    let mut child = spawn(|parent| {
        let member = scene.join(8 * GIB);
        hold(&member, GIB);
        // SAFETY: the process has one thread.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                std::thread::sleep(Duration::from_secs(30));
                0
            }
            ForkResult::Parent { child } => {
                // Tells which one is to be killed at the end, too.
                parent.tell_number(child.as_raw());
                parent.stay()
            }
        }
    });
    let orphan = Pid::from_raw(child.hear_number());
    child.hear();
    assert_eq!(me.reap(), 0);
    child.kill_into_zombie();
    assert_eq!(me.reap(), 1);
    assert_eq!(me.view(0).unwrap().charged, 0);
    kill(orphan, Signal::SIGKILL).unwrap();
}

#[test]
fn a_thousand_dead_slots_do_not_keep_a_newcomer_out() {
    let scene = Scene::new();
    let live = scene.join(8 * GIB);
    hold(&live, MIB);
    // One process may have many slots; all die with it.
    let mut child = spawn(|parent| {
        let members: Vec<_> = (1..MAX_MEMBERS).map(|_| scene.join(8 * GIB)).collect();
        members.iter().for_each(|member| hold(member, MIB));
        parent.stay()
    });
    child.hear();
    let error = scene
        .try_join(&[common::gpu(0, hipflex_ledger::Limit::Bytes(1))])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("already has 1024 live processes"),
        "{error}"
    );
    assert_eq!(live.view(0).unwrap().charged, 1024 * MIB);
    child.kill_into_zombie();
    let newcomer = scene.join(8 * GIB);
    assert_eq!(newcomer.view(0).unwrap().charged, MIB);
    assert_eq!(scene.ledger().snapshot().members.len(), 2);
}
