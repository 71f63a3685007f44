//! What a run is told.

use std::time::Duration;

/// What a run is told.
#[derive(Clone, Debug)]
pub struct ConformanceSettings {
    /// The device to use, by its bus id (or by its name, in a session); without, the first of the exporter's list.
    pub bus_id: Option<String>,
    /// How long an answer may take.
    pub patience: Duration,
    /// How long nothing has to come until it counts as nothing.
    pub quiet: Duration,
    /// Run only these checks; empty: all.
    pub only: Vec<String>,
}

impl ConformanceSettings {
    /// All checks, with a first device, and an answer in `patience`.
    pub fn new(patience: Duration) -> Self {
        let quiet = (patience / 10).clamp(Duration::from_millis(50), Duration::from_millis(500));
        Self { bus_id: None, patience, quiet, only: Vec::new() }
    }
}
