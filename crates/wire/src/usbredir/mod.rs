//! usbredir 0.7, as QEMU's `usb-redir` device, SPICE and `usbredirserver` speak it: one device on one connection.
//!
//! | file | what it holds |
//! |---|---|
//! | [`message`] | bytes ↔ typed messages: checks every length against its limit |
//! | [`words`] | the two ends, capabilities, outcomes |
//! | [`info`] | the three messages that describe a device, and their tables of 32 |
//! | [`conn`] | either end of a connection: the hello, and the common capabilities |
//!
//! The *usb-host* is the end that has the device, the *usb-guest* the one that uses it. Source: the usbredir project's
//! `usb-redirection-protocol`, and where it is silent what its C parser and QEMU do. Little-endian throughout.

pub mod conn;
pub mod info;
pub mod message;
pub mod words;

pub use conn::RedirConn;
pub use info::{DeviceConnect, EndpointInfo, EpInfo, InterfaceInfo, InterfaceKind};
pub use message::{RedirMessage, RedirPacket};
pub use words::{RedirCapability, RedirCapabilitySet, RedirRole, RedirStatus};
