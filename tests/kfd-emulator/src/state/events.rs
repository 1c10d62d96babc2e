//! Events of a process (kfd_events.c).

use std::collections::BTreeMap;

use nix::errno::Errno;

use crate::abi::kfd::{EVENT_DEBUG, EVENT_SIGNAL};

/// Ids of signal events, which are also their slots in the event page. 0 is never given out
/// (`kfd_event_init_process` keeps it), 4,096 is `KFD_SIGNAL_EVENT_LIMIT`.
const SIGNAL_IDS: std::ops::Range<u32> = 1..4096;
/// Ids of all other events (`KFD_FIRST_NONSIGNAL_EVENT_ID`).
const OTHER_IDS: std::ops::Range<u32> = 0x4000_0000..0x7fff_ffff;

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// One of `EVENT_*`.
    pub kind: u32,
    /// Whether a wait that sees it also clears it.
    pub auto_reset: bool,
    /// Whether it is raised.
    pub raised: bool,
    /// How often it was raised, counted from 1 and never 0.
    pub age: u64,
}

impl Event {
    /// Whether the GPU raises it through a slot of the event page.
    pub fn has_slot(&self) -> bool {
        matches!(self.kind, EVENT_SIGNAL | EVENT_DEBUG)
    }
}

/// The events of a process.
#[derive(Debug, Default)]
pub struct Events {
    events: BTreeMap<u32, Event>,
}

impl Events {
    /// A new event, and its id.
    ///
    /// # Errors
    /// `ENOSPC` when there are too many.
    pub fn create(&mut self, kind: u32, auto_reset: bool) -> Result<(u32, &Event), Errno> {
        let event = Event {
            kind,
            auto_reset,
            raised: false,
            age: 1,
        };
        let ids = if event.has_slot() {
            SIGNAL_IDS
        } else {
            OTHER_IDS
        };
        let mut taken = self.events.range(ids.clone()).map(|(&id, _)| id);
        let mut id = ids.start;
        while taken.next() == Some(id) {
            id += 1;
        }
        if id >= ids.end {
            return Err(Errno::ENOSPC);
        }
        Ok((id, self.events.entry(id).or_insert(event)))
    }

    /// Destroys an event.
    ///
    /// # Errors
    /// `EINVAL` when there is none of that id.
    pub fn destroy(&mut self, id: u32) -> Result<(), Errno> {
        self.events.remove(&id).map(|_| ()).ok_or(Errno::EINVAL)
    }

    /// Clears an event.
    ///
    /// # Errors
    /// `EINVAL` when there is none of that id.
    pub fn reset(&mut self, id: u32) -> Result<(), Errno> {
        self.events
            .get_mut(&id)
            .map(|event| event.raised = false)
            .ok_or(Errno::EINVAL)
    }

    /// The event of that id.
    pub fn get(&self, id: u32) -> Option<&Event> {
        self.events.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut Event> {
        self.events.get_mut(&id)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_signal_events_are_slots_and_run_out() {
        let mut events = Events::default();
        for expected in SIGNAL_IDS {
            assert_eq!(events.create(EVENT_SIGNAL, true).unwrap().0, expected);
        }
        assert_eq!(
            events.create(EVENT_SIGNAL, true).unwrap_err(),
            Errno::ENOSPC
        );
        events.destroy(7).unwrap();
        assert_eq!(events.create(EVENT_SIGNAL, true).unwrap().0, 7);
        assert_eq!(
            events
                .create(crate::abi::kfd::EVENT_MEMORY, true)
                .unwrap()
                .0,
            OTHER_IDS.start
        );
    }
}
