//! A process that is killed between any two steps, while another goes on.
//!
//! Each model runs once for each fault point that the victim comes by, and then once without its
//! death; so a point that is new is among them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use loom::thread;

use super::kernel::Kernel;
use super::world::{World, allocate, free};
use super::{MOST, explore};
use crate::fault::FaultPoint;
use crate::kind::Kind;
use crate::member::Member;
use crate::slot::State;

/// Kills `victim` at every point it comes by, each time in all interleavings with `peer`. Afterwards
/// one look for the dead returns all that is not `peer`'s.
fn kill_everywhere(
    preemptions: usize,
    prepare: fn(&World),
    victim: fn(&World),
    peer: fn(&World, &Member),
) -> BTreeSet<FaultPoint> {
    let points = Arc::new(Mutex::new(BTreeSet::new()));
    for passes in 0.. {
        let died = Arc::new(Mutex::new(false));
        let (seen, deaths) = (points.clone(), died.clone());
        explore(Some(preemptions), move || {
            let world = World::new();
            let survivor = world.member(0);
            prepare(&world);
            let dying = {
                let world = world.clone();
                thread::spawn(move || Kernel::run_mortal(passes, || victim(&world)))
            };
            peer(&world, &survivor);
            if let Some(point) = dying.join().unwrap() {
                *deaths.lock().unwrap() = true;
                seen.lock().unwrap().insert(point);
            }
            // Nothing of the dead is left, nothing of the living is lost, and nothing comes twice.
            world.reap();
            world.settled();
            assert_eq!(world.reap(), []);
            assert_eq!(world.claim(0).state(), State::Claimed);
            let left = MOST - world.charged();
            assert!(allocate(&survivor, left));
            world.settled();
            // A new process finds a slot.
            let newcomer = world.join().unwrap();
            assert!(!allocate(&newcomer, 1));
        });
        if !*died.lock().unwrap() {
            break;
        }
    }
    let points = points.lock().unwrap().clone();
    println!("killed at {points:?}");
    points
}

/// What others do while somebody dies: they ask, hold, free, and reap when they are refused. They may
/// be refused for a moment.
fn go_on(_: &World, survivor: &Member) {
    if allocate(survivor, 5) {
        free(survivor, 5);
    }
}

#[test]
fn while_it_joins_books_and_leaves() {
    let points = kill_everywhere(
        2,
        |_| {},
        |world| {
            let member = world.join().unwrap();
            if allocate(&member, 6) {
                free(&member, 6);
            }
            let _ = member.leave();
        },
        go_on,
    );
    for point in [
        FaultPoint::SlotClaiming,
        FaultPoint::ReserveAdded,
        FaultPoint::CommitBooked,
        FaultPoint::ReleaseSettled,
        FaultPoint::LeaveClearing,
        FaultPoint::LeaveFreed,
    ] {
        assert!(points.contains(&point), "{point:?}");
    }
}

#[test]
fn while_it_books_managed_memory_and_tells_its_overhead() {
    let points = kill_everywhere(
        2,
        |_| {},
        |world| {
            let member = world.join().unwrap();
            if let Ok(reservation) = member.reserve_as(Kind::Managed, 0, 6) {
                Kernel::current().give(6);
                member.commit(reservation, 6);
                Kernel::current().take_back(6);
                member.release_as(Kind::Managed, 0, 6);
            }
            member.set_overhead(0, 1);
            member.forget_overhead(0);
        },
        go_on,
    );
    for point in [
        FaultPoint::CommitUnseen,
        FaultPoint::ReleaseSettled,
        FaultPoint::ReleaseUnseen,
        FaultPoint::OverheadStored,
        FaultPoint::OverheadKnown,
        FaultPoint::OverheadForgotten,
    ] {
        assert!(points.contains(&point), "{point:?}");
    }
}

#[test]
fn while_it_reaps_another_one() {
    let points = kill_everywhere(
        2,
        |world| world.corpse(1, State::Claimed, 6),
        |world| drop(world.reap()),
        |_, survivor| {
            // Fits only with the share of the dead one.
            if allocate(survivor, 8) {
                free(survivor, 8);
            }
        },
    );
    for point in [
        FaultPoint::ReapAsked,
        FaultPoint::ReapClearing,
        FaultPoint::FigureEmptied,
        FaultPoint::ReapFreed,
    ] {
        assert!(points.contains(&point), "{point:?}");
    }
}

/// Two reapers, one of which dies; what the dead third held is given out by the other.
#[test]
fn while_it_reaps_and_another_does_too() {
    kill_everywhere(
        2,
        |world| world.corpse(1, State::Claimed, 6),
        |world| drop(world.reap()),
        |world, _| drop(world.reap()),
    );
}
