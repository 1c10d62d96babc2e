//! Events: CREATE, DESTROY, SET, RESET, WAIT.

use std::time::{Duration, Instant};

use nix::errno::Errno;

use crate::abi::kfd::{CreateEvent, EventData, EventId, WaitEvents};
use crate::ioctl::{Outcome, read_array};
use crate::state::waits::Awaited;
use crate::state::{WaitClient, Waiter};

use super::Call;

/// mmap offset of the event page (`KFD_MMAP_TYPE_EVENTS`).
const EVENT_PAGE: u64 = 2 << 62;
/// A timeout that never ends (`KFD_EVENT_TIMEOUT_INFINITE`).
const FOREVER: u32 = u32::MAX;

impl Call<'_> {
    pub(super) fn create_event(&mut self, args: &mut CreateEvent) -> Result<(), Errno> {
        self.fields.set("type", args.event_type);
        let (kind, auto_reset) = (args.event_type, args.auto_reset != 0);
        let (id, event) = self.process()?.events.create(kind, auto_reset)?;
        if event.has_slot() {
            args.event_page_offset = EVENT_PAGE;
            args.trigger_data = id;
            args.slot_index = id;
        }
        args.event_id = id;
        self.fields.set("event_id", id);
        Ok(())
    }

    pub(super) fn destroy_event(&mut self, args: &mut EventId) -> Result<(), Errno> {
        self.fields.set("event_id", args.event_id);
        self.process()?.events.destroy(args.event_id)?;
        self.driver.finish_waits(Instant::now());
        Ok(())
    }

    pub(super) fn set_event(&mut self, args: &mut EventId) -> Result<(), Errno> {
        self.fields.set("event_id", args.event_id);
        self.driver.raise_event(self.key, args.event_id)?;
        self.driver.finish_waits(Instant::now());
        Ok(())
    }

    pub(super) fn reset_event(&mut self, args: &mut EventId) -> Result<(), Errno> {
        self.fields.set("event_id", args.event_id);
        self.process()?.events.reset(args.event_id)
    }

    /// Starts a wait. Its end is for whoever raises an event, and for the watcher.
    pub fn wait_events(
        &mut self,
        args: WaitEvents,
        now: Instant,
        client: impl FnOnce() -> Box<dyn WaitClient>,
    ) -> Outcome {
        let data: Vec<EventData> = match read_array(self.caller, args.events_pointer, args.events) {
            Ok(data) => data,
            Err(errno) => return Outcome::Done(Err(errno)),
        };
        let events: Vec<Awaited> = data
            .iter()
            .map(|d| Awaited {
                id: d.event_id,
                age: d.last_event_age,
                came: false,
            })
            .collect();
        self.fields.list("events", events.iter().map(|e| e.id));
        self.fields.set("timeout", args.timeout);
        let deadline =
            (args.timeout != FOREVER).then(|| now + Duration::from_millis(u64::from(args.timeout)));
        let waiter = Waiter {
            process: self.key,
            tid: self.caller.tid(),
            events,
            all: args.wait_for_all != 0,
            since: now,
            deadline,
            args,
            client: client(),
        };
        let Some(process) = self.driver.processes.get_mut(&self.key) else {
            return Outcome::Done(Err(Errno::EBADF));
        };
        if let Err((errno, waiter)) = self.driver.waits.start(&mut process.events, waiter) {
            waiter.client.finish(Err(errno), &waiter.args);
        }
        self.driver.finish_waits(now);
        Outcome::Waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::kfd::number;
    use crate::ioctl::testing::Bench;

    fn create(bench: &mut Bench, event_type: u32) -> CreateEvent {
        let mut args = CreateEvent {
            event_type,
            auto_reset: 1,
            ..Default::default()
        };
        bench.kfd(number::CREATE_EVENT, &mut args).unwrap();
        args
    }

    #[test]
    fn a_signal_event_has_a_slot_and_others_have_not() {
        let mut bench = Bench::new();
        let signal = create(&mut bench, 0);
        assert_eq!(
            (signal.event_id, signal.slot_index, signal.trigger_data),
            (1, 1, 1)
        );
        assert_eq!(signal.event_page_offset, EVENT_PAGE);
        let memory = create(&mut bench, crate::abi::kfd::EVENT_MEMORY);
        assert_eq!((memory.slot_index, memory.event_page_offset), (0, 0));
    }

    #[test]
    fn set_reset_destroy_name_an_event_that_exists() {
        let mut bench = Bench::new();
        let mut id = EventId {
            event_id: create(&mut bench, 0).event_id,
            pad: 0,
        };
        for number in [
            number::SET_EVENT,
            number::RESET_EVENT,
            number::DESTROY_EVENT,
        ] {
            assert_eq!(bench.kfd(number, &mut id), Ok(()));
        }
        for number in [
            number::SET_EVENT,
            number::RESET_EVENT,
            number::DESTROY_EVENT,
        ] {
            assert_eq!(bench.kfd(number, &mut id), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn waiting_on_unreadable_memory() {
        let mut bench = Bench::new();
        let mut args = WaitEvents {
            events_pointer: 0x9000,
            events: 1,
            ..Default::default()
        };
        assert_eq!(
            bench.kfd(number::WAIT_EVENTS, &mut args),
            Err(Errno::EFAULT)
        );
    }
}
