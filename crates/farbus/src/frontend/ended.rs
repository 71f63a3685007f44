//! Why attachments end, and what is said of it.

use farbus_control::failure::{CommandFailure, FailureReport};
use farbus_io_net::local::events::{Event, EventKind};
use farbus_session::ProtocolViolation;
use farbus_session::native::control::{AttachmentEndCause, AttachmentEndNotice, HANDED_OVER};

use crate::importer::client::{DeviceTarget, FailureKind, ImporterClient};

/// Why an attachment ended.
#[derive(Debug)]
pub enum AttachmentEnd {
    /// Its owner asked for the end.
    Requested,
    /// A local user released it: `usbip detach`, `umount`.
    Released,
    /// The link was lost, or the exporter ended it.
    Lost(String),
    /// The session ended for the reason given.
    Over(FailureReport),
    /// The exporter broke the protocol.
    Broken(ProtocolViolation),
    /// A replacement process continues it.
    HandedOver,
    /// The device migrated to another host, or waits for it.
    Moved,
    /// Its owner asked for the end, and written data may be lost: which, and why.
    Undurable(String),
}

impl AttachmentEnd {
    /// Maps the end of a session to the end of its attachment.
    pub fn by(end: &AttachmentEndNotice) -> Self {
        match (end.cause, end.message.as_str()) {
            (AttachmentEndCause::Requested, HANDED_OVER) => AttachmentEnd::Moved,
            _ => AttachmentEnd::Over(report_of(end)),
        }
    }

    /// The event that its owner sees.
    pub fn event(&self, target: &DeviceTarget) -> Event {
        let event = Event::of(EventKind::Detached, target.to_string());
        match self {
            AttachmentEnd::Requested => event.how("asked"),
            AttachmentEnd::Released => event.how("released here"),
            AttachmentEnd::Lost(why) => event.how("link lost").why(why.as_str()),
            AttachmentEnd::Over(report) => event.how(report.attribute.as_str()).why(report.message.as_str()),
            AttachmentEnd::Broken(reject) => event.how("cut off").why(reject.to_string()),
            AttachmentEnd::HandedOver => event.how("goes on in another process"),
            AttachmentEnd::Moved => event.how("migrated"),
            AttachmentEnd::Undurable(why) => event.how("asked, and something may be lost").why(why.as_str()),
        }
    }

    /// The failure to report, or `None` if the end was intended. If a link was lost, asks the exporter once more for
    /// the reason, briefly.
    pub fn failure(&self, client: &ImporterClient, target: &DeviceTarget) -> Option<CommandFailure> {
        match self {
            AttachmentEnd::Requested
            | AttachmentEnd::Released
            | AttachmentEnd::HandedOver
            | AttachmentEnd::Moved
            | AttachmentEnd::Undurable(_) => None,
            AttachmentEnd::Lost(why) => {
                let attribute = client.why_lost(target);
                let what = match attribute {
                    FailureKind::Gone => "the device has left its exporter",
                    FailureKind::Refused => "its exporter ended the session: its owner took it back, or it failed",
                    _ => "the link was lost",
                };
                Some(CommandFailure::new(attribute, format!("{}: {what}: {why}\n  {UNPLUGGED}", target.shown())))
            }
            AttachmentEnd::Over(report) => Some(over(target, report)),
            AttachmentEnd::Broken(reject) => {
                let what = format!("{}: cut off, its exporter broke the protocol: {reject}", target.shown());
                Some(CommandFailure::new(FailureKind::Device, what))
            }
        }
    }
}

/// The message for a device whose session or link ended.
const UNPLUGGED: &str = "the device was unplugged here";

/// The failure that reports the end of a session.
pub fn over(target: &DeviceTarget, FailureReport { attribute, message, limit }: &FailureReport) -> CommandFailure {
    let what = format!("{}: {message}\n  {UNPLUGGED}", target.shown());
    CommandFailure::new(*attribute, what).at_limit(limit.clone())
}

/// The message for a disk that was detached before all writes were durable.
pub fn undurable(what: &str, why: &str) -> String {
    format!("{what} was detached, and something may be lost: {why}")
}

/// Reports why a session ended.
pub fn report_of(end: &AttachmentEndNotice) -> FailureReport {
    let attribute = match end.cause {
        AttachmentEndCause::Device => FailureKind::Device,
        AttachmentEndCause::Network => FailureKind::Network,
        AttachmentEndCause::Gone => FailureKind::Gone,
        AttachmentEndCause::Refused
        | AttachmentEndCause::Busy
        | AttachmentEndCause::Stale
        | AttachmentEndCause::Requested
        | AttachmentEndCause::Class
        | AttachmentEndCause::Module
        | AttachmentEndCause::Reservation => FailureKind::Refused,
    };
    FailureReport { attribute, message: end.message.clone(), limit: end.limit().map(str::to_owned) }
}
