//! A check as a row of a table.

use super::subject::Subject;
use crate::check::{Check, Seen, Severity, Stop};

/// A check and the function that tries it.
pub(super) struct Entry {
    pub check: Check,
    pub run: fn(&mut Subject<'_>) -> Seen,
}

pub(super) const fn must(id: &'static str, claim: &'static str, source: &'static str, run: Run) -> Entry {
    Entry { check: Check { id, claim, source, severity: Severity::Must }, run }
}

pub(super) const fn should(id: &'static str, claim: &'static str, source: &'static str, run: Run) -> Entry {
    Entry { check: Check { id, claim, source, severity: Severity::Should }, run }
}

pub(super) type Run = fn(&mut Subject<'_>) -> Seen;

/// A check that the device cannot show.
pub(super) fn not_applicable(why: impl Into<String>) -> Stop {
    Stop::not_applicable(why)
}
