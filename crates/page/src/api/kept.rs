//! What is kept of the output of a command that shows what a device sends: a recording, the text of a console, or the
//! newest picture of a stream.

use crate::api::picture::PictureBuffer;
use crate::api::transcript::RecordingTranscript;
use crate::console_text::ConsoleText;

/// What is recorded in one operation, bytes; then its command is ended.
pub const RECORDING_BYTES_MAX: usize = 4 << 20;
/// The latest of a console's text that is kept, bytes: eight hundred lines of a terminal.
pub const SCROLLBACK_BYTES_MAX: usize = 64 << 10;

/// What is kept of an operation's output.
#[derive(Debug)]
pub enum OperationOutput {
    /// Nothing, or it is forgotten.
    Nothing,
    /// All of it, and what it holds as text.
    Recording(Vec<u8>, RecordingTranscript),
    /// The latest of its text.
    Console(Scrollback),
    /// The newest picture, while its command runs.
    Picture(PictureBuffer),
}

impl OperationOutput {
    /// Whether this is anything.
    pub fn is_some(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// The recording, if it is one.
    pub fn recording(&self) -> Option<&Vec<u8>> {
        match self {
            Self::Recording(bytes, _) => Some(bytes),
            Self::Nothing | Self::Console(_) | Self::Picture(_) => None,
        }
    }

    /// Where pictures are shown, if it is one.
    pub fn screen(&self) -> Option<&PictureBuffer> {
        match self {
            Self::Picture(screen) => Some(screen),
            Self::Nothing | Self::Recording(..) | Self::Console(_) => None,
        }
    }

    /// The text, with characters that are seen, tabs and ends of lines alone.
    pub fn text(&self) -> Option<String> {
        match self {
            Self::Nothing | Self::Picture(_) => None,
            Self::Recording(_, transcript) => Some(transcript.text()),
            Self::Console(scrollback) => Some(scrollback.text.clone()),
        }
    }

    /// How many bytes of output there were, those that are not kept any more included; pictures are not counted.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Nothing | Self::Picture(_) => 0,
            Self::Recording(bytes, _) => bytes.len() as u64,
            Self::Console(scrollback) => scrollback.bytes,
        }
    }

    /// Adds output. Returns whether there was room for all of it.
    pub fn add(&mut self, bytes: &[u8]) -> bool {
        match self {
            Self::Nothing | Self::Picture(_) => false,
            Self::Recording(recording, transcript) => {
                let has_room = recording.len() + bytes.len() <= RECORDING_BYTES_MAX;
                if has_room {
                    recording.extend_from_slice(bytes);
                    transcript.add(bytes);
                }
                has_room
            }
            Self::Console(scrollback) => {
                scrollback.add(bytes);
                true
            }
        }
    }
}

/// The latest text of a console.
#[derive(Debug, Default)]
pub struct Scrollback {
    /// The command leaves out what is hostile. This does not rely on it.
    filter: ConsoleText,
    text: String,
    bytes: u64,
}

impl Scrollback {
    fn add(&mut self, bytes: &[u8]) {
        // The text of a byte has three at most (U+FFFD).
        for bytes in bytes.chunks(SCROLLBACK_BYTES_MAX / 4) {
            self.bytes += bytes.len() as u64;
            self.filter.add(bytes, &mut self.text);
            let excess = self.text.len().saturating_sub(SCROLLBACK_BYTES_MAX);
            if excess > 0 {
                self.text.drain(..self.text.ceil_char_boundary(excess));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_keeps_the_latest_text_and_nothing_that_a_terminal_obeys() {
        let mut kept = OperationOutput::Console(Scrollback::default());
        let (begin, end) = (b"\x1b[31mred\x1b]0;title\x07 \xe2\x9c".as_slice(), b"\x93\r\n<b>\n".as_slice());
        assert!(kept.add(begin) && kept.add(end));
        assert_eq!(kept.text().as_deref(), Some("red \u{2713}\n<b>\n"));
        assert_eq!((kept.bytes(), kept.recording()), ((begin.len() + end.len()) as u64, None));
        for n in 0..100_000_u32 {
            assert!(kept.add(format!("line {n} \u{2713}\r\n").as_bytes()), "it is never full");
        }
        let text = kept.text().unwrap();
        assert!((SCROLLBACK_BYTES_MAX - 4..=SCROLLBACK_BYTES_MAX).contains(&text.len()), "{}", text.len());
        assert!(text.ends_with("line 99998 \u{2713}\nline 99999 \u{2713}\n"), "the latest");
        assert!(kept.add(&[0xff; 1 << 20]) && kept.text().unwrap().len() <= SCROLLBACK_BYTES_MAX);
    }

    #[test]
    fn a_recording_that_is_full_takes_no_more() {
        let mut kept = OperationOutput::Recording(Vec::new(), RecordingTranscript::default());
        assert!(kept.add(&vec![0; RECORDING_BYTES_MAX]) && !kept.add(&[0]));
        assert_eq!((kept.bytes(), kept.is_some()), (RECORDING_BYTES_MAX as u64, true));
        let mut nothing = OperationOutput::Nothing;
        assert!(!nothing.add(b"x") && nothing.text().is_none() && !nothing.is_some());
    }
}
