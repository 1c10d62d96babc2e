//! Many processes and threads at once, some of them killed, and an onlooker who counts what they hold
//! without looking at the ledger.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Child, Counters, MIB, Scene, gpu, spawn};
use hipflex_ledger::{JoinError, Kind, Ledger, Limit, Member};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

const LIMIT: u64 = 1000 * MIB;
const PROCESSES: usize = 8;
const THREADS: usize = 4;

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Reserves, "allocates", frees; `held` counts what the "driver" has given out, the way a driver
/// counts: up after the reservation, down before the booking is given back.
fn churn(member: &Member, held: &AtomicU64, worst: &AtomicU64, seed: u64, until: Instant) -> u64 {
    let mut numbers = Numbers(seed | 1);
    let mut mine: Vec<u64> = Vec::new();
    let mut granted = 0;
    while Instant::now() < until {
        if mine.len() < 8 && numbers.below(2) == 0 {
            let bytes = 1 + numbers.below(60 * MIB);
            let Ok(mut reservation) = member.reserve(0, bytes) else {
                continue;
            };
            let extra = numbers.below(MIB);
            let bytes = match member.grow(&mut reservation, extra) {
                Ok(()) => bytes + extra,
                Err(_) => bytes,
            };
            if numbers.below(8) == 0 {
                member.cancel(reservation);
                continue;
            }
            let now = held.fetch_add(bytes, Ordering::SeqCst) + bytes;
            worst.fetch_max(now, Ordering::SeqCst);
            member.commit(reservation, bytes);
            mine.push(bytes);
            granted += 1;
        } else if !mine.is_empty() {
            let bytes = mine.swap_remove(numbers.below(mine.len() as u64) as usize);
            held.fetch_sub(bytes, Ordering::SeqCst);
            member.release(0, bytes);
        }
    }
    granted
}

fn worker(scene: &Scene, counters: &Counters, seed: u64, until: Instant) -> Member {
    let member = scene
        .try_join(&[gpu(0, Limit::Bytes(LIMIT))])
        .unwrap()
        .member;
    let [held, worst, granted, ..] = counters.0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let member = &member;
            let seed = (seed * 100 + thread + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            scope.spawn(move || {
                granted.fetch_add(churn(member, held, worst, seed, until), Ordering::SeqCst);
            });
        }
    });
    member
}

#[test]
fn what_eight_processes_hold_never_exceeds_the_limit_and_is_what_the_ledger_says() {
    let scene = Scene::new();
    let counters = Counters::new();
    let [held, worst, granted, ..] = counters.0;
    let until = Instant::now() + Duration::from_secs(2);
    let mut workers: Vec<_> = (0..PROCESSES as u64)
        .map(|seed| {
            spawn(|parent| {
                let _member = worker(&scene, &counters, seed, until);
                parent.stay()
            })
        })
        .collect();
    workers.iter_mut().for_each(|worker| {
        worker.hear();
    });
    let ledger = scene.ledger();
    assert_eq!(ledger.reap().unwrap(), []);
    let snapshot = ledger.snapshot();
    let held = held.load(Ordering::SeqCst);
    let (worst, granted) = (worst.load(Ordering::SeqCst), granted.load(Ordering::SeqCst));
    assert!(worst <= LIMIT, "{worst} bytes were held at a time");
    assert!(
        worst > LIMIT * 3 / 4,
        "only {worst} bytes were held at a time: no pressure"
    );
    assert!(granted > 1000, "only {granted} requests were granted");
    assert_eq!(snapshot.gpus[0].charged, held);
    assert_eq!(snapshot.anomalies, 0);
    let cells = snapshot
        .members
        .iter()
        .map(|member| member.cells[0].figures);
    assert!(cells.clone().all(|cell| cell.pending == 0));
    assert_eq!(cells.map(|cell| cell.live).sum::<u64>(), held);
    let allocations: u64 = snapshot
        .members
        .iter()
        .map(|member| member.allocations)
        .sum();
    assert_eq!(allocations, granted);
}

#[test]
fn killing_at_random_returns_every_byte() {
    let scene = Scene::new();
    let observer = scene
        .try_join(&[gpu(0, Limit::Bytes(LIMIT))])
        .unwrap()
        .member;
    let mut numbers = Numbers(42);
    let forever = Instant::now() + Duration::from_secs(60);
    let counters = Counters::new();
    let begin = |seed| {
        spawn(|_| {
            worker(&scene, &counters, seed, forever);
            0
        })
    };
    let mut workers: Vec<Child> = (0..4).map(begin).collect();
    for round in 0..60 {
        std::thread::sleep(Duration::from_millis(numbers.below(20)));
        let victim = usize::try_from(numbers.below(4)).unwrap();
        workers[victim].kill();
        workers[victim] = begin(100 + round);
    }
    for worker in &mut workers {
        worker.kill();
        worker.wait();
    }
    observer.reap();
    let view = observer.view(0).unwrap();
    assert_eq!((view.charged, view.others), (0, 0));
    let [_, worst, ..] = counters.0;
    assert!(
        worst.load(Ordering::SeqCst) > LIMIT / 2,
        "the killed held too little"
    );
    let snapshot = scene.ledger().snapshot();
    assert_eq!((snapshot.members.len(), snapshot.anomalies), (1, 0));
    assert!(snapshot.reaped >= 30, "{}", snapshot.reaped);
    let all = observer.reserve(0, LIMIT).unwrap();
    observer.cancel(all);
}

#[test]
fn killing_those_who_come_and_go_leaves_a_ledger_that_works() {
    let scene = Scene::new();
    let mut numbers = Numbers(7);
    let begin = || {
        spawn(|_| {
            loop {
                // The last to leave is followed by one who makes a fresh ledger, so that all that can
                // be interrupted is: making, joining, booking, leaving, removing.
                let member = scene
                    .try_join(&[gpu(0, Limit::Bytes(LIMIT))])
                    .unwrap()
                    .member;
                if let Ok(reservation) = member.reserve(0, MIB) {
                    member.commit(reservation, MIB);
                    member.release(0, MIB);
                }
                member.leave().unwrap();
                let ledger = hipflex_ledger::Ledger::open(&scene.path());
                let _ = ledger.map(|ledger| ledger.remove_if_empty());
            }
        })
    };
    let mut comers: Vec<Child> = (0..3).map(|_| begin()).collect();
    for _ in 0..150 {
        std::thread::sleep(Duration::from_micros(numbers.below(8000)));
        let victim = usize::try_from(numbers.below(3)).unwrap();
        comers[victim].kill();
        // Killed, not ended by a failure of its own.
        let end = comers[victim].wait();
        assert!(
            matches!(end, nix::sys::wait::WaitStatus::Signaled(..)),
            "{end:?}"
        );
        comers[victim] = begin();
    }
    drop(comers);
    let member = scene
        .try_join(&[gpu(0, Limit::Bytes(LIMIT))])
        .unwrap()
        .member;
    assert_eq!(member.view(0).unwrap().charged, 0);
    let all = member.reserve(0, LIMIT).unwrap();
    member.cancel(all);
    member.leave().unwrap();
    assert!(scene.ledger().remove_if_empty().unwrap());
    let own = scene.path().parent().unwrap().to_owned();
    let left: Vec<_> = std::fs::read_dir(own)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left, [".lock"]);
}

/// How many seconds the torture takes, if not the short form.
const SECONDS: &str = "HIPFLEX_TORTURE_SECONDS";

const WORKERS: u64 = 6;

/// The limit in MiB, below half of what a worker's field of the driver's word can hold.
const UNITS: u64 = 480;

/// What the "driver" has given out to each worker, in MiB: a field of 10 bits for each in one word, so
/// that one look sees what all of them hold at the same instant.
#[derive(Clone, Copy)]
struct Driver<'a>(&'a AtomicU64);

impl Driver<'_> {
    fn shift(worker: u64) -> u64 {
        10 * worker
    }

    fn held(word: u64, worker: u64) -> u64 {
        word >> Self::shift(worker) & 0x3ff
    }

    fn total(word: u64) -> u64 {
        (0..WORKERS).map(|worker| Self::held(word, worker)).sum()
    }

    /// Returns what all hold then.
    fn give(self, worker: u64, units: u64) -> u64 {
        let before = self
            .0
            .fetch_add(units << Self::shift(worker), Ordering::SeqCst);
        Self::total(before) + units
    }

    fn take(self, worker: u64, units: u64) {
        self.0
            .fetch_sub(units << Self::shift(worker), Ordering::SeqCst);
    }

    /// What a real driver does when a process has ended.
    fn take_all(self, worker: u64) {
        self.0
            .fetch_and(!(0x3ff << Self::shift(worker)), Ordering::SeqCst);
    }
}

/// What one thread of a worker does in one membership; gives back all it has at the end.
fn work(member: &Member, counters: &Counters, worker: u64, seed: u64, until: Instant) {
    let [driver, worst, operations, ..] = counters.0;
    let driver = Driver(driver);
    let mut numbers = Numbers(seed | 1);
    let mut mine: Vec<(Kind, u64)> = Vec::new();
    while Instant::now() < until {
        operations.fetch_add(1, Ordering::Relaxed);
        match numbers.below(64) {
            // Charged besides, and too little to keep the others out.
            0 => member.set_overhead(0, numbers.below(4) * MIB),
            1 => member.forget_overhead(0),
            _ => {}
        }
        if mine.len() < 8 && numbers.below(2) == 0 {
            let mut units = 1 + numbers.below(40);
            let kind = [Kind::Device, Kind::Managed][numbers.below(2) as usize];
            let at_once = member.reserve_at_once_as(kind, 0, units * MIB);
            let reserved = at_once.or_else(|| member.reserve_as(kind, 0, units * MIB).ok());
            let Some(mut reservation) = reserved else {
                continue;
            };
            match numbers.below(8) {
                0 => {
                    member.cancel(reservation);
                    continue;
                }
                1 if member.grow(&mut reservation, MIB).is_ok() => units += 1,
                // The runtime took less than was asked for.
                2 => units = units.div_ceil(2),
                _ => {}
            }
            worst.fetch_max(driver.give(worker, units), Ordering::SeqCst);
            member.commit(reservation, units * MIB);
            mine.push((kind, units));
        } else if !mine.is_empty() {
            let (kind, units) = mine.swap_remove(numbers.below(mine.len() as u64) as usize);
            driver.take(worker, units);
            member.release_as(kind, 0, units * MIB);
        }
    }
    for (kind, units) in mine {
        driver.take(worker, units);
        member.release_as(kind, 0, units * MIB);
    }
}

/// Joins, works with several threads and leaves, again and again.
fn come_work_and_go(scene: &Scene, counters: &Counters, worker: u64, seed: u64) -> ! {
    let mut numbers = Numbers(seed | 1);
    loop {
        let limit = Limit::Bytes(UNITS * MIB);
        let member = match scene.try_join(&[gpu(0, limit)]) {
            Ok(joined) => joined.member,
            // Whoever had the directory's lock was stopped, or had no processor for two seconds.
            Err(JoinError::LockBusy { .. }) => {
                counters.0[3].fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let until = Instant::now() + Duration::from_millis(1 + numbers.below(400));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let (member, seed) = (&member, numbers.next());
                scope.spawn(move || work(member, counters, worker, seed, until));
            }
        });
        member.leave().unwrap();
    }
}

/// Stops a worker at whatever instruction its threads are.
fn stop(worker: &Child) {
    kill(worker.pid, Signal::SIGSTOP).unwrap();
    let stopped = waitpid(worker.pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(stopped, WaitStatus::Stopped(worker.pid, Signal::SIGSTOP));
}

/// With all workers stopped, each must have at least as much booked as the driver has given to it.
fn compare(ledger: &Ledger, workers: &[Child], driver: Driver<'_>) {
    workers.iter().for_each(stop);
    let word = driver.0.load(Ordering::SeqCst);
    let snapshot = ledger.snapshot();
    for (child, worker) in workers.iter().zip(0..) {
        let pid = child.pid.as_raw() as u32;
        let member = snapshot.members.iter().find(|member| member.pid == pid);
        let charged = member.map_or(0, |member| member.cells[0].figures.charged());
        let held = Driver::held(word, worker) * MIB;
        assert!(charged >= held, "of {held} bytes only {charged} are booked");
    }
    assert_eq!(snapshot.anomalies, 0);
    for worker in workers {
        kill(worker.pid, Signal::SIGCONT).unwrap();
    }
}

#[test]
fn torture() {
    let seconds: u64 = std::env::var(SECONDS).map_or(3, |text| text.parse().expect(SECONDS));
    let scene = Scene::new();
    let counters = Counters::new();
    let [driver, worst, operations, late, ..] = counters.0;
    let driver = Driver(driver);
    let begin = |worker, seed| spawn(|_| come_work_and_go(&scene, &counters, worker, seed));
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|worker| begin(worker, worker + 1))
        .collect();
    // Keeps the ledger, so that all that happens to it can be counted.
    let observer = scene.join(UNITS * MIB);
    let ledger = scene.ledger();
    let mut numbers = Numbers(4711);
    let (mut kills, mut comparisons): (u64, u64) = (0, 0);
    let mut last_operations = 0;
    let started = Instant::now();
    let mut told = started;
    while started.elapsed() < Duration::from_secs(seconds) {
        std::thread::sleep(Duration::from_micros(numbers.below(40_000)));
        let victim = numbers.below(WORKERS);
        let index = usize::try_from(victim).unwrap();
        stop(&workers[index]);
        // What it held goes back to the others only after its end: its lock tells of that.
        driver.take_all(victim);
        kills += 1;
        if numbers.below(2) == 0 {
            workers[index].kill();
        } else {
            workers[index].kill_into_zombie();
            std::thread::sleep(Duration::from_micros(numbers.below(2000)));
        }
        workers[index] = begin(victim, numbers.next());
        if kills % 16 == 0 {
            compare(&ledger, &workers, driver);
            comparisons += 1;
            // The others go on, whoever was killed at whatever instruction.
            let now = operations.load(Ordering::SeqCst);
            assert!(now > last_operations, "nobody did anything");
            last_operations = now;
        }
        let most = worst.load(Ordering::SeqCst);
        assert!(most <= UNITS, "{most} MiB of {UNITS} were held at a time");
        if told.elapsed() > Duration::from_secs(60) {
            told = Instant::now();
            println!(
                "{:?}: {kills} kills, {comparisons} comparisons, {last_operations} operations, at \
                 most {most} of {UNITS} MiB held",
                started.elapsed()
            );
        }
    }
    let elapsed = started.elapsed().as_secs_f64();
    compare(&ledger, &workers, driver);
    // All stop before the first is killed: nobody tells the driver of these ends.
    workers.iter().for_each(stop);
    drop(workers);
    observer.reap();
    let view = observer.view(0).unwrap();
    assert_eq!((view.charged, view.others), (0, 0));
    let snapshot = ledger.snapshot();
    assert_eq!((snapshot.members.len(), snapshot.anomalies), (1, 0));
    let most = worst.load(Ordering::SeqCst);
    assert!(most <= UNITS, "{most} MiB of {UNITS} were held at a time");
    assert!(
        most > UNITS * 9 / 10,
        "only {most} MiB of {UNITS} were held at a time: no pressure"
    );
    assert!(
        snapshot.reaped <= kills + WORKERS,
        "more were reaped than killed"
    );
    println!(
        "{elapsed:.0} s: {:.0} operations/s, {kills} kills, {} reaped, {comparisons} comparisons, {} joined \
         late, at most {most} of {UNITS} MiB held",
        operations.load(Ordering::SeqCst) as f64 / elapsed,
        snapshot.reaped,
        late.load(Ordering::SeqCst),
    );
}
