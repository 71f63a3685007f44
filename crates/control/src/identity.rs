//! The id of a device.

use std::fmt;
use std::str::FromStr;

use farbus_model::ExportIdentity;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Hexadecimal digits of an id.
const DIGITS: usize = 32;
/// The shortest prefix that may stand for an id, digits.
pub const PREFIX_DIGITS_MIN: usize = 6;

/// The id of a device, as in files and for people: 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(u128);

impl DeviceId {
    /// The id that these random bytes make.
    pub fn from_random(bytes: [u8; 16]) -> Self {
        Self(u128::from_le_bytes(bytes).max(1))
    }

    /// The id in an identity.
    pub fn of(identity: ExportIdentity) -> Self {
        Self(identity.id)
    }

    /// The id as a number.
    pub fn number(self) -> u128 {
        self.0
    }

    /// Its prefix, for tables.
    pub fn short(self) -> String {
        self.to_string()[..12].to_owned()
    }

    /// Whether `text` is this id or a prefix of it ([`PREFIX_DIGITS_MIN`] digits at least).
    pub fn begins_with(self, text: &str) -> bool {
        text.len() >= PREFIX_DIGITS_MIN && self.to_string().starts_with(&text.to_ascii_lowercase())
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for DeviceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_hex = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|number| is_hex && *number != 0);
        number.map(Self).ok_or_else(|| format!("'{text}' is no device's id: that has {DIGITS} hexadecimal digits"))
    }
}

impl Serialize for DeviceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DeviceId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
