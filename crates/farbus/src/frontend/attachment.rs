//! The contract of all front ends: an attachment reports where it is, is steered by a handle, and runs until it ends.

use std::net::SocketAddr;

use farbus_io::sys::vhci::Port;
use farbus_session::Reject;
use farbus_session::native::control::{Cause, End, HANDED_OVER};
use serde::Serialize;

use super::Handle;
use crate::broker::SystemAccess;
use crate::common::events::{Event, Kind};
use crate::common::failure::{Failure, FailureReport};
use crate::importer::client::{Attribute, Client, ClientError, Target};
use crate::importer::disk::DiskMode;

/// A device of another machine that was taken and can be used here as soon as [`run`](Self::run) is called.
///
/// The command and the daemon know a front end's device only by this trait.
pub trait Attachment: Send {
    /// The facts that stay the same while the attachment runs.
    fn status(&self) -> Status;

    /// Steers the attachment from other threads, before and while it runs.
    fn handle(&self) -> Handle;

    /// Serves the device's local users on this thread until the attachment ends; then gives the device back and removes
    /// what was created for it on this machine. No request to the device is left unanswered.
    fn run(self: Box<Self>) -> Ended;
}

/// An attachment of another process, read from its snapshot. It has not begun to run in this process.
///
/// Dropping it without [`Restored::leave`] or [`Restored::go_on`] may end the device's session while the other process
/// still uses it.
pub trait Restored: Send {
    /// Continues the attachment in this process: the other process has stopped serving it.
    ///
    /// # Errors
    /// [`ClientError::Local`]: this machine no longer has something that the attachment needs. The device is left.
    fn go_on(self: Box<Self>, system: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError>;

    /// Drops the attachment without touching its device: the other process keeps it.
    fn leave(self: Box<Self>);
}

/// What is known about an attachment while it runs.
#[derive(Clone, Debug)]
pub struct Status {
    /// Where it is on this machine: `vhci port 3`, the path of a file, a URI, an address.
    pub at: String,
    /// How it is attached, in a few words. Messages about attachments that a replacement cannot continue use it.
    pub how: &'static str,
    /// How the disk is used, if the device is shown as a disk.
    pub mode: Option<DiskMode>,
    /// The kernel's port that it is plugged into, if any. The kernel cannot suspend while one is in use.
    pub port: Option<Port>,
    /// The local address of the link, which identifies the user to the exporter; `None` in a session, whose links
    /// change.
    pub local_address: Option<SocketAddr>,
    /// What the user who attached it is told.
    pub introduction: Introduction,
}

/// What the user who attached a device is told: where it is, and what can be done with it.
#[derive(Clone, Debug, Default)]
pub struct Introduction {
    /// One line, such as `lab3/disk attached at vhci port 3`.
    pub line: String,
    /// What to type next, if there is something worth telling.
    pub next: Option<String>,
    /// The NBD export, if programs connect by URI.
    pub export: Option<Export>,
}

/// An export of an NBD server, as its clients address it.
#[derive(Clone, Debug, Serialize)]
pub struct Export {
    /// The URI that clients connect to.
    pub uri: String,
    /// The export's name; empty if it is the server's only one.
    pub name: String,
    /// The disk's size, bytes.
    pub size_bytes: u64,
}

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
            _ => Ended::Over(FailureReport::of(end)),
        }
    }

    /// The event that its owner sees.
    pub(crate) fn event(&self, target: &Target) -> Event {
        let event = Event::of(Kind::Detached, target.to_string());
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
                    Attribute::Gone => "the device has left its exporter",
                    Attribute::Refused => "its exporter ended the session: its owner took it back, or it failed",
                    _ => "the link was lost",
                };
                Some(Failure::new(attribute, format!("{}: {what}: {why}\n  {UNPLUGGED}", target.shown())))
            }
            Ended::Over(report) => Some(over(target, report)),
            Ended::Broken(reject) => {
                let what = format!("{}: cut off, its exporter broke the protocol: {reject}", target.shown());
                Some(Failure::new(Attribute::Device, what))
            }
        }
    }
}

/// The message for a device whose session or link ended.
const UNPLUGGED: &str = "the device was unplugged here";

/// The failure that reports the end of a session.
pub fn over(target: &Target, FailureReport { attribute, message }: &FailureReport) -> Failure {
    Failure::new(*attribute, format!("{}: {message}\n  {UNPLUGGED}", target.shown()))
}

/// The message for a disk that was detached before all writes were durable.
pub fn undurable(what: &str, why: &str) -> String {
    format!("{what} was detached, and something may be lost: {why}")
}
