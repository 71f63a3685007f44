//! Device identity, which is independent of names and ports.

use std::fmt;

/// Bytes of an encoded [`ExportIdentity`].
pub const IDENTITY_BYTES: usize = 24;

/// The identity of an exported device: a random 128-bit id, and a generation that a hot-swap raises.
///
/// An exporter keeps the id in its state folder beside evidence of the device (a file's file system and handle, a USB
/// device's serial number). Two devices never share an id. A name, a bus id or an address is not an identity: another
/// device may have it later.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportIdentity {
    /// The device's id. It is random; all zeros is not a valid id.
    pub id: u128,
    /// Counts the media that the device has had. The lower 32 bits count swaps, which copy the content; the upper 32
    /// bits count adoptions: the owner declared that another medium is this device, whatever its content. Begins at 0.
    pub generation: u64,
}

/// What an adoption adds to a generation; swaps are counted from 0 again afterwards.
const ADOPTION: u64 = 1 << 32;

impl ExportIdentity {
    /// The identity after an adoption: the same device on another medium, whose content was not copied.
    pub fn adopted(self) -> Self {
        Self { generation: (self.generation / ADOPTION + 1) * ADOPTION, ..self }
    }

    /// Whether this medium holds the content of the device `before`, as far as the identities tell: it is the same
    /// medium, or swaps have copied it.
    pub fn continues(self, before: Self) -> bool {
        let is_copied = self.generation / ADOPTION == before.generation / ADOPTION;
        self.id == before.id && is_copied && self.generation >= before.generation
    }

    /// Encodes the id, then the generation, both little-endian.
    pub fn to_bytes(self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..].copy_from_slice(&self.generation.to_le_bytes());
        bytes
    }

    /// Reads what [`ExportIdentity::to_bytes`] wrote; `None` if the id is all zeros.
    pub fn from_bytes(bytes: [u8; IDENTITY_BYTES]) -> Option<Self> {
        let (id, generation) = bytes.split_at(16);
        let id = u128::from_le_bytes(id.try_into().expect("sixteen bytes"));
        let generation = u64::from_le_bytes(generation.try_into().expect("eight bytes"));
        (id != 0).then_some(Self { id, generation })
    }
}

impl fmt::Display for ExportIdentity {
    /// The form that people read and type: 32 hexadecimal digits, `.` and the [`MediumNumber`].
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}.{}", self.id, MediumNumber(self.generation))
    }
}

/// A generation for people: the number of swaps, preceded by the number of adoptions and a dot if there were any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediumNumber(pub u64);

impl fmt::Display for MediumNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / ADOPTION, self.0 % ADOPTION) {
            (0, swaps) => write!(f, "{swaps}"),
            (adoptions, swaps) => write!(f, "{adoptions}.{swaps}"),
        }
    }
}

impl fmt::Debug for ExportIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_back_and_an_id_of_zeros_is_refused() {
        let identity = ExportIdentity { id: 0x0123_4567_89ab_cdef_0011_2233_4455_6677, generation: 7 };
        assert_eq!(ExportIdentity::from_bytes(identity.to_bytes()), Some(identity));
        assert_eq!(ExportIdentity::from_bytes([0; IDENTITY_BYTES]), None);
        assert_eq!(identity.to_string(), "0123456789abcdef0011223344556677.7");
    }

    #[test]
    fn a_swap_continues_a_device_and_an_adoption_does_not() {
        let before = ExportIdentity { id: 1, generation: 7 };
        let swapped = ExportIdentity { generation: 8, ..before };
        assert!(before.continues(before) && swapped.continues(before) && !before.continues(swapped));
        let adopted = swapped.adopted();
        assert!(adopted.generation > swapped.generation && !adopted.continues(swapped) && !before.continues(adopted));
        assert!(ExportIdentity { generation: adopted.generation + 1, ..adopted }.continues(adopted));
        assert_eq!(
            [7, adopted.generation, adopted.generation + 3].map(|n| MediumNumber(n).to_string()),
            ["7", "1.0", "1.3"]
        );
        assert!(!ExportIdentity { id: 2, ..before }.continues(before));
        assert!(adopted.adopted().generation > adopted.generation + 1);
    }
}
