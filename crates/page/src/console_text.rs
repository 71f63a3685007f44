//! What a serial port sends, as text that any terminal and any page may show.
//!
//! What a device sends is hostile. Of its bytes only these are left: characters that are seen, in UTF-8, tabs, and ends
//! of lines. An invalid sequence, and a character that is not seen or changes how others are shown, is U+FFFD. Escape
//! sequences (ECMA-48: colours, movements of the cursor, titles of windows) and other control characters are left out.
//! CR LF, LF CR and a lone CR each end a line.
//!
//! For a terminal into which somebody types ([`ConsoleText::for_terminal`]), what moves the cursor, colours and erases
//! is left, too: it changes what is seen, and nothing else. What makes a terminal answer, sets its title or its
//! clipboard, or reports its mouse is left out.

use farbus_io_net::trust::is_shown;

/// Characters of a string in an escape sequence (OSC, DCS and others) that are left out; then it counts as text, so
/// that a port that begins one and does not end it is not silent for ever.
const STRING_CHARS_MAX: usize = 1024;
/// Characters of any other escape sequence that are left out; then it counts as text.
const SEQUENCE_CHARS_MAX: usize = 64;

const BELL: char = '\u{7}';
const BACKSPACE: char = '\u{8}';
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
    /// For a terminal: what moves the cursor, colours and erases is kept.
    keeps_display: bool,
    /// For a terminal: the sequence that has begun, without its ESC.
    sequence: String,
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
    /// For a terminal: colours and movements of the cursor are kept.
    pub fn for_terminal() -> Self {
        Self { keeps_display: true, ..Self::default() }
    }

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
        if self.keeps_display {
            self.sequence.push(c);
        }
        let (state, is_whole) = match (self.state, c) {
            // A sequence does not take the end of a line with it.
            (_, '\n' | '\r') => {
                self.end_of_line(c, to);
                (EscapeSequenceState::Text, false)
            }
            (_, CANCEL | SUBSTITUTE) => (EscapeSequenceState::Text, false),
            (EscapeSequenceState::String(_), BELL) => (EscapeSequenceState::Text, false),
            (EscapeSequenceState::String(count), ESCAPE) => (EscapeSequenceState::StringEscape(count + 1), false),
            (EscapeSequenceState::StringEscape(_), '\\') => (EscapeSequenceState::Text, false),
            (EscapeSequenceState::StringEscape(count) | EscapeSequenceState::String(count), _)
                if count < STRING_CHARS_MAX =>
            {
                (EscapeSequenceState::String(count + 1), false)
            }
            (_, ESCAPE) => {
                self.sequence.clear();
                (EscapeSequenceState::Escape(0), false)
            }
            (EscapeSequenceState::Escape(0), '[') => (EscapeSequenceState::Control(0), false),
            (EscapeSequenceState::Escape(0), ']' | 'P' | 'X' | '^' | '_') => (EscapeSequenceState::String(0), false),
            (EscapeSequenceState::Escape(count), ' '..='/') if count < SEQUENCE_CHARS_MAX => {
                (EscapeSequenceState::Escape(count + 1), false)
            }
            (EscapeSequenceState::Control(count), ' '..='?') if count < SEQUENCE_CHARS_MAX => {
                (EscapeSequenceState::Control(count + 1), false)
            }
            (EscapeSequenceState::Escape(_), '0'..='~') | (EscapeSequenceState::Control(_), '@'..='~') => {
                (EscapeSequenceState::Text, true)
            }
            (_, c) => {
                self.plain(c, to);
                (EscapeSequenceState::Text, false)
            }
        };
        self.state = state;
        if is_whole && self.keeps_display && is_of_display(&self.sequence) {
            to.push(ESCAPE);
            to.push_str(&self.sequence);
        }
        if matches!(state, EscapeSequenceState::Text | EscapeSequenceState::String(_)) {
            self.sequence.clear();
        }
    }

    fn plain(&mut self, c: char, to: &mut String) {
        if self.keeps_display && matches!(c, BELL | BACKSPACE) {
            to.push(c);
            return;
        }
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
        if self.keeps_display {
            to.push(c);
            return;
        }
        if c == '\r' {
            self.has_returned = true;
            return;
        }
        self.has_returned = false;
        to.push('\n');
        self.is_in_line = false;
    }
}

/// Modes of a terminal that change what it shows, or what its keys send: cursor keys, reverse video, origin, wrapping,
/// cursor, the second screen, marks around what is pasted.
const MODES: [&str; 12] = ["1", "3", "5", "6", "7", "12", "25", "47", "1047", "1048", "1049", "2004"];

/// Whether a sequence without its ESC changes nothing but what a terminal shows (ECMA-48, and xterm's modes).
fn is_of_display(sequence: &str) -> bool {
    let Some(control) = sequence.strip_prefix('[') else {
        return matches!(sequence, "7" | "8" | "D" | "E" | "M" | "=" | ">" | "(B" | "(0" | ")B" | ")0");
    };
    let Some((at, last)) = control.char_indices().last() else { return false };
    let parameters = &control[..at];
    match (parameters.strip_prefix('?'), last) {
        (Some(modes), 'h' | 'l') => modes.split(';').all(|mode| MODES.contains(&mode)),
        (Some(which), 'J' | 'K') => matches!(which, "" | "0" | "1" | "2"),
        (Some(_), _) => false,
        (None, 'h' | 'l') => parameters == "4",
        (None, last) => {
            "@ABCDEFGHIJKLMPSTXZ`abdefgmrsu".contains(last)
                && parameters
                    .split([';', ':'])
                    .all(|number| number.len() <= 4 && number.bytes().all(|digit| digit.is_ascii_digit()))
        }
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
    fn text_for_a_terminal_keeps_what_is_seen_and_nothing_that_a_terminal_answers() {
        let kept = [
            "a\r\nb\rc\x08d\x07",
            "\x1b[1;31mred\x1b[0m\x1b[38:2:1:2:3m\x1b[m",
            "\x1b[2J\x1b[H\x1b[12;40H\x1b[K\x1b[3D\x1b[?25l\x1b[?1049;25h\x1b7\x1b8\x1b(0q\x1b(B\x1b[1;24r\x1b[4h",
        ];
        // Questions, titles, clipboards, windows, mice, reset, strings, keys that send something else, printers.
        let dropped = [
            "\x1b[c",
            "\x1b[>c",
            "\x1b[6n",
            "\x1b[?6n",
            "\x1b[18t",
            "\x1b[?1000h",
            "\x1b[?25;1003h",
            "\x1bc",
            "\x1b]52;c;aGk=\x07",
            "\x1b]0;title\x1b\\",
            "\x1bP$qm\x1b\\",
            "\x1b[>4;2m",
            "\x1b[5i",
            "\x1b[?5i",
            "\x1b[!p",
            "\x1bZ",
            "\x05",
            "\x0e",
            "\x1b[99999A",
            "\x1b[1$r",
            "\x1b[0x",
            "\x1b_x\x1b\\",
            "\u{9b}",
            "\x1b[12h",
        ];
        let text = |bytes: &str, piece: usize| {
            let (mut console, mut text) = (ConsoleText::for_terminal(), String::new());
            bytes.as_bytes().chunks(piece).for_each(|bytes| console.add(bytes, &mut text));
            text
        };
        for piece in [1, 2, 7, 1000] {
            for kept in kept {
                assert_eq!(text(kept, piece), kept);
            }
            for dropped in dropped {
                assert_eq!(text(&format!("a{dropped}b"), piece), "ab", "{dropped:?}");
            }
            let endless = format!("\x1b]{}", "x".repeat(5000));
            let mut console = ConsoleText::for_terminal();
            console.add(endless.as_bytes(), &mut String::new());
            assert!(console.sequence.capacity() < 4096);
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
