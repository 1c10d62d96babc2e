//! Hooks that are installed while the program's threads run, sleep, come and go: none notices.

mod common;

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use common::{Library, calls, commit, install, session, stage};
use hipflex_hooking::Refusal;

/// How many times hooks are installed, on a fresh copy of the library each time: `HIPFLEX_ROUNDS`.
fn rounds() -> usize {
    let asked = std::env::var("HIPFLEX_ROUNDS").ok();
    asked.map_or(50, |rounds| rounds.parse().expect("a number"))
}

/// Functions which threads call. The first is one whose calls are mostly inside of what is overwritten.
const NAMES: [&str; 4] = [
    "keep_pauses",
    "keep_endbr_push",
    "keep_moves_call",
    "keep_sub",
];

/// Ends what a scope's threads do, also when a check fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A thread that computes until `done`, and one is sure that it does.
fn spin<'s>(scope: &'s Scope<'s, '_>, done: &'s AtomicBool) {
    let (say, hear) = mpsc::channel();
    scope.spawn(move || {
        say.send(()).unwrap();
        while !done.load(Ordering::Relaxed) {
            core::hint::spin_loop();
        }
    });
    hear.recv().unwrap();
}

#[test]
fn threads_that_call_the_functions_get_what_they_got_before() {
    let first = Library::new();
    for _ in 0..rounds() {
        let library = first.copy();
        let functions = NAMES.map(|name| library.function(name));
        let expected = functions.map(|function| function(5));
        let done = AtomicBool::new(false);
        let (say, hear) = mpsc::channel();
        thread::scope(|scope| {
            let _done = Done(&done);
            for _ in 0..4 {
                let say = say.clone();
                let done = &done;
                scope.spawn(move || {
                    say.send(()).unwrap();
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(functions.map(|function| function(5)), expected);
                    }
                });
            }
            (0..4).for_each(|_| hear.recv().unwrap());
            let mut session = session();
            for (index, name) in NAMES.into_iter().enumerate() {
                stage(&mut session, library.address(name), index).unwrap();
            }
            commit(session).unwrap();
            // From now on each call is seen.
            let before = calls(0);
            let own = 10;
            (0..own).for_each(|_| assert_eq!(functions[0](5), expected[0]));
            assert!(calls(0) >= before + own);
        });
    }
}

#[test]
fn threads_that_come_and_go_are_no_obstacle() {
    let first = Library::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _done = Done(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    thread::spawn(|| core::hint::black_box(1)).join().unwrap();
                }
            });
        }
        for round in 0..rounds() {
            let library = first.copy();
            let function = library.function("keep_push");
            let expected = function(1);
            install(library.address("keep_push"), 0)
                .unwrap_or_else(|refusal| panic!("round {round}: {refusal}"));
            assert_eq!(function(1), expected);
        }
    });
}

type Sleep = fn(Duration) -> i64;

/// Calls which a signal ends with EINTR, whatever its handler's flags.
const SLEEPS: [(&str, Sleep); 4] = [
    ("nanosleep", |time| {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        };
        // SAFETY: a valid time; what is left is not asked for.
        i64::from(unsafe { libc::nanosleep(&raw const time, core::ptr::null_mut()) })
    }),
    ("epoll_wait", |time| {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: a descriptor of its own, and room for one event.
        unsafe {
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let result = libc::epoll_wait(epoll, &raw mut event, 1, time.as_millis() as i32);
            let error = *libc::__errno_location();
            libc::close(epoll);
            *libc::__errno_location() = error;
            i64::from(result)
        }
    }),
    ("poll", |time| {
        // SAFETY: no descriptors.
        i64::from(unsafe { libc::poll(core::ptr::null_mut(), 0, time.as_millis() as i32) })
    }),
    ("select", |time| {
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: time.subsec_micros().into(),
        };
        let none = core::ptr::null_mut();
        // SAFETY: no descriptors, a valid time.
        i64::from(unsafe { libc::select(0, none, none, none, &raw mut time) })
    }),
];

#[test]
fn threads_that_sleep_in_a_system_call_sleep_on() {
    let first = Library::new();
    let begun = AtomicUsize::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let sleepers = SLEEPS.map(|(name, sleep)| {
            let begun = &begun;
            scope.spawn(move || {
                begun.fetch_add(1, Ordering::SeqCst);
                let result = sleep(Duration::from_millis(900));
                (name, result, std::io::Error::last_os_error())
            })
        });
        let finish = Done(&done);
        // One that runs, so that signals are sent at all.
        spin(scope, &done);
        while begun.load(Ordering::SeqCst) < SLEEPS.len() {
            thread::yield_now();
        }
        // It can be seen that the threads sleep only by what is tested here. A round trip through the scheduler
        // for each of them, several times over.
        thread::sleep(Duration::from_millis(200));
        let until = Instant::now() + Duration::from_millis(300);
        let mut installed = 0;
        while Instant::now() < until {
            install(first.copy().address("keep_push"), 0).unwrap();
            installed += 1;
        }
        assert!(installed > 0);
        for sleeper in sleepers {
            let (name, result, error) = sleeper.join().unwrap();
            assert_eq!(result, 0, "{name}: {error}");
        }
        drop(finish);
    });
}

/// Runs `work` with all signals blocked that can be.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let mut all = core::mem::MaybeUninit::uninit();
    let mut before = core::mem::MaybeUninit::uninit();
    // SAFETY: the sets are filled in by the calls.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = work();
    // SAFETY: the mask from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    result
}

#[test]
fn a_thread_that_runs_and_takes_no_signals_makes_it_refuse() {
    let library = Library::new();
    let function = library.function("keep_push");
    let expected = function(7);
    let before: [u8; 16] = common::code(library.address("keep_push"));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let finish = Done(&done);
        without_signals(|| spin(scope, &done));
        let begun = Instant::now();
        let refused = install(library.address("keep_push"), 0).unwrap_err();
        // It tried for some time, and no longer.
        assert!(begun.elapsed() < Duration::from_secs(10));
        let said = refused.to_string();
        assert!(matches!(refused, Refusal::Threads(_)), "{said}");
        assert!(said.contains("runs and blocks signal"), "{said}");
        assert_eq!(common::code(library.address("keep_push")), before);
        assert_eq!(function(7), expected);
        drop(finish);
    });
    // It is gone: now it works.
    install(library.address("keep_push"), 0).unwrap();
    assert_eq!(function(7), expected);
}

#[test]
fn a_thread_that_sleeps_and_takes_no_signals_is_no_obstacle() {
    let library = Library::new();
    let (end, wait) = mpsc::channel::<()>();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let finish = (Done(&done), end);
        spin(scope, &done);
        let sleeper = without_signals(|| scope.spawn(move || wait.recv()));
        // It is refused as long as that thread has not gone to sleep.
        while let Err(refusal) = install(library.address("keep_push"), 0) {
            assert!(matches!(refusal, Refusal::Threads(_)), "{refusal}");
        }
        assert!(!sleeper.is_finished());
        drop(finish);
    });
}

/// A thread that blocks the signal in the moment when it is sent keeps it. Nothing may come of that later, when no
/// handler is there any more: the default action would end the process.
#[test]
fn no_signal_stays_behind() {
    let first = Library::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let _done = Done(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    without_signals(|| core::hint::black_box(1));
                }
            });
        }
        let mut installed = 0;
        for _ in 0..rounds() {
            match install(first.copy().address("keep_push"), 0) {
                Ok(_) => installed += 1,
                Err(refusal) => assert!(matches!(refusal, Refusal::Threads(_)), "{refusal}"),
            }
        }
        assert!(installed > 0);
    });
    // Nothing is pending, and nobody is there to handle it.
    for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
        assert_eq!(action_of(signal), libc::SIG_DFL, "{signal}");
    }
}

fn action_of(signal: i32) -> usize {
    let mut action = core::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only.
    unsafe {
        libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}

static HANDLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn of_the_program(signal: i32) {
    HANDLED.store(signal, Ordering::SeqCst);
}

#[test]
fn signals_that_the_program_uses_are_left_to_it() {
    common::in_child(|| {
        let library = Library::new();
        let used = libc::SIGRTMIN() + 6;
        let ours = of_the_program as *const () as usize;
        // SAFETY: a handler that stores a number.
        unsafe { libc::signal(used, ours) };
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _done = Done(&done);
            spin(scope, &done);
            install(library.address("keep_push"), 0).unwrap();
        });
        assert_eq!(action_of(used), ours);
        assert_eq!(HANDLED.load(Ordering::SeqCst), 0);
        // If all are in use, there is no way.
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            // SAFETY: as above.
            unsafe { libc::signal(signal, ours) };
        }
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let _done = Done(&done);
            spin(scope, &done);
            let refused = install(library.address("keep_sub"), 0).unwrap_err();
            assert!(
                refused.to_string().contains("no real-time signal"),
                "{refused}"
            );
        });
        // A program with one thread needs none. (An ended thread is seen for some moments.)
        while std::fs::read_dir("/proc/self/task").unwrap().count() > 1 {
            thread::yield_now();
        }
        install(library.address("keep_sub"), 0).unwrap();
    });
}

#[test]
fn sessions_of_several_threads_do_not_disturb_each_other() {
    let first = Library::new();
    let count = AtomicU64::new(0);
    thread::scope(|scope| {
        for index in 0..3 {
            let (first, count) = (&first, &count);
            scope.spawn(move || {
                for _ in 0..20 {
                    let library = first.copy();
                    let function = library.function("keep_endbr_push");
                    let expected = function(3);
                    install(library.address("keep_endbr_push"), index)
                        .unwrap_or_else(|refusal| panic!("{refusal}"));
                    assert_eq!(function(3), expected);
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(count.load(Ordering::SeqCst), 60);
}
