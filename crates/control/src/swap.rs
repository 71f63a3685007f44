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
    /// The old medium; of a USB device, the port that it was in.
    pub from: String,
    /// The new medium, or the port of the new device.
    pub to: String,
    /// `running`, `done`, or `failed` (then the device is where it was).
    pub state: String,
    /// When it began: RFC 3339, UTC.
    #[serde(default)]
    pub begun: String,
    /// The current step: `beginning`, `copying`, `verifying`, `flushing`, `switching` (writes go to both media) or
    /// `releasing`.
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
    /// The current rate, bytes a second.
    pub bytes_per_s: u64,
    /// Seconds since the swap began.
    pub elapsed_s: f64,
    /// The longest time that the swap delayed a request, milliseconds, measured at the requests from the beginning of
    /// the swap to its end. For a disk: a change waits for the piece that is being copied or compared at that moment,
    /// and for the second medium while both are written; none is held for the switch itself.
    pub quiet_ms: f64,
    /// For a USB device: requests that gave the second device the settings of the first.
    #[serde(default)]
    pub replayed: usize,
    /// For a USB device: requests that waited for data and were submitted to the second device again.
    #[serde(default)]
    pub asked_again: usize,
    /// Of a disk of another host: why that host can still give the old disk to others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Why the swap failed. The device stays as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<FailureReport>,
}
