//! What the threads of the server share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::state::{Driver, MemoryFile};
use crate::trace::Trace;

use super::held::Held;
use super::workers::Workers;

/// The state of a node and what wakes those who wait for it to change.
pub struct Shared {
    driver: Mutex<Driver>,
    /// The memory behind the state.
    pub memory: Arc<MemoryFile>,
    /// What happened.
    pub trace: Trace,
    /// Threads for what clients can make last.
    pub workers: Arc<Workers>,
    /// Answers that are held back by an order.
    pub held: Held,
    /// A wait began. Goes with the driver's lock.
    pub wait_began: Condvar,
    queues_serial: AtomicU64,
    kick: (Mutex<bool>, Condvar),
}

impl Shared {
    /// Shares a driver.
    pub fn new(driver: Driver, memory: Arc<MemoryFile>, trace: Trace) -> Arc<Self> {
        Arc::new(Self {
            driver: Mutex::new(driver),
            memory,
            trace,
            workers: Arc::default(),
            held: Held::default(),
            wait_began: Condvar::new(),
            queues_serial: AtomicU64::new(0),
            kick: (Mutex::new(false), Condvar::new()),
        })
    }

    /// The state. A thread that panicked leaves it as consistent as each single change is.
    pub fn driver(&self) -> MutexGuard<'_, Driver> {
        self.driver.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the command processor about queues that came or went.
    pub fn publish_queues(&self, driver: &Driver) {
        if self
            .queues_serial
            .swap(driver.queues_serial, Ordering::Release)
            != driver.queues_serial
        {
            self.kick();
        }
    }

    /// Changes with every change of the queues.
    pub fn queues_serial(&self) -> u64 {
        self.queues_serial.load(Ordering::Acquire)
    }

    /// Makes the command processor look at the doorbells now.
    pub fn kick(&self) {
        *self.kick.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.kick.1.notify_one();
    }

    /// Sleeps until a kick, or until the time is over.
    pub fn await_kick(&self, time: Option<Duration>) {
        let (flag, kicked) = &self.kick;
        let kick = flag.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kick = match time {
            None => kicked
                .wait_while(kick, |k| !*k)
                .unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                kicked
                    .wait_timeout_while(kick, time, |k| !*k)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        *kick = false;
    }
}
