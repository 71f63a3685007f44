//! The terminal of a console: every key for the port while it lasts, and as it was before when it is over.

use std::io::{self, IsTerminal, Write};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Undoes what a device may have left in a terminal: colours, a hidden cursor, no wrapping, application keys, marks
/// around what is pasted.
const AS_BEFORE: &str = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1l\x1b[?2004l\x1b[4l\x1b>";
const FIRST_SCREEN: &str = "\x1b[?1049l";

/// Standard input as a terminal that passes every key on. It becomes what it was when this is dropped.
#[derive(Debug)]
pub struct RawTerminal {
    before: Option<Termios>,
}

impl RawTerminal {
    /// Nothing changes if standard input is not a terminal.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<Self> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self { before: None });
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw)?;
        Ok(Self { before: Some(before) })
    }

    /// Whether keys are typed.
    pub fn is_typed_at(&self) -> bool {
        self.before.is_some()
    }

    /// Says something of the console itself, in a line of its own.
    pub fn say(&self, line: &str) {
        let mut out = io::stderr().lock();
        let (begin, end) = if self.is_typed_at() { ("\r\n", "\r\n") } else { ("", "\n") };
        // A terminal that is gone needs no words.
        let _ = write!(out, "{begin}farbus: {line}{end}");
    }

    /// Makes the screen what it was: `shown` is what the device has sent to it.
    pub fn clear_up(&self, has_sequences: bool, has_second_screen: bool) {
        if !has_sequences || !io::stdout().is_terminal() {
            return;
        }
        let mut out = io::stdout().lock();
        let screen = if has_second_screen { FIRST_SCREEN } else { "" };
        let _ = write!(out, "{screen}{AS_BEFORE}").and_then(|()| out.flush());
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A terminal that is gone stays as it is.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
        }
    }
}
