//! # A conformance kit for USB/IP and for farbus's own protocol
//!
//! **This crate is** a peer that other implementations are held against (requirement X11). It plays a client against
//! any exporter ([`exporter`]), an exporter with made-up devices against any importer ([`importer`]), and an importer
//! of farbus's own protocol against any exporter of it ([`session`]). Every check has a name that stays, a claim that
//! can be false, and the place where the claim is written.
//!
//! **It may touch** the connections that it is given ([`PeerNetwork`], [`PeerLink`]), and the moments that they tell.
//!
//! **It never touches** a socket, a thread or a clock. A test gives it an exporter in memory.
//!
//! **Start reading at** [`exporter`]; then `conversation.rs`, which counts every answer.
//!
//! **Why** it does not use [`farbus_wire::usbip::UsbipClientConn`]: that refuses what breaks a rule, and the kit has to
//! break rules itself and to go on after others did. The bytes of each message are those of
//! [`farbus_wire::usbip::message`].

mod check;
mod conversation;
pub mod exporter;
mod facts;
pub mod importer;
pub mod player;
pub mod session;
mod settings;
mod transport;

pub use check::{CheckResult, CheckSeverity, CheckVerdict, ConformanceCheck, ConformanceReport};
pub use transport::{LinkLoss, PeerLink, PeerNetwork, ReceiveOutcome};
