//! USB/IP 0x0111, as Linux's kernel and tools, usbip-win2 and usbipd-win speak it.
//!
//! | file | what it holds |
//! |---|---|
//! | [`message`] | bytes ↔ typed messages: checks every length against its limit |
//! | [`status`] | USB outcomes ↔ negative Linux errno, the only place that knows errno |
//! | [`server`] | the exporter's end of a connection |
//! | [`client`] | the importer's end |
//!
//! Every pitfall found with real peers (handshake, isochronous, unlink, errno) has a test in `tests/pitfalls/`.

pub mod client;
pub mod message;
pub mod server;
pub mod status;

pub use client::UsbipClientConn;
pub use message::{DeviceRecord, OpStatus, ProtocolViolation};
pub use server::{UsbipRequest, UsbipServerConn};
