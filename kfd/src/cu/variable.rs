//! `HSA_CU_MASK`, as ROCr reads it: `Flag::parse_masks` and `get_elements` of ROCR-Runtime's `core/util/flag.cpp`, the same
//! from ROCm 5.2 to 7.2.
//!
//! `GPUs:CUs;GPUs:CUs...`, where GPUs is a list of ROCr's numbers and CUs one of compute units (`0,2-4`) or a
//! hexadecimal mask (`0x3f`). White space does not count. Numbers above the last GPU or CU are left out. The first set with an
//! error ends it: an unknown character, an empty list, a number that is there twice, a GPU that had a set before.

use super::mask::{CuMask, MAX_CUS};
use super::text::split;

/// A set of GPUs: bit i is number i. One more than there can be, since ROCr takes the number behind the last.
type Gpus = u128;

/// The user's own mask for ROCr's GPU `wanted`, if there is one. `gpus` is how many there are, `most_cus` how many
/// compute units the largest has.
pub(super) fn mask_of(text: &[u8], wanted: u32, gpus: u32, most_cus: u32) -> Option<CuMask> {
    let mut seen: Gpus = 0;
    let mut rest = Some(text);
    while let Some(text) = rest {
        if is_blank(text) {
            return None;
        }
        let (set, behind) = split(text, b';');
        rest = behind;
        let (list, cus) = split(set, b':');
        let cus = cus?;
        // More than two parts; a separator at the very end counts for nothing.
        let (cus, more) = split(cus, b':');
        if more.is_some_and(|more| !is_blank(more)) {
            return None;
        }
        let mut mask = CuMask::none();
        read_cus(cus, most_cus, &mut mask)?;
        let mut here: Gpus = 0;
        read_list(list, gpus, &mut |gpu| {
            let bit = 1_u128.checked_shl(gpu).unwrap_or(0);
            let is_new = here & bit == 0;
            here |= bit;
            is_new
        })?;
        if here & seen != 0 {
            return None;
        }
        seen |= here;
        if here & 1_u128.checked_shl(wanted).unwrap_or(0) != 0 {
            return Some(mask);
        }
    }
    None
}

/// The compute units of a set; `None`: it is wrong, or has none.
fn read_cus(text: &[u8], most_cus: u32, mask: &mut CuMask) -> Option<()> {
    let mut letters = visible_bytes(text);
    let (first, second) = (letters.next(), letters.next());
    if second.is_some_and(|byte| byte.eq_ignore_ascii_case(&b'x')) {
        if first != Some(b'0') {
            return None;
        }
        return read_hexadecimal(text, most_cus, mask);
    }
    read_list(text, most_cus, &mut |cu| {
        let is_new = !mask.has(cu);
        mask.add(cu);
        // What no mask can name is left out, as what no GPU has.
        is_new || cu >= MAX_CUS
    })
}

/// `0x` and digits. Words of 32 bits behind that of the largest number are left out.
fn read_hexadecimal(text: &[u8], most_cus: u32, mask: &mut CuMask) -> Option<()> {
    let digits = visible_bytes(text).skip(2);
    let count = digits.clone().count();
    let most_bits = (most_cus / 32).saturating_add(1).saturating_mul(32);
    for (place, byte) in digits.enumerate() {
        let digit = char::from(byte).to_digit(16)?;
        let behind = count.saturating_sub(place).saturating_sub(1);
        let low = u32::try_from(behind).ok()?.saturating_mul(4);
        for bit in 0..4 {
            let cu = low.saturating_add(bit);
            if digit & (1 << bit) != 0 && cu < most_bits {
                mask.add(cu);
            }
        }
    }
    (mask.count() > 0).then_some(())
}

/// The numbers of a list up to `most`; `each` says whether one is new. `None`: the list is wrong, or has none.
fn read_list(text: &[u8], most: u32, each: &mut dyn FnMut(u32) -> bool) -> Option<()> {
    let mut rest = Some(text);
    let mut any = false;
    while let Some(text) = rest {
        if is_blank(text) {
            break;
        }
        let (item, behind) = split(text, b',');
        rest = behind;
        if is_blank(item) {
            return None;
        }
        let (first, last) = split(item, b'-');
        let first = read_number(first)?;
        // A separator at the very end counts for nothing.
        let last = match last.filter(|last| !is_blank(last)) {
            Some(last) => read_number(last)?,
            None => first,
        };
        if last < first {
            return None;
        }
        for number in first..=last.min(most) {
            any = true;
            if !each(number) {
                return None;
            }
        }
    }
    any.then_some(())
}

/// Digits; nothing at all is 0, as `strtoul` has it.
fn read_number(text: &[u8]) -> Option<u32> {
    let mut value = 0_u32;
    for byte in visible_bytes(text) {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value = value.saturating_mul(10).saturating_add(u32::from(digit));
    }
    Some(value)
}

/// What `isspace` does not leave out.
fn visible_bytes(text: &[u8]) -> impl Iterator<Item = u8> + Clone + '_ {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    text.iter().copied().filter(move |byte| !is_space(byte))
}

fn is_blank(text: &[u8]) -> bool {
    visible_bytes(text).next().is_none()
}
