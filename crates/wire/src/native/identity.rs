//! Which device an attachment uses: the exporter sends it before [`opened`](super::control::OpenReply), the importer
//! before it opens a device again.
//!
//! ```text
//!   0 word 1   1 id 16   17 generation 8
//! ```
//!
//! | word | from | meaning |
//! |---|---|---|
//! | 0 | exporter | the device that is opened next, or is open, has this identity |
//! | 1 | importer | the device that is asked for next has to have this identity |
//! | 2 | exporter | the identity that word 0 told before is found again after the exporter was started anew |
//!
//! A peer ignores frames of an unknown kind and statements with an unknown word.

use farbus_model::ExportIdentity;
use farbus_model::identity::IDENTITY_BYTES;

use crate::reject::ProtocolViolation;

/// A statement about a device's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityStatement {
    /// Exporter: the device that is opened next, or is open, has this identity.
    Is(ExportIdentity),
    /// Importer: the device that is asked for next has to have this identity.
    Expected(ExportIdentity),
    /// Exporter: it finds this identity, which it told before, again after it was started anew. Earlier versions do not
    /// say it.
    Lasting(ExportIdentity),
}

const IS: u8 = 0;
const EXPECTED: u8 = 1;
const LASTING: u8 = 2;

impl IdentityStatement {
    /// Encodes the message.
    pub fn encode(self) -> Vec<u8> {
        let (word, identity) = match self {
            IdentityStatement::Is(identity) => (IS, identity),
            IdentityStatement::Expected(identity) => (EXPECTED, identity),
            IdentityStatement::Lasting(identity) => (LASTING, identity),
        };
        [&[word][..], &identity.to_bytes()].concat()
    }

    /// Decodes a statement; `None` for a word of a later version.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: there is no word, or a known word without an identity.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, ProtocolViolation> {
        let rule = "it is a word, an id that is not zero, and a generation";
        let wrong = || ProtocolViolation::new("identity", bytes.len() as u64, rule);
        let (&word, rest) = bytes.split_first().ok_or_else(wrong)?;
        if word > LASTING {
            return Ok(None);
        }
        let identity: [u8; IDENTITY_BYTES] = rest.try_into().map_err(|_| wrong())?;
        let identity = ExportIdentity::from_bytes(identity).ok_or_else(wrong)?;
        Ok(Some(match word {
            IS => IdentityStatement::Is(identity),
            EXPECTED => IdentityStatement::Expected(identity),
            _ => IdentityStatement::Lasting(identity),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_read_back_and_unknown_words_are_passed_over() {
        let identity = ExportIdentity { id: 7 << 90, generation: 3 };
        for statement in [
            IdentityStatement::Is(identity),
            IdentityStatement::Expected(identity),
            IdentityStatement::Lasting(identity),
        ] {
            let bytes = statement.encode();
            assert_eq!(IdentityStatement::decode(&bytes), Ok(Some(statement)));
            for end in 0..bytes.len() {
                assert_eq!(IdentityStatement::decode(&bytes[..end]).unwrap_err().field, "identity", "{end} bytes");
            }
            assert!(IdentityStatement::decode(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
        }
        assert_eq!(IdentityStatement::decode(&[3, 1, 2, 3]), Ok(None));
        assert!(IdentityStatement::decode(&[0; 25]).is_err(), "an id of zeros");
    }
}
