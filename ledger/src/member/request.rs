//! Asking for bytes, and what is tried before the answer is no.

use std::time::Duration;

use super::{Member, Reservation};
use crate::account::Refusal;
use crate::denial::{Denial, DenialReason};
use crate::file::now;
use crate::kind::Kind;
use crate::limit::Limit;
use crate::reap::Scan;
use crate::sync::sleep;

/// How often a request is tried again while only reservations of others are in its way.
const RETRIES: u32 = if cfg!(all(test, loom)) { 1 } else { 16 };

impl Member {
    /// [`Member::reserve`] if that is possible at once: nobody is reaped and nothing is waited for.
    /// Otherwise nothing is charged, and `reserve` says whether and why not.
    #[inline]
    #[must_use]
    pub fn reserve_at_once(&self, gpu: usize, bytes: u64) -> Option<Reservation> {
        self.reserve_at_once_as(Kind::Device, gpu, bytes)
    }

    /// As [`Member::reserve_at_once`], for memory of any kind. The kind stays with the reservation.
    #[inline]
    #[must_use]
    pub fn reserve_at_once_as(&self, kind: Kind, gpu: usize, bytes: u64) -> Option<Reservation> {
        let this = self.gpus.get(gpu)?;
        let _inside = self.enter_at_once()?;
        let account = self.account(this)?;
        let limit = self.limit_on(this, &account);
        account.try_reserve(bytes, limit).ok()?;
        Some(Reservation { gpu, bytes, kind })
    }

    /// Adds `bytes` to what is pending, or says why not.
    pub(super) fn charge(&self, gpu: usize, bytes: u64) -> Result<(), Denial> {
        let Some(this) = self.gpus.get(gpu) else {
            return Err(refused(DenialReason::UnknownGpu, bytes));
        };
        let not_a_member = || refused(DenialReason::NotAMember, bytes);
        let mut inside = self.enter(false).ok_or_else(not_a_member)?;
        let Some(account) = self.account(this) else {
            return Err(not_a_member());
        };
        let mut reaped = false;
        let mut retries: u32 = 0;
        loop {
            let limit = self.limit_on(this, &account);
            let (totals, only_pending) = match account.try_reserve(bytes, limit) {
                Ok(()) => return Ok(()),
                Err(Refusal::TooLarge) => return Err(refused(DenialReason::TooLarge, bytes)),
                Err(Refusal::NotAMember) => {
                    // A thread that leaves waits for this one to go out before it looks once more
                    // whether anything is held. It may stay.
                    drop(inside);
                    inside = self.enter(false).ok_or_else(not_a_member)?;
                    continue;
                }
                Err(Refusal::OverLimit {
                    totals,
                    only_pending_in_the_way,
                }) => (totals, only_pending_in_the_way),
            };
            let could_ever_fit = !matches!(limit, Limit::Bytes(most) if bytes > most);
            if could_ever_fit && !reaped && totals.others > 0 {
                reaped = true;
                if self.reap_some(Scan::Charged(this.index)) > 0 {
                    continue;
                }
            }
            if only_pending && retries < RETRIES {
                retries = retries.saturating_add(1);
                self.pause(retries);
                continue;
            }
            let mine = totals.mine.live.saturating_add(totals.mine.pending);
            let available = match limit {
                Limit::Unlimited => u64::MAX,
                Limit::Bytes(most) => most.saturating_sub(totals.charged()),
            };
            return Err(Denial {
                reason: DenialReason::OverLimit,
                requested: bytes,
                limit,
                mine,
                others: totals.others,
                overhead: totals.mine.beyond().unwrap_or(0),
                available,
            });
        }
    }

    /// Waits for a moment, longer each time, and not as long as others that wait for the same do:
    /// whoever comes alone gets through.
    fn pause(&self, retry: u32) {
        let mixed = now()
            .wrapping_add(self.slot as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            >> 60;
        let microseconds = u64::from(retry)
            .saturating_mul(mixed.saturating_add(1))
            .saturating_mul(5);
        sleep(Duration::from_micros(microseconds));
    }
}

/// A refusal that no sum was made for.
fn refused(reason: DenialReason, requested: u64) -> Denial {
    Denial {
        reason,
        requested,
        limit: Limit::Bytes(0),
        mine: 0,
        others: 0,
        overhead: 0,
        available: 0,
    }
}
