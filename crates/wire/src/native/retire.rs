//! What becomes of a disk that its importer moves to its own machine.
//!
//! ```text
//!   0 word 1
//!   0 noted 16     1 step 1
//!   0 unable 17    1 step 1    2 why: length 2, UTF-8
//! ```
//!
//! | word | from | meaning |
//! |---|---|---|
//! | 0 moving | importer | its copy is about to become the device: give the disk to no other host |
//! | 1 moved | importer | its copy is the device: the disk is retired |
//! | 2 stays | importer | the disk is the device |
//! | 3 overwrites | importer, before it opens the disk | it overwrites a disk that it moved away earlier, and gets it for that |
//! | 16 noted | exporter | this step is durable |
//! | 17 unable | exporter | this step was not noted, and why |
//!
//! Steps may be repeated. A peer ignores frames of an unknown kind, and words and steps that it does not know.

use super::control::TEXT_BYTES_MAX;
use super::reader::{Reader, put_text};
use crate::reject::Reject;

/// A step of a disk's move, as its importer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The copy is about to become the device.
    Moving,
    /// The copy is the device.
    Moved,
    /// The disk is the device: nothing moves, or it was given up.
    Stays,
    /// Said before the disk is opened: its content is overwritten, also if this importer moved it away earlier. It is
    /// not answered.
    Overwrites,
}

impl Step {
    const ALL: [Step; 4] = [Step::Moving, Step::Moved, Step::Stays, Step::Overwrites];

    const fn code(self) -> u8 {
        match self {
            Step::Moving => 0,
            Step::Moved => 1,
            Step::Stays => 2,
            Step::Overwrites => 3,
        }
    }

    fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.code() == code)
    }
}

/// A message about a disk that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Importer: this step.
    Says(Step),
    /// Exporter: it is durable.
    Noted(Step),
    /// Exporter: it was not noted, for this reason.
    Unable(Step, String),
}

const NOTED: u8 = 16;
const UNABLE: u8 = 17;

impl Word {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Word::Says(step) => vec![step.code()],
            Word::Noted(step) => vec![NOTED, step.code()],
            Word::Unable(step, why) => {
                let mut bytes = vec![UNABLE, step.code()];
                put_text(&mut bytes, why, TEXT_BYTES_MAX);
                bytes
            }
        }
    }

    /// Decodes a message; `None` for a word or a step of a later version. What is behind a message is of a later
    /// version as well.
    ///
    /// # Errors
    /// [`Reject`]: there is no word, or less than belongs to it.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Reject> {
        let mut reader = Reader::new(bytes);
        let word = reader.u8("word")?;
        if let Some(step) = Step::of(word) {
            return Ok(Some(Word::Says(step)));
        }
        if ![NOTED, UNABLE].contains(&word) {
            return Ok(None);
        }
        let Some(step) = Step::of(reader.u8("step")?) else { return Ok(None) };
        Ok(Some(if word == NOTED {
            Word::Noted(step)
        } else {
            Word::Unable(step, reader.text("why", TEXT_BYTES_MAX)?)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_unknown_ones_are_passed_over() {
        for step in Step::ALL {
            for word in [Word::Says(step), Word::Noted(step), Word::Unable(step, "no room".into())] {
                let bytes = word.encode();
                assert_eq!(Word::decode(&bytes), Ok(Some(word.clone())));
                assert_eq!(Word::decode(&[&bytes[..], &[7, 7]].concat()), Ok(Some(word)), "of a later version");
                for end in 0..bytes.len() {
                    assert!(Word::decode(&bytes[..end]).is_err(), "{end} of {bytes:?}");
                }
            }
        }
        assert_eq!(
            [Word::decode(&[4]), Word::decode(&[NOTED, 9]), Word::decode(&[255, 1])],
            [Ok(None), Ok(None), Ok(None)]
        );
        assert!(Word::decode(&[UNABLE, 0, 1, 0, 0xff]).is_err(), "a text is UTF-8");
        assert_eq!(Word::Unable(Step::Moved, "no".into()).encode(), [17, 1, 2, 0, b'n', b'o']);
    }
}
