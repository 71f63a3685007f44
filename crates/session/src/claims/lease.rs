//! Leases: who has a device, until when, and who has it next (requirement X9).
//!
//! Every use of a device is under a lease. A host that attaches a device takes one without being asked: it lasts as
//! long as the use, and has no end of its own. A host that *requests* a lease has the device for a time, whether it
//! uses it or not, and as often as it likes. The verbs are methods of [`Claims`](super::DeviceClaims):
//!
//! | verb | who may | effect |
//! |---|---|---|
//! | `request` | any host | the lease, or a place in the queue; asking again is how a host goes on waiting |
//! | `confirm` | the holder of a provisional lease ([`several`](super::several)) | the lease that it requested begins |
//! | `extend` | the holder, while nobody waits | a later end |
//! | `give` | the holder, while it does not use the device | another host has the rest of the time |
//! | `give_up` | the holder | the next host in the queue gets the device |
//! | `book` | any host | the lease, from a time of day on ([`bookings`](super::bookings)) |
//! | `withdraw` | a host that waits | it leaves the queue |
//! | `preempt` | a request of a higher priority, the owner | the lease, or the use, ends after the notice that the exporter gives, [`NOTICE`] unless said otherwise |
//!
//! `advance` says what is due: the warning of the holder, [`NOTICE`] before the end, and the end. From the moment of
//! its end a lease gives no right, however late `advance` is called. What a user still has open then is ended by the
//! caller, and until it is, nobody else gets the device.
//!
//! Time is an argument, from a clock that advances while the machine sleeps. Nothing but `extend` moves an end to a
//! later time: not a lost link, not its grace period, not a request that is repeated.

use std::fmt;
use std::time::Duration;

use farbus_model::Instant;

use super::uses::{QUEUE_MAX, UseEnding, host_of};

/// How long before the end of a lease its holder is warned.
pub const NOTICE: Duration = Duration::from_secs(60);
/// The shortest time of a lease.
pub const SPAN_MIN: Duration = Duration::from_secs(1);
/// The longest time of a lease: 30 days.
pub const SPAN_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long a request waits without being repeated. A request comes on a link of its own, so it is given more time than
/// an attach that waits.
pub const REQUEST_PATIENCE: Duration = Duration::from_secs(10);
/// The highest priority of a request; 0 is that of everyone, and of an attach.
pub const PRIORITY_MAX: u8 = 9;

/// How long a provisional lease lasts, unless it is confirmed.
pub const PROVISIONAL: Duration = Duration::from_secs(10);

/// A host, as leases tell hosts apart: a paired host by its name here, any other by its address. A paired host whose
/// name looks like an address is not the host at that address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseHost {
    pub(super) name: String,
    is_paired: bool,
}

impl LeaseHost {
    /// The host of the peer `who`, as sessions name peers: `NAME (ADDRESS)` is a paired host, `HOST:PORT` any other.
    pub fn of(who: &str) -> Self {
        Self { name: host_of(who).to_owned(), is_paired: who.contains(" (") }
    }

    /// The paired host of this name.
    pub fn paired(name: &str) -> Self {
        Self { name: name.to_owned(), is_paired: true }
    }

    /// Its name or address, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a paired host.
    pub fn is_paired(&self) -> bool {
        self.is_paired
    }
}

/// What a host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The host that asks, and gets the lease.
    pub who: LeaseHost,
    /// For how long, from the moment of the grant; [`SPAN_MIN`] to [`SPAN_MAX`].
    pub span: Duration,
    /// 0 to [`PRIORITY_MAX`]: a higher one comes first in the queue, and preempts a lower one.
    pub priority: u8,
    /// What the host wants the device for, in its user's words; `None` if it did not say.
    pub reason: Option<String>,
    /// Whether it takes a place in the queue if the device is not free.
    pub waits: bool,
    /// Whether the lease lasts [`PROVISIONAL`] at first, until it is confirmed.
    pub is_provisional: bool,
    /// How long a host of a lower priority keeps the device at most, once this request is the first in the queue:
    /// [`NOTICE`] unless the exporter's owner said otherwise.
    pub notice: Duration,
}

/// A lease that a host requested, and has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The host that has the lease.
    pub who: LeaseHost,
    /// When it began.
    pub since: Instant,
    /// When it ends.
    pub until: Instant,
    /// The priority of the request.
    pub priority: u8,
    /// What the host wants the device for, in its user's words; `None` if it did not say.
    pub reason: Option<String>,
    /// Its fencing number: higher than that of every use before it; 0 until the exporter has set it.
    pub number: u64,
    /// Whether it ends early, for a host of a higher priority or the owner.
    pub is_preempted: bool,
    /// For how long it was requested, if it is provisional and not confirmed. Such a lease has no number, is not
    /// stored, and takes the device from nobody when it ends.
    pub to_confirm: Option<Duration>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// The host has the lease. `is_new`: since this request.
    Granted {
        /// Whether it was granted now.
        is_new: bool,
    },
    /// The host waits.
    Waits {
        /// Its place in the queue, from 1.
        position: usize,
        /// When the present lease ends, if it has an end. The next in the queue gets the device then at the latest.
        until: Option<Instant>,
    },
}

/// Why a lease is not changed or not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseRefusal {
    /// The span is shorter than [`SPAN_MIN`] or longer than [`SPAN_MAX`].
    Span,
    /// The priority is higher than [`PRIORITY_MAX`].
    Priority,
    /// Another host has the device, and the request does not wait.
    Taken {
        /// That host, or the one that waits longest.
        by: String,
        /// When its lease ends, if it has an end.
        until: Option<Instant>,
    },
    /// So many hosts wait already that no more may.
    QueueFull,
    /// The owner keeps the host out for so long.
    KeptOut(Duration),
    /// The host has no lease of the device.
    NotHeld,
    /// So many hosts wait for the device: a lease is extended only while nobody does.
    OthersWait(usize),
    /// The lease ends early and cannot be extended.
    Preempted,
    /// The host uses the device.
    InUse,
    /// Another host has booked the device, and has it in so long.
    Booked {
        /// The name of the host that has booked the device.
        by: String,
        /// How long until then.
        within: Duration,
    },
    /// The lease is provisional: it is confirmed, or it ends.
    Provisional,
}

impl fmt::Display for LeaseRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span => f.write_str("a lease is for 1 s to 30 days"),
            Self::Priority => write!(f, "a priority is 0 to {PRIORITY_MAX}"),
            Self::Taken { by, .. } => write!(f, "{by} has it"),
            Self::QueueFull => write!(f, "{QUEUE_MAX} hosts wait for it already"),
            Self::KeptOut(left) => {
                write!(f, "its owner keeps this host out for another {} s", left.as_secs_f64().ceil())
            }
            Self::NotHeld => f.write_str("this host has no lease of it"),
            Self::OthersWait(1) => f.write_str("another host waits for it: the lease ends when it was to end"),
            Self::OthersWait(count) => write!(f, "{count} hosts wait for it: the lease ends when it was to end"),
            Self::Preempted => f.write_str("the lease ends early, for its owner or a host of a higher priority"),
            Self::Booked { by, within } => {
                write!(f, "{by} has booked it, and has it in {} s: a lease until then is possible", within.as_secs())
            }
            Self::Provisional => {
                f.write_str("the lease is not confirmed yet: this host asks for several devices at once")
            }
            Self::InUse => f.write_str("this host has it attached"),
        }
    }
}

/// What is due ([`Claims::advance`](super::DeviceClaims::advance)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEvent {
    /// The users of the device are to be warned: their lease ends in so long.
    Warn(Duration),
    /// A booking has begun: it is a lease now, or the lease of its host was prolonged by it.
    Begin,
    /// A provisional lease was not confirmed. The user of the device goes on.
    Lapse,
    /// The lease has ended in this way. Its users are to be fenced off.
    End(UseEnding),
}
