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

/// A sequentially consistent fence, to be used directly behind an atomic change (an addition, an exchange) by the same
/// thread.
///
/// On x86-64 every such change is a locked instruction, with which no load or store is reordered (Intel SDM, volume 3A,
/// 10.2.2; AMD64 APM, volume 2, 7.4.2): only the compiler has to be kept from it. A second barrier costs more than all the
/// rest of a reservation. Models, and other machines, have the fence.
#[inline]
pub(crate) fn fence_behind_change() {
    #[cfg(all(target_arch = "x86_64", not(all(test, loom))))]
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(all(test, loom)))))]
    fence(Ordering::SeqCst);
}

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
