//! Sense data: why a command failed (SPC-4 §4.5).

use std::fmt;

/// Sense key and additional sense code with its qualifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenseCode {
    /// Sense key, the class of the error, 0 to 15 (SPC-4 table 43).
    pub key: u8,
    /// Additional sense code.
    pub code: u8,
    /// Additional sense code qualifier.
    pub qualifier: u8,
    /// It belongs to an earlier command, which had been reported as done; this command was not begun.
    pub is_deferred: bool,
}

impl SenseCode {
    /// Reads sense data, fixed format or descriptor format; what is missing reads as "no sense".
    pub fn parse(b: &[u8]) -> Self {
        let at = |index: usize| b.get(index).copied().unwrap_or(0);
        let format = at(0) & 0x7f;
        let is_deferred = format & 1 == 1;
        match format {
            0x70 | 0x71 => Self { key: at(2) & 0x0f, code: at(12), qualifier: at(13), is_deferred },
            0x72 | 0x73 => Self { key: at(1) & 0x0f, code: at(2), qualifier: at(3), is_deferred },
            _ => Self::default(),
        }
    }

    /// Whether the medium only waits to be started (SPC-4: "initializing command required").
    pub(super) fn wants_start(self) -> bool {
        (self.key, self.code, self.qualifier) == (2, 0x04, 0x02)
    }
}

impl fmt::Display for SenseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deferred = if self.is_deferred { ", of an earlier command" } else { "" };
        write!(f, "sense {:x}/{:02x}/{:02x}{deferred}", self.key, self.code, self.qualifier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read_and_rubbish_is_no_sense() {
        let sense = SenseCode { key: 6, code: 0x29, qualifier: 1, is_deferred: false };
        assert_eq!(SenseCode::parse(&[0xf0, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 1]), sense);
        assert_eq!(SenseCode::parse(&[0x72, 6, 0x29, 1]), sense);
        assert_eq!(SenseCode::parse(&[0x73, 6, 0x29, 1]), SenseCode { is_deferred: true, ..sense });
        assert_eq!(SenseCode::parse(&[]), SenseCode::default());
        assert_eq!(SenseCode::parse(&[0x70, 0, 3]), SenseCode { key: 3, ..SenseCode::default() });
    }
}
