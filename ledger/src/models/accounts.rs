//! Reserving, committing, cancelling and releasing, without the slots' coming and going.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64 as Plain, Ordering::SeqCst};

use loom::thread;

use super::{MOST, explore};
use crate::account::{self, Account, Refusal};
use crate::layout::Cell;
use crate::limit::Limit;
use crate::slot::{Claim, State};
use crate::sync::{AtomicU64, Ordering};

const LIMIT: Limit = Limit::Bytes(MOST);

/// Cells and states without slots.
struct Cells<const N: usize> {
    cells: [Cell; N],
    claims: [AtomicU64; N],
    high_water: AtomicU64,
    /// What the driver has given out. No memory of the model: it knows the truth.
    driver: Plain,
}

impl<const N: usize> Cells<N> {
    fn claimed() -> Claim {
        Claim(0).next_claiming().with(State::Claimed)
    }

    fn new() -> Arc<Self> {
        Arc::new(Self {
            cells: std::array::from_fn(|_| Cell::default()),
            claims: std::array::from_fn(|_| AtomicU64::new(Self::claimed().0)),
            high_water: AtomicU64::new(N as u64),
            driver: Plain::new(0),
        })
    }

    fn account(&self, slot: usize) -> Account<'_> {
        Account {
            cells: &self.cells,
            high_water: &self.high_water,
            own: &self.cells[slot],
            claim: &self.claims[slot],
            claimed: Self::claimed().0,
        }
    }

    /// As a process does it: asks, takes from the driver, books.
    fn allocate(&self, slot: usize, bytes: u64) -> bool {
        let granted = self.account(slot).try_reserve(bytes, LIMIT).is_ok();
        if granted {
            self.take(bytes);
            assert_eq!(self.account(slot).commit(bytes, bytes), 0);
        }
        granted
    }

    fn take(&self, bytes: u64) {
        let held = self.driver.fetch_add(bytes, SeqCst) + bytes;
        assert!(held <= MOST, "{held} of {MOST} bytes are held");
    }

    fn free(&self, slot: usize, bytes: u64) {
        self.driver.fetch_sub(bytes, SeqCst);
        assert_eq!(self.account(slot).release(bytes), 0);
    }

    /// When all is quiet, what is charged is what is held.
    fn settled(&self) {
        let totals = self.account(0).totals();
        assert_eq!(totals.charged(), self.driver.load(SeqCst));
        assert_eq!(totals.others_pending + totals.mine.pending, 0);
    }
}

/// Fails without the fence between adding and summing, or if the sum is made before the addition.
#[test]
fn two_that_ask_at_once_never_both_pass() {
    explore(None, || {
        let cells = Cells::<2>::new();
        let other = {
            let cells = cells.clone();
            thread::spawn(move || cells.allocate(1, 6))
        };
        let granted = [cells.allocate(0, 6), other.join().unwrap()];
        assert!(granted != [true, true]);
        cells.settled();
    });
}

/// As above, for any two of three. Bounded: without a bound there are millions of interleavings.
#[test]
fn of_three_that_ask_at_once_two_never_pass() {
    explore(Some(3), || {
        let cells = Cells::<3>::new();
        let others = [1, 2].map(|slot| {
            let cells = cells.clone();
            thread::spawn(move || cells.allocate(slot, 4 + slot as u64))
        });
        cells.allocate(0, 6);
        others
            .into_iter()
            .for_each(|other| _ = other.join().unwrap());
        cells.settled();
    });
}

/// Fails if bytes are taken from `pending` before they are added to `live`, or if a sum reads `live`
/// before `pending`.
#[test]
fn what_is_being_committed_is_never_missed() {
    explore(None, || {
        let cells = Cells::<2>::new();
        cells.account(0).try_reserve(6, LIMIT).unwrap();
        cells.take(6);
        let other = {
            let cells = cells.clone();
            thread::spawn(move || cells.allocate(1, 5))
        };
        assert_eq!(cells.account(0).commit(6, 6), 0);
        assert!(!other.join().unwrap());
        cells.settled();
    });
}

/// Fails without the fence, and if a refusal does not take back what it added.
#[test]
fn what_is_given_back_can_be_had_by_one() {
    explore(Some(3), || {
        let cells = Cells::<3>::new();
        assert!(cells.allocate(0, 8));
        let others = [1, 2].map(|slot| {
            let cells = cells.clone();
            thread::spawn(move || cells.allocate(slot, 6))
        });
        cells.free(0, 8);
        others
            .into_iter()
            .for_each(|other| _ = other.join().unwrap());
        cells.settled();
    });
}

/// Two threads of one process, which share a cell, and another process. Fails if a figure is changed
/// by a load and a store.
#[test]
fn threads_that_share_a_cell_lose_nothing() {
    explore(Some(3), || {
        let cells = Cells::<2>::new();
        let others = [0, 1].map(|slot| {
            let cells = cells.clone();
            thread::spawn(move || {
                if cells.allocate(slot, 6) {
                    cells.free(slot, 6);
                }
            })
        });
        if cells.account(0).try_reserve(5, LIMIT).is_ok() {
            assert_eq!(cells.account(0).cancel(5), 0);
        }
        others
            .into_iter()
            .for_each(|other| _ = other.join().unwrap());
        cells.settled();
    });
}

/// Two refusals may meet; what they have added and taken back leaves nothing, and hinders the third
/// request for no longer than it takes. Fails if a refusal does not take back.
#[test]
fn refusals_leave_nothing() {
    explore(Some(3), || {
        let cells = Cells::<2>::new();
        assert!(cells.allocate(0, 5));
        let other = {
            let cells = cells.clone();
            thread::spawn(move || cells.allocate(1, 6))
        };
        let refusal = cells.account(0).try_reserve(7, LIMIT);
        assert!(matches!(refusal, Err(Refusal::OverLimit { .. })));
        assert!(!other.join().unwrap());
        cells.settled();
        assert!(cells.allocate(1, 5));
    });
}

/// A newcomer raises the high-water mark before it asks. Fails without the fence (of either), or if
/// it is raised after the request.
#[test]
fn a_sum_reaches_a_slot_that_has_just_been_claimed() {
    explore(None, || {
        let cells = Cells::<2>::new();
        cells.high_water.store(1, Ordering::SeqCst);
        let newcomer = {
            let cells = cells.clone();
            thread::spawn(move || {
                cells.high_water.fetch_max(2, Ordering::SeqCst);
                cells.allocate(1, 6)
            })
        };
        let granted = [cells.allocate(0, 6), newcomer.join().unwrap()];
        assert!(granted != [true, true]);
        cells.settled();
    });
}

/// Fails if forgetting clears the figure, or if the figure is told after the time that makes it known.
#[test]
fn an_overhead_is_one_that_was_told_or_none() {
    explore(None, || {
        let cells = Cells::<2>::new();
        let teller = {
            let cells = cells.clone();
            thread::spawn(move || {
                let account = cells.account(1);
                account.set_overhead(3, 1);
                account.forget_overhead();
                account.set_overhead(2, 2);
            })
        };
        let seen = account::read(&cells.cells[1]).overhead;
        assert!(matches!(seen, None | Some(2 | 3)), "{seen:?}");
        let charged = cells.account(0).totals().others;
        assert!(matches!(charged, 0 | 2 | 3), "{charged}");
        teller.join().unwrap();
        assert_eq!(account::read(&cells.cells[1]).overhead, Some(2));
        assert_eq!(cells.account(0).totals().charged(), 2);
    });
}

/// Two threads of one process, one of which measures anew while the other gives up. Fails if forgetting
/// clears the figure.
#[test]
fn an_overhead_that_is_told_and_forgotten_at_once_is_known_or_not() {
    explore(None, || {
        let cells = Cells::<1>::new();
        cells.account(0).set_overhead(3, 1);
        let forgetting = {
            let cells = cells.clone();
            thread::spawn(move || cells.account(0).forget_overhead())
        };
        cells.account(0).set_overhead(2, 2);
        forgetting.join().unwrap();
        let seen = account::read(&cells.cells[0]).overhead;
        assert!(matches!(seen, None | Some(2)), "{seen:?}");
        let charged = cells.account(0).totals().charged();
        assert_eq!(charged, seen.unwrap_or(0));
    });
}

/// Whoever compares with the driver's counter never expects managed memory in it. Fails if committing
/// tells after it has booked, releasing before, or a reader looks on one side only.
#[test]
fn managed_memory_is_never_taken_for_memory_that_the_driver_shows() {
    for release in [false, true] {
        explore(None, move || {
            let cells = Cells::<1>::new();
            let account = cells.account(0);
            account.try_reserve(4, LIMIT).unwrap();
            let book = |cells: &Cells<1>| {
                cells.account(0).add_unseen(4);
                assert_eq!(cells.account(0).commit(4, 4), 0);
            };
            if release {
                book(&cells);
            }
            let reader = {
                let cells = cells.clone();
                thread::spawn(move || {
                    let seen = account::read(&cells.cells[0]);
                    assert!(seen.live <= seen.live_unseen, "{seen:?}");
                })
            };
            if release {
                assert_eq!(cells.account(0).release(4), 0);
                assert_eq!(cells.account(0).release_unseen(4), 0);
            } else {
                book(&cells);
            }
            reader.join().unwrap();
            let seen = account::read(&cells.cells[0]);
            assert_eq!(seen.live, seen.live_unseen);
        });
    }
}
