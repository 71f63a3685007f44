//! Names of hosts.

use std::fmt;

/// The longest name: that of a DNS label (RFC 1035 §2.3.4).
const LETTERS_MAX: usize = 63;

/// The text is not valid as a host's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostNameFormatError;

impl fmt::Display for HostNameFormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a host's name has 1 to 63 of the characters a-z, 0-9 and '-', and begins and ends with a letter or digit",
        )
    }
}

impl std::error::Error for HostNameFormatError {}

/// Parses `text` as a name, in lower case. The text may come from an unknown peer, and names are shown on terminals and
/// written to files.
///
/// # Errors
/// [`HostNameFormatError`].
pub fn name_from(text: &str) -> Result<String, HostNameFormatError> {
    let name = text.to_ascii_lowercase();
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_name = (1..=LETTERS_MAX).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_name { Ok(name) } else { Err(HostNameFormatError) }
}

/// The name that this host gives to hosts it pairs with: `FARBUS_NAME`, else the first label of its host name.
pub fn host_name() -> String {
    let configured = std::env::var("FARBUS_NAME").ok().and_then(|name| name_from(&name).ok());
    let of_system = || {
        let system = rustix::system::uname();
        let text = system.nodename().to_string_lossy().into_owned();
        name_from(text.split('.').next().unwrap_or_default()).ok()
    };
    configured.or_else(of_system).unwrap_or_else(|| "farbus".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_host_names_without_control_characters() {
        assert_eq!(name_from("Lab3"), Ok("lab3".into()));
        for wrong in ["", "-a", "a-", "a b", "a/b", "\u{1b}[2J", "ä", &"a".repeat(64), "a.b"] {
            assert_eq!(name_from(wrong), Err(HostNameFormatError), "{wrong:?}");
        }
        assert!(name_from(&host_name()).is_ok());
    }
}
