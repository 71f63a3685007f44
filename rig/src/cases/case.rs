//! What a case is.

use crate::lab::Lab;
use crate::{Error, Result};

/// One proof. It returns a short note for the reader (a measured time, a count) when it holds.
pub struct Case {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it proves, in one line.
    pub purpose: &'static str,
    /// The proof.
    pub run: fn(&Lab) -> Result<String>,
}

/// Turns a condition that does not hold into the case's failure.
pub(super) fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Expectation(otherwise())) }
}
