//! Allocations that are held back by an order, on their way to the driver or back.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::control::HoldAllocs;

/// How long at most: the kernel holds the caller, killed or not, until it has an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// The order, and those who wait for its end.
#[derive(Default)]
pub struct Held {
    order: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    order: Option<HoldAllocs>,
    /// How many orders have ended.
    ended: u64,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds back what `order` says from now on. What is held already stays so, but goes with `None`.
    pub fn order(&self, order: Option<HoldAllocs>) {
        let mut state = self.lock();
        state.order = order;
        if order.is_none() {
            state.ended += 1;
            self.ended.notify_all();
        }
    }

    /// Whether an allocation of `bytes` is to be held back now that the memory is `given`, or is not.
    pub fn holds(&self, bytes: u64, given: bool) -> bool {
        let order = self.lock().order;
        order.is_some_and(|order| bytes >= order.from && given == order.given)
    }

    /// Waits until all orders end, but not for ever.
    pub fn wait(&self) {
        self.wait_for(PATIENCE);
    }

    fn wait_for(&self, patience: Duration) {
        let state = self.lock();
        let began = state.ended;
        let held = |state: &mut State| state.order.is_some() && state.ended == began;
        drop(
            self.ended
                .wait_timeout_while(state, patience, held)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    const ORDER: HoldAllocs = HoldAllocs {
        from: 100,
        given: true,
    };

    #[test]
    fn only_what_the_order_says_is_held() {
        let held = Held::default();
        assert!(!held.holds(u64::MAX, true));
        held.order(Some(ORDER));
        assert!(held.holds(100, true));
        assert!(!held.holds(99, true) && !held.holds(100, false));
        held.order(None);
        assert!(!held.holds(100, true));
    }

    #[test]
    fn all_go_when_the_order_ends() {
        let held = Arc::new(Held::default());
        held.order(Some(ORDER));
        let (to, ended) = channel();
        for _ in 0..2 {
            let (held, to) = (Arc::clone(&held), to.clone());
            std::thread::spawn(move || {
                held.wait();
                to.send(()).unwrap();
            });
        }
        held.order(Some(HoldAllocs {
            given: false,
            ..ORDER
        }));
        assert!(ended.try_recv().is_err());
        held.order(None);
        assert_eq!((ended.recv(), ended.recv()), (Ok(()), Ok(())));
        held.wait();
    }

    #[test]
    fn nobody_is_held_for_ever() {
        let held = Held::default();
        held.order(Some(ORDER));
        held.wait_for(Duration::from_millis(1));
    }
}
