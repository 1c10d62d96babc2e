//! Who waits for events (`kfd_wait_on_events` of kfd_events.c).

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::kfd::{EVENT_SIGNAL, WAIT_COMPLETE, WAIT_FAIL, WAIT_TIMEOUT, WaitEvents};

use super::ProcessKey;
use super::events::Events;

/// One event that a wait is for.
#[derive(Clone, Copy, Debug)]
pub struct Awaited {
    /// The event.
    pub id: u32,
    /// The age that the caller saw last; 0 when it does not go by age.
    pub age: u64,
    /// Whether it came.
    pub came: bool,
}

/// The way back to the thread that waits.
pub trait WaitClient: Send {
    /// Writes the age of the event at `index` of the caller's array.
    fn write_age(&self, index: usize, age: u64);
    /// Ends the ioctl.
    fn finish(self: Box<Self>, result: Result<(), Errno>, args: &WaitEvents);
}

/// A WAIT_EVENTS that has not been answered.
pub struct Waiter {
    /// Whose events.
    pub process: ProcessKey,
    /// The thread that waits.
    pub tid: u32,
    /// The events, in the order of the caller's array.
    pub events: Vec<Awaited>,
    /// Whether all of them must come, or one.
    pub all: bool,
    /// When the wait began.
    pub since: Instant,
    /// When it is over at the latest.
    pub deadline: Option<Instant>,
    /// The caller's argument.
    pub args: WaitEvents,
    /// The way back.
    pub client: Box<dyn WaitClient>,
}

impl Waiter {
    fn is_met(&self) -> bool {
        let mut came = self.events.iter().map(|e| e.came);
        if self.all {
            came.all(|c| c)
        } else {
            came.any(|c| c) || self.events.is_empty()
        }
    }
}

/// Every wait of a node.
#[derive(Default)]
pub struct Waits {
    waiters: Vec<Waiter>,
}

impl Waits {
    /// Starts a wait: notes which events are raised already (and clears those that reset
    /// themselves).
    ///
    /// # Errors
    /// `EINVAL` when one of the events does not exist; the caller then gets this answer at once,
    /// and nothing is cleared.
    pub fn start(
        &mut self,
        events: &mut Events,
        mut waiter: Waiter,
    ) -> Result<(), (Errno, Waiter)> {
        if waiter.events.iter().any(|a| events.get(a.id).is_none()) {
            return Err((Errno::EINVAL, waiter));
        }
        for awaited in &mut waiter.events {
            let Some(event) = events.get_mut(awaited.id) else {
                continue;
            };
            if event.kind != EVENT_SIGNAL {
                awaited.age = 0;
            }
            awaited.came = event.raised || (awaited.age != 0 && awaited.age != event.age);
            event.raised &= !event.auto_reset;
        }
        self.waiters.push(waiter);
        Ok(())
    }

    /// Raises an event. One that resets itself stays raised only when nobody waits for it
    /// (`set_event` of kfd_events.c).
    ///
    /// # Errors
    /// `EINVAL` when there is none of that id.
    pub fn raise(
        &mut self,
        process: ProcessKey,
        events: &mut Events,
        id: u32,
    ) -> Result<(), Errno> {
        let event = events.get_mut(id).ok_or(Errno::EINVAL)?;
        let mut awaited = self
            .waiters
            .iter_mut()
            .filter(|w| w.process == process)
            .flat_map(|w| &mut w.events)
            .filter(|a| a.id == id)
            .peekable();
        event.raised = !event.auto_reset || awaited.peek().is_none();
        event.age = event.age.checked_add(1).unwrap_or(2);
        awaited.for_each(|a| a.came = true);
        Ok(())
    }

    /// Answers every wait whose condition holds, whose time is over, or whose process or event
    /// is gone. Returns how many were answered.
    pub fn finish<'a>(
        &mut self,
        now: Instant,
        events_of: impl Fn(ProcessKey) -> Option<&'a Events>,
    ) -> usize {
        let before = self.waiters.len();
        let mut at = 0;
        while let Some(waiter) = self.waiters.get(at) {
            let events = events_of(waiter.process);
            let whole = events.is_some_and(|e| waiter.events.iter().all(|a| e.get(a.id).is_some()));
            let result = if !whole {
                WAIT_FAIL
            } else if waiter.is_met() {
                WAIT_COMPLETE
            } else if waiter.deadline.is_some_and(|d| d <= now) {
                WAIT_TIMEOUT
            } else {
                at += 1;
                continue;
            };
            let mut waiter = self.waiters.swap_remove(at);
            waiter.args.result = result;
            for (index, awaited) in waiter.events.iter().enumerate() {
                if awaited.came
                    && awaited.age != 0
                    && let Some(event) = events.and_then(|e| e.get(awaited.id))
                {
                    waiter.client.write_age(index, event.age);
                }
            }
            let answer = if result == WAIT_FAIL {
                Err(Errno::EIO)
            } else {
                Ok(())
            };
            waiter.client.finish(answer, &waiter.args);
        }
        before - self.waiters.len()
    }

    /// Ends the waits that `pick` names with `EINTR`. The time that was left goes back to the
    /// caller, and events that such a wait has taken are raised again, so that the next one sees
    /// them.
    pub fn interrupt(
        &mut self,
        now: Instant,
        pick: impl Fn(&Waiter) -> bool,
        mut raise_again: impl FnMut(ProcessKey, u32),
    ) -> usize {
        let before = self.waiters.len();
        let (stay, go) = std::mem::take(&mut self.waiters)
            .into_iter()
            .partition(|w| !pick(w));
        self.waiters = stay;
        let go: Vec<Waiter> = go;
        for mut waiter in go {
            if let Some(deadline) = waiter.deadline {
                let left = deadline.saturating_duration_since(now);
                waiter.args.timeout = u32::try_from(left.as_millis()).unwrap_or(u32::MAX - 1);
            }
            for awaited in waiter.events.iter().filter(|a| a.came) {
                raise_again(waiter.process, awaited.id);
            }
            waiter.client.finish(Err(Errno::EINTR), &waiter.args);
        }
        before - self.waiters.len()
    }

    /// The waits that are not over.
    pub fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.waiters.iter()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Time until the first deadline.
    pub fn until_deadline(&self, now: Instant) -> Option<Duration> {
        self.waiters
            .iter()
            .filter_map(|w| w.deadline)
            .min()
            .map(|deadline| deadline.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const ME: ProcessKey = ProcessKey(1);

    /// The result, and `result` and `timeout` of the argument.
    type Answer = (Result<(), Errno>, u32, u32);

    /// Remembers what the waiting thread would have got.
    #[derive(Clone, Default)]
    struct Client {
        answer: Arc<Mutex<Option<Answer>>>,
        ages: Arc<Mutex<Vec<(usize, u64)>>>,
    }

    impl WaitClient for Client {
        fn write_age(&self, index: usize, age: u64) {
            self.ages.lock().unwrap().push((index, age));
        }

        fn finish(self: Box<Self>, result: Result<(), Errno>, args: &WaitEvents) {
            *self.answer.lock().unwrap() = Some((result, args.result, args.timeout));
        }
    }

    struct Bench {
        events: Events,
        waits: Waits,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            Self {
                events: Events::default(),
                waits: Waits::default(),
                now: Instant::now(),
            }
        }

        fn event(&mut self, auto_reset: bool) -> u32 {
            self.events.create(EVENT_SIGNAL, auto_reset).unwrap().0
        }

        fn wait(&mut self, ids: &[(u32, u64)], all: bool, millis: Option<u64>) -> Client {
            let client = Client::default();
            let waiter = Waiter {
                process: ME,
                tid: 1,
                events: ids
                    .iter()
                    .map(|&(id, age)| Awaited {
                        id,
                        age,
                        came: false,
                    })
                    .collect(),
                all,
                since: self.now,
                deadline: millis.map(|m| self.now + Duration::from_millis(m)),
                args: WaitEvents::default(),
                client: Box::new(client.clone()),
            };
            if let Err((errno, waiter)) = self.waits.start(&mut self.events, waiter) {
                waiter.client.finish(Err(errno), &waiter.args);
            }
            self.finish();
            client
        }

        fn raise(&mut self, id: u32) {
            self.waits.raise(ME, &mut self.events, id).unwrap();
            self.finish();
        }

        fn finish(&mut self) {
            self.waits
                .finish(self.now, |key| (key == ME).then_some(&self.events));
        }
    }

    fn answer(client: &Client) -> Option<(Result<(), Errno>, u32)> {
        client
            .answer
            .lock()
            .unwrap()
            .map(|(result, wait, _)| (result, wait))
    }

    #[test]
    fn a_raised_event_ends_a_later_wait_once() {
        let mut bench = Bench::new();
        let id = bench.event(true);
        bench.raise(id);
        assert_eq!(
            answer(&bench.wait(&[(id, 0)], false, None)),
            Some((Ok(()), WAIT_COMPLETE))
        );
        let second = bench.wait(&[(id, 0)], false, None);
        assert_eq!(answer(&second), None);
        bench.raise(id);
        assert_eq!(answer(&second), Some((Ok(()), WAIT_COMPLETE)));
        assert!(!bench.events.get(id).unwrap().raised, "the waiter took it");
    }

    #[test]
    fn without_auto_reset_it_stays_raised() {
        let mut bench = Bench::new();
        let id = bench.event(false);
        bench.raise(id);
        for _ in 0..2 {
            assert_eq!(
                answer(&bench.wait(&[(id, 0)], false, None)),
                Some((Ok(()), WAIT_COMPLETE))
            );
        }
        bench.events.reset(id).unwrap();
        assert_eq!(answer(&bench.wait(&[(id, 0)], false, None)), None);
    }

    #[test]
    fn all_of_several() {
        let mut bench = Bench::new();
        let (a, b) = (bench.event(true), bench.event(true));
        let client = bench.wait(&[(a, 0), (b, 0)], true, None);
        bench.raise(a);
        assert_eq!(answer(&client), None);
        bench.raise(b);
        assert_eq!(answer(&client), Some((Ok(()), WAIT_COMPLETE)));
    }

    #[test]
    fn an_event_missed_between_two_waits_shows_in_its_age() {
        let mut bench = Bench::new();
        let id = bench.event(true);
        let first = bench.wait(&[(id, 1)], false, None);
        bench.raise(id);
        assert_eq!(*first.ages.lock().unwrap(), [(0, 2)]);
        // Raised while another wait takes it: this caller still has age 2.
        let other = bench.wait(&[(id, 2)], false, None);
        bench.raise(id);
        assert!(answer(&other).is_some());
        let late = bench.wait(&[(id, 2)], false, None);
        assert_eq!(answer(&late), Some((Ok(()), WAIT_COMPLETE)));
        assert_eq!(*late.ages.lock().unwrap(), [(0, 3)]);
    }

    #[test]
    fn time_over_and_event_gone() {
        let mut bench = Bench::new();
        let id = bench.event(true);
        let timed = bench.wait(&[(id, 0)], false, Some(5));
        assert_eq!(
            bench.waits.until_deadline(bench.now),
            Some(Duration::from_millis(5))
        );
        bench.now += Duration::from_millis(6);
        bench.finish();
        assert_eq!(answer(&timed), Some((Ok(()), WAIT_TIMEOUT)));
        let gone = bench.wait(&[(id, 0)], false, None);
        bench.events.destroy(id).unwrap();
        bench.finish();
        assert_eq!(answer(&gone), Some((Err(Errno::EIO), WAIT_FAIL)));
        assert_eq!(
            answer(&bench.wait(&[(id, 0)], false, None)).map(|a| a.0),
            Some(Err(Errno::EINVAL))
        );
    }

    #[test]
    fn an_interrupted_wait_loses_nothing() {
        let mut bench = Bench::new();
        let (a, b) = (bench.event(true), bench.event(true));
        let client = bench.wait(&[(a, 0), (b, 0)], true, Some(100));
        bench.raise(a);
        bench.now += Duration::from_millis(40);
        let events = &mut bench.events;
        let ended = bench.waits.interrupt(
            bench.now,
            |w| w.tid == 1,
            |_, id| events.get_mut(id).unwrap().raised = true,
        );
        assert_eq!(ended, 1);
        assert_eq!(
            *client.answer.lock().unwrap(),
            Some((Err(Errno::EINTR), 0, 60))
        );
        assert!(bench.events.get(a).unwrap().raised);
    }
}
