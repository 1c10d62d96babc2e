//! Claiming, leaving and reaping, with what is booked meanwhile.

use loom::thread;

use super::explore;
use super::world::{World, allocate};
use crate::member::Stayed;
use crate::slot::State;

/// Fails without the fence of reserving, if a newcomer raises the high-water mark only after it has
/// its slot and another may sum, or if a slot can be claimed by two.
#[test]
fn two_newcomers_have_slots_of_their_own_and_never_both_pass() {
    explore(Some(3), || {
        let world = World::new();
        let come = |world: &World| {
            let member = world.join().unwrap();
            let granted = allocate(&member, 6);
            (member.slot(), granted)
        };
        let other = {
            let world = world.clone();
            thread::spawn(move || come(&world))
        };
        let (mine, granted) = come(&world);
        let (others, other_granted) = other.join().unwrap();
        assert_ne!(mine, others);
        assert!(!(granted && other_granted));
        world.settled();
    });
}

/// Fails if the high-water mark is not raised.
#[test]
fn a_newcomer_is_never_reaped() {
    explore(None, || {
        let world = World::new();
        let newcomer = {
            let world = world.clone();
            thread::spawn(move || {
                let member = world.join().unwrap();
                assert!(allocate(&member, 6));
            })
        };
        assert_eq!(world.reap(), []);
        newcomer.join().unwrap();
        assert_eq!(world.claim(0).state(), State::Claimed);
        assert_eq!(world.reaped(), 0);
        world.settled();
    });
}

/// A reaper that has seen one owner meets the next. Fails if a newcomer takes the slot's lock after it
/// has changed the state, if a reaper clears without the lock, or if it does not look at the state again
/// once it has the lock (then it clears a slot that is free, or a newcomer's).
#[test]
fn a_slot_that_changes_hands_is_never_reaped() {
    explore(Some(3), || {
        let world = World::new();
        let leaver = world.member(0);
        let leaving = {
            let world = world.clone();
            thread::spawn(move || {
                assert_eq!(leaver.leave(), Ok(()));
                drop(world);
            })
        };
        let coming = {
            let world = world.clone();
            thread::spawn(move || {
                let member = world.join().unwrap();
                assert!(allocate(&member, 6));
                member.slot()
            })
        };
        assert_eq!(world.reap(), []);
        leaving.join().unwrap();
        let slot = coming.join().unwrap();
        assert_eq!(world.claim(slot).state(), State::Claimed);
        assert_eq!(world.reaped(), 0);
        world.settled();
    });
}

/// In whatever state the dead one left its slot. Fails if the lock is not taken while the slot is
/// cleared, or if the state is not looked at again under the lock.
#[test]
fn two_reapers_return_a_share_once() {
    for state in [State::Claiming, State::Claimed, State::Clearing] {
        explore(None, move || {
            let world = World::new();
            world.corpse(0, state, 6);
            let other = {
                let world = world.clone();
                thread::spawn(move || world.reap())
            };
            let mut reaped = world.reap();
            reaped.extend(other.join().unwrap());
            let shares: Vec<_> = reaped.iter().map(|one| one.returned[0].1).collect();
            assert_eq!(shares, [6]);
            assert_eq!(world.reaped(), 1);
            assert_eq!(world.claim(0).state(), State::Free);
            world.settled();
        });
    }
}

/// The newcomer may get the slot that is being cleared. Fails if the high-water mark is not raised. (That
/// a slot is free only when its last figure is cleared is in `deaths`.)
#[test]
fn a_newcomer_in_a_reaped_slot_loses_nothing() {
    explore(Some(3), || {
        let world = World::new();
        world.corpse(0, State::Claimed, 4);
        let newcomer = {
            let world = world.clone();
            thread::spawn(move || {
                let member = world.join().unwrap();
                assert!(allocate(&member, 6));
            })
        };
        assert_eq!(world.reap().len(), 1);
        newcomer.join().unwrap();
        assert_eq!(world.reaped(), 1);
        world.settled();
    });
}

/// Two members and a dead third: who asks for more than is left reaps. Fails without the fence of
/// reserving, and if a reaper does not look at the state again once it has the lock.
#[test]
fn a_dead_share_is_given_out_once() {
    explore(Some(3), || {
        let world = World::new();
        world.corpse(2, State::Claimed, 6);
        let [a, b] = [world.member(0), world.member(1)];
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                let granted = allocate(&b, 6);
                drop(world);
                granted
            })
        };
        let granted = [allocate(&a, 6), other.join().unwrap()];
        assert!(granted != [true, true]);
        assert_eq!(world.reaped(), 1);
        world.settled();
    });
}

/// Two threads of one process. A request that meets a thread which stays is granted. Fails if leaving does
/// not wait for those inside, if it asks for them without the fence, or if an operation begins although
/// the slot is being cleared.
#[test]
fn leaving_never_loses_what_another_thread_books() {
    explore(None, || {
        let world = World::new();
        let member = std::sync::Arc::new(world.member(0));
        let booking = {
            let (world, member) = (world.clone(), member.clone());
            thread::spawn(move || {
                let granted = allocate(&member, 6);
                drop((member, world));
                granted
            })
        };
        let left = member.leave();
        let granted = booking.join().unwrap();
        match left {
            Ok(()) => {
                assert!(!granted, "the slot is gone, and something is booked in it");
                assert_eq!(world.claim(0).state(), State::Free);
            }
            // What was seen may have been a request that was only going in.
            Err(stayed) => {
                assert_eq!(stayed, Stayed::InUse);
                assert!(granted);
                assert_eq!(world.claim(0).state(), State::Claimed);
            }
        }
        world.settled();
    });
}

/// Two threads of one process leave at once: the slot and its lock are given back once. Fails if the state
/// is stored instead of swapped.
#[test]
fn one_of_two_threads_leaves() {
    explore(None, || {
        let world = World::new();
        let member = std::sync::Arc::new(world.member(0));
        let other = {
            let (world, member) = (world.clone(), member.clone());
            thread::spawn(move || {
                let left = member.leave();
                drop((member, world));
                left
            })
        };
        let left = [member.leave(), other.join().unwrap()];
        assert_eq!(
            left.iter().filter(|left| left.is_ok()).count(),
            1,
            "{left:?}"
        );
        assert_eq!(world.claim(0).state(), State::Free);
        let next = world.join().unwrap();
        assert_eq!(next.slot(), 0);
    });
}

/// And is kept if it stays. Fails if leaving does not wait for those inside, if it asks for them without
/// the fence, or if an operation begins although the slot is being cleared.
#[test]
fn overhead_does_not_outlive_its_member() {
    explore(None, || {
        let world = World::new();
        let member = std::sync::Arc::new(world.member(0));
        let telling = {
            let (world, member) = (world.clone(), member.clone());
            thread::spawn(move || {
                member.set_overhead(0, 3);
                drop((member, world));
            })
        };
        let left = member.leave();
        telling.join().unwrap();
        match left {
            Ok(()) => assert_eq!(world.charged(), 0),
            // The other was inside, and what it tells is kept.
            Err(stayed) => {
                assert_eq!(stayed, Stayed::InUse);
                assert_eq!(world.claim(0).state(), State::Claimed);
                assert_eq!(world.charged(), 3);
            }
        }
    });
}
