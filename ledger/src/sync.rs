//! The atomics that the account is made of, in one place, so that a model checker can take their
//! place without a change to the accounting code.

pub(crate) use core::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
