use super::*;
use crate::live::{Class, Sort};
use proptest::prelude::*;

const PAGE: usize = 4096;

fn block(name: usize, gpu: u32) -> Block {
    Block {
        pointer: name,
        bytes: PAGE as u64,
        gpu,
        runtime: 0,
        sort: Sort::Physical,
        class: Class::Buffer,
    }
}

/// What was told of the blocks.
#[derive(Default)]
struct Told {
    leaving: Vec<Block>,
    gone: Vec<Block>,
}

impl Told {
    fn tell(&mut self) -> impl FnMut(Change) {
        |change| match change {
            Change::Leaving(block) => self.leaving.push(block),
            Change::Stays(block) => {
                let at = self.leaving.iter().position(|other| *other == block);
                self.leaving.remove(at.expect("it was not leaving"));
            }
            Change::Gone(block) => {
                if let Some(at) = self.leaving.iter().position(|other| *other == block) {
                    self.leaving.remove(at);
                }
                self.gone.push(block);
            }
        }
    }
}

/// Does a call from its beginning to its end.
fn whole(
    physical: &mut Physical,
    told: &mut Told,
    begin: impl FnOnce(&mut Physical, &mut Told) -> Option<Ticket>,
    done: bool,
) {
    if let Some(ticket) = begin(physical, told) {
        physical.end(ticket, done, &mut told.tell());
    }
}

#[test]
fn it_lives_until_the_last_release_and_the_last_unmapping() {
    for release_first in [true, false] {
        let (mut physical, mut told) = (Physical::default(), Told::default());
        physical.create(block(7, 0), &mut told.tell()).unwrap();
        for at in [PAGE, 2 * PAGE] {
            whole(
                &mut physical,
                &mut told,
                |p, _| p.begin_map(at, PAGE as u64, 7),
                true,
            );
        }
        let release = |p: &mut Physical, t: &mut Told| p.begin_release(7, &mut t.tell());
        if release_first {
            whole(&mut physical, &mut told, release, true);
            // Another release takes nothing from the mappings.
            assert!(release(&mut physical, &mut told).is_none());
        }
        for at in [PAGE, 2 * PAGE] {
            assert!(told.gone.is_empty());
            let unmap = |p: &mut Physical, t: &mut Told| {
                p.begin_unmap(at, PAGE as u64, false, &mut t.tell())
            };
            whole(&mut physical, &mut told, unmap, true);
        }
        if !release_first {
            assert!(told.gone.is_empty());
            whole(&mut physical, &mut told, release, true);
        }
        assert_eq!(told.gone, [block(7, 0)]);
        assert!(told.leaving.is_empty());
    }
}

#[test]
fn a_handle_that_is_given_again_is_another_block() {
    let (mut physical, mut told) = (Physical::default(), Told::default());
    let old = block(7, 0);
    physical.create(old, &mut told.tell()).unwrap();
    whole(
        &mut physical,
        &mut told,
        |p, _| p.begin_map(PAGE, PAGE as u64, 7),
        true,
    );
    let new = Block {
        bytes: 1 << 20,
        ..old
    };
    physical.create(new, &mut told.tell()).unwrap();
    assert!(told.gone.is_empty(), "its mapping keeps it");
    whole(
        &mut physical,
        &mut told,
        |p, t| p.begin_release(7, &mut t.tell()),
        true,
    );
    assert_eq!(told.gone, [new]);
    let unmap =
        |p: &mut Physical, t: &mut Told| p.begin_unmap(PAGE, PAGE as u64, false, &mut t.tell());
    whole(&mut physical, &mut told, unmap, true);
    assert_eq!(told.gone, [new, old]);
}

#[test]
fn a_block_that_was_released_unseen_goes_when_its_handle_is_given_again() {
    let (mut physical, mut told) = (Physical::default(), Told::default());
    physical.create(block(7, 0), &mut told.tell()).unwrap();
    physical.create(block(7, 1), &mut told.tell()).unwrap();
    assert_eq!(told.gone, [block(7, 0)]);
    physical.forget_name(7, &mut told.tell());
    assert_eq!(told.gone, [block(7, 0), block(7, 1)]);
    assert!(physical.begin_map(PAGE, PAGE as u64, 7).is_none());
}

#[test]
fn what_the_runtime_does_not_do_changes_nothing() {
    let (mut physical, mut told) = (Physical::default(), Told::default());
    physical.create(block(7, 0), &mut told.tell()).unwrap();
    whole(
        &mut physical,
        &mut told,
        |p, t| p.begin_release(7, &mut t.tell()),
        false,
    );
    whole(
        &mut physical,
        &mut told,
        |p, _| p.begin_map(PAGE, PAGE as u64, 7),
        true,
    );
    whole(
        &mut physical,
        &mut told,
        |p, _| p.begin_map(2 * PAGE, PAGE as u64, 7),
        false,
    );
    whole(
        &mut physical,
        &mut told,
        |p, t| p.begin_release(7, &mut t.tell()),
        true,
    );
    let unmap =
        |p: &mut Physical, t: &mut Told| p.begin_unmap(PAGE, PAGE as u64, false, &mut t.tell());
    let tickets = [(); 2].map(|()| unmap(&mut physical, &mut told).unwrap());
    assert_eq!(told.leaving, [block(7, 0)]);
    physical.end(tickets[0], false, &mut told.tell());
    assert_eq!(told.leaving, [block(7, 0)], "another call may take it away");
    physical.end(tickets[1], false, &mut told.tell());
    assert!(told.leaving.is_empty() && told.gone.is_empty());
    whole(&mut physical, &mut told, unmap, true);
    assert_eq!(told.gone, [block(7, 0)]);
}

#[test]
fn a_reset_drops_the_holds_on_one_gpu_and_leaves_mappings() {
    let (mut physical, mut told) = (Physical::default(), Told::default());
    for name in 1..=4 {
        let gpu = u32::from(name > 2);
        physical.create(block(name, gpu), &mut told.tell()).unwrap();
    }
    whole(
        &mut physical,
        &mut told,
        |p, _| p.begin_map(PAGE, PAGE as u64, 1),
        true,
    );
    let reset = |p: &mut Physical, t: &mut Told| Some(p.begin_reset(0, 0, &mut t.tell()));
    whole(&mut physical, &mut told, reset, false);
    assert!(told.gone.is_empty() && told.leaving.is_empty());
    let ticket = reset(&mut physical, &mut told).unwrap();
    assert_eq!(told.leaving, [block(2, 0)]);
    // By then its handle may have been given again.
    physical.create(block(2, 0), &mut told.tell()).unwrap();
    physical.end(ticket, true, &mut told.tell());
    assert_eq!(told.gone, [block(2, 0)]);
}

/// A runtime in the simplest form: what it has made, by handle, with what keeps it.
#[derive(Default)]
struct Runtime {
    several: bool,
    made: Vec<Made>,
    mappings: Vec<(usize, usize, usize)>,
    created: u64,
}

struct Made {
    name: usize,
    id: u64,
    held: bool,
}

impl Runtime {
    /// The value of a handle is given again as soon as the memory is gone.
    fn create(&mut self) -> (usize, u64) {
        let name = (1..).find(|name| self.find(*name).is_none()).unwrap();
        self.created += 1;
        self.made.push(Made {
            name,
            id: self.created,
            held: true,
        });
        (name, self.created)
    }

    fn find(&self, name: usize) -> Option<usize> {
        self.made.iter().position(|made| made.name == name)
    }

    fn clean(&mut self) {
        let mapped: Vec<usize> = self.mappings.iter().map(|(.., name)| *name).collect();
        self.made
            .retain(|made| made.held || mapped.contains(&made.name));
    }

    fn release(&mut self, name: usize) -> bool {
        if let Some(at) = self.find(name) {
            self.made[at].held = false;
        }
        self.clean();
        true
    }

    fn map(&mut self, at: usize, bytes: usize, name: usize) -> bool {
        let is_free = self
            .mappings
            .iter()
            .all(|(a, b, _)| at + bytes <= *a || a + b <= at);
        let may = is_free && self.find(name).is_some();
        if may {
            self.mappings.push((at, bytes, name));
        }
        may
    }

    fn unmap(&mut self, at: usize, bytes: usize) -> bool {
        let inside = |a: usize, b: usize| at <= a && a + b <= at + bytes;
        let exactly = self
            .mappings
            .iter()
            .any(|(a, b, _)| (*a, *b) == (at, bytes));
        let covered: usize = self
            .mappings
            .iter()
            .filter(|(a, b, _)| inside(*a, *b))
            .map(|(_, b, _)| b)
            .sum();
        if exactly || self.several && covered == bytes {
            self.mappings.retain(|(a, b, _)| !inside(*a, *b));
            self.clean();
            return true;
        }
        !self.several
    }
}

#[derive(Clone, Debug)]
enum Step {
    Create,
    Release(usize),
    Map(usize, usize, usize),
    Unmap(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<(Step, bool)>> {
    let (name, page, pages) = (1_usize..6, 0_usize..8, 1_usize..4);
    let step = prop_oneof![
        3 => Just(Step::Create),
        3 => name.clone().prop_map(Step::Release),
        5 => (page.clone(), pages.clone(), name).prop_map(|(a, n, h)| Step::Map(a * PAGE, n * PAGE, h)),
        5 => (page, pages).prop_map(|(a, n)| Step::Unmap(a * PAGE, n * PAGE)),
    ];
    proptest::collection::vec((step, any::<bool>()), 1..200)
}

proptest! {
    /// Some calls end only when the next one has: by then their handles and addresses have been given again.
    #[test]
    fn it_holds_what_the_runtime_holds(steps in steps(), several: bool) {
        let mut runtime = Runtime { several, ..Runtime::default() };
        let (mut physical, mut told) = (Physical::default(), Told::default());
        let mut created = Vec::new();
        let mut late: Option<(Ticket, bool)> = None;
        for (step, is_late) in steps {
            let ended = match step {
                Step::Create => {
                    let (name, id) = runtime.create();
                    // The number tells blocks of one handle apart.
                    let made = Block { bytes: id, ..block(name, 0) };
                    physical.create(made, &mut told.tell()).unwrap();
                    created.push(id);
                    None
                }
                Step::Release(name) => {
                    let ticket = physical.begin_release(name, &mut told.tell());
                    let done = runtime.release(name);
                    ticket.map(|ticket| (ticket, done))
                }
                Step::Map(at, bytes, name) => {
                    let ticket = physical.begin_map(at, bytes as u64, name);
                    let done = runtime.map(at, bytes, name);
                    ticket.map(|ticket| (ticket, done))
                }
                Step::Unmap(at, bytes) => {
                    let ticket = physical.begin_unmap(at, bytes as u64, several, &mut told.tell());
                    let done = runtime.unmap(at, bytes);
                    ticket.map(|ticket| (ticket, done))
                }
            };
            let before = late.take();
            match ended {
                Some(ended) if is_late => late = Some(ended),
                Some((ticket, done)) => physical.end(ticket, done, &mut told.tell()),
                None => {}
            }
            if let Some((ticket, done)) = before {
                physical.end(ticket, done, &mut told.tell());
            }
            if late.is_some() {
                continue;
            }
            let mut held: Vec<u64> = runtime.made.iter().map(|made| made.id).collect();
            let gone: Vec<u64> = told.gone.iter().map(|block| block.bytes).collect();
            let mut known: Vec<u64> = created.iter().copied().filter(|id| !gone.contains(id)).collect();
            held.sort_unstable();
            known.sort_unstable();
            prop_assert_eq!(held, known);
            prop_assert!(told.leaving.is_empty());
            let mapped: usize = physical.blocks.iter().flatten().map(|held| held.mappings).sum();
            prop_assert_eq!(mapped, runtime.mappings.len());
        }
    }
}
