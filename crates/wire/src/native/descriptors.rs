//! Descriptors of a USB device that its [`Description`](super::usb::UsbDescription) does not have: its strings and its
//! binary object store. The exporter sends them before [`opened`](super::control::OpenReply) to an importer whose
//! greeting says how much of them it takes
//! ([`Options::descriptors_bytes_max`](super::HelloOptions::descriptors_bytes_max)).
//!
//! ```text
//!   0 count 2   of each: type 1, index 1, language 2, length 2, the descriptor as the device says it
//! ```
//!
//! Types and indexes are those of GET_DESCRIPTOR (USB 2.0 table 9-5). A string has the language in which the exporter
//! read it; 0 means that the exporter's system chose it. Of several strings with one index the one in US English
//! counts, else the first. An importer passes over types that it does not use.

use farbus_model::descriptor::kind;

use crate::reader::FieldReader;
use crate::reject::ProtocolViolation;

/// Descriptors in a message.
pub const DESCRIPTORS_MAX: usize = 128;
/// Bytes of a message: 128 strings of the usual length, or 64 of the greatest and an object store.
pub const DESCRIPTORS_BYTES_MAX: usize = 32 << 10;
/// Bytes of a string descriptor: what its length byte can say.
pub const STRING_BYTES_MAX: usize = 255;
/// Bytes of any other descriptor. The longest binary object stores have a few hundred.
pub const DESCRIPTOR_BYTES_MAX: usize = 4096;
/// Bytes before a descriptor.
const HEAD_BYTES: usize = 6;

/// A descriptor as GET_DESCRIPTOR names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDescriptor {
    /// Its type: [`kind::STRING`], [`kind::BOS`], or another.
    pub kind: u8,
    /// Its index among those of its type.
    pub index: u8,
    /// The language of a string; 0 if that is not known, and for all other types.
    pub language: u16,
    /// Its bytes, the first two of which are a length and its type.
    pub bytes: Vec<u8>,
}

impl NamedDescriptor {
    const fn bytes_max(kind: u8) -> usize {
        if kind == kind::STRING { STRING_BYTES_MAX } else { DESCRIPTOR_BYTES_MAX }
    }

    /// Whether a message may have it.
    fn is_sound(&self) -> bool {
        self.bytes.len() <= Self::bytes_max(self.kind) && self.bytes.get(1) == Some(&self.kind)
    }
}

/// Encodes the message. Descriptors that are unsound, and those at the end that do not fit into `bytes_max` (or
/// [`DESCRIPTORS_BYTES_MAX`]), are left out.
pub fn encode(all: &[NamedDescriptor], bytes_max: usize) -> Vec<u8> {
    let mut left = bytes_max.min(DESCRIPTORS_BYTES_MAX).saturating_sub(2);
    let mut fits = |descriptor: &&NamedDescriptor| {
        let rest = left.checked_sub(HEAD_BYTES + descriptor.bytes.len());
        rest.map(|rest| left = rest).is_some()
    };
    let sound = all.iter().filter(|descriptor| descriptor.is_sound());
    let chosen: Vec<&NamedDescriptor> = sound.take(DESCRIPTORS_MAX).take_while(|descriptor| fits(descriptor)).collect();
    let mut bytes = (chosen.len() as u16).to_le_bytes().to_vec();
    for NamedDescriptor { kind, index, language, bytes: descriptor } in chosen {
        bytes.extend([*kind, *index]);
        bytes.extend(language.to_le_bytes());
        bytes.extend((descriptor.len() as u16).to_le_bytes());
        bytes.extend(descriptor);
    }
    bytes
}

/// Decodes the message. What is behind it is of a later version.
///
/// # Errors
/// [`ProtocolViolation`]: more descriptors or longer ones than there may be, or one that is cut off or of another type than it says.
pub fn decode(bytes: &[u8]) -> Result<Vec<NamedDescriptor>, ProtocolViolation> {
    if bytes.len() > DESCRIPTORS_BYTES_MAX {
        return Err(ProtocolViolation::new("descriptors", bytes.len() as u64, "all together have 32 KiB at most"));
    }
    let mut reader = FieldReader::new(bytes);
    let count = reader.u16("descriptors")?;
    if usize::from(count) > DESCRIPTORS_MAX {
        return Err(ProtocolViolation::new("descriptors", count.into(), "there are 128 at most"));
    }
    let mut all = Vec::new();
    for _ in 0..count {
        let (kind, index) = (reader.u8("descriptor type")?, reader.u8("descriptor index")?);
        let (language, length) = (reader.u16("language")?, reader.u16("descriptor length")?);
        if usize::from(length) > NamedDescriptor::bytes_max(kind) {
            let rule = "a string has 255 bytes at most, any other descriptor 4096";
            return Err(ProtocolViolation::new("descriptor length", length.into(), rule));
        }
        let bytes = reader.take(length.into(), "descriptor")?.to_vec();
        if bytes.get(1) != Some(&kind) {
            return Err(ProtocolViolation::new(
                "descriptor type",
                kind.into(),
                "a descriptor says its type in its second byte",
            ));
        }
        all.push(NamedDescriptor { kind, index, language, bytes });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use farbus_model::descriptor::string_to_bytes;

    use super::*;

    fn string(index: u8, text: &str) -> NamedDescriptor {
        NamedDescriptor { kind: kind::STRING, index, language: 0x0409, bytes: string_to_bytes(text) }
    }

    #[test]
    fn descriptors_survive_the_way_and_none_that_is_too_long_or_of_another_type() {
        let bos = NamedDescriptor { kind: kind::BOS, index: 0, language: 0, bytes: vec![5, kind::BOS, 5, 0, 0] };
        let later = NamedDescriptor { kind: 0x55, index: 9, language: 7, bytes: vec![2, 0x55] };
        let all = vec![string(3, "4711"), string(255, &"\u{10000}".repeat(63)), string(1, ""), bos, later];
        let bytes = encode(&all, usize::MAX);
        assert_eq!(decode(&bytes).as_ref(), Ok(&all));
        assert_eq!(decode(&[&bytes[..], &[1, 2]].concat()), Ok(all), "a later release may say more");
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{end} bytes");
        }
        let refused = |bytes: &[u8]| decode(bytes).unwrap_err().field;
        assert_eq!(refused(&[129, 0]), "descriptors");
        assert_eq!(refused(&vec![0; DESCRIPTORS_BYTES_MAX + 1]), "descriptors");
        assert_eq!(refused(&[1, 0, 3, 1, 9, 4, 0, 1]), "descriptor length");
        assert_eq!(refused(&[1, 0, 15, 0, 0, 0, 1, 16]), "descriptor length");
        assert_eq!(refused(&[1, 0, 3, 1, 9, 4, 1, 0, 4]), "descriptor type");
        assert_eq!(refused(&[1, 0, 3, 1, 9, 4, 2, 0, 2, 4]), "descriptor type");
    }

    #[test]
    fn what_an_importer_does_not_take_is_left_out_at_the_end() {
        let all: Vec<_> = (1..=200).map(|index| string(index, "name")).collect();
        let each = HEAD_BYTES + 10;
        for (bytes_max, count) in [(0, 0), (2, 0), (2 + each, 1), (1 + 3 * each, 2), (usize::MAX, DESCRIPTORS_MAX)] {
            assert_eq!(decode(&encode(&all, bytes_max)), Ok(all[..count].to_vec()), "{bytes_max} bytes");
        }
        let long: Vec<_> = (1..=200).map(|index| string(index, &"x".repeat(126))).collect();
        let bytes = encode(&long, usize::MAX);
        assert!(bytes.len() <= DESCRIPTORS_BYTES_MAX && bytes.len() > DESCRIPTORS_BYTES_MAX - 300, "{}", bytes.len());
        let unsound = NamedDescriptor { bytes: vec![3; 300], ..string(1, "") };
        assert_eq!(decode(&encode(&[unsound, string(2, "b")], 1000)), Ok(vec![string(2, "b")]));
    }
}
