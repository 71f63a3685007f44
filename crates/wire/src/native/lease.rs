//! What an exporter says about the lease under which an importer uses a device.
//!
//! ```text
//!   0 word 1   1 milliseconds 4
//! ```
//!
//! | word | from | meaning |
//! |---|---|---|
//! | 0 | exporter | the lease of this attachment ends in so long, unless it is extended |
//!
//! A peer ignores frames of an unknown kind and statements with an unknown word.

use std::time::Duration;

use crate::reject::ProtocolViolation;

const ENDS: u8 = 0;

/// A statement about a lease: it ends in so long. The longest that fits is 49 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseEndNotice(pub Duration);

impl LeaseEndNotice {
    /// Encodes the message.
    pub fn encode(self) -> Vec<u8> {
        let ms = u32::try_from(self.0.as_millis()).unwrap_or(u32::MAX);
        [&[ENDS][..], &ms.to_le_bytes()].concat()
    }

    /// Decodes a statement; `None` for a word of a later version.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: there is no word, or no time behind it.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, ProtocolViolation> {
        let wrong = || ProtocolViolation::new("lease", bytes.len() as u64, "it is a word and a time");
        let (&word, rest) = bytes.split_first().ok_or_else(wrong)?;
        if word != ENDS {
            return Ok(None);
        }
        // A later version may say more behind it.
        let ms = rest.first_chunk().ok_or_else(wrong)?;
        Ok(Some(Self(Duration::from_millis(u32::from_le_bytes(*ms).into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_a_lease_is_read_back_and_unknown_words_are_passed_over() {
        let bytes = LeaseEndNotice(Duration::from_secs(60)).encode();
        assert_eq!(bytes, [0, 0x60, 0xea, 0, 0]);
        assert_eq!(LeaseEndNotice::decode(&bytes), Ok(Some(LeaseEndNotice(Duration::from_secs(60)))));
        assert_eq!(
            LeaseEndNotice::decode(&[&bytes[..], &[7]].concat()),
            Ok(Some(LeaseEndNotice(Duration::from_secs(60))))
        );
        for end in 0..bytes.len() {
            assert_eq!(LeaseEndNotice::decode(&bytes[..end]).unwrap_err().field, "lease", "{end} bytes");
        }
        assert_eq!(LeaseEndNotice::decode(&[1]), Ok(None));
        assert_eq!(LeaseEndNotice(Duration::MAX).encode(), [0, 0xff, 0xff, 0xff, 0xff]);
    }
}
