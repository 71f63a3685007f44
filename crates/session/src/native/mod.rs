//! farbus's own protocol: sessions that survive the loss of their links (requirements U11, N1 to N6).
//!
//! | file | what it holds |
//! |---|---|
//! | [`importer`] | the importer's end of a session: greetings, and how long it waits for the next link |
//! | [`exporter`] | the exporter's end: greetings, and the attachments that it serves |
//! | `absence` | an importer without a link: how long the exporter waits, and what the importer may not know |
//! | `accepted` | what the other end accepts: unacknowledged bytes, descriptors |
//! | [`attachment`] | the contract of the importer's end of an attachment, for all classes |
//! | [`served`] | the contract of the exporter's end, for all classes |
//! | [`served_block`], [`served_usb`] | a local device that a session serves; `served_device` has what both do |
//! | [`remote_block`], [`remote_usb`] | a remote device that a session brings |
//! | [`served_observer`], [`remote_observer`] | observing: copies of a USB device's traffic; what its serial ports send; frames of a stream |
//! | [`hold`] | how long a device that migrates may keep its user waiting, agreed by both ends |
//! | [`timing`] | which requests are timed, and where their time went |
//! | [`piped`], [`piped_served`], `pipe` | modules between any class and the link, on either side |
//! | [`known_device`] | whether a device that is opened again is the one that was used before |
//! | `named_descriptors` | strings and the object store of a USB device, as a session carries them besides its description |
//! | `services` | what an exporter's session needs from the registry |
//! | `reserving`, `reservation_request` | reserving before a device is opened, and measuring its path: the exporter's half, the importer's half |
//! | [`suspendable_served`] | a device of any class whose requests can be suspended |
//! | `slots`, `tagged` | requests in flight, by tag: ours, and a peer's |
//! | `spread` | which lane a request uses |
//! | [`silence`] | whether the peer of an idle link lives |
//! | [`reply_spacing`] | when replies of interrupt endpoints share a segment of a far link |
//!
//! A device of another class is one more [`ServedExport`] and one more [`ImporterAttachment`], and nothing else
//! changes:
//! `examples/third_class.rs` is one.
//!
//! What happens to a request in case of a failure:
//!
//! | what fails | USB | block |
//! |---|---|---|
//! | the link of its lane | it waits; its frames are sent over the next link; other lanes continue | the same |
//! | the link, for longer than the grace period | gone (attribute *network*) | lost (attribute *network*) |
//! | the exporter's process, with a handover | it waits; what the device had of it is ended first | the same |
//! | the exporter's process, with its sessions | a protocol error (attribute *device*); the device is set up again | it is submitted again |
//! | the device | gone | gone |
//!
//! A stream has no requests. Its frames wait for the next link; across a handover only if its reader wants no more than
//! the latest. They are lost if the exporter forgets the session.

mod absence;
mod accepted;
pub mod attachment;
pub mod exporter;
pub mod hold;
pub mod importer;
pub mod known_device;
mod named_descriptors;
mod pipe;
pub mod piped;
pub mod piped_served;
pub mod remote_block;
pub mod remote_observer;
pub mod remote_usb;
pub mod reply_spacing;
mod reservation_request;
mod reserving;
mod retained;
pub mod served;
pub mod served_block;
mod served_device;
pub mod served_observer;
pub mod served_usb;
mod services;
pub mod silence;
mod slots;
mod spread;
pub mod suspendable_served;
mod tagged;
pub mod timing;

/// The messages: greetings, control, and each class's own.
pub use farbus_wire::native::{
    ClassPart, FlowId, FrameHeader, FrameKind, Lane, LaneArray, LaneLimits, LaneSet, MessageUrgency, OutboundMessage,
    ReceivedFrame, block, console, control, descriptors, frame, hello, identity, modules, reserve, retire, stream, usb,
};

pub use attachment::{AttachmentBase, AttachmentState, FrameMeaning};
pub use exporter::{
    AllowedModules, DeviceMigration, ExporterServices, ExporterSession, InheritedDevice, RecalledDevice, ServedExport,
    UnmovableError, UnservedAttachment,
};
pub use hold::{HOLD, HOLD_MAX, HOLD_STORAGE_MAX, HoldLimits};
pub use importer::{GreetingOutcome, ImporterAttachment, ImporterSession, MovableAttachment};
pub use piped::{PipedAttachment, RequestedModules};
pub use piped_served::PipedServed;
pub use remote_block::RemoteBlock;
pub use remote_observer::{RemoteConsole, RemoteObserver, RemoteStream};
pub use remote_usb::RemoteUsb;
pub use reply_spacing::{LinkWindow, ReplySpacing};
pub use retained::{RETAINED_BYTES_MAX, RETAINED_MAX};
pub use served_block::ServedBlock;
pub use served_observer::ServedObserver;
pub use served_usb::ServedUsb;
pub use silence::{PeerSilence, SILENCE_TICK};
pub use suspendable_served::SuspendableServed;
pub use timing::{CountRequest, ReadClock, RequestTiming};
