//! Many processes in one budget, and what they cost each other.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Child, Counters, GIB, MIB, Scene, gpu, hold, identity, spawn};
use hipflex_ledger::{BudgetName, Limit, Member};

#[test]
fn five_hundred_and_twelve_processes_share_a_budget() {
    const PROCESSES: u64 = 512;
    const LIMIT: u64 = (PROCESSES + 1) * MIB;
    let scene = Scene::new();
    let me = scene.join(LIMIT);
    let counters = Counters::new();
    let [ready, go, refused, done, ..] = counters.0;
    let mut children: Vec<_> = (0..PROCESSES)
        .map(|_| {
            spawn(|parent| {
                let member = scene.join(LIMIT);
                hold(&member, MIB);
                ready.fetch_add(1, Ordering::SeqCst);
                while go.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(5));
                }
                // All at once ask for the one that is left.
                match member.reserve(0, MIB) {
                    Ok(reservation) => member.commit(reservation, MIB),
                    Err(_) => drop(refused.fetch_add(1, Ordering::SeqCst)),
                }
                done.fetch_add(1, Ordering::SeqCst);
                parent.stay()
            })
        })
        .collect();
    let all = |count: &AtomicU64| count.load(Ordering::SeqCst) == PROCESSES;
    wait_until("all have joined", || all(ready));
    assert_eq!(me.view(0).unwrap().charged, PROCESSES * MIB);
    go.store(1, Ordering::SeqCst);
    wait_until("all have asked", || all(done));
    let granted = PROCESSES - refused.load(Ordering::SeqCst);
    assert!(granted <= 1, "{granted} got the one that was left");
    let view = me.view(0).unwrap();
    assert_eq!(view.charged, (PROCESSES + granted) * MIB);
    let snapshot = scene.ledger().snapshot();
    assert_eq!(snapshot.members.len() as u64, PROCESSES + 1);

    // Half of them die; what they had is there again.
    let rest = children.split_off(children.len() / 2);
    drop(children);
    assert_eq!(me.reap() as u64, PROCESSES / 2);
    let dead: u64 = scene.charged();
    drop(rest);
    assert_eq!(me.reap() as u64, PROCESSES / 2);
    assert!(dead <= (PROCESSES / 2 + 1) * MIB);
    let everything = me.reserve(0, LIMIT).unwrap();
    me.cancel(everything);
}

#[test]
fn two_hundred_and_fifty_six_processes_start_at_once() {
    const PROCESSES: usize = 256;
    let scene = Scene::new();
    let counters = Counters::new();
    let [ready, go, ..] = counters.0;
    let mut children: Vec<Child> = (0..PROCESSES)
        .map(|_| {
            spawn(|parent| {
                ready.fetch_add(1, Ordering::SeqCst);
                wait_for_start(go);
                let (started, cpu) = (Instant::now(), cpu_time());
                let member = scene.join(GIB);
                let (took, cpu) = (started.elapsed(), cpu_time() - cpu);
                hold(&member, MIB);
                for time in [took, cpu] {
                    parent.tell_number(i32::try_from(time.as_micros()).unwrap());
                }
                parent.stay()
            })
        })
        .collect();
    wait_until("all are there", || {
        ready.load(Ordering::SeqCst) == PROCESSES as u64
    });
    start_all(go);
    let mut micros: Vec<_> = children.iter_mut().map(Child::hear_number).collect();
    let cpu: i32 = children.iter_mut().map(Child::hear_number).sum();
    micros.sort_unstable();
    let at = |percent: usize| f64::from(micros[PROCESSES * percent / 100]) / 1000.0;
    println!(
        "joining: p50 {:.1} ms, p99 {:.1} ms, {:.1} ms of processor time in all",
        at(50),
        at(99),
        f64::from(cpu) / 1000.0
    );
    assert_eq!(scene.charged(), PROCESSES as u64 * MIB);
    // A guard against a cost that grows with the number of members: ten times what it is unoptimised.
    let each = Duration::from_micros(u64::try_from(cpu).unwrap()) / PROCESSES as u32;
    assert!(each < Duration::from_millis(5), "{each:?} for each");
}

#[test]
fn four_hundred_processes_each_begin_a_budget_of_their_own() {
    const PROCESSES: u64 = 400;
    // A ledger takes 2 MiB; where there is less room, fewer processes do.
    let scene = Scene::new();
    let room = nix::sys::statvfs::statvfs(scene.directory.path()).unwrap();
    let room = room.blocks_available() * room.fragment_size() / 2 / (3 * MIB);
    let processes = PROCESSES.min(room);
    if processes < PROCESSES {
        common::skip("400 budgets at once", &format!("there is room for {room}"));
    }
    let counters = Counters::new();
    let [ready, go, ..] = counters.0;
    let mut children: Vec<Child> = (0..processes)
        .map(|number| {
            spawn(|parent| {
                let budget = BudgetName::new(&format!("own-{number}")).unwrap();
                let gpus = [gpu(0, Limit::Bytes(GIB))];
                ready.fetch_add(1, Ordering::SeqCst);
                while go.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let started = Instant::now();
                Member::join(&scene.place(), &budget, &gpus, &identity()).unwrap();
                parent.tell_number(i32::try_from(started.elapsed().as_micros()).unwrap());
                0
            })
        })
        .collect();
    wait_until("all are there", || {
        ready.load(Ordering::SeqCst) == processes
    });
    go.store(1, Ordering::SeqCst);
    let micros: Vec<_> = children.iter_mut().map(Child::hear_number).collect();
    children.iter_mut().for_each(Child::succeed);
    let longest = micros.iter().max().copied().unwrap_or_default();
    println!(
        "{processes} processes, each a budget of its own: all within {:.1} ms",
        f64::from(longest) / 1000.0
    );
    let budgets = hipflex_ledger::Ledger::list(&scene.place()).unwrap();
    assert_eq!(budgets.len() as u64, processes);
}

/// What this process has run so far, which does not depend on what else the machine does.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` may be written to.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    assert_eq!(result, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Waits, asleep, until the number is not 0 any more. (Processes that look again and again would be busy with
/// that while the first ones start.)
fn wait_for_start(go: &AtomicU64) {
    while go.load(Ordering::SeqCst) == 0 {
        // SAFETY: the word is the lower half of the number (x86-64), which outlives the call.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                go.as_ptr(),
                libc::FUTEX_WAIT,
                0,
                std::ptr::null::<libc::timespec>(),
            )
        };
    }
}

/// Wakes all at once.
fn start_all(go: &AtomicU64) {
    go.store(1, Ordering::SeqCst);
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, go.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Nanoseconds for each call: the least of several averages, so that what else the machine does counts
/// as little as can be.
fn nanoseconds(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 200;
    (0..50).fold(f64::INFINITY, |least, _| {
        let started = Instant::now();
        (0..CALLS).for_each(|_| call());
        least.min(started.elapsed().as_nanos() as f64 / f64::from(CALLS))
    })
}

#[test]
fn a_reservation_costs_a_walk_over_the_cells_of_the_claimed_slots() {
    const SLOTS: usize = 512;
    #[repr(align(64))]
    struct Line([AtomicU64; 4]);
    let scene = Scene::new();
    // A process may have many slots; a sum does not see whose they are.
    let members: Vec<_> = (0..SLOTS).map(|_| scene.join(GIB)).collect();
    let member: &Member = &members[0];
    let reserve = nanoseconds(|| {
        let reservation = member.reserve(0, 4096).unwrap();
        member.cancel(reservation);
    });

    let lines: Vec<_> = (0..SLOTS)
        .map(|_| Line([const { AtomicU64::new(1) }; 4]))
        .collect();
    let walk = nanoseconds(|| {
        let words = lines.iter().flat_map(|line| &line.0);
        let sum = words.fold(0_u64, |sum, word| {
            sum.saturating_add(word.load(Ordering::Acquire))
        });
        assert_eq!(std::hint::black_box(sum), 4 * SLOTS as u64);
    });
    let shared = AtomicU64::new(0);
    let plain = nanoseconds(|| {
        shared.fetch_add(4096, Ordering::SeqCst);
        shared.fetch_sub(4096, Ordering::SeqCst);
    });
    println!(
        "reserve and cancel, {SLOTS} slots: {reserve:.0} ns; a walk over as many lines: {walk:.0} ns; one \
         shared atomic: {plain:.0} ns (ratios {:.1} and {:.0})",
        reserve / walk,
        reserve / plain
    );
    // It is a walk and little else, on whatever machine and however it was built.
    assert!(reserve < 4.0 * walk, "{reserve:.0} ns against {walk:.0} ns");
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "not so: {what}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}
