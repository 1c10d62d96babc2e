//! One line of text in a fixed buffer: formatted without allocating, cut rather than refused.

use std::fmt;

/// Longest line. Below `PIPE_BUF` (4,096), so that one write of it to a pipe is never torn.
const CAPACITY: usize = 1024;
const _: () = assert!(CAPACITY <= libc::PIPE_BUF);
/// What stands at the end of a line that was cut.
const CUT: &[u8] = b"...\n";

/// A line under construction. Line breaks and other control characters become spaces, so that it
/// stays one line whatever is formatted into it.
pub(crate) struct Line {
    bytes: [u8; CAPACITY],
    len: usize,
    cut: bool,
}

impl Line {
    /// The formatted text and a line break.
    pub(crate) fn of(text: fmt::Arguments<'_>) -> Self {
        let mut line = Self {
            bytes: [0; CAPACITY],
            len: 0,
            cut: false,
        };
        // `write_str` below does not fail; a Display that does leaves what it wrote so far.
        let _ = fmt::Write::write_fmt(&mut line, text);
        line.finish();
        line
    }

    /// The bytes to write, with the line break.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    fn finish(&mut self) {
        let end: &[u8] = if self.cut { CUT } else { b"\n" };
        // Room for the end was kept free by `write_str`.
        if let Some(tail) = self
            .bytes
            .get_mut(self.len..)
            .and_then(|t| t.get_mut(..end.len()))
        {
            tail.copy_from_slice(end);
            self.len = self.len.saturating_add(end.len());
        }
    }
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut utf8 = [0; 4];
        for c in text.chars() {
            let c = if c.is_control() { ' ' } else { c };
            let encoded = c.encode_utf8(&mut utf8).as_bytes();
            let end = self.len.saturating_add(encoded.len());
            if self.cut || end.saturating_add(CUT.len()) > CAPACITY {
                self.cut = true;
                return Ok(());
            }
            if let Some(room) = self.bytes.get_mut(self.len..end) {
                room.copy_from_slice(encoded);
                self.len = end;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_with_one_line_break() {
        let line = Line::of(format_args!("asked {} of {}", 1, 2));
        assert_eq!(line.as_bytes(), b"asked 1 of 2\n");
    }

    #[test]
    fn a_value_with_line_breaks_stays_on_one_line() {
        let line = Line::of(format_args!("read {:?}{}", "a", "b\nc\x1b[31m"));
        assert_eq!(line.as_bytes(), b"read \"a\"b c [31m\n");
    }

    #[test]
    fn a_long_line_is_cut_at_a_character_and_says_so() {
        for filler in ["x", "\u{e9}", "\u{1f980}"] {
            let text = filler.repeat(CAPACITY);
            let line = Line::of(format_args!("{text}"));
            let bytes = line.as_bytes();
            assert!(bytes.len() <= CAPACITY && bytes.len() > CAPACITY - 8);
            let text = std::str::from_utf8(bytes).unwrap();
            assert!(text.ends_with("...\n"), "{text}");
        }
    }

    #[test]
    fn a_line_that_just_fits_is_not_cut() {
        let text = "x".repeat(CAPACITY - CUT.len());
        let line = Line::of(format_args!("{text}"));
        assert_eq!(line.as_bytes().len(), text.len() + 1);
    }
}
