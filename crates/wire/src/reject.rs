//! Why a peer's bytes were refused, in every tongue.

use core::fmt;

/// Why a peer's bytes were refused. The connection ends: behind a broken frame nothing can be found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Which field.
    pub field: &'static str,
    /// What it held.
    pub value: u64,
    /// The rule that does not hold.
    pub rule: &'static str,
}

impl Reject {
    /// A refusal.
    pub const fn new(field: &'static str, value: u64, rule: &'static str) -> Self {
        Self { field, value, rule }
    }
}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the peer sent {} = {} ({:#x}), but {}", self.field, self.value, self.value, self.rule)
    }
}

impl std::error::Error for Reject {}
