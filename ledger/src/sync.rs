//! The atomics that the account is made of, in one place, so that a model checker can take their
//! place (`models`) without a change to the accounting code.

#[cfg(not(all(test, loom)))]
pub(crate) use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
#[cfg(not(all(test, loom)))]
pub(crate) use std::thread::{sleep, yield_now};

// What AtomicU8 is used for nothing depends on.
#[cfg(all(test, loom))]
pub(crate) use core::sync::atomic::AtomicU8;
#[cfg(all(test, loom))]
pub(crate) use loom::{
    sync::atomic::{AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// In a model time passes by others' steps.
#[cfg(all(test, loom))]
pub(crate) fn sleep(_: core::time::Duration) {
    yield_now();
}

/// The length of an array of words that no step of any operation depends on: none in a model, where
/// each word costs.
pub(crate) const fn incidental(length: usize) -> usize {
    if cfg!(all(test, loom)) { 0 } else { length }
}
