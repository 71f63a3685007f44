//! # Sessions: exports, claims, and the path of a request between device and connection
//!
//! **This crate is** where a device and a connection meet. [`Exporter`] joins an incoming USB/IP connection to a
//! device, [`RedirHost`] a connection from QEMU. [`RemoteDevice`] makes an outgoing connection look like a device.
//! [`native`] is farbus's own protocol on both sides. [`block`] makes a store a device and gives each importer its view
//! of it; [`isochronous`] carries the streams of a far device, [`far`] hides its distance. [`ExportRegistry`] knows the
//! exports, [`claims`] who holds, waits for and had a device, [`leases`] who has it next, [`reserve`] what is reserved
//! for it. [`observe`] serves observers ([`console`]: of serial ports), [`stream`] the viewers of a source's frames.
//! [`twin`] exchanges a device for an identical one, [`usbfs`] shows one to programs as a kernel does, [`rules`]
//! decides which real devices are shared.
//!
//! **It may touch** bytes and moments that it is given as arguments, and devices.
//!
//! **It never touches** a socket, a thread or a clock: the caller asks what is to be sent. The shell that has them is
//! `farbus`.
//!
//! **Start reading at** [`Exporter::advance`], the path of a request in one function.
//!
//! **Why** an importer is a device: an exporter over a [`RemoteDevice`] is the validating relay in front of a kernel,
//! and a program drives a remote disk like a local one.

pub mod block;
pub mod claims;
pub mod console;
pub mod device_class;
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
pub mod usbfs;

pub use claims::{ClaimHolder, DeviceClaims, UseEnding};
pub use exporter::{ConnectionFault, ExportOffers, Exporter, ExporterCounters, PortResetPolicy};
pub use far::FarLayer;
pub use farbus_wire::SendSlices;
/// NBD: how programs use a block device.
pub use farbus_wire::nbd;
/// Pairing: how two hosts learn each other's keys.
pub use farbus_wire::pairing;
/// Serial ports over TCP, as programs speak them.
pub use farbus_wire::rfc2217;
/// Snapshots: how attachments continue in another process.
pub use farbus_wire::snapshot;
pub use farbus_wire::usbip::{DeviceRecord, OpStatus, ProtocolViolation, UsbipClientConn, UsbipRequest};
pub use importer::{ImportHandshake, RemoteDevice};
pub use redir::RedirHost;
pub use registry::{ClaimedUsb, ExportRegistry};
