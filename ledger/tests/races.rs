//! Several at once: who reaps, who gets the last bytes, who joins.

mod common;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Child, Counters, GIB, MIB, Scene, hold, spawn};
use hipflex_ledger::{Ledger, Limit, Member};

#[test]
fn several_reapers_return_a_dead_share_once() {
    let scene = Scene::new();
    let me = scene.join(1 << 50);
    for _ in 0..20 {
        let mut child = spawn(|parent| {
            let members: Vec<_> = (0..20).map(|_| scene.join(1 << 50)).collect();
            members.iter().for_each(|member| hold(member, GIB));
            parent.stay()
        });
        child.hear();
        assert_eq!(me.view(0).unwrap().charged, 20 * GIB);
        let mut reapers: Vec<_> = (0..4)
            .map(|_| {
                let mut reaper = spawn(|parent| {
                    let ledger = scene.ledger();
                    parent.tell(b'r');
                    parent.wait();
                    let reaped = ledger.reap().unwrap();
                    assert!(reaped.iter().all(|one| one.returned[0].1 == GIB));
                    parent.tell(u8::try_from(reaped.len()).unwrap());
                    0
                });
                reaper.hear();
                reaper
            })
            .collect();
        child.kill_into_zombie();
        reapers.iter_mut().for_each(Child::go_on);
        let counts: Vec<u64> = reapers
            .iter_mut()
            .map(|reaper| reaper.hear().into())
            .collect();
        assert_eq!(counts.iter().sum::<u64>(), 20, "{counts:?}");
        reapers.iter_mut().for_each(Child::succeed);
        assert_eq!(me.view(0).unwrap().charged, 0);
    }
}

#[test]
fn an_exact_fit_is_not_lost_to_a_race() {
    const ROUNDS: u64 = 300;
    let scene = Scene::new();
    let me = scene.join(GIB);
    let counters = Counters::new();
    let [round, decided, settled, granted, ..] = counters.0;
    // Two processes want all at the same moment: one of them gets it, every time.
    let race = |member: &Member, this: u64| {
        let result = member.reserve(0, GIB);
        granted.fetch_add(u64::from(result.is_ok()), Ordering::SeqCst);
        decided.fetch_add(1, Ordering::SeqCst);
        spin_until(|| decided.load(Ordering::SeqCst) == 2 * this);
        if let Ok(reservation) = result {
            member.cancel(reservation);
        }
        settled.fetch_add(1, Ordering::SeqCst);
    };
    let mut other = spawn(|parent| {
        let member = scene.join(GIB);
        parent.tell(b'r');
        for this in 1..=ROUNDS {
            spin_until(|| round.load(Ordering::SeqCst) == this);
            race(&member, this);
        }
        0
    });
    other.hear();
    for this in 1..=ROUNDS {
        round.store(this, Ordering::SeqCst);
        race(&me, this);
        spin_until(|| settled.load(Ordering::SeqCst) == 2 * this);
        assert_eq!(granted.load(Ordering::SeqCst), this, "in round {this}");
    }
    other.succeed();
}

fn spin_until(is_so: impl Fn() -> bool) {
    let mut turns = 0_u32;
    while !is_so() {
        std::hint::spin_loop();
        turns += 1;
        if turns.is_multiple_of(1000) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn many_processes_join_at_once() {
    let scene = Scene::new();
    let me = scene.join(GIB);
    let started = Instant::now();
    let mut children: Vec<_> = (0..64)
        .map(|_| {
            spawn(|parent| {
                let member = scene.join(GIB);
                hold(&member, MIB);
                parent.stay()
            })
        })
        .collect();
    children.iter_mut().for_each(|child| {
        child.hear();
    });
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let view = me.view(0).unwrap();
    assert_eq!(view.charged, 64 * MIB);
    drop(children);
    assert_eq!(me.reap(), 64);
}

#[test]
fn a_reaper_is_never_taken_for_a_member_that_lives() {
    let scene = Scene::new();
    let mut reapers: Vec<_> = (0..2)
        .map(|_| {
            spawn(|_| {
                loop {
                    if let Ok(ledger) = Ledger::open(&scene.path()) {
                        ledger.reap().unwrap();
                    }
                }
            })
        })
        .collect();
    for round in 0..400 {
        spawn(|_| {
            hold(&scene.join(GIB), MIB);
            0
        })
        .succeed();
        // Nobody lives, so the newcomer's limit holds, whoever is clearing the dead one's slot.
        spawn(|_| {
            let member = scene.join(4 * GIB);
            assert_eq!(
                member.limit(0),
                Some(Limit::Bytes(4 * GIB)),
                "in round {round}"
            );
            member.leave().unwrap();
            0
        })
        .succeed();
    }
    for reaper in &mut reapers {
        reaper.kill();
        let end = reaper.wait();
        assert!(
            matches!(end, nix::sys::wait::WaitStatus::Signaled(..)),
            "{end:?}"
        );
    }
}

#[test]
fn a_reaper_waits_for_nobody() {
    let scene = Scene::new();
    common::leftover(&scene);
    let lock = scene.path().with_file_name(".lock");
    let mut holder = spawn(|parent| {
        let file = std::fs::File::options().write(true).open(&lock).unwrap();
        // SAFETY: all fields of flock are integers, for which zero is valid.
        let mut record: libc::flock = unsafe { std::mem::zeroed() };
        record.l_type = libc::F_WRLCK as libc::c_short;
        record.l_len = 1;
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        // SAFETY: a valid record for this command.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_OFD_SETLK, &record) }, 0);
        parent.stay()
    });
    holder.hear();
    let started = Instant::now();
    assert_eq!(scene.ledger().reap().unwrap(), []);
    assert!(started.elapsed() < Duration::from_millis(500));
    drop(holder);
    assert_eq!(scene.ledger().reap().unwrap().len(), 1);
}
