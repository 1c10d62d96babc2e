//! A request that was refused, with the figures that explain it.

use std::fmt;

use crate::limit::Limit;
use crate::size;

/// Why a request was refused. Apart from `reason` all figures are bytes on the GPU in question,
/// taken from one sum at the time of the refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Denial {
    /// What the decision rests on.
    pub reason: DenialReason,
    /// What was asked for.
    pub requested: u64,
    /// The limit that holds for this process.
    pub limit: Limit,
    /// Booked or about to be booked by this process, without this request.
    pub mine: u64,
    /// Charged to all other processes of the budget, their overhead included.
    pub others: u64,
    /// The overhead of this process: what the driver holds for it beyond its bookings. 0 also where
    /// that was not measured.
    pub overhead: u64,
    /// What one request could have got: the limit less `mine`, `others` and `overhead`.
    pub available: u64,
}

/// What a refusal rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DenialReason {
    /// The limit would be exceeded.
    OverLimit,
    /// More than [`size::MAX_BYTES`], refused before any arithmetic.
    TooLarge,
    /// This member has no GPU of that index.
    UnknownGpu,
    /// The slot is no longer this process's: it left, or the member was inherited by a fork.
    NotAMember,
}

impl DenialReason {
    /// The number that stands for it in a ledger.
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::OverLimit => 1,
            Self::TooLarge => 2,
            Self::UnknownGpu => 3,
            Self::NotAMember => 4,
        }
    }

    /// The reason that a number stands for.
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        match code {
            1 => Some(Self::OverLimit),
            2 => Some(Self::TooLarge),
            3 => Some(Self::UnknownGpu),
            4 => Some(Self::NotAMember),
            _ => None,
        }
    }
}

impl fmt::Display for Denial {
    /// One line without a line feed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = size::Display;
        write!(f, "{} refused: ", bytes(self.requested))?;
        match self.reason {
            DenialReason::TooLarge => {
                write!(f, "no request may be above {}", bytes(size::MAX_BYTES))
            }
            DenialReason::UnknownGpu => f.write_str("the GPU is not in this process's budget"),
            DenialReason::NotAMember => f.write_str("this process is not a member of the budget"),
            DenialReason::OverLimit => {
                write!(
                    f,
                    "limit {}, held here {}, by others {}",
                    self.limit,
                    bytes(self.mine),
                    bytes(self.others)
                )?;
                if self.overhead > 0 {
                    write!(f, ", overhead {}", bytes(self.overhead))?;
                }
                // Rounded figures can look as if the request had fitted; this one cannot.
                let short = self.requested.saturating_sub(self.available);
                write!(
                    f,
                    ", available {}, short by {}",
                    bytes(self.available),
                    bytes(short)
                )
            }
        }
    }
}
