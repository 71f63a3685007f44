//! Front ends: how a device of another machine appears on this one: to its kernel, as a file (FUSE), to programs (NBD),
//! to a virtual machine (usbredir), as a serial port (RFC 2217, a terminal). Stream exports and tuned pipes have
//! readers of their own.
//!
//! A front end is one file: what it needs of this machine, how it takes a device, and the attachment that results. An
//! entry in [`FRONT_ENDS`] makes it available to `farbus attach --via NAME`, to `via = "NAME"` in a daemon's
//! configuration, and to the tests of the contract (`tests/front_ends.rs`), which run every front end that this machine
//! can.
//!
//! | step | contract | called by |
//! |---|---|---|
//! | check what this machine may lack | [`FrontEnd::prepare`] | the command, before it waits for the device |
//! | take the device | [`FrontEnd::take`] | the command and the daemon |
//! | say where it is, and steer it | [`Attachment::status`], [`Attachment::handle`] | the same |
//! | serve it until it ends | [`Attachment::run`] | the same, on a thread of its own |
//! | continue it in a replacement process | [`AttachmentHandle::save`], [`FrontEnd::restore`], [`RestoredAttachment::go_on`] | the daemon |

mod attachment;
mod auto;
pub mod drivers;
mod ended;
mod front_end;
mod fuse;
mod handle;
pub mod hold;
pub mod in_use;
mod kernel;

mod migrations;
pub mod nbd;
pub mod open_users;
pub mod redir;
mod remote_usb;
mod running;
mod serial;
mod shown_disk;
mod steering;
pub mod stream;
mod table;

pub mod usb_swap;
pub mod usbfs;

pub use crate::common::stop_signal::StopSignal;
pub use attachment::{Attachment, AttachmentFacts, AttachmentIntroduction, NbdExportAddress, RestoredAttachment};
pub use ended::{AttachmentEnd, over, report_of, undurable};
pub use front_end::{
    AttachRequest, FrontEnd, FrontEndChoice, FrontEndPreparation, FrontEndRequirement, explain, tell_reason,
};
pub use fuse::FileAttachment;
pub use handle::{AttachmentHandle, AttachmentRefusal, MigrationTiming};
pub use running::{ANOTHER_DEVICE, RunningAttachment, attachment_status, through};
pub use steering::steer;
pub use table::FRONT_ENDS;
