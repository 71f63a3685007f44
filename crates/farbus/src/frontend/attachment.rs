//! The contract of all front ends: an attachment reports where it is, is steered by a handle, and runs until it ends.

use std::net::SocketAddr;

use farbus_io_linux::sys::vhci::VhciPort;
use serde::Serialize;

use super::{AttachmentEnd, AttachmentHandle};
use crate::broker::SystemAccess;
use crate::importer::client::ClientError;
use crate::importer::disk::DiskMode;

/// A device of another machine that was taken and can be used here as soon as [`run`](Self::run) is called.
///
/// The command and the daemon know a front end's device only by this trait.
pub trait Attachment: Send {
    /// The facts that stay the same while the attachment runs.
    fn status(&self) -> AttachmentFacts;

    /// Steers the attachment from other threads, before and while it runs.
    fn handle(&self) -> AttachmentHandle;

    /// Serves the device's local users on this thread until the attachment ends; then gives the device back and removes
    /// what was created for it on this machine. No request to the device is left unanswered.
    fn run(self: Box<Self>) -> AttachmentEnd;
}

/// An attachment of another process, read from its snapshot. It has not begun to run in this process.
///
/// Dropping it without [`RestoredAttachment::leave`] or [`RestoredAttachment::go_on`] may end the device's session
/// while the other process still uses it.
pub trait RestoredAttachment: Send {
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
pub struct AttachmentFacts {
    /// Where it is on this machine: `vhci port 3`, the path of a file, a URI, an address.
    pub at: String,
    /// How it is attached, in a few words. Messages about attachments that a replacement cannot continue use it.
    pub how: &'static str,
    /// How the disk is used, if the device is shown as a disk.
    pub mode: Option<DiskMode>,
    /// The kernel's port that it is plugged into, if any. The kernel cannot suspend while one is in use.
    pub port: Option<VhciPort>,
    /// The local address of the link, which identifies the user to the exporter; `None` in a session, whose links
    /// change.
    pub local_address: Option<SocketAddr>,
    /// What the user who attached it is told.
    pub introduction: AttachmentIntroduction,
}

/// What the user who attached a device is told: where it is, and what can be done with it.
#[derive(Clone, Debug, Default)]
pub struct AttachmentIntroduction {
    /// One line, such as `lab3/disk attached at vhci port 3`.
    pub line: String,
    /// What to type next, if there is something worth telling.
    pub next: Option<String>,
    /// The NBD export, if programs connect by URI.
    pub export: Option<NbdExportAddress>,
}

/// An export of an NBD server, as its clients address it.
#[derive(Clone, Debug, Serialize)]
pub struct NbdExportAddress {
    /// The URI that clients connect to.
    pub uri: String,
    /// The export's name; empty if it is the server's only one.
    pub name: String,
    /// The disk's size, bytes.
    pub size_bytes: u64,
}
