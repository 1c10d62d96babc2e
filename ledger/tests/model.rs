//! The account against a model that is as simple as can be, over any sequence of operations.

mod common;

use std::collections::BTreeMap;

use common::{Scene, gpu};
use hipflex_ledger::{Limit, Member, Reservation};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const MEMBERS: usize = 3;
const GPUS: usize = 2;
const LIMIT: u64 = 1000;

/// One thing that a member does. Indices are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Reserve { gpu: usize, bytes: u64 },
    Grow { which: usize, extra: u64 },
    Commit { which: usize, actual: Option<u64> },
    Cancel { which: usize },
    Release { gpu: usize, bytes: u64 },
    Overhead { gpu: usize, bytes: u64 },
    LeaveAndJoin { limit: Option<u64> },
}

fn step() -> impl Strategy<Value = Step> {
    let gpu = 0..GPUS;
    let bytes = prop_oneof![0..LIMIT + 10, Just(0), Just(LIMIT), any::<u64>()];
    prop_oneof![
        4 => (gpu.clone(), bytes).prop_map(|(gpu, bytes)| Step::Reserve { gpu, bytes }),
        1 => (any::<usize>(), 0..LIMIT).prop_map(|(which, extra)| Step::Grow { which, extra }),
        3 => (any::<usize>(), proptest::option::of(0..LIMIT))
            .prop_map(|(which, actual)| Step::Commit { which, actual }),
        1 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        2 => (gpu.clone(), 0..LIMIT).prop_map(|(gpu, bytes)| Step::Release { gpu, bytes }),
        1 => (gpu, 0..LIMIT / 4).prop_map(|(gpu, bytes)| Step::Overhead { gpu, bytes }),
        1 => proptest::option::of(1..2 * LIMIT).prop_map(|limit| Step::LeaveAndJoin { limit }),
    ]
}

/// What the model knows of one member on one GPU.
#[derive(Debug, Clone, Copy, Default)]
struct Figures {
    live: u64,
    pending: u64,
    overhead: u64,
    peak: u64,
}

impl Figures {
    fn charged(self) -> u64 {
        self.live + self.pending + self.overhead
    }
}

struct ModelMember {
    member: Member,
    limit: Limit,
    reservations: Vec<Reservation>,
    figures: [Figures; GPUS],
}

fn join(scene: &Scene, limit: Limit) -> Member {
    let gpus: Vec<_> = (0..GPUS as u64).map(|n| gpu(n, limit)).collect();
    scene.try_join(&gpus).unwrap().member
}

fn run(scene: &Scene, steps: Vec<(usize, Step)>) -> Result<(), TestCaseError> {
    let ledger_limit = Limit::Bytes(LIMIT);
    let mut members: Vec<_> = (0..MEMBERS)
        .map(|_| ModelMember {
            member: join(scene, ledger_limit),
            limit: ledger_limit,
            reservations: Vec::new(),
            figures: [Figures::default(); GPUS],
        })
        .collect();
    let mut refused = BTreeMap::new();
    for (who, step) in steps {
        let who = who % MEMBERS;
        let charged = |members: &[ModelMember], gpu: usize| -> u64 {
            members
                .iter()
                .map(|member| member.figures[gpu].charged())
                .sum()
        };
        let may_have = |members: &[ModelMember], gpu: usize, bytes: u64| {
            let Limit::Bytes(most) = members[who].limit else {
                return true;
            };
            charged(members, gpu)
                .checked_add(bytes)
                .is_some_and(|sum| sum <= most)
        };
        match step {
            Step::Reserve { gpu, bytes } => {
                let expected = may_have(&members, gpu, bytes);
                let this = &mut members[who];
                let result = this.member.reserve(gpu, bytes);
                prop_assert_eq!(
                    result.is_ok(),
                    expected,
                    "{} on {}: {:?}",
                    bytes,
                    gpu,
                    result
                );
                if let Ok(reservation) = result {
                    this.figures[gpu].pending += bytes;
                    this.reservations.push(reservation);
                } else {
                    *refused.entry(who).or_insert(0_u64) += 1;
                }
            }
            Step::Grow { which, extra } if !members[who].reservations.is_empty() => {
                let index = which % members[who].reservations.len();
                let gpu = members[who].reservations[index].gpu();
                let expected = may_have(&members, gpu, extra);
                let this = &mut members[who];
                let grown = this.member.grow(&mut this.reservations[index], extra);
                prop_assert_eq!(grown.is_ok(), expected);
                if expected {
                    this.figures[gpu].pending += extra;
                }
            }
            Step::Commit { which, actual } if !members[who].reservations.is_empty() => {
                let this = &mut members[who];
                let index = which % this.reservations.len();
                let reservation = this.reservations.swap_remove(index);
                let figures = &mut this.figures[reservation.gpu()];
                let reserved = reservation.bytes();
                let actual = actual.map_or(reserved, |actual| actual.min(reserved));
                figures.pending -= reserved;
                figures.live += actual;
                figures.peak = figures.peak.max(figures.live);
                this.member.commit(reservation, actual);
            }
            Step::Cancel { which } if !members[who].reservations.is_empty() => {
                let this = &mut members[who];
                let index = which % this.reservations.len();
                let reservation = this.reservations.swap_remove(index);
                this.figures[reservation.gpu()].pending -= reservation.bytes();
                this.member.cancel(reservation);
            }
            Step::Release { gpu, bytes } => {
                let this = &mut members[who];
                this.member.release(gpu, bytes);
                this.figures[gpu].live = this.figures[gpu].live.saturating_sub(bytes);
            }
            Step::Overhead { gpu, bytes } => {
                members[who].member.set_overhead(gpu, bytes);
                members[who].figures[gpu].overhead = bytes;
            }
            Step::LeaveAndJoin { limit } => {
                let this = &mut members[who];
                let idle = this.figures.iter().all(|f| f.live == 0 && f.pending == 0);
                prop_assert_eq!(this.member.leave().is_ok(), idle);
                if idle {
                    // The others are still in it, so the ledger and its limit stay.
                    let mine = limit.map_or(Limit::Unlimited, Limit::Bytes);
                    this.member = join(scene, mine);
                    this.limit = mine.stricter(ledger_limit);
                    this.figures = [Figures::default(); GPUS];
                }
            }
            Step::Grow { .. } | Step::Commit { .. } | Step::Cancel { .. } => {}
        }
        for gpu in 0..GPUS {
            let sum = charged(&members, gpu);
            for this in &members {
                let view = this.member.view(gpu).unwrap();
                let figures = this.figures[gpu];
                prop_assert_eq!(view.charged, sum);
                prop_assert_eq!(view.others, sum - figures.charged());
                prop_assert_eq!(view.limit, this.limit);
                prop_assert_eq!(view.mine.live, figures.live);
                prop_assert_eq!(view.mine.pending, figures.pending);
                prop_assert_eq!(view.mine.overhead.unwrap_or(0), figures.overhead);
                prop_assert_eq!(view.mine.peak, figures.peak);
            }
        }
    }
    // An onlooker sees the same.
    let snapshot = scene.ledger().snapshot();
    prop_assert_eq!(snapshot.members.len(), MEMBERS);
    for gpu in 0..GPUS {
        let sum: u64 = members
            .iter()
            .map(|member| member.figures[gpu].charged())
            .sum();
        prop_assert_eq!(snapshot.gpus[gpu].charged, sum);
    }
    Ok(())
}

#[test]
fn any_sequence_of_operations_gives_what_the_model_gives() {
    let scene = Scene::new();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let steps = proptest::collection::vec((0..MEMBERS, step()), 1..60);
    let result = runner.run(&steps, |steps| {
        // A ledger of its own each time: this process's members never leave by themselves.
        let _ = std::fs::remove_dir_all(scene.root());
        run(&scene, steps)
    });
    if let Err(error) = result {
        panic!("{error}\n{runner}");
    }
}
