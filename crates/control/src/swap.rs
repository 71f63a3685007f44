//! The swap of a medium, or of a device for its twin.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::FailureReport;

/// The status of a swap, as `farbus swap --json` shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct SwapStatus {
    /// The device, by its name.
    pub device: String,
    /// The old medium.
    pub from: String,
    /// The new medium.
    pub to: String,
    /// `running`, `done` or `failed`.
    pub state: String,
    /// When it began: RFC 3339, UTC.
    #[serde(default)]
    pub begun: String,
    /// The current step: `beginning`, `copying`, `verifying`, `flushing`, `switching`, `releasing`.
    pub phase: String,
    /// The number of the current round, from 1. Later rounds copy what has changed.
    pub round: u32,
    /// Size of the medium, bytes.
    pub total_bytes: u64,
    /// Bytes copied, including those copied again.
    pub copied_bytes: u64,
    /// Bytes still to be copied, as far as is known.
    pub left_bytes: u64,
    /// Copied bytes still to be compared.
    pub unverified_bytes: u64,
    /// Recent rate, bytes a second.
    pub bytes_per_s: u64,
    /// Seconds since the swap began.
    pub elapsed_s: f64,
    /// The longest that the swap made a request wait, milliseconds, over all of its phases: for the piece that was
    /// being copied or compared, and for the second medium while both are written.
    pub quiet_ms: f64,
    /// For a USB device: requests that set up the twin as the device had been set up.
    #[serde(default)]
    pub replayed: usize,
    /// For a USB device: requests that waited for data and were submitted to the twin again.
    #[serde(default)]
    pub asked_again: usize,
    /// What its owner has to know although it succeeds: other hosts can still attach the old disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Why the swap failed. The device stays as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureReport>,
}
