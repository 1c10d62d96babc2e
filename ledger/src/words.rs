//! The words by which a variable says yes or no.

use std::ffi::OsStr;

/// `1`, `true`, `on`, `yes`: yes; `0`, `false`, `off`, `no`: no; in any case and with white space
/// around it. `None` for anything else, nothing at all included.
///
/// One list for all of hipflex, so that a word means the same in each of its variables.
#[must_use]
pub fn yes_or_no(value: &OsStr) -> Option<bool> {
    let word = value.to_str()?.trim();
    let is_one_of = |words: [&str; 4]| words.iter().any(|one| word.eq_ignore_ascii_case(one));
    if is_one_of(["1", "true", "on", "yes"]) {
        Some(true)
    } else if is_one_of(["0", "false", "off", "no"]) {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_word_counts() {
        let read = |word: &str| yes_or_no(OsStr::new(word));
        for yes in ["1", "true", "on", "yes", "YES", " True "] {
            assert_eq!(read(yes), Some(true), "{yes}");
        }
        for no in ["0", "false", "off", "no", "OFF", " False "] {
            assert_eq!(read(no), Some(false), "{no}");
        }
        for neither in ["", " ", "ture", "nope", "00", "10", "y", "2"] {
            assert_eq!(read(neither), None, "{neither}");
        }
    }
}
