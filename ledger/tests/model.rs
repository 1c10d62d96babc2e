//! The account against a model that is as simple as can be, over any sequence of operations.

mod common;

use common::{Scene, gpu};
use hipflex_ledger::{
    CellView, Denial, DenialReason, Kind, Ledger, Limit, Member, Reservation, size,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const MEMBERS: usize = 3;
const GPUS: usize = 2;
const LIMIT: u64 = 1000;

/// One thing that a member does, or that is done to the ledger. Indices are taken modulo what there is.
#[derive(Debug, Clone)]
enum Step {
    Reserve {
        kind: Kind,
        gpu: usize,
        bytes: u64,
        at_once: bool,
    },
    Grow {
        which: usize,
        extra: u64,
    },
    Commit {
        which: usize,
        actual: Option<u64>,
    },
    Cancel {
        which: usize,
    },
    Release {
        kind: Kind,
        gpu: usize,
        bytes: u64,
    },
    Overhead {
        gpu: usize,
        bytes: Option<u64>,
    },
    SetLimit {
        gpu: usize,
        limit: Limit,
    },
    LeaveAndJoin {
        limit: Limit,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let gpu = 0..GPUS;
    let kind = || prop_oneof![Just(Kind::Device), Just(Kind::Managed)];
    let bytes = || {
        prop_oneof![
            6 => 0..LIMIT / 2,
            2 => 0..LIMIT + 10,
            1 => Just(0),
            1 => Just(LIMIT),
            1 => size::MAX_BYTES - 1..=size::MAX_BYTES + 1,
            1 => any::<u64>(),
        ]
    };
    let limit = || {
        prop_oneof![
            4 => (1..2 * LIMIT).prop_map(Limit::Bytes),
            2 => Just(Limit::Bytes(LIMIT)),
            1 => Just(Limit::Unlimited),
        ]
    };
    prop_oneof![
        12 => (kind(), gpu.clone(), bytes(), any::<bool>()).prop_map(|(kind, gpu, bytes, at_once)| {
            Step::Reserve { kind, gpu, bytes, at_once }
        }),
        2 => (any::<usize>(), bytes()).prop_map(|(which, extra)| Step::Grow { which, extra }),
        // Also more than was reserved: the truth is booked, whatever the limit says.
        8 => (any::<usize>(), proptest::option::of(0..LIMIT / 2))
            .prop_map(|(which, actual)| Step::Commit { which, actual }),
        1 => (any::<usize>(), bytes())
            .prop_map(|(which, actual)| Step::Commit { which, actual: Some(actual) }),
        2 => any::<usize>().prop_map(|which| Step::Cancel { which }),
        5 => (kind(), gpu.clone(), bytes())
            .prop_map(|(kind, gpu, bytes)| Step::Release { kind, gpu, bytes }),
        3 => (gpu.clone(), proptest::option::of(0..LIMIT / 4))
            .prop_map(|(gpu, bytes)| Step::Overhead { gpu, bytes }),
        1 => (gpu, limit()).prop_map(|(gpu, limit)| Step::SetLimit { gpu, limit }),
        2 => limit().prop_map(|limit| Step::LeaveAndJoin { limit }),
    ]
}

fn charged(figures: &CellView) -> u128 {
    [figures.live, figures.pending, figures.overhead.unwrap_or(0)]
        .map(u128::from)
        .iter()
        .sum()
}

/// What one and all have is shown as the most that can be shown where it is more.
fn shown(bytes: u128) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn stricter(a: Limit, b: Limit) -> Limit {
    match (a, b) {
        (Limit::Unlimited, other) | (other, Limit::Unlimited) => other,
        (Limit::Bytes(a), Limit::Bytes(b)) => Limit::Bytes(a.min(b)),
    }
}

/// What the model knows of a member.
struct ModelMember {
    member: Member,
    /// The limit it brought, where that is not the ledger's.
    own_limit: [Option<Limit>; GPUS],
    reservations: Vec<Reservation>,
    figures: [CellView; GPUS],
    allocations: u64,
    frees: u64,
    refusals: u64,
}

struct Model<'a> {
    scene: &'a Scene,
    ledger: Ledger,
    limits: [Limit; GPUS],
    anomalies: u64,
    members: Vec<ModelMember>,
}

fn join(scene: &Scene, limits: &[Limit; GPUS], limit: Limit) -> ModelMember {
    let gpus: Vec<_> = (0..GPUS as u64).map(|n| gpu(n, limit)).collect();
    let joined = scene.try_join(&gpus).unwrap();
    let made = Limit::Bytes(LIMIT);
    let own_limit = limits.map(|now| (limit != now && limit != made).then_some(limit));
    let conflict = own_limit.iter().any(Option::is_some);
    assert_eq!(!joined.notices.is_empty(), conflict);
    ModelMember {
        member: joined.member,
        own_limit,
        reservations: Vec::new(),
        figures: Default::default(),
        allocations: 0,
        frees: 0,
        refusals: 0,
    }
}

impl<'a> Model<'a> {
    fn new(scene: &'a Scene) -> Self {
        let limits = [Limit::Bytes(LIMIT); GPUS];
        let members = (0..MEMBERS).map(|_| join(scene, &limits, Limit::Bytes(LIMIT)));
        let members = members.collect();
        Self {
            scene,
            ledger: scene.ledger(),
            limits,
            anomalies: 0,
            members,
        }
    }

    fn sum(&self, gpu: usize) -> u128 {
        self.members
            .iter()
            .map(|member| charged(&member.figures[gpu]))
            .sum()
    }

    fn limit(&self, who: usize, gpu: usize) -> Limit {
        let ledger = self.limits[gpu];
        self.members[who].own_limit[gpu].map_or(ledger, |own| stricter(own, ledger))
    }

    /// What a request must be told, if it is refused.
    fn refusal(&self, who: usize, gpu: usize, bytes: u64) -> Option<Denial> {
        let figures = self.members[who].figures[gpu];
        let limit = self.limit(who, gpu);
        if bytes > size::MAX_BYTES {
            return Some(Denial {
                reason: DenialReason::TooLarge,
                requested: bytes,
                limit: Limit::Bytes(0),
                mine: 0,
                others: 0,
                overhead: 0,
                available: 0,
            });
        }
        let sum = self.sum(gpu);
        let fits = match limit {
            Limit::Unlimited => true,
            Limit::Bytes(most) => sum + u128::from(bytes) <= u128::from(most),
        };
        // A figure has a maximum, also without a limit.
        if fits && figures.pending + bytes <= size::MAX_BYTES {
            return None;
        }
        Some(Denial {
            reason: DenialReason::OverLimit,
            requested: bytes,
            limit,
            mine: figures.live + figures.pending,
            others: shown(sum - charged(&figures)),
            overhead: figures.overhead.unwrap_or(0),
            available: match limit {
                Limit::Unlimited => u64::MAX,
                Limit::Bytes(most) => most.saturating_sub(shown(sum)),
            },
        })
    }

    fn step(&mut self, who: usize, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reserve {
                kind,
                gpu,
                bytes,
                at_once,
            } => {
                let expected = self.refusal(who, gpu, bytes);
                let this = &mut self.members[who];
                let reservation = if at_once {
                    let reservation = this.member.reserve_at_once_as(kind, gpu, bytes);
                    prop_assert_eq!(reservation.is_none(), expected.is_some());
                    reservation
                } else {
                    let result = this.member.reserve_as(kind, gpu, bytes);
                    prop_assert_eq!(result.as_ref().err(), expected.as_ref());
                    result.ok()
                };
                match (reservation, expected) {
                    (Some(reservation), _) => {
                        prop_assert_eq!((reservation.gpu(), reservation.bytes()), (gpu, bytes));
                        prop_assert_eq!(reservation.kind(), kind);
                        this.figures[gpu].pending += bytes;
                        this.reservations.push(reservation);
                    }
                    (None, Some(denial)) => {
                        this.member.record_refusal(gpu, &denial, "hipMalloc");
                        this.refusals += 1;
                    }
                    (None, None) => {}
                }
            }
            Step::Grow { which, extra } => {
                let Some(index) = self.chosen(who, which) else {
                    return Ok(());
                };
                let (gpu, before) = {
                    let reservation = &self.members[who].reservations[index];
                    (reservation.gpu(), reservation.bytes())
                };
                let expected = self.refusal(who, gpu, extra);
                let this = &mut self.members[who];
                let grown = this.member.grow(&mut this.reservations[index], extra);
                prop_assert_eq!(grown.err(), expected);
                let grown = if expected.is_none() { extra } else { 0 };
                this.figures[gpu].pending += grown;
                prop_assert_eq!(this.reservations[index].bytes(), before + grown);
            }
            Step::Commit { which, actual } => {
                let Some(index) = self.chosen(who, which) else {
                    return Ok(());
                };
                let this = &mut self.members[who];
                let reservation = this.reservations.swap_remove(index);
                let figures = &mut this.figures[reservation.gpu()];
                let actual = actual.unwrap_or(reservation.bytes());
                let most = |figure: u64| figure.saturating_add(actual).min(size::MAX_BYTES);
                figures.pending -= reservation.bytes();
                let exact = figures.live.checked_add(actual) == Some(most(figures.live));
                self.anomalies += u64::from(!exact);
                figures.live = most(figures.live);
                figures.peak = figures.peak.max(figures.live);
                if reservation.kind() == Kind::Managed {
                    figures.live_unseen = most(figures.live_unseen);
                }
                this.allocations += 1;
                this.member.commit(reservation, actual);
            }
            Step::Cancel { which } => {
                let Some(index) = self.chosen(who, which) else {
                    return Ok(());
                };
                let this = &mut self.members[who];
                let reservation = this.reservations.swap_remove(index);
                this.figures[reservation.gpu()].pending -= reservation.bytes();
                this.member.cancel(reservation);
            }
            Step::Release { kind, gpu, bytes } => {
                let this = &mut self.members[who];
                this.member.release_as(kind, gpu, bytes);
                this.frees += 1;
                let figures = &mut this.figures[gpu];
                let mut take = |figure: &mut u64| {
                    self.anomalies += u64::from(*figure < bytes);
                    *figure = figure.saturating_sub(bytes);
                };
                take(&mut figures.live);
                if kind == Kind::Managed {
                    take(&mut figures.live_unseen);
                }
            }
            Step::Overhead { gpu, bytes } => {
                let this = &mut self.members[who];
                match bytes {
                    Some(bytes) => this.member.set_overhead(gpu, bytes),
                    None => this.member.forget_overhead(gpu),
                }
                this.figures[gpu].overhead = bytes;
            }
            Step::SetLimit { gpu: index, limit } => {
                let key = gpu(index as u64, limit).key;
                self.ledger.set_limit(key, limit).unwrap();
                self.limits[index] = limit;
            }
            Step::LeaveAndJoin { limit } => {
                let this = &self.members[who];
                let idle = this.figures.iter().all(|f| f.live == 0 && f.pending == 0);
                prop_assert_eq!(this.member.leave().is_ok(), idle);
                if idle {
                    // The others are still in it, so the ledger and its limits stay.
                    self.members[who] = join(self.scene, &self.limits, limit);
                }
            }
        }
        Ok(())
    }

    /// Which reservation is meant, if the member has any.
    fn chosen(&self, who: usize, which: usize) -> Option<usize> {
        which.checked_rem(self.members[who].reservations.len())
    }

    /// What every member sees.
    fn compare(&self) -> Result<(), TestCaseError> {
        for gpu in 0..GPUS {
            let sum = self.sum(gpu);
            for (who, this) in self.members.iter().enumerate() {
                let view = this.member.view(gpu).unwrap();
                let figures = this.figures[gpu];
                prop_assert_eq!(view.mine, figures);
                prop_assert_eq!(this.member.cell(gpu), Some(figures));
                prop_assert_eq!(view.charged, shown(sum));
                prop_assert_eq!(view.others, shown(sum - charged(&figures)));
                prop_assert_eq!(view.limit, self.limit(who, gpu));
                prop_assert_eq!(this.member.limit(gpu), Some(view.limit));
            }
        }
        Ok(())
    }

    /// What an onlooker sees.
    fn compare_from_outside(&self) -> Result<(), TestCaseError> {
        let snapshot = self.ledger.snapshot();
        prop_assert_eq!(snapshot.members.len(), MEMBERS);
        prop_assert_eq!(snapshot.anomalies, self.anomalies);
        for gpu in 0..GPUS {
            prop_assert_eq!(snapshot.gpus[gpu].charged, shown(self.sum(gpu)));
            prop_assert_eq!(snapshot.gpus[gpu].limit, self.limits[gpu]);
        }
        // In any order: which member has which slot is not told.
        let mut seen: Vec<_> = snapshot
            .members
            .iter()
            .map(|member| {
                let cells: Vec<_> = member.cells.iter().map(|cell| cell.figures).collect();
                let counts = (member.allocations, member.frees, member.refusals);
                prop_assert_eq!(member.last_refusal.is_some(), member.refusals > 0);
                Ok(format!("{counts:?} {cells:?}"))
            })
            .collect::<Result<_, TestCaseError>>()?;
        let known = self.members.iter().map(|member| {
            let counts = (member.allocations, member.frees, member.refusals);
            format!("{counts:?} {:?}", member.figures)
        });
        let mut known: Vec<_> = known.collect();
        seen.sort_unstable();
        known.sort_unstable();
        prop_assert_eq!(seen, known);
        Ok(())
    }
}

fn run(scene: &Scene, steps: Vec<(usize, Step)>) -> Result<(), TestCaseError> {
    let mut model = Model::new(scene);
    for (who, step) in steps {
        model.step(who, step)?;
        model.compare()?;
    }
    model.compare_from_outside()
}

#[test]
fn any_sequence_of_operations_gives_what_the_model_gives() {
    let scene = Scene::new();
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 128,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let steps = proptest::collection::vec((0..MEMBERS, step()), 1..160);
    let result = runner.run(&steps, |steps| {
        // A ledger of its own each time: this process's members never leave by themselves.
        let _ = std::fs::remove_dir_all(scene.root());
        run(&scene, steps)
    });
    if let Err(error) = result {
        panic!("{error}\n{runner}");
    }
}
