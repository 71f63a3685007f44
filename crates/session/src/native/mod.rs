//! farbus's own protocol, meaning included: sessions that outlive their links (requirements U11, N1 to N6).
//!
//! | file | what it holds |
//! |---|---|
//! | [`importer`] | the importer's end of a session: greetings, and how long it waits for the next link |
//! | [`exporter`] | the exporter's end: the same, and the attachments it serves |
//! | `absence` | an importer without a link: how long the exporter waits, and what the other may not know |
//! | [`attachment`] | what every class's importing end does alike |
//! | [`served`] | what every class's half of an exporter does |
//! | [`served_block`], [`served_usb`] | a device of ours that a session serves; `served_device` is what both do alike |
//! | [`remote_block`], [`remote_usb`] | a device of theirs that a session brings |
//! | [`served_observer`], [`remote_observer`] | what is looked at: copies of what a USB device sends to its user; a stream's frames |
//! | [`timing`] | which requests are timed, and where their time went |
//! | [`piped`], [`piped_served`], `pipe` | modules between any class and the link, at either end |
//! | [`known_device`] | whether a device that is opened again is the one that was used before |
//! | `services` | what an exporter is offered |
//! | `reserving`, `reservation_request` | what is reserved before a device is opened, and how its path is measured: the exporter's half, the importer's |
//! | [`suspendable_served`] | a device of any class that is suspended at times |
//! | `slots`, `tagged` | requests in flight, by their tag: ours, a peer's |
//! | `spread` | on which lane a request goes |
//!
//! A device of another class is one more [`Served`] and one more [`Attached`], and nothing else changes:
//! `examples/third_class.rs` is one.
//!
//! What becomes of a request when something breaks:
//!
//! | what broke | USB | block |
//! |---|---|---|
//! | the link of its lane | it waits; its frames are sent over the next link; other lanes go on | the same |
//! | the link, for longer than the grace | gone (attribute *network*) | lost (attribute *network*) |
//! | the exporter's process, for another that goes on | it waits; what a device had of it is ended first | the same |
//! | the exporter forgot the session | a protocol error (attribute *device*); the device is set up again | it is asked again |
//! | the device | gone | gone |
//!
//! Of a stream nothing is asked: its frames wait for the next link, for another process only if its reader wants no
//! more than the latest, and are lost with an exporter that forgets.

mod absence;
pub mod attachment;
pub mod exporter;
pub mod importer;
pub mod known_device;
mod pipe;
pub mod piped;
pub mod piped_served;
pub mod remote_block;
pub mod remote_observer;
pub mod remote_usb;
mod reservation_request;
mod reserving;
mod retained;
pub mod served;
pub mod served_block;
mod served_device;
pub mod served_observer;
pub mod served_usb;
mod services;
mod slots;
mod spread;
pub mod suspendable_served;
mod tagged;
pub mod timing;

/// The bytes of it: what a greeting and a device's own class have to say.
pub use farbus_wire::native::{
    Arrived, Flow, Head, Kind, Lane, LaneLimits, LaneSet, Lanes, Message, Part, Urgency, block, control, frame, hello,
    identity, modules, reserve, stream, usb,
};

pub use attachment::{Attachment, Heard, State};
pub use exporter::{Allowed, ExporterSession, Inherited, Left, Migration, Recalled, Served, Services, Unmovable};
pub use importer::{Attached, ImporterSession, Movable, Progress};
pub use piped::{Piped, Through};
pub use piped_served::PipedServed;
pub use remote_block::RemoteBlock;
pub use remote_observer::{RemoteObserver, RemoteStream};
pub use remote_usb::RemoteUsb;
pub use retained::{RETAINED_BYTES_MAX, RETAINED_MAX};
pub use served_block::ServedBlock;
pub use served_observer::ServedObserver;
pub use served_usb::ServedUsb;
pub use suspendable_served::SuspendableServed;
pub use timing::{ReadClock, Timed};
