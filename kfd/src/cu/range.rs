//! `FH_CU_RANGE`: which compute units, as a user writes it.
//!
//! * `0-37`: from CU 0 to CU 37, both included; `5` is one; `0-37,64-75` is both; `all` are all of them;
//! * `0000:03:00.0=0-37,64-75,*=0-15`: for each GPU, by its PCI address, and `*` for all others.

use super::error::CuError;
use super::machine::CuGpu;
use super::mask::CuMask;
use super::text::{number, same, split, trim};
use crate::bdf::Bdf;

/// A range that was understood, not yet applied to a GPU.
#[derive(Clone, Copy, Debug)]
pub struct CuRange<'a> {
    text: &'a [u8],
}

/// Why a text is no range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RangeError {
    /// There is nothing.
    Empty,
    /// A part of it, by its first byte and the one behind it, is no range.
    Item(usize, usize),
    /// A range whose end is before its start.
    Inverted(usize, usize),
    /// What should be the address of a GPU, or `*`.
    Gpu(usize, usize),
    /// A GPU that was named before.
    Twice(usize, usize),
}

impl RangeError {
    /// What is wrong with `text`, of which this is the error.
    pub fn explain(&self, text: &[u8]) -> String {
        let part = |from: usize, to: usize| {
            let bytes = text.get(from..to).unwrap_or_default();
            let mut shown: String = String::from_utf8_lossy(bytes).chars().take(40).collect();
            if shown.len() < bytes.len() {
                shown.push('…');
            }
            shown.escape_debug().to_string()
        };
        match *self {
            Self::Empty => String::from(
                "it is empty: write for example 0-37, or 0-37,64-75 (first and last compute unit)",
            ),
            Self::Item(from, to) => format!(
                "'{}' is not a range of compute units: write for example 0-37, or 0-37,64-75",
                part(from, to)
            ),
            Self::Inverted(from, to) => format!(
                "the range '{}' ends before it starts: write the lower number first",
                part(from, to)
            ),
            Self::Gpu(from, to) => format!(
                "'{}' is not a GPU: write for example 0000:03:00.0=0-37,*=0-15",
                part(from, to)
            ),
            Self::Twice(from, to) => format!(
                "GPU '{}' is named twice: which of its ranges holds cannot be known",
                part(from, to)
            ),
        }
    }
}

/// What is asked for on a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The CUs that the GPU has.
    pub(super) mask: CuMask,
    /// The highest number that was asked for, if it is beyond them.
    pub(super) end_beyond: Option<u32>,
}

/// Which GPUs an item is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// All of them: the range names none.
    All,
    /// This one.
    Gpu(Bdf),
    /// Those that are not named.
    Others,
}

/// What one item asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cus {
    All,
    /// From the first to the last.
    Range(u32, u32),
}

impl<'a> CuRange<'a> {
    /// Reads a range.
    ///
    /// # Errors
    /// [`RangeError`] says which part was not understood.
    pub fn parse(text: &'a [u8]) -> Result<Self, RangeError> {
        let range = Self { text };
        if trim(text).is_empty() {
            return Err(RangeError::Empty);
        }
        range.items(&mut |_, _| {})?;
        Ok(range)
    }

    /// A GPU that is named and is none of these.
    pub(super) fn named_and_missing(&self, gpus: &[CuGpu]) -> Option<Bdf> {
        let mut missing = None;
        let _ = self.items(&mut |whom, _| {
            if let For::Gpu(bdf) = whom
                && !gpus.iter().any(|gpu| gpu.bdf == bdf)
            {
                missing = missing.or(Some(bdf));
            }
        });
        missing
    }

    /// What is asked for on the GPU with this address and so many CUs.
    pub(super) fn of(&self, bdf: Bdf, cu_count: u32) -> Result<Asked, CuError> {
        let mut named = For::Others;
        let _ = self.items(&mut |whom, _| match whom {
            For::Gpu(gpu) if gpu == bdf => named = whom,
            For::All => named = whom,
            For::Gpu(_) | For::Others => {}
        });
        let mut asked = Asked {
            mask: CuMask::none(),
            end_beyond: None,
        };
        let mut items = 0_u32;
        let mut past = None;
        let _ = self.items(&mut |whom, cus| {
            if whom != named {
                return;
            }
            items = items.saturating_add(1);
            let end = cu_count.saturating_sub(1);
            let (first, last) = match cus {
                Cus::All => (0, end),
                Cus::Range(first, last) => (first, last),
            };
            if first > end {
                past = past.or(Some(first));
            }
            if last > end {
                asked.end_beyond = asked.end_beyond.max(Some(last));
            }
            for cu in first..=last.min(end) {
                asked.mask.add(cu);
            }
        });
        if let Some(first) = past {
            return Err(CuError::PastTheEnd {
                bdf,
                first,
                cu_count,
            });
        }
        if items == 0 {
            return Err(CuError::NotNamed(bdf));
        }
        Ok(asked)
    }

    /// Goes through the items, and stops at the first that is wrong.
    fn items(&self, each: &mut dyn FnMut(For, Cus)) -> Result<(), RangeError> {
        let mut whom = For::All;
        let mut rest = Some(self.text);
        let mut is_first = true;
        while let Some(text) = rest {
            let (item, behind) = split(text, b',');
            rest = behind;
            let cus = match split(item, b'=') {
                (gpu, Some(cus)) => {
                    let span = self.span(gpu);
                    let named = gpu_of(gpu).ok_or(RangeError::Gpu(span.0, span.1))?;
                    // A range that was for all cannot be followed by one for a GPU.
                    if !is_first && whom == For::All {
                        return Err(RangeError::Gpu(span.0, span.1));
                    }
                    if self.is_named_before(named, span.0) {
                        return Err(RangeError::Twice(span.0, span.1));
                    }
                    whom = named;
                    cus
                }
                (cus, None) => cus,
            };
            is_first = false;
            let span = self.span(cus);
            match cus_of(cus) {
                Some(Cus::Range(first, last)) if last < first => {
                    return Err(RangeError::Inverted(span.0, span.1));
                }
                Some(cus) => each(whom, cus),
                None => return Err(RangeError::Item(span.0, span.1)),
            }
        }
        Ok(())
    }

    /// Whether the GPU of an item that begins at `here` was named before it.
    fn is_named_before(&self, named: For, here: usize) -> bool {
        let mut rest = Some(self.text.get(..here).unwrap_or_default());
        while let Some(text) = rest {
            let (item, behind) = split(text, b',');
            rest = behind;
            if let (gpu, Some(_)) = split(item, b'=')
                && gpu_of(gpu) == Some(named)
            {
                return true;
            }
        }
        false
    }

    /// Where a part of the text begins and ends.
    fn span(&self, part: &[u8]) -> (usize, usize) {
        let from = part
            .as_ptr()
            .addr()
            .saturating_sub(self.text.as_ptr().addr());
        (from, from.saturating_add(part.len()))
    }
}

fn gpu_of(text: &[u8]) -> Option<For> {
    let text = trim(text);
    if same(text, b"*") {
        return Some(For::Others);
    }
    Bdf::from_bytes(text).map(For::Gpu)
}

fn cus_of(text: &[u8]) -> Option<Cus> {
    /// No GPU has as many compute units, and a number of these digits is a `u32`.
    const DIGITS: usize = 6;
    let text = trim(text);
    if same(text, b"all") {
        return Some(Cus::All);
    }
    let one = |text: &[u8]| {
        let text = trim(text);
        let value = number(text).filter(|_| text.len() <= DIGITS)?;
        u32::try_from(value).ok()
    };
    let (first, last) = split(text, b'-');
    let first = one(first)?;
    match last {
        Some(last) => Some(Cus::Range(first, one(last)?)),
        None => Some(Cus::Range(first, first)),
    }
}
