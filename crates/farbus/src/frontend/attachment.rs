//! What every front end gives: an attachment, which says where it is, is steered by a handle, and runs to its end.

use std::net::SocketAddr;

use farbus_io::sys::vhci::Port;
use farbus_session::Reject;
use farbus_session::native::control::{Cause, End, HANDED_OVER};
use serde::Serialize;

use super::Handle;
use crate::broker::SystemAccess;
use crate::common::failure::{Failure, FailureReport};
use crate::importer::client::{Attribute, Client, ClientError, Target};
use crate::importer::disk::DiskMode;

/// A device of another machine that was taken and can be used here as soon as it runs.
///
/// There is nothing else that the command and the daemon know of a front end once it has the device.
pub trait Attachment: Send {
    /// What does not change while it runs.
    fn status(&self) -> Status;

    /// What steers it from other threads, before and while it runs.
    fn handle(&self) -> Handle;

    /// Serves whoever uses the device here, on this thread, until it ends; then gives the device back and takes away
    /// what was made for it here. Nothing that waits for the device is left waiting.
    fn run(self: Box<Self>) -> Ended;
}

/// An attachment of another process that was read here. Nothing has happened to it yet.
///
/// Dropping it without [`Restored::leave`] or [`Restored::go_on`] may end the device's session under the process that
/// has it.
pub trait Restored: Send {
    /// Goes on with it here: the other process has let go.
    ///
    /// # Errors
    /// [`ClientError::Local`]: what it needs of this machine is not there any more. The device is left.
    fn go_on(self: Box<Self>, system: &SystemAccess) -> Result<Box<dyn Attachment>, ClientError>;

    /// Forgets it without touching its device: the other process keeps it.
    fn leave(self: Box<Self>);
}

/// What is known of an attachment from its beginning to its end.
#[derive(Clone, Debug)]
pub struct Status {
    /// Where it is on this machine: `vhci port 3`, the path of a file, a URI, an address.
    pub at: String,
    /// How it is attached, in a few words: said of what another process cannot go on with.
    pub how: &'static str,
    /// How it is used, if it is a disk here.
    pub mode: Option<DiskMode>,
    /// The kernel's port that it is plugged into, if it is: the kernel does not sleep with one in use.
    pub port: Option<Port>,
    /// Our end of the link as the exporter sees its user; none in a session, whose links come and go.
    pub local_address: Option<SocketAddr>,
    /// What whoever attached it is told.
    pub introduction: Introduction,
}

/// What whoever attached a device is told: where it is, and what can be done with it.
#[derive(Clone, Debug, Default)]
pub struct Introduction {
    /// One line, such as `lab3:3240/disk attached at vhci port 3`.
    pub line: String,
    /// What to type next, if that is worth a line or more.
    pub next: Option<String>,
    /// The export, if programs are given a URI.
    pub export: Option<Export>,
}

/// An export of an NBD server, as its clients find it.
#[derive(Clone, Debug, Serialize)]
pub struct Export {
    /// What clients are given.
    pub uri: String,
    /// Its name; empty if it is the only one.
    pub name: String,
    /// The disk's size, bytes.
    pub size_bytes: u64,
}

/// Why an attachment ended.
#[derive(Debug)]
pub enum Ended {
    /// It was asked to.
    Asked,
    /// This machine let go of it: `usbip detach`, `umount`.
    Released,
    /// The link was lost, or the exporter ended it.
    Lost(String),
    /// Its session is over, and why is known.
    Over(FailureReport),
    /// The exporter broke the protocol.
    Broken(Reject),
    /// Another process goes on with it.
    HandedOver,
    /// It waits for another host, or is there.
    Moved,
    /// It was asked to, and something that was written may be lost: what, and why.
    Undurable(String),
}

impl Ended {
    /// How an attachment ended whose session did.
    pub fn by(end: &End) -> Self {
        match (end.cause, end.message.as_str()) {
            (Cause::Asked, HANDED_OVER) => Ended::Moved,
            _ => Ended::Over(FailureReport::of(end)),
        }
    }

    /// The failure, if nobody here wanted it to end. A link that was lost is looked into: the exporter is asked once
    /// more, briefly.
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
                Some(Failure::new(attribute, format!("{target}: {what}: {why}\n  {UNPLUGGED}")))
            }
            Ended::Over(report) => Some(over(target, report)),
            Ended::Broken(reject) => {
                let what = format!("{target}: cut off, its exporter broke the protocol: {reject}");
                Some(Failure::new(Attribute::Device, what))
            }
        }
    }
}

/// What became of a device whose session or link is over.
const UNPLUGGED: &str = "the device was unplugged here";

/// A session that is over, as a failure.
pub fn over(target: &Target, FailureReport { attribute, message }: &FailureReport) -> Failure {
    Failure::new(*attribute, format!("{target}: {message}\n  {UNPLUGGED}"))
}

/// A disk that was detached before all that was written to it was durable.
pub fn undurable(what: &str, why: &str) -> String {
    format!("{what} was detached, and something may be lost: {why}")
}
