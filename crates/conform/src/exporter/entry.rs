//! A check as a row of a table.

use super::subject::Subject;
use crate::check::Seen;
pub(super) use crate::check::{must, not_applicable, should};

/// What tries a check.
pub(super) type Run = fn(&mut Subject<'_>) -> Seen;
/// A check of an exporter.
pub(super) type Entry = crate::check::Entry<Run>;
