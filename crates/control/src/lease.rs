//! Leases of a device, and what is answered about them.

use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The lease that a host requested and has.
#[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct LeaseStatus {
    /// The host, by its name at the exporter.
    pub host: String,
    /// `held`, or `ending` in its last minute; `provisional` while its host asks for others, too.
    pub state: String,
    /// For how long it has been held, seconds.
    pub since_s: f64,
    /// How much is left, seconds.
    pub left_s: f64,
    /// When it ends: RFC 3339, UTC, by the exporter's clock.
    pub until: String,
    /// The priority of the request.
    #[serde(default)]
    pub priority: u8,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its fencing number.
    #[serde(default)]
    pub number: u64,
    /// Whether the host that asks has it.
    #[serde(default)]
    pub is_yours: bool,
}

impl LeaseStatus {
    /// What is left of it.
    pub fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.left_s).unwrap_or_default()
    }
}

/// A lease ahead of time.
#[derive(Default, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct BookedStatus {
    /// The host, by its name at the exporter.
    pub host: String,
    /// When it begins: RFC 3339, UTC, by the exporter's clock.
    pub from: String,
    /// When it ends.
    pub until: String,
    /// What for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to what was asked about a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct LeaseAnswer {
    /// The device, by its name at the exporter.
    pub device: String,
    /// `held`, `booked`, `waiting`, `released`, `given` or `withdrawn`.
    pub state: String,
    /// The present lease, of any host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<LeaseStatus>,
    /// Who uses the device without such a lease, if that is why the request waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The place in the queue, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
    /// How long until the present lease or use ends at the latest, seconds, if it has an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_s: Option<f64>,
    /// Whether the lease was granted, or confirmed, by this question; `None` if it asked for neither, or an earlier
    /// release answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_new: Option<bool>,
}
