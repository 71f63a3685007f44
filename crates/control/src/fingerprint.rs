//! Fingerprints of keys.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// SHA-256 of an Ed25519 public key's SubjectPublicKeyInfo (RFC 8410). It identifies a host for people and in files,
/// written as 52 letters and digits (base 32 of RFC 4648, lower case, no padding).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

/// The text is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAFingerprint;

impl fmt::Display for NotAFingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fingerprint has 52 letters and digits, as 'farbus id' prints it")
    }
}

impl std::error::Error for NotAFingerprint {}

const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const LETTERS: usize = 52;

impl Fingerprint {
    /// The fingerprint with this hash.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The SHA-256 hash of the public key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Its first characters, for a line of a text that contains the whole fingerprint elsewhere.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bit = |at: usize| self.0.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
        let text: String = (0..LETTERS)
            .map(|letter| (0..5).fold(0, |value, at| value << 1 | usize::from(bit(letter * 5 + at))))
            .map(|value| char::from(ALPHABET[value]))
            .collect();
        f.pad(&text)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = NotAFingerprint;

    fn from_str(text: &str) -> Result<Self, NotAFingerprint> {
        if text.len() != LETTERS {
            return Err(NotAFingerprint);
        }
        let mut bytes = [0; 32];
        for (letter, byte) in text.bytes().enumerate() {
            let value = ALPHABET.iter().position(|&known| known == byte).ok_or(NotAFingerprint)?;
            for at in 0..5 {
                let bit = letter * 5 + at;
                match bytes.get_mut(bit / 8) {
                    Some(byte) => *byte |= ((value >> (4 - at) & 1) as u8) << (7 - bit % 8),
                    None if value >> (4 - at) & 1 == 0 => {}
                    None => return Err(NotAFingerprint),
                }
            }
        }
        Ok(Self(bytes))
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_reads_back_and_nothing_else_does() {
        let hash = 0xba78_16bf_8f01_cfea_4141_40de_5dae_2223_u128.to_be_bytes();
        let rest = 0xb003_61a3_9617_7a9c_b410_ff61_f200_15ad_u128.to_be_bytes();
        let print = Fingerprint::from_bytes([hash, rest].concat().try_into().unwrap());
        // SHA-256("abc") in base 32.
        assert_eq!(print.to_string(), "xj4bnp4pahh6uqkbidpf3lrceoyagyndsylxvhfucd7wd4qacwwq");
        assert_eq!(print.to_string().parse(), Ok(print));
        let text = print.to_string();
        for wrong in ["", &text[1..], &text.to_uppercase(), &format!("{}1", &text[..51]), &format!("{}r", &text[..51])]
        {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(NotAFingerprint), "{wrong}");
        }
    }
}
