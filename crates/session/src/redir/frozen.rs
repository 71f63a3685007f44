//! A usbredir stream in a live migration: everything of it but the device.

use farbus_wire::usbip::ProtocolViolation;
use farbus_wire::usbredir::RedirCapabilitySet;

/// Kind and version of the format: a successor accepts no other.
pub const MAGIC: &[u8; 8] = b"redir\0\0\x01";

/// A guest's stream, frozen while no request is in flight on the device: the guest's open requests as bytes from the
/// guest, the waiting answers as bytes to the guest, and the state that both depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrozenRedirStream {
    /// The usbredir capabilities that the guest announced.
    pub theirs: RedirCapabilitySet,
    /// The active configuration's value.
    pub configuration: u8,
    /// The interfaces that are not in setting 0, with their settings.
    pub alternates: Vec<(u8, u8)>,
    /// Unanswered requests, then the beginning of an incomplete packet of the guest.
    pub from_guest: Vec<u8>,
    /// Answers that were not sent to the guest yet.
    pub to_guest: Vec<u8>,
}

impl FrozenRedirStream {
    /// As bytes, little-endian: magic and version, capabilities, configuration, number of alternate settings, the
    /// settings, length and bytes from the guest, length and bytes to the guest.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.theirs.bits().to_le_bytes());
        bytes.extend([self.configuration, self.alternates.len() as u8]);
        bytes.extend(self.alternates.iter().flat_map(|&(interface, alternate)| [interface, alternate]));
        for part in [&self.from_guest, &self.to_guest] {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
        }
        bytes
    }

    /// Reads it from bytes.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: they are of another kind or version, too few or too many.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut rest = bytes;
        let mut take = |count: usize| -> Result<&[u8], ProtocolViolation> {
            let (part, behind) = rest.split_at_checked(count).ok_or(ProtocolViolation::new(
                "length",
                bytes.len() as u64,
                "all of it is there",
            ))?;
            rest = behind;
            Ok(part)
        };
        if take(MAGIC.len())? != MAGIC {
            return Err(ProtocolViolation::new(
                "magic",
                bytes.len() as u64,
                "it is a frozen usbredir stream, version 1",
            ));
        }
        let word = |part: &[u8]| part.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte));
        let theirs = RedirCapabilitySet::from_bits(word(take(4)?));
        let (configuration, count) = (take(1)?[0], take(1)?[0]);
        let alternates = take(2 * usize::from(count))?.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let length = word(take(4)?) as usize;
        let from_guest = take(length)?.to_vec();
        let length = word(take(4)?) as usize;
        let to_guest = take(length)?.to_vec();
        match rest.len() {
            0 => Ok(Self { theirs, configuration, alternates, from_guest, to_guest }),
            more => Err(ProtocolViolation::new("length", more as u64, "nothing is behind it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_stream_survives_its_encoding_and_a_damaged_one_is_refused() {
        let frozen = FrozenRedirStream {
            theirs: RedirCapabilitySet::from_bits(0xf0),
            configuration: 1,
            alternates: vec![(1, 2), (3, 4)],
            from_guest: vec![1; 300],
            to_guest: vec![2; 7],
        };
        let bytes = frozen.to_bytes();
        assert_eq!(bytes[..18], *b"redir\0\0\x01\xf0\0\0\0\x01\x02\x01\x02\x03\x04");
        assert_eq!(FrozenRedirStream::from_bytes(&bytes), Ok(frozen));
        for length in 0..bytes.len() {
            assert!(FrozenRedirStream::from_bytes(&bytes[..length]).is_err(), "{length} of {}", bytes.len());
        }
        assert_eq!(
            FrozenRedirStream::from_bytes(&[&bytes[..], &[0]].concat()).unwrap_err().rule,
            "nothing is behind it"
        );
        assert_eq!(
            FrozenRedirStream::from_bytes(&[b"redir\0\0\x02", &bytes[8..]].concat()).unwrap_err().field,
            "magic"
        );
    }
}
