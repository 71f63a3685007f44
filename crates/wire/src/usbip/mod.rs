//! USB/IP 0x0111, as Linux's kernel and tools, usbip-win2 and usbipd-win speak it.
//!
//! | file | what it holds |
//! |---|---|
//! | [`message`] | bytes ↔ typed messages: the gate where every length meets its limit |
//! | [`status`] | USB outcomes ↔ negative Linux errno, the only place that knows errno |
//! | [`server`] | the exporter's end of a connection |
//! | [`client`] | the importer's end |
//!
//! The pitfalls that real peers taught (handshake, isochronous, unlink, errno) are met one by one;
//! the tests in `tests/pitfalls/` name them.

pub mod client;
pub mod message;
pub mod server;
pub mod status;

pub use client::ClientConn;
pub use message::{DeviceRecord, OpStatus, Reject};
pub use server::{Request, ServerConn};
