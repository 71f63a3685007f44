//! # The brain: who offers, who holds, and how a request passes between them
//!
//! **This crate is** where a device and a connection meet. [`Exporter`] joins an incoming
//! connection to a device, [`RedirHost`] one of QEMU's; [`block`] makes a store a device and gives each importer the
//! view of it that is his; [`RemoteDevice`] makes an outgoing connection look like one; [`Registry`] knows what is
//! offered; [`isochronous`] carries a far one's streams; [`claims`] who holds a device, waits for it, had it;
//! [`leases`] who has it next; [`observe`] who looks on; [`stream`] who watches a source's frames; [`far`] what hides a
//! device's distance; [`twin`] which of two devices that are alike it is; [`rules`] which real devices are to be shared
//! at all.
//!
//! **It may touch** nothing: bytes and moments are handed in, what is to be sent is asked for.
//!
//! **It never touches** a socket, a thread or a clock; the shell that has them is `farbus`.
//!
//! **Start reading at** [`Exporter::advance`], the journey of a request in one function.
//!
//! **Why** an importer is a device: an exporter over a [`RemoteDevice`] *is* the validating relay
//! in front of a kernel, and a user-space host drives a remote disk as it drives a local one.

pub mod block;
pub mod claims;
pub mod exporter;
pub mod far;
pub mod importer;
pub mod isochronous;
pub mod leases;
pub mod native;
pub mod observe;
pub mod redir;
pub mod registry;
pub mod reserve;
pub mod rules;
pub mod stream;
pub mod twin;

pub use claims::{Claims, Ending, Holder};
pub use exporter::{Counters, Exporter, Fault, Offers, OnReset};
pub use far::Far;
/// How programs use a block device.
pub use farbus_wire::nbd;
/// How two hosts come to know each other.
pub use farbus_wire::pairing;
/// How what is attached goes on in another process.
pub use farbus_wire::snapshot;
pub use farbus_wire::usbip::{ClientConn, DeviceRecord, OpStatus, Reject, Request};
pub use importer::{Handshake, RemoteDevice};
pub use redir::RedirHost;
pub use registry::{Claimed, Registry};
