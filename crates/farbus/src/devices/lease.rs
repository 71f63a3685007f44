//! The lease of a device, for people and programs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farbus_io::trust::timestamp;
use farbus_model::Instant;
use farbus_session::claims::bookings::Booking;
use farbus_session::claims::lease::{Lease, NOTICE};
use farbus_session::claims::shortened;
use serde::{Deserialize, Serialize};

/// The lease that a host requested and has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
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
    /// The status of a lease at `now`.
    pub fn of(lease: &Lease, now: Instant) -> Self {
        let left = lease.until - now;
        Self {
            host: lease.who.name().to_owned(),
            state: match left <= NOTICE || lease.is_preempted {
                _ if lease.to_confirm.is_some() => "provisional",
                true => "ending",
                false => "held",
            }
            .to_owned(),
            since_s: (now - lease.since).as_secs_f64(),
            left_s: left.as_secs_f64(),
            until: timestamp(SystemTime::now() + left),
            priority: lease.priority,
            reason: lease.reason.clone(),
            number: lease.number,
            is_yours: false,
        }
    }

    /// The same without what a terminal would obey: another host wrote these texts.
    #[must_use]
    pub fn readable(self) -> Self {
        Self {
            host: shortened(&self.host),
            state: shortened(&self.state),
            until: shortened(&self.until),
            reason: self.reason.as_deref().map(shortened),
            ..self
        }
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.left_s).unwrap_or_default()
    }
}

/// A lease ahead of time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
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

impl BookedStatus {
    /// The status of a booking.
    pub fn of(booking: &Booking) -> Self {
        let time = |ms| timestamp(UNIX_EPOCH + Duration::from_millis(ms));
        Self {
            host: booking.who.name().to_owned(),
            from: time(booking.from_ms),
            until: time(booking.until_ms()),
            reason: booking.reason.clone(),
        }
    }

    /// The same without what a terminal would obey: another host wrote these texts.
    #[must_use]
    pub fn readable(self) -> Self {
        Self {
            host: shortened(&self.host),
            from: shortened(&self.from),
            until: shortened(&self.until),
            reason: self.reason.as_deref().map(shortened),
        }
    }
}

/// The answer to what was asked about a lease.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

impl LeaseAnswer {
    /// The same without what a terminal would obey: another host wrote these texts.
    #[must_use]
    pub fn readable(self) -> Self {
        Self {
            device: shortened(&self.device),
            state: shortened(&self.state),
            lease: self.lease.map(LeaseStatus::readable),
            user: self.user.as_deref().map(shortened),
            ..self
        }
    }
}
