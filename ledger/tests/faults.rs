//! A process that is killed between any two steps of what it does, alone and while others work.
//!
//! Nobody lists here which points there are: each deed is done once to see which ones it comes by, then
//! again and again, killed at another one each time. Together the deeds must come by all that exist.

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use common::{Child, Counters, MIB, OwnTime, Scene, gpu, hold, identity, leftover, spawn};
use hipflex_ledger::fault::{FaultPoint, set_hook};
use hipflex_ledger::{Alive, BudgetName, JoinError, Kind, Ledger, Limit, Member, OpenError};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

const LIMIT: u64 = 1000 * MIB;

/// What each peer holds all the time.
const BASE: u64 = 10 * MIB;

const PEERS: usize = 2;

/// Of a point that a deed comes by many times (for each figure of a cell on each GPU there is room
/// for) so many are tried, and the last.
const OF_EACH: usize = 9;

/// How soon everything must go on after a kill, by the clock of the one who goes on ([`OwnTime`]):
/// nobody waits for a dead process. Waiting for a processor does not count, all other waiting does.
const SOON: Duration = Duration::from_secs(1);

/// When it is taken for granted that something never comes, whatever the machine does.
const NEVER: Duration = Duration::from_secs(120);

/// How long the lock of a directory may be held before others give up.
const DEADLINE: Duration = Duration::from_secs(2);

// ---- what a process is to do, and where it dies ----

struct Deed {
    name: &'static str,
    /// What there is before.
    prepare: fn(&Scene),
    /// Runs in the process that is killed.
    act: fn(&Scene, &Driver),
    /// How many memberships end by a death in it, at most.
    deaths: u64,
    /// Whether others can be in the ledger meanwhile.
    with_peers: bool,
}

const DEEDS: &[Deed] = &[
    Deed {
        name: "makes a ledger",
        prepare: |_| {},
        act: |scene, _| drop(join(scene)),
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "replaces what the dead have left",
        prepare: leftover,
        act: |scene, _| drop(join(scene)),
        deaths: 2,
        with_peers: true,
    },
    Deed {
        name: "joins beside a member",
        prepare: |_| {},
        act: |scene, driver| {
            let first = join(scene);
            driver.allocate(&first, 10 * MIB);
            drop(join(scene));
        },
        deaths: 2,
        with_peers: true,
    },
    Deed {
        name: "brings another GPU",
        prepare: |_| {},
        act: |scene, _| {
            let first = join(scene);
            // One that nobody has brought yet.
            let next = scene.ledger().snapshot().gpus.len() as u64;
            let both = [0, next].map(|n| gpu(n, Limit::Bytes(LIMIT)));
            drop(scene.try_join(&both).unwrap());
            drop(first);
        },
        deaths: 2,
        // A ledger has room for a few only, and each time adds one.
        with_peers: false,
    },
    Deed {
        name: "books and leaves",
        prepare: |_| {},
        act: |scene, driver| {
            let member = join(scene);
            driver.allocate(&member, 300 * MIB);
            let mut reservation = member.reserve(0, 100 * MIB).unwrap();
            member.grow(&mut reservation, 50 * MIB).unwrap();
            member.cancel(reservation);
            assert!(member.leave().is_err());
            member.set_overhead(0, 5 * MIB);
            member.forget_overhead(0);
            driver.free(&member, 300 * MIB);
            member.leave().unwrap();
        },
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "books managed memory",
        prepare: |_| {},
        act: |scene, driver| {
            let member = join(scene);
            driver.allocate_as(Kind::Managed, &member, 200 * MIB);
            driver.free_as(Kind::Managed, &member, 200 * MIB);
            let _ = member.leave();
        },
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "is refused and tells of it",
        prepare: |_| {},
        act: |scene, driver| {
            let member = join(scene);
            member.set_overhead(0, 5 * MIB);
            driver.allocate(&member, 100 * MIB);
            let denial = member.reserve(0, LIMIT).unwrap_err();
            member.record_refusal(0, &denial, "hipMalloc");
            driver.free(&member, 100 * MIB);
        },
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "stays because another of its threads asks",
        prepare: |_| {},
        act: |scene, _| {
            let member = join(scene);
            RACE.store(Race::Armed as usize, Ordering::SeqCst);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let reservation = member.reserve(0, MIB).unwrap();
                    member.cancel(reservation);
                });
                wait_for(Race::Inside);
                assert!(member.leave().is_err());
            });
            member.leave().unwrap();
        },
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "reaps",
        prepare: |_| {},
        act: |scene, _| {
            let mut dead = spawn(|_| {
                set_hook(None);
                hold(&join(scene), 7 * MIB);
                0
            });
            dead.succeed();
            let reaped = scene.ledger().reap().unwrap();
            let shares: Vec<_> = reaped.iter().map(|one| one.returned[0].1).collect();
            assert_eq!(shares, [7 * MIB]);
        },
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "removes a ledger",
        prepare: leftover,
        act: |scene, _| _ = scene.ledger().remove_if_empty().unwrap(),
        deaths: 1,
        with_peers: true,
    },
    Deed {
        name: "joins a ledger that is removed just then",
        prepare: leftover,
        act: |scene, _| {
            *lock(&REMOVED_WHEN_CLAIMED) = Some(scene.path());
            drop(join(scene));
        },
        deaths: 1,
        // Who was in the old one counts for nothing in the new one.
        with_peers: false,
    },
];

/// Where this process dies: at which point, and the how-manyeth time.
static FATAL: OnceLock<(FaultPoint, u64)> = OnceLock::new();

/// How often this process came by each point; shared with the test.
static TRACE: OnceLock<&'static [AtomicU64; 64]> = OnceLock::new();

static DRIVER: OnceLock<Driver> = OnceLock::new();

static REMOVED_WHEN_CLAIMED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// How far two threads are that are to meet in `leave`.
static RACE: AtomicUsize = AtomicUsize::new(Race::Off as usize);

#[derive(Clone, Copy)]
enum Race {
    Off,
    Armed,
    Inside,
    Leaving,
    Asking,
    Stayed,
}

fn wait_for(step: Race) {
    while RACE.load(Ordering::SeqCst) < step as usize {
        std::thread::yield_now();
    }
}

/// Goes one step on, if it is this step's turn.
fn advance(from: Race, to: Race) -> bool {
    let (from, to) = (from as usize, to as usize);
    let result = RACE.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    result.is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the process of a deed does at each point.
fn on_point(point: FaultPoint) {
    let times = TRACE.get().unwrap()[point as usize].fetch_add(1, Ordering::SeqCst);
    if FATAL.get() == Some(&(point, times)) {
        // Before the kernel tells the others: what the driver gave is theirs from now on.
        DRIVER.get().unwrap().end();
        nix::sys::signal::raise(Signal::SIGKILL).unwrap();
    }
    match point {
        FaultPoint::SlotClaimed => {
            if let Some(path) = lock(&REMOVED_WHEN_CLAIMED).take() {
                std::fs::remove_file(path).unwrap();
            }
        }
        FaultPoint::Entered if advance(Race::Armed, Race::Inside) => wait_for(Race::Leaving),
        FaultPoint::LeaveClearing if advance(Race::Inside, Race::Leaving) => wait_for(Race::Asking),
        FaultPoint::ReserveAdded if advance(Race::Leaving, Race::Asking) => wait_for(Race::Stayed),
        FaultPoint::LeaveStayed => {
            advance(Race::Asking, Race::Stayed);
        }
        _ => {}
    }
}

/// Does a deed in a process of its own, which dies at `fatal`.
fn perform(
    deed: &Deed,
    scene: &Scene,
    driver: Driver,
    trace: &Counters,
    fatal: Option<(FaultPoint, u64)>,
) -> WaitStatus {
    trace
        .0
        .iter()
        .for_each(|count| count.store(0, Ordering::SeqCst));
    let mut victim = spawn(|_| {
        TRACE.set(trace.0).unwrap();
        assert!(DRIVER.set(driver).is_ok());
        if let Some(fatal) = fatal {
            FATAL.set(fatal).unwrap();
        }
        set_hook(Some(on_point));
        (deed.act)(scene, &driver);
        0
    });
    victim.wait()
}

/// What a deed comes by, and how often.
fn points_of(
    deed: &Deed,
    scene: &Scene,
    driver: Driver,
    trace: &Counters,
) -> BTreeMap<FaultPoint, u64> {
    (deed.prepare)(scene);
    let end = perform(deed, scene, driver, trace, None);
    assert!(
        matches!(end, WaitStatus::Exited(_, 0)),
        "{}: {end:?}",
        deed.name
    );
    driver.end();
    driver.died_with();
    let counts = FaultPoint::ALL.iter().zip(trace.0);
    let counts = counts.map(|(point, count)| (*point, count.load(Ordering::SeqCst)));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Which of so many times are tried.
fn chosen(times: u64) -> Vec<u64> {
    let mut chosen: Vec<_> = (0..times).take(OF_EACH).collect();
    if !chosen.contains(&(times - 1)) {
        chosen.push(times - 1);
    }
    chosen
}

// ---- what all processes share beside the ledger ----

/// What the "driver" has given out: in all, the most ever, and to the process that is to die. And how
/// the peers are told to wait, and tell that they go on.
#[derive(Clone, Copy)]
struct Driver {
    held: &'static AtomicU64,
    worst: &'static AtomicU64,
    victims: &'static AtomicU64,
    died_with: &'static AtomicU64,
    waiting_wanted: &'static AtomicU64,
    waiting: &'static [AtomicU64],
    progress: &'static [AtomicU64],
    /// The longest time from one progress of a peer to its next, in nanoseconds of its own.
    longest: &'static [AtomicU64],
}

impl Driver {
    fn new() -> Self {
        let words = Counters::new().0;
        let [held, worst, victims, died_with, waiting_wanted, ..] = words;
        Self {
            held,
            worst,
            victims,
            died_with,
            waiting_wanted,
            waiting: &words[8..8 + PEERS],
            progress: &words[16..16 + PEERS],
            longest: &words[24..24 + PEERS],
        }
    }

    fn give(&self, bytes: u64) {
        let now = self.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.worst.fetch_max(now, Ordering::SeqCst);
    }

    /// The one that is to die asks, takes and books.
    fn allocate(&self, member: &Member, bytes: u64) {
        self.allocate_as(Kind::Device, member, bytes);
    }

    fn allocate_as(&self, kind: Kind, member: &Member, bytes: u64) {
        let reservation = member.reserve_as(kind, 0, bytes).unwrap();
        self.give(bytes);
        self.victims.fetch_add(bytes, Ordering::SeqCst);
        member.commit(reservation, bytes);
    }

    fn free(&self, member: &Member, bytes: u64) {
        self.free_as(Kind::Device, member, bytes);
    }

    fn free_as(&self, kind: Kind, member: &Member, bytes: u64) {
        self.victims.fetch_sub(bytes, Ordering::SeqCst);
        self.held.fetch_sub(bytes, Ordering::SeqCst);
        member.release_as(kind, 0, bytes);
    }

    /// Takes back what the one that is to die has.
    fn end(&self) {
        let bytes = self.victims.swap(0, Ordering::SeqCst);
        self.held.fetch_sub(bytes, Ordering::SeqCst);
        self.died_with.fetch_add(bytes, Ordering::SeqCst);
    }

    /// What the last one that died had.
    fn died_with(&self) -> u64 {
        self.died_with.swap(0, Ordering::SeqCst)
    }
}

fn join(scene: &Scene) -> Member {
    let gpus = [gpu(0, Limit::Bytes(LIMIT))];
    scene.try_join(&gpus).unwrap().member
}

/// One that works beside the one that dies: asks for some, frees it.
fn peer(scene: &Scene, driver: Driver, number: usize) -> Child {
    let mut peer = spawn(|parent| {
        let member = join(scene);
        driver.give(BASE);
        hold(&member, BASE);
        parent.tell(b'r');
        let mut last = OwnTime::now();
        for turn in (1..=8).cycle() {
            while driver.waiting_wanted.load(Ordering::SeqCst) == 1 {
                driver.waiting[number].store(1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(200));
                last = OwnTime::now();
            }
            driver.waiting[number].store(0, Ordering::SeqCst);
            let bytes = turn * 25 * MIB;
            if let Ok(reservation) = member.reserve(0, bytes) {
                driver.give(bytes);
                member.commit(reservation, bytes);
                driver.held.fetch_sub(bytes, Ordering::SeqCst);
                member.release(0, bytes);
                let now = OwnTime::now();
                let took = u64::try_from(now.since(last).as_nanos()).unwrap();
                driver.longest[number].fetch_max(took, Ordering::SeqCst);
                last = now;
                driver.progress[number].fetch_add(1, Ordering::SeqCst);
            }
            std::thread::yield_now();
        }
        0
    });
    assert_eq!(peer.hear(), b'r');
    peer
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < NEVER, "{what}: not after {NEVER:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Does something that must not take longer than [`SOON`].
fn soon(what: &str, act: impl FnOnce()) {
    let began = OwnTime::now();
    act();
    let took = OwnTime::now().since(began);
    assert!(took < SOON, "{what}: took {took:?}");
}

// ---- what must be so after a death ----

/// Looks at what a death has left, and may reap. At each point the dead one has booked what it had,
/// or more; its share comes back exactly, and once; and nothing is left where nobody is. There may be no
/// ledger.
fn examine(scene: &Scene, died_with: u64, living: u64, reap: bool) {
    let ledger = match Ledger::open(&scene.path()) {
        Ok(ledger) => ledger,
        Err(OpenError::Missing(_)) => {
            assert_eq!(died_with, 0);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let snapshot = ledger.snapshot();
    let members = snapshot.members.iter();
    let dead: Vec<_> = members
        .filter(|member| member.alive == Alive::No)
        .map(|member| member.cells[0].figures.charged())
        .collect();
    let charged: u64 = dead.iter().sum();
    // A peer that was refused meanwhile may have reaped.
    let reaped_already = dead.is_empty() && living > 0;
    assert!(
        charged >= died_with || reaped_already,
        "{died_with} were held, {charged} booked"
    );
    assert_eq!(snapshot.gpus[0].charged, charged + living);
    assert_eq!(snapshot.anomalies, 0);
    if !reap {
        return;
    }
    let reaped = ledger.reap().unwrap();
    let returned = reaped.iter().flat_map(|one| &one.returned);
    assert_eq!(returned.map(|(_, bytes)| bytes).sum::<u64>(), charged);
    assert_eq!(ledger.reap().unwrap(), []);
    assert_eq!(ledger.snapshot().gpus[0].charged, living);
}

/// A new process joins and gets all that the living do not hold, and not a byte more.
fn judge(scene: &Scene, held: u64) {
    let mut judge = spawn(|_| {
        soon("to join and to hold all that is left", || {
            let member = join(scene);
            let rest = LIMIT - held;
            hold(&member, rest);
            let view = member.view(0).unwrap();
            assert_eq!((view.charged, view.others), (LIMIT, held));
            assert_eq!(member.reserve(0, 1).unwrap_err().available, 0);
            member.release(0, rest);
            member.leave().unwrap();
        });
        0
    });
    judge.succeed();
}

#[test]
fn alone() {
    let (driver, trace) = (Driver::new(), Counters::new());
    let mut deaths = 0;
    for deed in DEEDS {
        let points = points_of(deed, &Scene::new(), driver, &trace);
        for (point, times) in points {
            for time in chosen(times) {
                let scene = Scene::new();
                (deed.prepare)(&scene);
                let end = perform(deed, &scene, driver, &trace, Some((point, time)));
                let where_ = format!("{} and dies at {point:?}, time {time}: {end:?}", deed.name);
                assert!(
                    matches!(end, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
                    "{where_}"
                );
                println!("{where_}");
                deaths += 1;
                // Half of the time a newcomer finds things as they were left.
                soon("to look and to reap", || {
                    examine(&scene, driver.died_with(), 0, deaths % 2 == 0);
                });
                judge(&scene, 0);
                let ledger = scene.ledger();
                assert!(ledger.snapshot().reaped <= deed.deaths);
                assert!(ledger.remove_if_empty().unwrap());
                let own = scene.path().parent().unwrap().to_owned();
                let left = std::fs::read_dir(own).unwrap();
                let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
                assert_eq!(left, [".lock"]);
            }
        }
    }
    assert!(driver.worst.load(Ordering::SeqCst) <= LIMIT);
    println!("{deaths} deaths");
}

#[test]
fn while_others_work() {
    let trace = Counters::new();
    let mut deaths = 0;
    for deed in DEEDS.iter().filter(|deed| deed.with_peers) {
        let (scene, driver) = (Scene::new(), Driver::new());
        let peers: Vec<_> = (0..PEERS)
            .map(|number| peer(&scene, driver, number))
            .collect();
        let mut memberships = 2 + deed.deaths;
        let points = points_of(deed, &scene, driver, &trace);
        for (point, times) in points {
            for time in chosen(times) {
                (deed.prepare)(&scene);
                let end = perform(deed, &scene, driver, &trace, Some((point, time)));
                let where_ = format!("{} and dies at {point:?}, time {time}: {end:?}", deed.name);
                println!("{where_}");
                // How often a refused request is tried again depends on the others.
                let lived = matches!(end, WaitStatus::Exited(_, 0)) && time > 0;
                assert!(
                    lived || matches!(end, WaitStatus::Signaled(_, Signal::SIGKILL, _)),
                    "{where_}"
                );
                driver.end();
                deaths += u64::from(!lived);
                memberships += deed.deaths;

                let before: Vec<_> = driver
                    .progress
                    .iter()
                    .map(|count| count.load(Ordering::SeqCst))
                    .collect();
                wait_until("the peers go on", || {
                    let now = driver
                        .progress
                        .iter()
                        .map(|count| count.load(Ordering::SeqCst));
                    now.zip(&before).all(|(now, before)| now >= before + 3)
                });
                driver.waiting_wanted.store(1, Ordering::SeqCst);
                wait_until("the peers wait", || {
                    driver
                        .waiting
                        .iter()
                        .all(|waiting| waiting.load(Ordering::SeqCst) == 1)
                });
                for longest in driver.longest {
                    let longest = Duration::from_nanos(longest.swap(0, Ordering::SeqCst));
                    assert!(longest < SOON, "{where_}: a peer went on after {longest:?}");
                }
                let living = PEERS as u64 * BASE;
                soon("to look and to reap", || {
                    examine(&scene, driver.died_with(), living, deaths % 2 == 0);
                });
                judge(&scene, living);
                let snapshot = scene.ledger().snapshot();
                assert_eq!(snapshot.members.len(), PEERS);
                assert_eq!(snapshot.gpus[0].charged, driver.held.load(Ordering::SeqCst));
                assert!(snapshot.reaped <= memberships, "{}", snapshot.reaped);
                driver.waiting_wanted.store(0, Ordering::SeqCst);
                driver
                    .waiting
                    .iter()
                    .for_each(|waiting| waiting.store(0, Ordering::SeqCst));
            }
        }
        let worst = driver.worst.load(Ordering::SeqCst);
        assert!(worst <= LIMIT, "{worst} bytes were held at a time");
        drop(peers);
    }
    println!("{deaths} deaths");
}

#[test]
fn the_deeds_come_by_all_points() {
    let trace = Counters::new();
    assert!(FaultPoint::ALL.len() <= trace.0.len());
    let mut met: BTreeMap<FaultPoint, u64> = BTreeMap::new();
    for deed in DEEDS {
        met.extend(points_of(deed, &Scene::new(), Driver::new(), &trace));
    }
    let missed: Vec<_> = FaultPoint::ALL
        .iter()
        .filter(|point| !met.contains_key(point))
        .collect();
    assert!(missed.is_empty(), "no deed comes by {missed:?}");
}

#[test]
fn whoever_joins_a_ledger_that_is_removed_just_then_joins_its_successor() {
    let scene = Scene::new();
    leftover(&scene);
    let mut joiner = spawn(|parent| {
        TRACE.set(Counters::new().0).unwrap();
        *lock(&REMOVED_WHEN_CLAIMED) = Some(scene.path());
        set_hook(Some(on_point));
        let member = join(&scene);
        hold(&member, MIB);
        parent.stay()
    });
    joiner.hear();
    let snapshot = scene.ledger().snapshot();
    assert_eq!(snapshot.members.len(), 1);
    assert_eq!(snapshot.members[0].pid, joiner.pid.as_raw() as u32);
    assert_eq!(snapshot.gpus[0].charged, MIB);
}

/// What a process does at one point, each time.
static AT: OnceLock<(FaultPoint, fn())> = OnceLock::new();

fn at(point: FaultPoint) {
    if let Some((wanted, act)) = AT.get()
        && *wanted == point
    {
        act();
    }
}

fn spawn_that(point: FaultPoint, act: fn(), body: impl FnOnce() -> i32) -> Child {
    spawn(|_| {
        assert!(AT.set((point, act)).is_ok());
        set_hook(Some(at));
        body()
    })
}

#[test]
fn a_queue_that_moves_is_waited_for_longer_than_a_holder_may_take() {
    let scene = Scene::new();
    let started = Instant::now();
    let slowly = || std::thread::sleep(Duration::from_millis(500));
    let mut queue: Vec<_> = (0..7)
        .map(|number| {
            let budget = BudgetName::new(&format!("b{number}")).unwrap();
            let gpus = [gpu(0, Limit::Bytes(LIMIT))];
            spawn_that(FaultPoint::JoinLocked, slowly, || {
                Member::join(&scene.place(), &budget, &gpus, &identity()).unwrap();
                0
            })
        })
        .collect();
    queue.iter_mut().for_each(Child::succeed);
    assert!(started.elapsed() >= Duration::from_millis(3500));
}

#[test]
fn a_newcomer_that_is_stopped_beside_others_keeps_no_newcomer_out() {
    let scene = Scene::new();
    let first = join(&scene);
    let stopped = stopped_sharer(&scene);
    let since = Instant::now();
    join(&scene).leave().unwrap();
    assert!(since.elapsed() < DEADLINE, "{:?}", since.elapsed());
    // Who must be alone gives up in time and names it.
    let since = Instant::now();
    let error = scene.ledger().remove_if_empty().unwrap_err();
    assert!(since.elapsed() >= DEADLINE);
    let said = format!("{error:?}");
    let named = format!("holder: Some({})", stopped.pid);
    assert!(said.contains(&named), "{said}");
    drop(stopped);
    first.leave().unwrap();
    assert!(scene.ledger().remove_if_empty().unwrap());
}

/// Joins another budget of the same directory, which must be made: that takes the lock alone.
fn join_a_new_budget(scene: &Scene) -> Result<(), JoinError> {
    let budget = BudgetName::new("new").unwrap();
    let gpus = [gpu(0, Limit::Bytes(LIMIT))];
    Member::join(&scene.place(), &budget, &gpus, &identity()).map(drop)
}

/// A process that is stopped while it shares the lock of the directory.
fn stopped_sharer(scene: &Scene) -> Child {
    let stop = || nix::sys::signal::raise(Signal::SIGSTOP).unwrap();
    let stopped = spawn_that(FaultPoint::JoinShared, stop, || {
        drop(join(scene));
        0
    });
    wait_for_stop(&stopped);
    stopped
}

fn wait_for_stop(child: &Child) {
    let status = waitpid(child.pid, Some(WaitPidFlag::WUNTRACED)).unwrap();
    assert_eq!(status, WaitStatus::Stopped(child.pid, Signal::SIGSTOP));
}

/// Whether a process waits for the lock of the directory alone: those who do share the lock of a byte.
fn somebody_waits(scene: &Scene) -> bool {
    let file = std::fs::File::open(scene.path().with_file_name(".lock")).unwrap();
    // SAFETY: all fields of flock are integers, for which zero is valid.
    let mut record: libc::flock = unsafe { std::mem::zeroed() };
    record.l_type = libc::F_WRLCK as libc::c_short;
    (record.l_start, record.l_len) = (2, 1);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a valid record for this command, which may be written to.
    let result = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut record) };
    assert_eq!(result, 0);
    libc::c_int::from(record.l_type) != libc::F_UNLCK
}

/// Processes that join and leave again and again; each shares the lock for a while each time, so that
/// there is hardly a moment at which none does.
fn come_and_go(scene: &Scene) -> Vec<Child> {
    let share_long = || std::thread::sleep(Duration::from_millis(20));
    let mut crowd: Vec<_> = (0..8)
        .map(|_| {
            let (scene, share_long): (_, fn()) = (scene, share_long);
            spawn(|parent| {
                assert!(AT.set((FaultPoint::JoinShared, share_long)).is_ok());
                set_hook(Some(at));
                join(scene).leave().unwrap();
                parent.tell(b'r');
                loop {
                    join(scene).leave().unwrap();
                }
            })
        })
        .collect();
    crowd.iter_mut().for_each(|one| _ = one.hear());
    crowd
}

fn gives_up_in_time_and_names(scene: &Scene, stopped: &Child) {
    let since = Instant::now();
    let error = join_a_new_budget(scene).unwrap_err();
    let waited = since.elapsed();
    // Far from the half minute for which a queue is waited in that moves.
    assert!(waited >= DEADLINE && waited < 5 * DEADLINE, "{waited:?}");
    let named = stopped.pid.as_raw() as u32;
    assert!(
        matches!(error, JoinError::LockBusy { holder: Some(pid), .. } if pid == named),
        "{error:?}"
    );
}

#[test]
fn whoever_needs_the_lock_alone_gives_up_beside_a_stopped_sharer() {
    let scene = Scene::new();
    let _first = join(&scene);
    let stopped = stopped_sharer(&scene);
    gives_up_in_time_and_names(&scene, &stopped);
    // Nor is it kept waiting by those who come and go meanwhile, since they do not bring the lock nearer.
    let _crowd = come_and_go(&scene);
    gives_up_in_time_and_names(&scene, &stopped);
}

#[test]
fn whoever_needs_the_lock_alone_seldom_takes_the_share_that_others_wait_to_see_gone() {
    static SHARES: AtomicU64 = AtomicU64::new(0);
    let scene = Scene::new();
    let _first = join(&scene);
    let stopped = stopped_sharer(&scene);
    let count = || _ = SHARES.fetch_add(1, Ordering::SeqCst);
    let mut waiting = spawn_that(FaultPoint::JoinShared, count, || {
        gives_up_in_time_and_names(&scene, &stopped);
        // It asks for the lock some two hundred times.
        let shares = SHARES.load(Ordering::SeqCst);
        assert!((1..50).contains(&shares), "{shares}");
        0
    });
    waiting.succeed();
}

#[test]
fn whoever_needs_the_lock_alone_goes_on_when_a_stopped_sharer_does_or_dies() {
    let scene = Scene::new();
    let _first = join(&scene);
    for signal in [Signal::SIGCONT, Signal::SIGKILL] {
        let stopped = stopped_sharer(&scene);
        let mut waiting = spawn(|_| {
            join_a_new_budget(&scene).unwrap();
            0
        });
        common::eventually("it waits", || somebody_waits(&scene));
        let since = OwnTime::now();
        nix::sys::signal::kill(stopped.pid, signal).unwrap();
        waiting.succeed();
        let waited = OwnTime::now().since(since);
        assert!(waited < SOON, "{signal}: {waited:?}");
        assert!(!somebody_waits(&scene));
    }
}

#[test]
fn a_stream_of_newcomers_keeps_nobody_out_who_needs_the_lock_alone() {
    let scene = Scene::new();
    let _first = join(&scene);
    let _crowd = come_and_go(&scene);
    let since = Instant::now();
    join_a_new_budget(&scene).unwrap();
    assert!(since.elapsed() < 5 * DEADLINE, "{:?}", since.elapsed());
}

#[test]
fn one_who_is_stopped_while_it_waits_keeps_nobody_out() {
    let scene = Scene::new();
    let first = join(&scene);
    let sharer = stopped_sharer(&scene);
    let waiting = spawn(|_| {
        let _ = join_a_new_budget(&scene);
        0
    });
    common::eventually("it waits", || somebody_waits(&scene));
    nix::sys::signal::kill(waiting.pid, Signal::SIGSTOP).unwrap();
    wait_for_stop(&waiting);
    assert!(somebody_waits(&scene));
    let soon = |what: &str, act: &dyn Fn()| {
        let since = OwnTime::now();
        act();
        let took = OwnTime::now().since(since);
        assert!(took < SOON, "{what} took {took:?}");
    };
    soon("joining beside others", &|| join(&scene).leave().unwrap());
    drop(sharer);
    soon("making a budget", &|| join_a_new_budget(&scene).unwrap());
    first.leave().unwrap();
    soon("removing", &|| {
        assert!(scene.ledger().remove_if_empty().unwrap());
    });
}
