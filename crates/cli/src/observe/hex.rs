//! Bytes in hexadecimal.

use std::fmt::Write as _;

/// The digits of each byte, with this text between two bytes.
pub fn hex(bytes: &[u8], between: &str) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        let between = if at > 0 { between } else { "" };
        // Writing to memory does not fail.
        let _ = write!(text, "{between}{byte:02x}");
    }
    text
}
