//! The keys in etcd.
//!
//! | key | value |
//! |---|---|
//! | `/farbus/format` | the number of this layout, in decimal digits |
//! | `/farbus/1/HOST` | a [`HostRecord`](crate::record::HostRecord) |
//! | `/farbus/1/HOST/DEVICE` | a [`DeviceRecord`](crate::record::DeviceRecord) |
//! | `/farbus/1/limit/HOST` | a [`LimitRecord`](crate::record::LimitRecord) of the leases that HOST may have |
//!
//! HOST is the fingerprint of the host's key, DEVICE the name of the device there. All keys of a host are under one
//! lease of etcd, so they go when the host does; a limit stays. An earlier release passes over limits. A layout that
//! differs gets another number, and other keys.

use std::fmt;

use crate::trouble::{DirectoryFailure, DirectoryFailureKind};

/// The number of this layout.
pub const FORMAT: &str = "1";
/// The key of the layout's number.
pub const FORMAT_KEY: &str = "/farbus/format";
/// Before the keys of all hosts.
const PREFIX: &str = "/farbus/1/";
/// In place of a host, before the keys of limits: it is no fingerprint.
const LIMIT: &str = "limit";
/// The length of a fingerprint in letters.
const HOST_BYTES: usize = 52;
/// The longest name of a device, bytes: as long as a record of USB/IP has room for.
pub const DEVICE_BYTES_MAX: usize = 64;

/// A host, by the fingerprint of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(String);

impl HostId {
    /// The host with this fingerprint; `None` if the text is none.
    pub fn new(text: &str) -> Option<Self> {
        let is_letter = |byte: u8| matches!(byte, b'a'..=b'z' | b'2'..=b'7');
        (text.len() == HOST_BYTES && text.bytes().all(is_letter)).then(|| Self(text.to_owned()))
    }

    /// The fingerprint, 52 letters of base 32.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a key is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DirectoryKey {
    /// A host's own key.
    Host(HostId),
    /// A device of a host, by its name there.
    Device(HostId, String),
    /// The limits of the leases of a host.
    Limit(HostId),
}

impl DirectoryKey {
    /// The host that it says something of.
    pub fn host(&self) -> &HostId {
        match self {
            DirectoryKey::Host(host) | DirectoryKey::Device(host, _) | DirectoryKey::Limit(host) => host,
        }
    }

    /// Reads a key; `None` if this layout has no such key.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let rest = std::str::from_utf8(bytes).ok()?.strip_prefix(PREFIX)?;
        match rest.split_once('/') {
            None => HostId::new(rest).map(DirectoryKey::Host),
            Some((LIMIT, host)) => HostId::new(host).map(DirectoryKey::Limit),
            Some((host, device)) => HostId::new(host)
                .filter(|_| is_device_name(device))
                .map(|host| DirectoryKey::Device(host, device.to_owned())),
        }
    }
}

impl fmt::Display for DirectoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectoryKey::Host(host) => write!(f, "{PREFIX}{host}"),
            DirectoryKey::Device(host, device) => write!(f, "{PREFIX}{host}/{device}"),
            DirectoryKey::Limit(host) => write!(f, "{PREFIX}{LIMIT}/{host}"),
        }
    }
}

/// Whether a device may have this name in the directory.
pub fn is_device_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=DEVICE_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// Checks the layout's number.
///
/// # Errors
/// [`DirectoryFailureKind::OtherFormat`]: it is another release's.
pub(crate) fn check_format(value: &[u8]) -> Result<(), DirectoryFailure> {
    if value == FORMAT.as_bytes() {
        return Ok(());
    }
    let found = String::from_utf8_lossy(&value[..value.len().min(16)]).escape_debug().to_string();
    let message = format!("the directory is in format '{found}', and this release of farbus knows format {FORMAT}");
    Err(DirectoryFailure::new(DirectoryFailureKind::OtherFormat, message))
}

/// A range of keys: from the first, and before the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key: any bytes, for it may follow one that others wrote.
    pub from: Vec<u8>,
    /// The first key behind it; empty: `from` alone.
    pub to: String,
}

impl KeyRange {
    /// The number of the layout.
    pub fn format() -> Self {
        Self { from: FORMAT_KEY.into(), to: String::new() }
    }

    /// The keys of all hosts.
    pub fn everything() -> Self {
        // '0' is what follows '/'.
        Self { from: PREFIX.into(), to: format!("{}0", &PREFIX[..PREFIX.len() - 1]) }
    }

    /// The range that holds `key` alone.
    pub fn of_key(key: &DirectoryKey) -> Self {
        Self { from: key.to_string().into(), to: String::new() }
    }

    /// The keys of one host: itself, and its devices.
    pub fn of_host(host: &HostId) -> Self {
        Self { from: format!("{PREFIX}{host}").into(), to: format!("{PREFIX}{host}0") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written_and_others_are_none() {
        let host = HostId::new(&"a".repeat(52)).unwrap();
        for key in [DirectoryKey::Host(host.clone()), DirectoryKey::Device(host.clone(), "board-2.a".to_owned())] {
            let text = key.to_string();
            let KeyRange { from, to } = KeyRange::of_host(&host);
            assert!(from.as_slice() <= text.as_bytes() && text < to, "{text}");
            let KeyRange { from, to } = KeyRange::everything();
            assert!(from.as_slice() <= text.as_bytes() && text < to, "{text}");
            assert_eq!(DirectoryKey::parse(text.as_bytes()), Some(key));
        }
        let limit = DirectoryKey::Limit(host.clone());
        let text = limit.to_string();
        let KeyRange { from, to } = KeyRange::everything();
        assert!(from.as_slice() <= text.as_bytes() && text < to, "limits are followed, too: {text}");
        assert_eq!(DirectoryKey::parse(text.as_bytes()), Some(limit));
        let host = host.as_str();
        for wrong in [
            "/farbus/1/limit".to_owned(),
            "/farbus/1/limit/".to_owned(),
            "/farbus/1/limit/desk".to_owned(),
            format!("/farbus/1/limit/{host}/x"),
            format!("/farbus/1/limits/{host}"),
            String::new(),
            "/farbus/1/".to_owned(),
            format!("/farbus/2/{host}"),
            format!("/farbus/1/{host}/"),
            format!("/farbus/1/{host}/a/b"),
            format!("/farbus/1/{host}/\u{1b}[2J"),
            format!("/farbus/1/{host}/{}", "x".repeat(65)),
            format!("/farbus/1/{}/x", &host[1..]),
            format!("/farbus/1/{}/x", host.to_uppercase()),
        ] {
            assert_eq!(DirectoryKey::parse(wrong.as_bytes()), None, "{wrong:?}");
        }
        assert_eq!(DirectoryKey::parse(b"/farbus/1/\xff"), None);
    }
}
