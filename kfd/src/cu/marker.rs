//! The marker that says what `HSA_CU_MASK` was made from.
//!
//! It stands in a variable of its own, [`MARKER`]: `RANGE|VISIBLE|MASK|USER'S`. A process that finds it beside the mask that
//! it names, and has the same range and the same `ROCR_VISIBLE_DEVICES`, need not look again; and whoever makes another mask knows
//! what the user himself had set.

use super::Variables;
use super::text::{Text, same};

/// The variable.
pub const MARKER: &str = "FH_CU_MASK_FROM";

/// What separates the parts: no part can have it and be valid.
const SEPARATOR: u8 = b'|';

/// `HSA_CU_MASK` as it was found, told apart: what we made of it, and what the user had set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own<'a> {
    /// What the user himself had set.
    pub user: Option<&'a [u8]>,
    /// The marker, if the mask is ours.
    made_from: Option<&'a [u8]>,
}

impl<'a> Own<'a> {
    /// From the values of the mask and of the marker. The mask is ours if it is the one that the marker names; one that was set
    /// since is the user's.
    pub fn of(mask: Option<&'a [u8]>, marker: Option<&'a [u8]>) -> Self {
        let users = Self {
            user: mask,
            made_from: None,
        };
        let (Some(mask), Some(marker)) = (mask, marker) else {
            return users;
        };
        // RANGE|VISIBLE|MASK|USER'S
        let mut parts = marker.splitn(4, |byte| *byte == SEPARATOR);
        let (_, _, made, user) = (parts.next(), parts.next(), parts.next(), parts.next());
        match (made, user) {
            (Some(made), Some(user)) if same(made, mask) => Self {
                user: decoded(user),
                made_from: Some(marker),
            },
            _ => users,
        }
    }

    /// Whether the mask is ours and was made from these.
    pub fn is_made_from(&self, range: &[u8], visible: Option<&[u8]>) -> bool {
        let Some(marker) = self.made_from else {
            return false;
        };
        let mut parts = marker.splitn(3, |byte| *byte == SEPARATOR);
        let (before, shown) = (parts.next(), parts.next());
        before.is_some_and(|before| same(before, range))
            && shown
                .map(decoded)
                .is_some_and(|shown| match (shown, visible) {
                    (Some(shown), Some(visible)) => same(shown, visible),
                    (None, None) => true,
                    _ => false,
                })
    }
}

/// Writes the marker of a mask that was made from these.
pub fn write_marker(text: &mut Text<'_>, from: &Variables<'_>, mask: &[u8]) {
    text.bytes(from.range);
    text.byte(SEPARATOR);
    encode(from.visible, text);
    text.byte(SEPARATOR);
    text.bytes(mask);
    text.byte(SEPARATOR);
    encode(from.mask, text);
}

/// A value in a marker: `=` and the value, or nothing for one that is not set.
fn decoded(part: &[u8]) -> Option<&[u8]> {
    match part {
        [b'=', value @ ..] => Some(value),
        _ => None,
    }
}

fn encode(value: Option<&[u8]>, text: &mut Text<'_>) {
    if let Some(value) = value {
        text.byte(b'=');
        text.bytes(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker(range: &str, visible: Option<&str>, mask: &str, user: Option<&str>) -> String {
        let encode = |value: Option<&str>| value.map_or_else(String::new, |v| format!("={v}"));
        format!("{range}|{}|{mask}|{}", encode(visible), encode(user))
    }

    #[test]
    fn a_mask_is_ours_only_as_the_marker_names_it() {
        for (visible, user) in [
            (None, None),
            (Some(""), Some("")),
            (Some("1,0"), Some("0:0-3;1:5")),
        ] {
            let marker = marker("0-37", visible, "0:0-37", user);
            let of = |mask: &'static str| Own::of(Some(mask.as_bytes()), Some(marker.as_bytes()));
            let (visible, user) = (visible.map(str::as_bytes), user.map(str::as_bytes));
            let ours = of("0:0-37");
            assert_eq!(ours.user, user);
            assert!(ours.is_made_from(b"0-37", visible));
            assert!(!ours.is_made_from(b"0-38", visible));
            assert!(!ours.is_made_from(b"0-37", Some(b"2")));
            // Somebody has set another one since.
            let theirs = of("0:0-7");
            assert_eq!(theirs.user, Some(&b"0:0-7"[..]));
            assert!(!theirs.is_made_from(b"0-37", visible));
        }
        let unset = Own::of(None, Some(b"0-37||0:0-37|"));
        assert_eq!(
            (unset.user, unset.is_made_from(b"0-37", None)),
            (None, false)
        );
        for nonsense in [&b""[..], b"|", b"0-37||0:0-37", b"||||"] {
            let own = Own::of(Some(b"0:0-37"), Some(nonsense));
            assert_eq!(own.user, Some(&b"0:0-37"[..]));
        }
    }
}
