//! Sizes as people write them: `4GiB`, `512MiB`, `1.5G`, `1073741824`.
//!
//! A size is a decimal number and an optional unit. Units are not case-sensitive:
//! `B`; `K M G T` and `KB MB GB TB` are powers of 1000; `Ki Mi Gi Ti` and `KiB MiB GiB TiB` are
//! powers of 1024. Space before, after and between the two is allowed. Fractions are computed in
//! exact integer arithmetic and rounded down to whole bytes.

use std::fmt;

/// The largest size that can be asked for, booked or set as a limit: 2^62 bytes.
///
/// Two of them still fit into a `u64`, so that nothing wraps before it has been compared.
pub const MAX_BYTES: u64 = 1 << 62;

/// How much of a rejected text an error repeats, in characters.
const SHOWN_CHARS: usize = 48;

/// Why a text is not a size. Every variant carries the text that was read, shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// No number at its start, or a number with two points.
    #[error("'{0}' is not a size: it must start with a number; {EXAMPLES}")]
    NotANumber(String),
    /// Something that is no unit follows the number.
    #[error("'{text}' is not a size: '{unit}' is not a unit; {EXAMPLES}")]
    UnknownUnit {
        /// The whole text.
        text: String,
        /// What stands where a unit is expected.
        unit: String,
    },
    /// Less than one byte.
    #[error("'{0}' is less than one byte; {EXAMPLES}")]
    TooSmall(String),
    /// More than [`MAX_BYTES`].
    #[error("'{0}' is too large: the largest size is 4194304TiB (2^62 bytes); {EXAMPLES}")]
    TooLarge(String),
}

/// What every message ends with.
const EXAMPLES: &str = "write for example 4GiB, 512MiB, 1.5Gi, 8G or 1073741824";

/// Reads a size in bytes, between 1 and [`MAX_BYTES`].
///
/// # Errors
/// [`SizeError`] says what was read and what would be valid.
pub fn parse(text: &str) -> Result<u64, SizeError> {
    let trimmed = text.trim();
    let split = trimmed
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number = Decimal::parse(number).ok_or_else(|| SizeError::NotANumber(shown(text)))?;
    let unit = unit.trim();
    let multiplier = multiplier(unit).ok_or_else(|| SizeError::UnknownUnit {
        text: shown(text),
        unit: shown(unit),
    })?;
    match number.times(multiplier) {
        None => Err(SizeError::TooLarge(shown(text))),
        Some(0) => Err(SizeError::TooSmall(shown(text))),
        Some(bytes) => Ok(bytes),
    }
}

/// The number of bytes that a unit stands for.
fn multiplier(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        _ => return None,
    })
}

/// A decimal number, not negative, kept as its digits so that no fraction is rounded early.
pub(crate) struct Decimal<'a> {
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Decimal<'a> {
    /// Digits with at most one point among them; at least one digit.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let any = !whole.is_empty() || !fraction.is_empty();
        (any && digits(whole) && digits(fraction)).then_some(Self { whole, fraction })
    }

    /// The product rounded down, or `None` above [`MAX_BYTES`].
    fn times(&self, factor: u64) -> Option<u64> {
        u64::try_from(self.product(factor)?)
            .ok()
            .filter(|bytes| *bytes <= MAX_BYTES)
    }

    /// The product rounded down, or `None` when the number itself does not fit into a `u64`.
    pub(crate) fn product(&self, factor: u64) -> Option<u128> {
        let digit = |b: u8| u64::from(b.wrapping_sub(b'0'));
        let mut whole: u64 = 0;
        for b in self.whole.bytes() {
            whole = whole.checked_mul(10)?.checked_add(digit(b))?;
        }
        // Horner's rule from the last digit: rounding down at each step gives the same as rounding
        // down once at the end, because all that is added before a division is a whole number.
        let mut fraction: u128 = 0;
        for b in self.fraction.bytes().rev() {
            let scaled = u128::from(digit(b)).checked_mul(u128::from(factor))?;
            fraction = scaled.checked_add(fraction)?.checked_div(10)?;
        }
        u128::from(whole)
            .checked_mul(u128::from(factor))?
            .checked_add(fraction)
    }
}

/// A rejected text as a message may show it: bounded, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (n, c) in text.chars().enumerate() {
        if n >= SHOWN_CHARS {
            out.push('\u{2026}');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Shows a number of bytes in binary units with one decimal: `4.0 GiB`, `512.0 MiB`, `17 B`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Display(pub u64);

impl fmt::Display for Display {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Those that `parse` reads, so that what is shown can be written again.
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let mut divisor: u128 = 1;
        for (n, unit) in UNITS.iter().enumerate() {
            divisor = divisor.saturating_mul(1024);
            // In tenths of the unit, rounded to the nearest.
            let half = divisor.checked_div(2).unwrap_or(0);
            let scaled = u128::from(self.0).saturating_mul(10).saturating_add(half);
            let tenths = scaled.checked_div(divisor).unwrap_or(0);
            // 1023.96 KiB would be rounded to 1024.0 KiB; it is 1.0 MiB.
            if tenths < 10_240 || n.saturating_add(1) == UNITS.len() {
                let (whole, tenth) = (
                    tenths.checked_div(10).unwrap_or(0),
                    tenths.checked_rem(10).unwrap_or(0),
                );
                return write!(f, "{whole}.{tenth} {unit}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn valid_sizes() {
        for (text, bytes) in [
            ("1", 1),
            ("1073741824", 1 << 30),
            ("4GiB", 4 << 30),
            ("4gib", 4 << 30),
            ("4Gi", 4 << 30),
            ("4 GiB", 4 << 30),
            (" 4GiB\n", 4 << 30),
            ("4G", 4_000_000_000),
            ("4gb", 4_000_000_000),
            ("1Ki", 1024),
            ("1Mi", 1 << 20),
            ("1Ti", 1 << 40),
            ("1k", 1000),
            ("1MB", 1_000_000),
            ("2T", 2_000_000_000_000),
            ("7b", 7),
            ("1.5GiB", 3 << 29),
            (".5KiB", 512),
            ("5.KiB", 5120),
            ("0.3KiB", 307),
            ("1.9B", 1),
            ("4194304TiB", MAX_BYTES),
            ("4611686018427387904", MAX_BYTES),
            // 1 / 2^40, which a float or a truncated fraction would turn into 0.
            ("0.0000000000009094947017729282379150390625TiB", 1),
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_reason() {
        let not_a_number = [
            "",
            " ",
            "banana",
            "-1",
            "+1",
            "GiB",
            ".",
            "1.2.3",
            "..",
            "\u{663}GiB",
        ];
        for text in not_a_number {
            assert!(
                matches!(parse(text), Err(SizeError::NotANumber(_))),
                "{text:?}"
            );
        }
        for text in [
            "1Gi x", "1GiX", "1e3", "1 2", "1iB", "0x10", "5%", "1GiB,", "1\u{0}",
        ] {
            assert!(
                matches!(parse(text), Err(SizeError::UnknownUnit { .. })),
                "{text:?}"
            );
        }
        for text in ["0", "0GiB", "0.0", "0.9B", "0.0001KiB"] {
            assert!(
                matches!(parse(text), Err(SizeError::TooSmall(_))),
                "{text:?}"
            );
        }
        for text in [
            "99999999999T",
            "4611686018427387905",
            "4194304.1TiB",
            "16777216TiB",
            "18446744073709551616",
            "99999999999999999999999999999999999999999999999999",
        ] {
            assert!(
                matches!(parse(text), Err(SizeError::TooLarge(_))),
                "{text:?}"
            );
        }
    }

    #[test]
    fn messages_show_what_was_read_and_what_is_valid() {
        let message = |text: &str| parse(text).map_err(|e| e.to_string()).unwrap_err();
        assert!(message("1GiX").contains("'1GiX'"));
        assert!(message("1GiX").contains("'GiX' is not a unit"));
        assert!(message("banana").contains("4GiB"));
        let long = message(&"z".repeat(10_000));
        assert!(long.len() < 300, "{long}");
        assert!(!message("1\u{1b}[31m").contains('\u{1b}'));
    }

    #[test]
    fn display_has_one_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (4 << 30, "4.0 GiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1 << 50, "1024.0 TiB"),
            (MAX_BYTES, "4194304.0 TiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(Display(bytes).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn any_number_of_bytes_round_trips(bytes in 1..=MAX_BYTES) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(bytes));
            prop_assert_eq!(parse(&format!("{bytes} B")), Ok(bytes));
        }

        #[test]
        fn whole_units_are_exact(n in 1_u64..4096, unit in 0_usize..4) {
            let shift = [10_u32, 20, 30, 40][unit];
            let name = ["ki", "MiB", "GI", "tib"][unit];
            prop_assert_eq!(parse(&format!("{n}{name}")), Ok(n << shift));
        }

        #[test]
        fn fractions_are_rounded_down_exactly(n in 0_u64..1024, thousandths in 0_u64..1000) {
            let exact = (u128::from(n) * 1000 + u128::from(thousandths)) * (1 << 30) / 1000;
            let got = parse(&format!("{n}.{thousandths:03}GiB"));
            if exact == 0 {
                prop_assert!(got.is_err());
            } else {
                prop_assert_eq!(got.map(u128::from), Ok(exact));
            }
        }

        #[test]
        fn what_is_displayed_is_a_size_again(bits in 0_u32..62, below in any::<u64>()) {
            let bytes = 1_u64 << bits | below & ((1 << bits) - 1);
            let again = parse(&Display(bytes).to_string());
            let again = again.map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert!(again.abs_diff(bytes) <= bytes / 18, "{} {}", bytes, again);
        }

        #[test]
        fn nothing_panics(text in "\\PC*") {
            if let Ok(bytes) = parse(&text) {
                prop_assert!((1..=MAX_BYTES).contains(&bytes));
            }
        }
    }
}
