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
use super::reader::{FieldReader, put_text};
use crate::reject::ProtocolViolation;

/// A step of a disk's move, as its importer says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMoveStep {
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

impl DiskMoveStep {
    const ALL: [DiskMoveStep; 4] =
        [DiskMoveStep::Moving, DiskMoveStep::Moved, DiskMoveStep::Stays, DiskMoveStep::Overwrites];

    const fn code(self) -> u8 {
        match self {
            DiskMoveStep::Moving => 0,
            DiskMoveStep::Moved => 1,
            DiskMoveStep::Stays => 2,
            DiskMoveStep::Overwrites => 3,
        }
    }

    fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|step| step.code() == code)
    }
}

/// A message about a disk that moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskMoveMessage {
    /// Importer: this step.
    Says(DiskMoveStep),
    /// Exporter: it is durable.
    Noted(DiskMoveStep),
    /// Exporter: it was not noted, for this reason.
    Unable(DiskMoveStep, String),
}

const NOTED: u8 = 16;
const UNABLE: u8 = 17;

impl DiskMoveMessage {
    /// Encodes the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            DiskMoveMessage::Says(step) => vec![step.code()],
            DiskMoveMessage::Noted(step) => vec![NOTED, step.code()],
            DiskMoveMessage::Unable(step, why) => {
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
    /// [`ProtocolViolation`]: there is no word, or less than belongs to it.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let word = reader.u8("word")?;
        if let Some(step) = DiskMoveStep::of(word) {
            return Ok(Some(DiskMoveMessage::Says(step)));
        }
        if ![NOTED, UNABLE].contains(&word) {
            return Ok(None);
        }
        let Some(step) = DiskMoveStep::of(reader.u8("step")?) else { return Ok(None) };
        Ok(Some(if word == NOTED {
            DiskMoveMessage::Noted(step)
        } else {
            DiskMoveMessage::Unable(step, reader.text("why", TEXT_BYTES_MAX)?)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_back_and_unknown_ones_are_passed_over() {
        for step in DiskMoveStep::ALL {
            for word in [
                DiskMoveMessage::Says(step),
                DiskMoveMessage::Noted(step),
                DiskMoveMessage::Unable(step, "no room".into()),
            ] {
                let bytes = word.encode();
                assert_eq!(DiskMoveMessage::decode(&bytes), Ok(Some(word.clone())));
                assert_eq!(
                    DiskMoveMessage::decode(&[&bytes[..], &[7, 7]].concat()),
                    Ok(Some(word)),
                    "of a later version"
                );
                for end in 0..bytes.len() {
                    assert!(DiskMoveMessage::decode(&bytes[..end]).is_err(), "{end} of {bytes:?}");
                }
            }
        }
        assert_eq!(
            [DiskMoveMessage::decode(&[4]), DiskMoveMessage::decode(&[NOTED, 9]), DiskMoveMessage::decode(&[255, 1])],
            [Ok(None), Ok(None), Ok(None)]
        );
        assert!(DiskMoveMessage::decode(&[UNABLE, 0, 1, 0, 0xff]).is_err(), "a text is UTF-8");
        assert_eq!(DiskMoveMessage::Unable(DiskMoveStep::Moved, "no".into()).encode(), [17, 1, 2, 0, b'n', b'o']);
    }
}
