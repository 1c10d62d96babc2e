//! Writing and reading texts without calling anything: not even `memcpy`, which libraries interpose, too.

/// A text under construction in a place of fixed size. What does not fit is left out, and known to be.
#[derive(Debug)]
pub struct Text<'a> {
    place: &'a mut [u8],
    len: usize,
    cut: bool,
}

impl<'a> Text<'a> {
    /// An empty text.
    pub fn new(place: &'a mut [u8]) -> Self {
        Self {
            place,
            len: 0,
            cut: false,
        }
    }

    /// Bytes so far.
    #[allow(
        clippy::len_without_is_empty,
        reason = "nobody asks whether a text is empty"
    )]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether something did not fit.
    pub fn is_cut(&self) -> bool {
        self.cut
    }

    /// Appends a byte.
    pub fn byte(&mut self, byte: u8) {
        match self.place.get_mut(self.len) {
            Some(place) => {
                // SAFETY: a reference may be written through. Volatile, so that the compiler does not
                // make a `memcpy` of a loop of these.
                unsafe { (place as *mut u8).write_volatile(byte) };
                self.len = self.len.saturating_add(1);
            }
            None => self.cut = true,
        }
    }

    /// Appends bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.byte(*byte);
        }
    }

    /// Appends a decimal number.
    pub fn number(&mut self, number: u32) {
        let mut unit = 1_000_000_000_u32;
        let mut begun = false;
        while unit > 0 {
            let digit = number.checked_div(unit).unwrap_or(0) % 10;
            begun |= digit != 0 || unit == 1;
            if begun {
                self.byte(b'0'.saturating_add(digit as u8));
            }
            unit /= 10;
        }
    }

    /// What was written.
    pub fn written(&self) -> &[u8] {
        self.place.get(..self.len).unwrap_or_default()
    }
}

/// Whether both are the same.
pub(super) fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && starts_with(one, other)
}

/// Whether `text` begins with `start`.
pub(super) fn starts_with(text: &[u8], start: &[u8]) -> bool {
    let mut at = text.iter();
    // One by one: a comparison of slices is a call of `memcmp`.
    start.iter().all(|byte| at.next() == Some(byte))
}

/// What is before and behind the first `separator`; all of it and `None` if there is none.
pub(super) fn split(text: &[u8], separator: u8) -> (&[u8], Option<&[u8]>) {
    match text.iter().position(|byte| *byte == separator) {
        Some(at) => (
            text.get(..at).unwrap_or_default(),
            text.get(at.saturating_add(1)..),
        ),
        None => (text, None),
    }
}

/// The same without white space around it.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    text.trim_ascii()
}

/// A number of decimal digits and nothing else.
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0_u64;
    for byte in text {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_and_read() {
        let mut place = [0; 64];
        for value in [0, 1, 9, 10, 304, 1_000_000, u32::MAX] {
            let mut text = Text::new(&mut place);
            text.number(value);
            assert_eq!(text.written(), value.to_string().as_bytes());
            assert_eq!(number(text.written()), Some(u64::from(value)));
        }
        for none in ["", "-1", "+1", " 1", "1 ", "x", "99999999999999999999"] {
            assert_eq!(number(none.as_bytes()), None, "{none}");
        }
    }

    #[test]
    fn what_does_not_fit_is_known() {
        let mut place = [0; 4];
        let mut text = Text::new(&mut place);
        text.bytes(b"abcd");
        assert!(!text.is_cut());
        text.byte(b'e');
        assert!(text.is_cut());
        assert_eq!(text.written(), b"abcd");
    }

    #[test]
    fn texts_are_split_and_compared() {
        assert_eq!(split(b"a=b=c", b'='), (&b"a"[..], Some(&b"b=c"[..])));
        assert_eq!(split(b"a", b'='), (&b"a"[..], None));
        assert_eq!(split(b"=", b'='), (&b""[..], Some(&b""[..])));
        assert!(same(b"abc", b"abc") && !same(b"abc", b"ab") && !same(b"ab", b"abc"));
        assert!(starts_with(b"abc", b"") && !starts_with(b"", b"a"));
    }
}
