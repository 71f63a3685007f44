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
    /// `held`; `ending` in the last 60 s; `provisional` while its host asks for other devices, too, and has not
    /// confirmed it.
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
    /// What the device is needed for, in the words of who leased it; absent if they gave none.
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
    /// When it ends: RFC 3339, UTC, by the exporter's clock.
    pub until: String,
    /// What the device is needed for, in the words of who booked it; absent if they gave none.
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
    /// Who uses the device without a lease for a time, if that is why the request waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The place in the queue, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
    /// The present lease or use ends then at the latest, seconds from now; absent if it has no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_in_s: Option<f64>,
    /// Of an answer to `request` and `confirm`: whether this question changed anything. An earlier release does not
    /// say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_new: Option<bool>,
}

/// What to do about the lease of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum LeaseAct {
    /// Requests the lease: `held`, or `waiting` with `place` from 1. Repeat it each second to keep the place, which is
    /// lost after 10 s.
    Request {
        /// For how long, seconds.
        for_s: u64,
        /// The priority, 0 to 9; 0 is everyone's.
        #[serde(default, skip_serializing_if = "is_zero")]
        priority: u8,
        /// What the device is needed for, as others are shown it; absent if there is nothing to say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// Whether to wait in the queue. If not, the request is refused if the device is not free.
        #[serde(default)]
        waits: bool,
        /// Whether the lease ends after 10 s unless it is confirmed. Such a lease has no number, outlives no restart of
        /// the exporter, and takes the device from nobody when it ends. It is for a host that asks for several devices.
        /// An earlier release passes over it, and grants the whole time.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        provisional: bool,
    },
    /// A provisional lease lasts from now for as long as it was requested; one that is confirmed stays as it is.
    Confirm,
    /// Books the lease ahead of time: `booked`. Refused if it overlaps another booking or the present lease of another
    /// host.
    Book {
        /// When it begins, by the exporter's clock: milliseconds of Unix time.
        from_unix_ms: u64,
        /// For how long, seconds.
        for_s: u64,
        /// What the device is needed for, as others are shown it; absent if there is nothing to say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Leaves the queue: `withdrawn`.
    Withdraw,
    /// Moves the end of the lease to a time from now, if that is later.
    Extend {
        /// For how long from now, seconds.
        for_s: u64,
    },
    /// Gives the rest of the lease to another host: `given`.
    Give {
        /// The key of that host.
        to: String,
    },
    /// Ends the lease: `released`. A host without one gives up its bookings of the device.
    Release {
        /// Whether to end it even while its holder has the device attached.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        force: bool,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(priority: &u8) -> bool {
    *priority == 0
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Acts, as they are sent.
    pub(crate) const ACTS: [&str; 10] = [
        r#"{"do":"request","for_s":7200,"waits":true}"#,
        r#"{"do":"request","for_s":60,"priority":3,"reason":"nightly","waits":false}"#,
        r#"{"do":"request","for_s":60,"waits":false,"provisional":true}"#,
        r#"{"do":"confirm"}"#,
        r#"{"do":"book","from_unix_ms":1795000000000,"for_s":60}"#,
        r#"{"do":"withdraw"}"#,
        r#"{"do":"extend","for_s":60}"#,
        r#"{"do":"give","to":"abc"}"#,
        r#"{"do":"release"}"#,
        r#"{"do":"release","force":true}"#,
    ];

    #[test]
    fn acts_are_stable_json() {
        for text in ACTS {
            let act: LeaseAct = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&act).unwrap(), text);
        }
    }
}
