//! Text of unknown origin made fit for a terminal.

use unicode_width::UnicodeWidthChar;

/// The text with everything that would move the cursor or hide text spelled out.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut shown, c| {
            if is_printable(c) {
                shown.push(c);
            } else {
                shown.extend(c.escape_default());
            }
            shown
        })
}

/// Control characters have no width of their own, and direction marks reorder what stands around them.
fn is_printable(c: char) -> bool {
    let direction = matches!(c,
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let separator = matches!(c, '\u{2028}' | '\u{2029}');
    c.width().is_some() && !direction && !separator
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(
            printable("a\tb\nc\u{1b}[31m\0\u{7f}\u{9b}"),
            "a\\tb\\nc\\u{1b}[31m\\u{0}\\u{7f}\\u{9b}"
        );
        assert_eq!(
            printable("evil\u{202e}cod.exe\u{2028}x"),
            "evil\\u{202e}cod.exe\\u{2028}x"
        );
    }

    #[test]
    fn letters_of_every_script_stay() {
        for text in ["训练", "тренировка", "🚀", "e\u{301}", "日本語", "plain"] {
            assert_eq!(printable(text), text);
        }
    }
}
