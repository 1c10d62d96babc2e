//! Threads that were seen asleep, and for how long.

use core::ffi::c_int;
use core::time::Duration;

use super::Failure;

/// How long a thread must have slept to be left alone. One that waits for another's lock in the kernel, or polls,
/// is awake again sooner.
const SOUND: Duration = Duration::from_micros(300);

/// What was seen of one thread.
struct Sleeper {
    thread: c_int,
    switches: u64,
    since: Duration,
}

/// All that were seen, in memory that was reserved before.
pub(super) struct Sleepers(Vec<Sleeper>);

impl Sleepers {
    /// Room for so many threads.
    pub(super) fn with_capacity(threads: usize) -> Self {
        Self(Vec::with_capacity(threads))
    }

    /// A thread is asleep `now`. Whether it has been for some time, without having run: its count of switches is the
    /// same.
    pub(super) fn sleeps_soundly(
        &mut self,
        thread: c_int,
        switches: u64,
        now: Duration,
    ) -> Result<bool, Failure> {
        if let Some(known) = self.0.iter_mut().find(|known| known.thread == thread) {
            if known.switches == switches {
                return Ok(now.saturating_sub(known.since) >= SOUND);
            }
            known.switches = switches;
            known.since = now;
            return Ok(false);
        }
        if self.0.len() == self.0.capacity() {
            return Err(Failure::TooMany);
        }
        self.0.push(Sleeper {
            thread,
            switches,
            since: now,
        });
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_sound_after_a_time_in_which_the_thread_did_not_run() {
        let mut sleepers = Sleepers::with_capacity(1);
        let mut at =
            |switches, micros| sleepers.sleeps_soundly(1, switches, Duration::from_micros(micros));
        assert_eq!(at(7, 0), Ok(false));
        assert_eq!(at(7, 299), Ok(false));
        assert_eq!(at(7, 300), Ok(true));
        assert_eq!(at(8, 900), Ok(false));
        assert_eq!(at(8, 1200), Ok(true));
    }

    #[test]
    fn there_is_no_room_for_more_than_was_reserved() {
        let mut sleepers = Sleepers::with_capacity(1);
        let room = sleepers.0.capacity() as c_int;
        for thread in 1..=room {
            assert_eq!(
                sleepers.sleeps_soundly(thread, 0, Duration::ZERO),
                Ok(false)
            );
        }
        let full = sleepers.sleeps_soundly(room + 1, 0, Duration::ZERO);
        assert_eq!(full, Err(Failure::TooMany));
    }
}
