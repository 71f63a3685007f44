//! Ids for devices that have no lasting evidence.

use std::fmt;

use farbus_io_net::trust::fill_random;
use ring::digest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Random bytes that only a process and its replacements have; ids are derived from them. A program that knows them can
/// compute which id a device will have, and nothing else.
#[derive(Clone, PartialEq, Eq)]
pub struct ProcessSecret([u8; 32]);

impl ProcessSecret {
    /// A new secret.
    pub fn random() -> Self {
        let mut bytes = [0; 32];
        fill_random(&mut bytes);
        Self(bytes)
    }

    /// The id of what `text` describes: the same for the same text, and never 0.
    pub fn derive(&self, text: &str) -> u128 {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.0);
        context.update(text.as_bytes());
        let mut id = [0; 16];
        id.copy_from_slice(&context.finish().as_ref()[..16]);
        u128::from_le_bytes(id).max(1)
    }
}

/// The id of the device `name` among similar devices: `base` is an id that they have in common.
pub fn derive_from(base: u128, name: &str) -> u128 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&base.to_le_bytes());
    ProcessSecret(bytes).derive(name)
}

impl fmt::Debug for ProcessSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessSecret")
    }
}

impl Serialize for ProcessSecret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&super::text::hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for ProcessSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom("a secret has 64 hexadecimal digits");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * at..][..2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_that_was_passed_on_derives_the_same_ids_and_another_one_others() {
        let secret = ProcessSecret::random();
        let passed: ProcessSecret = serde_json::from_str(&serde_json::to_string(&secret).unwrap()).unwrap();
        assert_eq!(passed.derive("keyboard"), secret.derive("keyboard"));
        assert_ne!(secret.derive("keyboard"), secret.derive("keyboard2"));
        assert_ne!(ProcessSecret::random().derive("keyboard"), secret.derive("keyboard"));
        for wrong in ["\"\"", "\"00\"", &format!("\"{}\"", "x".repeat(64)), &format!("\"{}\"", "\u{e4}".repeat(32))] {
            assert!(serde_json::from_str::<ProcessSecret>(wrong).is_err(), "{wrong}");
        }
    }
}
