//! Which GPUs ROCr shows, and in which order: `ROCR_VISIBLE_DEVICES`, as `RvdFilter` of ROCR-Runtime's
//! `core/runtime/amd_filter_device.cpp` reads it, the same from ROCm 5.2 to 7.2.
//!
//! A list of numbers (as `strtol` reads them) and of UUIDs (`GPU-` and the board's `unique_id`, or the beginning of it). It ends
//! at the first that means no GPU, more than one, or one that is there already. `HIP_VISIBLE_DEVICES` is another
//! matter: HIP picks from what ROCr shows, whose numbers stay.

use super::machine::{CuGpu, MAX_GPUS};
use super::text::{split, trim};

/// The GPUs that ROCr shows, in its order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// Indices into the machine's GPUs.
    order: [u8; MAX_GPUS],
    count: usize,
}

impl Shown {
    pub(super) fn count(&self) -> u32 {
        u32::try_from(self.count).unwrap_or(u32::MAX)
    }

    /// Those of `machine`, which it was made for.
    pub(super) fn gpus<'a>(&'a self, machine: &'a [CuGpu]) -> impl Iterator<Item = &'a CuGpu> {
        let order = self.order.iter().take(self.count);
        order.filter_map(|index| machine.get(usize::from(*index)))
    }

    /// Their indices.
    pub(super) fn indices(self) -> impl Iterator<Item = usize> {
        self.order.into_iter().take(self.count).map(usize::from)
    }

    fn has(&self, index: u8) -> bool {
        self.order
            .iter()
            .take(self.count)
            .any(|other| *other == index)
    }

    fn push(&mut self, index: u8) {
        if let Some(place) = self.order.get_mut(self.count) {
            *place = index;
            self.count = self.count.saturating_add(1);
        }
    }
}

/// The order in which ROCr shows GPUs with these numbers in their UUIDs, where the variable has this value.
pub(super) fn order(variable: Option<&[u8]>, ids: impl Iterator<Item = u64> + Clone) -> Shown {
    let count = ids.clone().count();
    let mut shown = Shown {
        order: [0; MAX_GPUS],
        count: 0,
    };
    let Some(list) = variable else {
        for (index, _) in (0..).zip(ids) {
            shown.push(index);
        }
        return shown;
    };
    let mut rest = Some(list).filter(|list| !list.is_empty());
    while let Some(text) = rest {
        let (token, behind) = split(text, b',');
        rest = behind;
        // As many are looked at as there are GPUs.
        let found = find(trim(token), ids.clone()).filter(|index| !shown.has(*index));
        match found {
            Some(index) if shown.count < count => shown.push(index),
            _ => break,
        }
    }
    shown
}

fn find(token: &[u8], ids: impl Iterator<Item = u64> + Clone) -> Option<u8> {
    let is_uuid = token
        .first()
        .is_some_and(|byte| byte.eq_ignore_ascii_case(&b'G'));
    if !is_uuid {
        let number = read_number(token)?;
        return u8::try_from(number)
            .ok()
            .filter(|index| usize::from(*index) < ids.clone().count());
    }
    let mut matching = (0..).zip(ids).filter(|(_, id)| is_uuid_of(token, *id));
    let (index, _) = matching.next()?;
    matching.next().is_none().then_some(index)
}

/// Whether a token is the beginning of a GPU's UUID, `GPU-` and 16 hexadecimal digits.
fn is_uuid_of(token: &[u8], id: u64) -> bool {
    /// `GPU-` and a digit.
    const SHORTEST: usize = 5;
    if id == 0 || token.len() < SHORTEST {
        return false;
    }
    let digits = (0..16_u32).rev().map(|place| {
        let digit = id.checked_shr(place.saturating_mul(4)).unwrap_or(0) & 0xf;
        char::from_digit(digit as u32, 16).map_or(b'0', |digit| digit as u8)
    });
    let mut uuid = b"gpu-".iter().copied().chain(digits);
    token
        .iter()
        .all(|byte| uuid.next() == Some(byte.to_ascii_lowercase()))
}

/// A number as `strtol` with base 0 reads a whole word.
fn read_number(token: &[u8]) -> Option<u32> {
    let (negative, digits) = match token.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, token),
    };
    let (radix, digits) = match digits {
        [b'0', b'x' | b'X', rest @ ..] => (16, rest),
        [b'0', rest @ ..] if !rest.is_empty() => (8, rest),
        _ => (10, digits),
    };
    let mut value = 0_u32;
    for byte in digits {
        let digit = char::from(*byte).to_digit(radix)?;
        value = value.saturating_mul(radix).saturating_add(digit);
    }
    (!digits.is_empty() && (!negative || value == 0)).then_some(value)
}
