//! Why attachments end, and what is said of it.

use farbus_control::failure::{Failure, FailureReport};
use farbus_io_net::local::events::{Event, EventKind};
use farbus_session::Reject;
use farbus_session::native::control::{Cause, End, HANDED_OVER};

use crate::importer::client::{Client, FailureKind, Target};

/// Why an attachment ended.
#[derive(Debug)]
pub enum Ended {
    /// Its owner asked for the end.
    Asked,
    /// A local user released it: `usbip detach`, `umount`.
    Released,
    /// The link was lost, or the exporter ended it.
    Lost(String),
    /// The session ended for the reason given.
    Over(FailureReport),
    /// The exporter broke the protocol.
    Broken(Reject),
    /// A replacement process continues it.
    HandedOver,
    /// The device migrated to another host, or waits for it.
    Moved,
    /// Its owner asked for the end, and written data may be lost: which, and why.
    Undurable(String),
}

impl Ended {
    /// Maps the end of a session to the end of its attachment.
    pub fn by(end: &End) -> Self {
        match (end.cause, end.message.as_str()) {
            (Cause::Asked, HANDED_OVER) => Ended::Moved,
            _ => Ended::Over(report_of(end)),
        }
    }

    /// The event that its owner sees.
    pub fn event(&self, target: &Target) -> Event {
        let event = Event::of(EventKind::Detached, target.to_string());
        match self {
            Ended::Asked => event.how("asked"),
            Ended::Released => event.how("released here"),
            Ended::Lost(why) => event.how("link lost").why(why.as_str()),
            Ended::Over(report) => event.how(report.attribute.as_str()).why(report.message.as_str()),
            Ended::Broken(reject) => event.how("cut off").why(reject.to_string()),
            Ended::HandedOver => event.how("goes on in another process"),
            Ended::Moved => event.how("migrated"),
            Ended::Undurable(why) => event.how("asked, and something may be lost").why(why.as_str()),
        }
    }

    /// The failure to report, or `None` if the end was intended. If a link was lost, asks the exporter once more for
    /// the reason, briefly.
    pub fn failure(&self, client: &Client, target: &Target) -> Option<Failure> {
        match self {
            Ended::Asked | Ended::Released | Ended::HandedOver | Ended::Moved | Ended::Undurable(_) => None,
            Ended::Lost(why) => {
                let attribute = client.why_lost(target);
                let what = match attribute {
                    FailureKind::Gone => "the device has left its exporter",
                    FailureKind::Refused => "its exporter ended the session: its owner took it back, or it failed",
                    _ => "the link was lost",
                };
                Some(Failure::new(attribute, format!("{}: {what}: {why}\n  {UNPLUGGED}", target.shown())))
            }
            Ended::Over(report) => Some(over(target, report)),
            Ended::Broken(reject) => {
                let what = format!("{}: cut off, its exporter broke the protocol: {reject}", target.shown());
                Some(Failure::new(FailureKind::Device, what))
            }
        }
    }
}

/// The message for a device whose session or link ended.
const UNPLUGGED: &str = "the device was unplugged here";

/// The failure that reports the end of a session.
pub fn over(target: &Target, FailureReport { attribute, message, limit }: &FailureReport) -> Failure {
    let what = format!("{}: {message}\n  {UNPLUGGED}", target.shown());
    Failure::new(*attribute, what).at_limit(limit.clone())
}

/// The message for a disk that was detached before all writes were durable.
pub fn undurable(what: &str, why: &str) -> String {
    format!("{what} was detached, and something may be lost: {why}")
}

/// Reports why a session ended.
pub fn report_of(end: &End) -> FailureReport {
    let attribute = match end.cause {
        Cause::Device => FailureKind::Device,
        Cause::Network => FailureKind::Network,
        Cause::Gone => FailureKind::Gone,
        Cause::Refused
        | Cause::Busy
        | Cause::Stale
        | Cause::Asked
        | Cause::Class
        | Cause::Module
        | Cause::Reservation => FailureKind::Refused,
    };
    FailureReport { attribute, message: end.message.clone(), limit: end.limit().map(str::to_owned) }
}
