//! What happens in a process, as `farbus events` shows it.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The longest text of an event, bytes; a longer one is cut off. Other hosts write some of these texts.
const TEXT_BYTES_MAX: usize = 512;

/// What happened. A later release adds kinds: pass over one that you do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A device is offered to others. Fields: `device`.
    Shared,
    /// A device is offered no more. Fields: `device`.
    Unshared,
    /// A host uses a device of this one. Fields: `device`, `host`.
    Used,
    /// A host observes a device of this one that another host uses. Fields: `device`, `host`.
    Observed,
    /// A host does not use a device of this one any more. Fields: `device`, `host`, `how`: as `ended` in the history.
    Released,
    /// A host was refused a device of this one. At most 10 in 10 s are kept; `count` of the next one says how many more
    /// there were. Fields: `device`, `host`, `why`, `count`.
    Refused,
    /// A device of another host is attached here. Fields: `device` (`HOST:PORT/DEVICE`), `how`: where it appears.
    Attached,
    /// A device of another host is not attached here any more. Fields: `device`, `how`, `why`.
    Detached,
    /// A device of another host cannot be attached; the daemon tries again. Fields: `device`, `how` (the attribute),
    /// `why`.
    Failed,
    /// A session lost its first link; it waits for a new one. Fields: `host`, `how`, `why`.
    LinkLost,
    /// A session has its first link again. Fields: `host`, `how`, `why`.
    LinkBack,
    /// The exporter keeps a reservation again. Fields: `host`.
    Admitted,
    /// The exporter does not keep a reservation for now. Fields: `host`.
    Suspended,
    /// A disk begins to move to another medium. Fields: `device`, `how`: the new medium.
    SwapBegun,
    /// The move of a disk has ended. Fields: `device`, `how` (`done` or `failed`), `why`.
    SwapEnded,
    /// A host has a lease of a device of this one for a time. Fields: `device`, `host`, `how`: until when, `why`: what
    /// for.
    Leased,
    /// 60 s are left of the lease of the user of a device of this one. Fields: `device`, `host`, `how`.
    LeaseEnding,
    /// A lease of a device of this one is over. Fields: `device`, `host`, `how`.
    LeaseEnded,
    /// What was written to a device is lost: it did not arrive at its exporter. Or it may be: it is not durable there.
    /// Fields: `host`, `how`, `why`.
    Unwritten,
    /// A process has ended. `farbus events` adds this; no process answers it. Fields: `how`.
    Ended,
    /// A kind that this release does not know.
    #[serde(other)]
    #[cfg_attr(feature = "schema", schemars(skip))]
    Other,
}

impl EventKind {
    /// The word in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            EventKind::Shared => "shared",
            EventKind::Unshared => "unshared",
            EventKind::Used => "used",
            EventKind::Observed => "observed",
            EventKind::Released => "released",
            EventKind::Refused => "refused",
            EventKind::Attached => "attached",
            EventKind::Detached => "detached",
            EventKind::Failed => "failed",
            EventKind::LinkLost => "link-lost",
            EventKind::LinkBack => "link-back",
            EventKind::Admitted => "admitted",
            EventKind::Suspended => "suspended",
            EventKind::SwapBegun => "swap-begun",
            EventKind::SwapEnded => "swap-ended",
            EventKind::Leased => "leased",
            EventKind::LeaseEnding => "lease-ending",
            EventKind::LeaseEnded => "lease-ended",
            EventKind::Unwritten => "unwritten",
            EventKind::Ended => "ended",
            EventKind::Other => "other",
        }
    }
}

/// An event of a process, as `farbus events --json` prints it, one a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Event {
    /// Its number in its process; the first is 1.
    #[serde(default)]
    pub number: u64,
    /// When it happened: RFC 3339, UTC, milliseconds.
    #[serde(default)]
    pub at: String,
    /// What happened, in a word.
    pub event: EventKind,
    /// The device: its name on this host, or `HOST:PORT/DEVICE` on another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The other host, as people write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How: for example how a use ended, or where a device appears.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// The reason, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// How many events of this kind before it were counted only.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub count: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Event {
    /// An event without details.
    pub fn new(event: EventKind) -> Self {
        Self { number: 0, at: String::new(), event, device: None, host: None, how: None, why: None, count: 0 }
    }

    /// An event of a device.
    pub fn of(event: EventKind, device: impl Into<String>) -> Self {
        Self { device: Some(short(device)), ..Self::new(event) }
    }

    /// Adds the other host.
    #[must_use]
    pub fn host(self, host: impl Into<String>) -> Self {
        Self { host: Some(short(host)), ..self }
    }

    /// Adds how it happened.
    #[must_use]
    pub fn how(self, how: impl Into<String>) -> Self {
        Self { how: Some(short(how)), ..self }
    }

    /// Adds the reason.
    #[must_use]
    pub fn why(self, why: impl Into<String>) -> Self {
        Self { why: Some(short(why)), ..self }
    }
}

fn short(text: impl Into<String>) -> String {
    let mut text = text.into();
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// What a process answers about its events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "Events"))]
pub struct LatestEvents {
    /// The number of the latest event, to ask for those that follow; 0 if there was none.
    pub last: u64,
    /// How many events that were asked for are not kept any more: a process keeps the latest 256.
    #[serde(default)]
    pub missed: u64,
    /// The events that were asked for, the earliest first.
    pub events: Vec<Event>,
}
