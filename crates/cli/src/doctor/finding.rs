//! What a check of `farbus doctor` finds.

use serde::Serialize;

/// Whether this machine can do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It can.
    Ok,
    /// It can, with a limit that may matter.
    Limited,
    /// It cannot.
    Missing,
}

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Whether it can.
    pub state: State,
    /// What was found, in a sentence.
    pub found: String,
    /// What to type or do, if something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Finding {
    pub fn ok(found: impl Into<String>) -> Self {
        Self { state: State::Ok, found: found.into(), next: None }
    }

    pub fn limited(found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: State::Limited, found: found.into(), next: Some(next.into()) }
    }

    pub fn missing(found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: State::Missing, found: found.into(), next: Some(next.into()) }
    }
}

/// A check, by the name that `--require` takes.
pub struct Check {
    /// The name.
    pub name: &'static str,
    /// What it is needed for.
    pub needed_for: &'static str,
    /// Looks.
    pub look: fn() -> Finding,
}
