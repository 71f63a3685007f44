//! What a check of `farbus doctor` finds.

use serde::Serialize;

/// Whether this machine can do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CapabilityState {
    /// This machine can do it without a known limit.
    Ok,
    /// It can, with a limit that may matter.
    Limited,
    /// This machine cannot do it until what is missing is there.
    Missing,
}

/// What a check found.
#[derive(Clone, Debug, Serialize)]
pub struct CheckFinding {
    /// Whether it can.
    pub state: CapabilityState,
    /// What was found, in a sentence.
    pub found: String,
    /// What to type or do, if something is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl CheckFinding {
    pub fn ok(found: impl Into<String>) -> Self {
        Self { state: CapabilityState::Ok, found: found.into(), next: None }
    }

    pub fn limited(found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: CapabilityState::Limited, found: found.into(), next: Some(next.into()) }
    }

    pub fn missing(found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: CapabilityState::Missing, found: found.into(), next: Some(next.into()) }
    }
}

/// A check, by the name that `--require` takes.
pub struct DoctorCheck {
    /// The word by which `--require` names the check.
    pub name: &'static str,
    /// What it is needed for.
    pub needed_for: &'static str,
    /// Checks this machine now. It changes nothing.
    pub look: fn() -> CheckFinding,
}
