//! A lock that tools for finding data races know.
//!
//! libc's, not the standard library's, because those tools (ThreadSanitizer, Helgrind) see what this library
//! does only where it calls libc. They would see blocks of memory allocated, moved and freed by several threads,
//! and not the lock that orders it.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value that one thread uses at a time.
pub(crate) struct Lock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the mutex only, by one thread at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The value, locked as long as this lives.
pub(crate) struct Locked<'a, T>(&'a Lock<T>);

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            mutex: UnsafeCell::new(libc::PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the lock: for a moment without sleeping, since it is held for some dozens of nanoseconds. Must not be called by a thread that has it. No cancellation point.
    #[inline]
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        // SAFETY: a mutex that was initialised statically. It cannot be moved while it is borrowed, and
        // nothing is kept of one that nobody has or waits for.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        Locked(self)
    }
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock, and `self` is the only way to the value.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        // SAFETY: this thread has the lock.
        unsafe { libc::pthread_mutex_unlock(self.0.mutex.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        let lock = Lock::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        let mut value = lock.lock();
                        *value += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 40_000);
    }
}
