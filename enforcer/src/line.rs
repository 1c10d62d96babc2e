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
    /// Formats the text and a line break, and gives `write` the bytes.
    ///
    /// Not inlined: threads of the program may have little stack, and the line would be on it
    /// while any function runs that may have something to tell. (Nor returned, which copies it there.)
    #[cold]
    #[inline(never)]
    pub(crate) fn write(text: fmt::Arguments<'_>, write: &mut dyn FnMut(&[u8])) {
        let mut line = Self {
            bytes: [0; CAPACITY],
            len: 0,
            cut: false,
        };
        // `write_str` below does not fail; a Display that does leaves what it wrote so far.
        let _ = fmt::Write::write_fmt(&mut line, text);
        line.finish();
        write(line.bytes.get(..line.len).unwrap_or(&[]));
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

    fn line(text: fmt::Arguments<'_>) -> String {
        let mut written = String::new();
        Line::write(text, &mut |bytes| {
            written.push_str(str::from_utf8(bytes).unwrap());
        });
        written
    }

    #[test]
    fn a_line_ends_with_one_line_break() {
        let line = line(format_args!("asked {} of {}", 1, 2));
        assert_eq!(line, "asked 1 of 2\n");
    }

    #[test]
    fn a_value_with_line_breaks_stays_on_one_line() {
        let line = line(format_args!("read {:?}{}", "a", "b\nc\x1b[31m"));
        assert_eq!(line, "read \"a\"b c [31m\n");
    }

    #[test]
    fn a_long_line_is_cut_at_a_character_and_says_so() {
        for filler in ["x", "\u{e9}", "\u{1f980}"] {
            let text = filler.repeat(CAPACITY);
            let line = line(format_args!("{text}"));
            assert!(line.len() <= CAPACITY && line.len() > CAPACITY - 8);
            assert!(line.ends_with("...\n"), "{line}");
        }
    }

    #[test]
    fn a_line_that_just_fits_is_not_cut() {
        let text = "x".repeat(CAPACITY - CUT.len());
        let line = line(format_args!("{text}"));
        assert_eq!(line.len(), text.len() + 1);
    }
}
