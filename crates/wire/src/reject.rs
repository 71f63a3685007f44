//! Why a peer's bytes were refused, in every protocol.

use core::fmt;

/// Why a peer's bytes were refused. The connection ends: after a broken frame the next one cannot be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtocolViolation {
    /// The name of the refused field, for messages and logs.
    pub field: &'static str,
    /// The field's value.
    pub value: u64,
    /// The rule that was broken.
    pub rule: &'static str,
}

impl ProtocolViolation {
    /// Makes a refusal.
    pub const fn new(field: &'static str, value: u64, rule: &'static str) -> Self {
        Self { field, value, rule }
    }
}

impl fmt::Display for ProtocolViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer sent {} = {} ({:#x}), but {}", self.field, self.value, self.value, self.rule)
    }
}

impl std::error::Error for ProtocolViolation {}
