//! Threads for what a client can make last as long as it likes.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most threads; what comes then waits its turn.
const MOST: usize = 256;
/// Most answers that one process can have outstanding.
const MOST_OF_A_PROCESS: usize = 32;
/// How long a thread stays for the next job.
const IDLE: Duration = Duration::from_secs(5);
/// How long an answer may take. The kernel holds the caller, killed or not, until it has one.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often answers are looked at.
const LOOK: Duration = Duration::from_millis(100);

type Job = Box<dyn FnOnce() + Send>;

/// The threads, and the answers that are outstanding.
#[derive(Default)]
pub struct Workers {
    queue: Mutex<Queue>,
    work_came: Condvar,
    outstanding: Mutex<Vec<Outstanding>>,
    answer_outstanding: Condvar,
}

/// An answer that is outstanding.
struct Outstanding {
    since: Instant,
    /// Whose process it is for.
    pid: u32,
    answer: Arc<dyn Overdue>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
}

/// An answer that somebody waits for.
trait Overdue: Send + Sync {
    fn is_outstanding(&self) -> bool;
    fn give_up(&self);
}

/// A reply that is sent once: by the job, or when that takes too long.
pub struct Answer<R> {
    reply: Mutex<Option<R>>,
    refuse: fn(R),
}

impl<R> Answer<R> {
    fn lock(&self) -> MutexGuard<'_, Option<R>> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The reply; `None` when it was given up.
    pub fn take(&self) -> Option<R> {
        self.lock().take()
    }
}

impl<R: Send> Overdue for Answer<R> {
    fn is_outstanding(&self) -> bool {
        self.lock().is_some()
    }

    fn give_up(&self) {
        if let Some(reply) = self.take() {
            (self.refuse)(reply);
        }
    }
}

impl Workers {
    /// Runs a job in some thread. `refuse` answers when the job has not taken the reply in time.
    ///
    /// # Errors
    /// Gives the reply back when too many of that process are outstanding.
    pub fn run<R: Send + 'static>(
        self: &Arc<Self>,
        pid: u32,
        reply: R,
        refuse: fn(R),
        job: impl FnOnce(&Answer<R>) + Send + 'static,
    ) -> Result<(), R> {
        let mut outstanding = lock(&self.outstanding);
        let of_process = |one: &&Outstanding| one.pid == pid && one.answer.is_outstanding();
        if outstanding.iter().filter(of_process).count() >= MOST_OF_A_PROCESS {
            return Err(reply);
        }
        let answer = Arc::new(Answer {
            reply: Mutex::new(Some(reply)),
            refuse,
        });
        outstanding.push(Outstanding {
            since: Instant::now(),
            pid,
            answer: Arc::clone(&answer) as _,
        });
        drop(outstanding);
        self.answer_outstanding.notify_one();
        let mut queue = lock(&self.queue);
        queue.jobs.push_back(Box::new(move || job(&answer)));
        if queue.idle < queue.jobs.len() && queue.threads < MOST {
            let workers = Arc::clone(self);
            let started = std::thread::Builder::new()
                .name("worker".into())
                .spawn(move || workers.work());
            match started {
                Ok(_) => queue.threads += 1,
                Err(error) => eprintln!("kfd-emulator: no thread for an ioctl: {error}"),
            }
        }
        drop(queue);
        self.work_came.notify_one();
        Ok(())
    }

    fn work(&self) {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job();
                queue = lock(&self.queue);
                continue;
            }
            queue.idle += 1;
            let (woken, wait) = self
                .work_came
                .wait_timeout_while(queue, IDLE, |queue| queue.jobs.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if wait.timed_out() {
                queue.threads -= 1;
                return;
            }
        }
    }

    /// Gives up answers that take too long, until the process ends. Sleeps while there is none.
    pub fn watch(&self) {
        let mut outstanding = lock(&self.outstanding);
        loop {
            outstanding = self
                .answer_outstanding
                .wait_while(outstanding, |answers| answers.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            drop(outstanding);
            std::thread::sleep(LOOK);
            outstanding = lock(&self.outstanding);
            for one in &*outstanding {
                if one.since.elapsed() > PATIENCE {
                    one.answer.give_up();
                }
            }
            outstanding.retain(|one| one.answer.is_outstanding());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    fn refuse(to: Sender<&'static str>) {
        to.send("refused").unwrap();
    }

    #[test]
    fn jobs_that_hang_hold_up_no_others_and_are_answered_in_the_end() {
        let workers = Arc::new(Workers::default());
        let watched = Arc::clone(&workers);
        std::thread::spawn(move || watched.watch());
        let (to, answers) = channel();
        let (let_go, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..MOST_OF_A_PROCESS {
            let held = Arc::clone(&held);
            let job = move |answer: &Answer<Sender<_>>| {
                // Ends with the test.
                let _end = lock(&held).recv();
                assert!(answer.take().is_none());
            };
            assert!(workers.run(7, to.clone(), refuse, job).is_ok());
        }
        let quick = |answer: &Answer<Sender<_>>| answer.take().unwrap().send("done").unwrap();
        assert!(workers.run(7, to.clone(), refuse, quick).is_err());
        assert!(workers.run(8, to.clone(), refuse, quick).is_ok());
        assert_eq!(answers.recv(), Ok("done"));
        for _ in 0..MOST_OF_A_PROCESS {
            assert_eq!(answers.recv(), Ok("refused"));
        }
        assert!(workers.run(7, to, refuse, quick).is_ok());
        assert_eq!(answers.recv(), Ok("done"));
        drop(let_go);
    }
}
