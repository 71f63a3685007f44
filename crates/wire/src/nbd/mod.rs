//! NBD, fixed newstyle, the server's end: how programs, virtual machines and kernels use a remote block device.
//!
//! | file | what it holds |
//! |---|---|
//! | [`message`] | bytes ↔ typed messages: the numbers of the protocol and what a client may send |
//! | [`export`] | the exports |
//! | [`negotiation`] | the handshake: options and their answers |
//! | [`server`] | a connection: credits, pieces, replies |
//!
//! Source: the NBD project's `doc/proto.md`, whose sections are named beside the code that meets them. Extended headers
//! and TLS are refused in the specified way: a client continues without them.

pub mod export;
pub mod message;
pub mod negotiation;
pub mod server;

pub use export::NbdExportDescription;
pub use message::ProtocolViolation;
pub use server::NbdServerConn;
