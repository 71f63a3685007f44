//! A check as a row of a table.

use super::subject::ExporterSubject;
use crate::check::CheckOutcome;
pub(super) use crate::check::{must, not_applicable, should};

/// What tries a check.
pub(super) type ExporterCheckFn = fn(&mut ExporterSubject<'_>) -> CheckOutcome;
/// A check of an exporter.
pub(super) type ExporterCheck = crate::check::CheckEntry<ExporterCheckFn>;
