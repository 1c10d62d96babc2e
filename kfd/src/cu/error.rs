//! Why a range of compute units cannot be kept.

use std::fmt;

use super::range::RangeError;
use crate::bdf::Bdf;

const ENOENT: i32 = 2;

/// Why a range of compute units cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CuError {
    /// It cannot be understood ([`CuError::explain`] quotes the part).
    Range(RangeError),
    /// It names a GPU that is not there.
    NotPresent(Bdf),
    /// It names GPUs, and not this one.
    NotNamed(Bdf),
    /// The driver does not say how many compute units there are.
    CountUnknown(Bdf),
    /// A part of it starts past the last compute unit.
    PastTheEnd {
        /// The GPU.
        bdf: Bdf,
        /// The compute unit that it starts with.
        first: u32,
        /// How many the GPU has.
        cu_count: u32,
    },
    /// Nothing of it is left by the user's own `HSA_CU_MASK`.
    NothingLeft(Bdf),
    /// An XCC has no compute unit.
    IdleXcc {
        /// The GPU.
        bdf: Bdf,
        /// The first XCC without one.
        xcc: u32,
        /// How many XCCs the GPU has.
        num_xcc: u32,
    },
    /// The driver's description of the GPUs cannot be read: the number of the system's error.
    Unreadable(i32),
    /// More GPUs than there can be, or a mask that is too long.
    TooMuch,
}

impl CuError {
    /// What is wrong, where `range` is the text that was read.
    pub fn explain(&self, range: &[u8]) -> String {
        match self {
            Self::Range(error) => error.explain(range),
            other => other.to_string(),
        }
    }

    /// Whether that may pass while the program runs.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unreadable(_))
    }
}

impl fmt::Display for CuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(_) => f.write_str("the range cannot be understood"),
            Self::NotPresent(bdf) => write!(f, "GPU {bdf} is not on this machine"),
            Self::NotNamed(bdf) => write!(
                f,
                "GPU {bdf} has no range: add {bdf}=FIRST-LAST, or *=FIRST-LAST for all others (or *=all)"
            ),
            Self::CountUnknown(bdf) => {
                write!(
                    f,
                    "the driver does not tell how many compute units GPU {bdf} has"
                )
            }
            Self::PastTheEnd {
                bdf,
                first,
                cu_count,
            } => write!(
                f,
                "there is no compute unit {first} on GPU {bdf}: it has {cu_count}, so the last is {}",
                cu_count.saturating_sub(1)
            ),
            Self::NothingLeft(bdf) => write!(
                f,
                "HSA_CU_MASK and the range have no compute unit of GPU {bdf} in common (on RDNA, no whole WGP): \
                 change one of them"
            ),
            Self::IdleXcc { bdf, xcc, num_xcc } => write!(
                f,
                "XCC {xcc} of GPU {bdf} would have no compute unit, and work that is sent there would never end: \
                 compute unit i is on XCC i mod {num_xcc}, so take at least {num_xcc} in a row"
            ),
            Self::Unreadable(ENOENT) => f.write_str(
                "the GPUs cannot be told: there is no /sys/class/kfd, so the amdgpu driver with KFD is not loaded, or \
                 this container hides /sys",
            ),
            Self::Unreadable(error) => write!(
                f,
                "the GPUs cannot be told: {}",
                std::io::Error::from_raw_os_error(*error)
            ),
            Self::TooMuch => {
                f.write_str("there are more GPUs, or masks are longer, than can be handled")
            }
        }
    }
}

impl std::error::Error for CuError {}
