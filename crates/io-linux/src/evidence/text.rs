//! Evidence as text.

use std::fmt::Write as _;

/// The longest evidence, bytes: a backing file's handle and a few names.
const TEXT_BYTES_MAX: usize = 1024;

/// What distinguishes one device from all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceEvidence {
    /// One line of printable ASCII.
    pub text: String,
    /// Whether it stays the same when this machine restarts. Otherwise it is valid while this process lives.
    pub is_stable: bool,
}

impl DeviceEvidence {
    pub(super) fn stable(text: &str) -> Self {
        Self { text: printable(text), is_stable: text.len() <= TEXT_BYTES_MAX }
    }

    pub(super) fn passing(text: &str) -> Self {
        Self { text: printable(text), is_stable: false }
    }
}

/// Makes one line of printable ASCII of text that hardware may have made up.
fn printable(text: &str) -> String {
    let plain = text.chars().flat_map(|c| {
        let is_plain = c.is_ascii_graphic() || c == ' ';
        is_plain.then_some(c).into_iter().chain((!is_plain).then(|| c.escape_unicode()).into_iter().flatten())
    });
    plain.take(TEXT_BYTES_MAX).collect()
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_hardware_becomes_one_printable_line() {
        let evidence = DeviceEvidence::stable("a\u{1b}[2J\nb\u{e4}");
        assert_eq!((evidence.text.as_str(), evidence.is_stable), ("a\\u{1b}[2J\\u{a}b\\u{e4}", true));
        let long = DeviceEvidence::stable(&"x".repeat(TEXT_BYTES_MAX + 1));
        assert_eq!((long.text.len(), long.is_stable), (TEXT_BYTES_MAX, false), "cut short it may be another's");
    }
}
