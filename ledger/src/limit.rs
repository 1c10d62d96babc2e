//! Limits as people write them in `FH_MEMORY_LIMIT`, and the limit of one GPU that follows.
//!
//! * `unlimited`: book everything, refuse nothing;
//! * a size ([`crate::size`]): the same for every GPU;
//! * `50%`: that part of each board;
//! * `0000:03:00.0=8GiB,0000:83:00.0=50%,*=4GiB`: one by one. A GPU that is not named needs `*=`:
//!   leaving it without a limit would be a trap, and a limit of 0 would be a riddle.

use std::fmt;

use crate::gpu::{GpuKey, GpuSpec};
use crate::size::{self, Decimal, SizeError, shown};

/// The most GPUs that one limit text may name.
const MAX_ENTRIES: usize = 256;

/// What a process, or a whole budget, may hold on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Everything is booked and nothing is refused.
    Unlimited,
    /// At most this many bytes ([`size::MAX_BYTES`] at most).
    Bytes(u64),
}

impl Limit {
    /// The stricter of two limits.
    #[must_use]
    pub fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unlimited, limit) | (limit, Self::Unlimited) => limit,
            (Self::Bytes(a), Self::Bytes(b)) => Self::Bytes(a.min(b)),
        }
    }

    /// The limit in bytes, or `board_bytes` where that is less or there is no limit: the size that
    /// a program is shown as the GPU's total.
    #[must_use]
    pub fn within(self, board_bytes: u64) -> u64 {
        match self {
            Self::Unlimited => board_bytes,
            Self::Bytes(bytes) => bytes.min(board_bytes),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlimited => f.write_str("unlimited"),
            Self::Bytes(bytes) => size::Display(*bytes).fmt(f),
        }
    }
}

/// Why a text is not a limit, or gives none for a GPU.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A size that cannot be understood.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// A percentage that is not above 0 and at most 100, or no number.
    #[error(
        "'{0}' is not a part of the board: write for example 50% or 12.5% (above 0, at most 100)"
    )]
    Percent(String),
    /// An entry of a per-GPU list that is not `BDF=LIMIT`.
    #[error(
        "'{0}' is not a limit for one GPU: write for example 0000:03:00.0=8GiB,0000:83:00.0=50%,*=4GiB"
    )]
    Entry(String),
    /// A GPU that is named twice.
    #[error("GPU '{0}' is named twice: which of its limits holds cannot be known")]
    Twice(String),
    /// More entries than GPUs can be.
    #[error("the list of limits names more than {MAX_ENTRIES} GPUs")]
    TooMany,
    /// A per-GPU list without this GPU and without `*`.
    #[error(
        "GPU {gpu} has no limit: the list names only {named}; add {gpu}=SIZE, or *=SIZE for all \
         others (or *=unlimited)"
    )]
    NotNamed {
        /// The GPU for which a limit is wanted.
        gpu: String,
        /// The GPUs that the list names.
        named: String,
    },
    /// A list that names a GPU which this machine does not have.
    #[error("GPU '{gpu}' is not on this machine; it has {present}")]
    NotPresent {
        /// The name in the list.
        gpu: String,
        /// The GPUs of this machine.
        present: String,
    },
    /// A part of a board whose size is not known.
    #[error(
        "GPU {0} does not tell the size of its memory, so {1}% of it cannot be known: write a size"
    )]
    BoardUnknown(String, String),
}

/// A limit text that was understood, not yet applied to a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSpec(Spec);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Spec {
    All(Amount),
    PerGpu(Vec<(String, Amount)>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Amount {
    Unlimited,
    Bytes(u64),
    /// The digits before the `%`.
    Percent(String),
}

impl LimitSpec {
    /// Reads a limit (grammar: see the module).
    ///
    /// # Errors
    /// [`LimitError`] says which part was not understood and what is valid.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        if !text.contains('=') {
            return Ok(Self(Spec::All(Amount::parse(text)?)));
        }
        let mut entries: Vec<(String, Amount)> = Vec::new();
        for entry in text.split(',') {
            let (gpu, amount) = entry
                .split_once('=')
                .ok_or_else(|| LimitError::Entry(shown(entry)))?;
            let gpu = normal(gpu).ok_or_else(|| LimitError::Entry(shown(entry)))?;
            let amount = Amount::parse(amount)?;
            if entries.iter().any(|(name, _)| *name == gpu) {
                return Err(LimitError::Twice(shown(&gpu)));
            }
            if entries.len() >= MAX_ENTRIES {
                return Err(LimitError::TooMany);
            }
            entries.push((gpu, amount));
        }
        Ok(Self(Spec::PerGpu(entries)))
    }

    /// The limit of one GPU. `bdf` is its PCI address as text; `board_bytes` the size of its VRAM.
    ///
    /// The result is not cut to the size of the board: [`Limit::within`] does that where a program
    /// is told a total.
    ///
    /// # Errors
    /// [`LimitError::NotNamed`] when a list leaves this GPU out, [`LimitError::BoardUnknown`] for a
    /// percentage when `board_bytes` is 0.
    pub fn resolve(&self, bdf: &str, board_bytes: u64) -> Result<Limit, LimitError> {
        let amount = match &self.0 {
            Spec::All(amount) => amount,
            Spec::PerGpu(entries) => {
                let name = normal(bdf);
                let find = |wanted: &str| {
                    entries
                        .iter()
                        .find(|(gpu, _)| gpu == wanted)
                        .map(|(_, amount)| amount)
                };
                name.as_deref()
                    .and_then(find)
                    .or_else(|| find("*"))
                    .ok_or_else(|| LimitError::NotNamed {
                        gpu: shown(bdf),
                        named: joined(self.named()),
                    })?
            }
        };
        amount.resolve(bdf, board_bytes)
    }

    /// The GPUs that a per-GPU list names (without `*`), in normal form: `0000:03:00.0`.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let entries = match &self.0 {
            Spec::All(_) => &[][..],
            Spec::PerGpu(entries) => entries,
        };
        entries
            .iter()
            .map(|(gpu, _)| gpu.as_str())
            .filter(|gpu| *gpu != "*")
    }

    /// Checks that every GPU that is named is one of `present` (PCI addresses as text).
    ///
    /// # Errors
    /// [`LimitError::NotPresent`] for the first that is not: a misspelt name beside `*=` would
    /// otherwise go unnoticed.
    pub fn check_named<'a>(
        &self,
        present: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), LimitError> {
        let present: Vec<&str> = present.into_iter().collect();
        let known: Vec<String> = present.iter().filter_map(|bdf| normal(bdf)).collect();
        match self.named().find(|gpu| !known.iter().any(|bdf| bdf == gpu)) {
            None => Ok(()),
            Some(gpu) => {
                let present = joined(present.into_iter());
                Err(LimitError::NotPresent {
                    gpu: shown(gpu),
                    present,
                })
            }
        }
    }
}

impl LimitSpec {
    /// The limits of a machine's GPUs, each given by its key, its PCI address as text and the size
    /// of its VRAM in bytes (0 when unknown), in the same order. The GPUs that count are those that
    /// the program may use: each needs a limit, and each that is named must be among them.
    ///
    /// # Errors
    /// What [`Self::check_named`] and [`Self::resolve`] find.
    pub fn on<Bdf: AsRef<str>>(
        &self,
        gpus: impl IntoIterator<Item = (GpuKey, Bdf, u64)>,
    ) -> Result<Vec<GpuSpec>, LimitError> {
        let gpus: Vec<_> = gpus.into_iter().collect();
        self.check_named(gpus.iter().map(|(_, bdf, _)| bdf.as_ref()))?;
        let specs = gpus.iter().map(|(key, bdf, board_bytes)| {
            Ok(GpuSpec {
                key: *key,
                limit: self.resolve(bdf.as_ref(), *board_bytes)?,
                board_bytes: *board_bytes,
            })
        });
        specs.collect()
    }
}

impl Amount {
    fn parse(text: &str) -> Result<Self, LimitError> {
        let trimmed = text.trim();
        if trimmed.eq_ignore_ascii_case("unlimited") {
            return Ok(Self::Unlimited);
        }
        let Some(number) = trimmed.strip_suffix('%') else {
            return Ok(Self::Bytes(size::parse(text)?));
        };
        let number = number.trim();
        let wrong = || LimitError::Percent(shown(text));
        let decimal = Decimal::parse(number).ok_or_else(wrong)?;
        // In units of 2^-60 of a per cent: what cannot be seen at that scale is as good as 0.
        let scaled = decimal.product(1 << 60).ok_or_else(wrong)?;
        if scaled == 0 || scaled > 100 << 60 {
            return Err(wrong());
        }
        Ok(Self::Percent(number.to_owned()))
    }

    fn resolve(&self, bdf: &str, board_bytes: u64) -> Result<Limit, LimitError> {
        let number = match self {
            Self::Unlimited => return Ok(Limit::Unlimited),
            Self::Bytes(bytes) => return Ok(Limit::Bytes(*bytes)),
            Self::Percent(number) => number,
        };
        if board_bytes == 0 {
            return Err(LimitError::BoardUnknown(shown(bdf), shown(number)));
        }
        let wrong = || LimitError::Percent(shown(number));
        let hundredfold = Decimal::parse(number).and_then(|part| part.product(board_bytes));
        let part = hundredfold
            .and_then(|h| h.checked_div(100))
            .ok_or_else(wrong)?;
        Ok(Limit::Bytes(
            u64::try_from(part)
                .map_err(|_| wrong())?
                .min(size::MAX_BYTES),
        ))
    }
}

/// A PCI address in the form in which addresses are compared: that of [`GpuKey`].
/// `*` stays. `None` for what cannot be one.
fn normal(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if text == "*" {
        return Some(text);
    }
    let address = text.strip_prefix("amd-gpu-").unwrap_or(&text);
    GpuKey::parse(address).map(|key| key.to_string())
}

fn joined<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<String> = names.map(shown).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn resolve(text: &str, bdf: &str, board: u64) -> Result<Limit, LimitError> {
        LimitSpec::parse(text)?.resolve(bdf, board)
    }

    #[test]
    fn one_limit_for_all_gpus() {
        let gpu = "0000:03:00.0";
        assert_eq!(resolve("4GiB", gpu, 64 * GIB), Ok(Limit::Bytes(4 * GIB)));
        assert_eq!(resolve(" Unlimited ", gpu, 0), Ok(Limit::Unlimited));
        assert_eq!(resolve("50%", gpu, 64 * GIB), Ok(Limit::Bytes(32 * GIB)));
        assert_eq!(resolve("12.5 %", gpu, 64 * GIB), Ok(Limit::Bytes(8 * GIB)));
        assert_eq!(resolve("100%", gpu, 12345), Ok(Limit::Bytes(12345)));
        assert_eq!(
            resolve("33.333333333333333333333%", gpu, 3),
            Ok(Limit::Bytes(0))
        );
        // More than the board stays as it was written; the total that is shown is cut.
        let above = resolve("128GiB", gpu, 64 * GIB).unwrap();
        assert_eq!(above, Limit::Bytes(128 * GIB));
        assert_eq!(above.within(64 * GIB), 64 * GIB);
    }

    #[test]
    fn a_list_names_gpus() {
        let text = "0000:03:00.0=8GiB, 83:00.0=50%,*=unlimited";
        assert_eq!(
            resolve(text, "0000:03:00.0", GIB),
            Ok(Limit::Bytes(8 * GIB))
        );
        assert_eq!(
            resolve(text, "0000:83:00.0", GIB),
            Ok(Limit::Bytes(GIB / 2))
        );
        assert_eq!(resolve(text, "0001:83:00.0", GIB), Ok(Limit::Unlimited));
        assert_eq!(
            resolve("AMD-GPU-0000:C3:00.0=1Ki", "0000:c3:00.0", 0),
            Ok(Limit::Bytes(1024))
        );
        // However it is written.
        for text in ["3:0.0=1Ki", "0:3:0.0=1Ki", "00000000:03:00.0=1Ki"] {
            assert_eq!(
                resolve(text, "0000:03:00.0", 0),
                Ok(Limit::Bytes(1024)),
                "{text}"
            );
        }
        let parts = "03:00.0/2=1GiB,03:00.0=2GiB";
        assert_eq!(resolve(parts, "0000:03:00.0/2", 0), Ok(Limit::Bytes(GIB)));
        // Partitions of one device differ in the function.
        let cpx = "0000:03:00.0=1GiB,0000:03:00.1=2GiB";
        assert_eq!(resolve(cpx, "0000:03:00.1", GIB), Ok(Limit::Bytes(2 * GIB)));
    }

    #[test]
    fn a_gpu_that_is_left_out_is_an_error_that_says_how_to_name_it() {
        let error = resolve("0000:03:00.0=8GiB", "0000:83:00.0", GIB).unwrap_err();
        assert!(matches!(error, LimitError::NotNamed { .. }));
        let text = error.to_string();
        assert!(
            text.contains("0000:83:00.0=SIZE") && text.contains("*=SIZE"),
            "{text}"
        );
    }

    #[test]
    fn a_name_that_is_no_gpu_of_this_machine_is_found() {
        let spec = LimitSpec::parse("0000:04:00.0=8GiB,*=1GiB").unwrap();
        assert!(spec.check_named(["0000:04:00.0"]).is_ok());
        let error = spec
            .check_named(["0000:03:00.0", "0000:83:00.0"])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("0000:04:00.0") && error.contains("0000:83:00.0"),
            "{error}"
        );
    }

    #[test]
    fn the_limits_of_a_machine_are_those_of_its_gpus() {
        let machine = || {
            [
                (GpuKey(0x300), "0000:03:00.0", 64 * GIB),
                (GpuKey(0x8300), "0000:83:00.0", 0),
            ]
        };
        let on = |text: &str| LimitSpec::parse(text).unwrap().on(machine());
        let specs = on("83:0.0=2GiB,*=50%").unwrap();
        assert_eq!(
            specs,
            [
                GpuSpec {
                    key: GpuKey(0x300),
                    limit: Limit::Bytes(32 * GIB),
                    board_bytes: 64 * GIB
                },
                GpuSpec {
                    key: GpuKey(0x8300),
                    limit: Limit::Bytes(2 * GIB),
                    board_bytes: 0
                },
            ]
        );
        assert!(matches!(
            on("0000:99:00.0=1GiB,*=1GiB"),
            Err(LimitError::NotPresent { .. })
        ));
        assert!(matches!(
            on("0000:03:00.0=1GiB"),
            Err(LimitError::NotNamed { .. })
        ));
        assert!(matches!(on("50%"), Err(LimitError::BoardUnknown(..))));
    }

    #[test]
    fn what_is_no_limit_is_refused() {
        for text in [
            "",
            "banana",
            "0",
            "-1",
            "1Gi x",
            "1GiX",
            "99999999999T",
            "0%",
            "-5%",
            "100.1%",
            "101%",
            "%",
            "1.2.3%",
            "0.00000000000000000001%",
            "50%%",
            "=4GiB",
            "0000:03:00.0=",
            "0000:03:00.0=0",
            "0000:03:00.0=1GiB,",
            "0000:03:00.0=1GiB,4GiB",
            "gpu0=1GiB",
            "*=",
            "0:0:0:0.0=1GiB",
            "03:00.8=1GiB",
            "03:20.0=1GiB",
            "103:00.0=1GiB",
            "+3:0.0=1GiB",
            "03:00.0/16=1GiB",
            "03:00=1GiB",
            "99999999999999999999%",
        ] {
            assert!(LimitSpec::parse(text).is_err(), "{text:?}");
        }
        assert!(matches!(
            LimitSpec::parse("03:00.0=1GiB,0000:03:00.0=2GiB"),
            Err(LimitError::Twice(_))
        ));
        assert!(matches!(
            resolve("50%", "0000:03:00.0", 0),
            Err(LimitError::BoardUnknown(..))
        ));
        let many: Vec<String> = (0..300).map(|n| format!("{n:x}:00:00.0=1GiB")).collect();
        assert_eq!(LimitSpec::parse(&many.join(",")), Err(LimitError::TooMany));
    }

    #[test]
    fn the_stricter_limit() {
        let (one, two) = (Limit::Bytes(1), Limit::Bytes(2));
        assert_eq!(one.stricter(two), one);
        assert_eq!(two.stricter(one), one);
        assert_eq!(Limit::Unlimited.stricter(two), two);
        assert_eq!(two.stricter(Limit::Unlimited), two);
        assert_eq!(
            Limit::Unlimited.stricter(Limit::Unlimited),
            Limit::Unlimited
        );
    }
}
