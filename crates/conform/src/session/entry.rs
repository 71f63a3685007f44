//! A check as a row of a table.

use super::subject::SessionSubject;
use crate::check::CheckOutcome;
pub(super) use crate::check::{must, not_applicable, should};

/// What tries a check.
pub(super) type SessionCheckFn = fn(&mut SessionSubject<'_>) -> CheckOutcome;
/// A check of a session.
pub(super) type SessionCheck = crate::check::CheckEntry<SessionCheckFn>;
