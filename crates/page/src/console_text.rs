//! What a serial port sends, as text that any terminal and any page may show.
//!
//! What a device sends is hostile. Of its bytes only these are left: characters that are seen, in UTF-8, tabs, and ends
//! of lines. An invalid sequence, and a character that is not seen or changes how others are shown, is U+FFFD. Escape
//! sequences (ECMA-48: colours, movements of the cursor, titles of windows) and other control characters are left out.
//! CR LF, LF CR and a lone CR each end a line.

use farbus_io_net::trust::is_shown;

/// Characters of a string in an escape sequence (OSC, DCS and others) that are left out; then it counts as text, so
/// that a port that begins one and does not end it is not silent for ever.
const STRING_CHARS_MAX: usize = 1024;
/// Characters of any other escape sequence that are left out; then it counts as text.
const SEQUENCE_CHARS_MAX: usize = 64;

const BELL: char = '\u{7}';
const ESCAPE: char = '\u{1b}';
const CANCEL: char = '\u{18}';
const SUBSTITUTE: char = '\u{1a}';

/// Turns bytes into text, as they come.
#[derive(Clone, Debug, Default)]
pub struct ConsoleText {
    /// The beginning of a character, of at most three bytes.
    begun: Vec<u8>,
    state: EscapeSequenceState,
    /// Whether the last line has text and is not ended.
    is_in_line: bool,
    /// Whether the last byte was a CR that has ended no line yet.
    has_returned: bool,
}

/// Where in an escape sequence it is (ECMA-48 §5.3 to §5.6).
#[derive(Clone, Copy, Debug, Default)]
enum EscapeSequenceState {
    #[default]
    Text,
    /// After ESC, and intermediate characters.
    Escape(usize),
    /// After ESC [.
    Control(usize),
    /// In a string, which BEL or ESC \ ends.
    String(usize),
    /// In a string, after ESC.
    StringEscape(usize),
}

impl ConsoleText {
    /// Adds the text of these bytes, and of those before that were no whole character.
    pub fn add(&mut self, bytes: &[u8], to: &mut String) {
        let joined = [&std::mem::take(&mut self.begun)[..], bytes].concat();
        let mut rest = &joined[..];
        while !rest.is_empty() {
            let (valid, bad) = match std::str::from_utf8(rest) {
                Ok(text) => (text, None),
                Err(error) => {
                    let valid = std::str::from_utf8(&rest[..error.valid_up_to()]).unwrap_or_default();
                    (valid, Some(error.error_len()))
                }
            };
            valid.chars().for_each(|c| self.character(c, to));
            rest = &rest[valid.len()..];
            match bad {
                None => {}
                Some(Some(length)) => {
                    self.character(char::REPLACEMENT_CHARACTER, to);
                    rest = &rest[length..];
                }
                Some(None) => {
                    self.begun = rest.to_vec();
                    rest = &[];
                }
            }
        }
    }

    fn character(&mut self, c: char, to: &mut String) {
        self.state = match (self.state, c) {
            // A sequence does not take the end of a line with it.
            (_, '\n' | '\r') => {
                self.end_of_line(c, to);
                EscapeSequenceState::Text
            }
            (_, CANCEL | SUBSTITUTE) => EscapeSequenceState::Text,
            (EscapeSequenceState::String(_), BELL) => EscapeSequenceState::Text,
            (EscapeSequenceState::String(count), ESCAPE) => EscapeSequenceState::StringEscape(count + 1),
            (EscapeSequenceState::StringEscape(_), '\\') => EscapeSequenceState::Text,
            (EscapeSequenceState::StringEscape(count) | EscapeSequenceState::String(count), _)
                if count < STRING_CHARS_MAX =>
            {
                EscapeSequenceState::String(count + 1)
            }
            (_, ESCAPE) => EscapeSequenceState::Escape(0),
            (EscapeSequenceState::Escape(0), '[') => EscapeSequenceState::Control(0),
            (EscapeSequenceState::Escape(0), ']' | 'P' | 'X' | '^' | '_') => EscapeSequenceState::String(0),
            (EscapeSequenceState::Escape(count), ' '..='/') if count < SEQUENCE_CHARS_MAX => {
                EscapeSequenceState::Escape(count + 1)
            }
            (EscapeSequenceState::Escape(_), '0'..='~') => EscapeSequenceState::Text,
            (EscapeSequenceState::Control(count), ' '..='?') if count < SEQUENCE_CHARS_MAX => {
                EscapeSequenceState::Control(count + 1)
            }
            (EscapeSequenceState::Control(_), '@'..='~') => EscapeSequenceState::Text,
            (_, c) => {
                self.plain(c, to);
                EscapeSequenceState::Text
            }
        };
    }

    fn plain(&mut self, c: char, to: &mut String) {
        if std::mem::take(&mut self.has_returned) && self.is_in_line {
            to.push('\n');
            self.is_in_line = false;
        }
        if c.is_control() && c != '\t' {
            return;
        }
        to.push(if c == '\t' || is_shown(c) { c } else { char::REPLACEMENT_CHARACTER });
        self.is_in_line = true;
    }

    /// LF ends a line; CR ends one that has text, unless the LF of the pair does or has done it.
    fn end_of_line(&mut self, c: char, to: &mut String) {
        if c == '\r' {
            self.has_returned = true;
            return;
        }
        self.has_returned = false;
        to.push('\n');
        self.is_in_line = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], piece: usize) -> String {
        let (mut console, mut text) = (ConsoleText::default(), String::new());
        bytes.chunks(piece).for_each(|bytes| console.add(bytes, &mut text));
        text
    }

    #[test]
    fn text_of_a_console_is_as_meant_however_it_is_cut() {
        let table: &[(&[u8], &str)] = &[
            (b"login: ", "login: "),
            (b"a\r\nb\r\n", "a\nb\n"),
            (b"a\n\rb\n\r", "a\nb\n"),
            (b"a\r\r\nb", "a\nb"),
            (b"10 %\r20 %\r\n", "10 %\n20 %\n"),
            (b"a\n\n\nb", "a\n\n\nb"),
            (b"\r\n\r\nb", "\n\nb"),
            ("gr\u{fc}n \u{2713}\t\u{1f600}".as_bytes(), "gr\u{fc}n \u{2713}\t\u{1f600}"),
            (b"a\xff\xfeb\xc3(", "a\u{fffd}\u{fffd}b\u{fffd}("),
            (b"\x1b[1;31mred\x1b[0m", "red"),
            (b"\x1b[2J\x1b[H\x1b[?25l\x1bc\x1b(Bx", "x"),
            (b"\x1b]0;title\x07a\x1b]8;;http://x\x1b\\b", "ab"),
            (b"\x1bP1$r0m\x1b\\a\x1b_x\x1b\\b\x1b^y\x1b\\c", "abc"),
            (b"\x1b]0;no end\nnext", "\nnext"),
            (b"\x1b[12\nnext", "\nnext"),
            (b"a\x08b\x07\x00\x7fc\x0e", "abc"),
            ("a\u{202e}b\u{9b}31mc\u{200b}".as_bytes(), "a\u{fffd}b31mc\u{fffd}"),
            (b"\x1b\x1b[31mx", "x"),
        ];
        for (bytes, expected) in table {
            for piece in [1, 2, 3, 5, bytes.len()] {
                assert_eq!(
                    text(bytes, piece),
                    *expected,
                    "{:?} in pieces of {piece}",
                    bytes.escape_ascii().to_string()
                );
            }
        }
    }

    #[test]
    fn a_sequence_that_does_not_end_hides_no_more_than_its_limit() {
        let endless = [b"\x1b]".as_slice(), &[b'x'; 3 * STRING_CHARS_MAX]].concat();
        assert_eq!(text(&endless, 100).len(), 2 * STRING_CHARS_MAX);
        let endless = [b"\x1b[".as_slice(), &[b'1'; 3 * SEQUENCE_CHARS_MAX]].concat();
        assert_eq!(text(&endless, 100).len(), 2 * SEQUENCE_CHARS_MAX);
    }

    #[test]
    fn text_is_safe_whatever_a_port_sends_and_the_same_when_it_is_read_again() {
        let mut state = 1_u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let special = b"\x1b[]P\\\x07\r\n\x18\x9b\xc2\xe2\x80\xae;m1";
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..60)
                .map(|_| match byte() {
                    even if even % 2 == 0 => special[usize::from(byte()) % special.len()],
                    _ => byte(),
                })
                .collect();
            let once = text(&bytes, 7);
            assert!(once.chars().all(|c| c == '\n' || c == '\t' || is_shown(c)), "{once:?}");
            assert_eq!(text(once.as_bytes(), 5), once);
        }
    }
}
