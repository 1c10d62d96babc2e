//! Many processes and threads at once, some of them killed, and an onlooker who counts what they hold
//! without looking at the ledger.

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Child, Counters, MIB, Scene, gpu, spawn};
use hipflex_ledger::{Limit, Member};

const LIMIT: u64 = 1000 * MIB;
const PROCESSES: usize = 8;
const THREADS: usize = 4;

/// Numbers that look random, the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
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
