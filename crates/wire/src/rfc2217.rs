//! Telnet with the COM port control option: serial ports over TCP (RFC 854, RFC 2217).
//!
//! [`Rfc2217Conn`] is the server's end of a connection: it agrees on options with the client, takes the client's bytes
//! apart into data and requests ([`Rfc2217Event`]), in their order, and packs data and answers. Clients are pyserial's
//! `rfc2217://`, ser2net's `telnet(rfc2217)` and, without the option, any `telnet`. [`Rfc2217Client`] is the other end.
//!
//! | client | result |
//! |---|---|
//! | offers or wants BINARY, SUPPRESS-GO-AHEAD, COM-PORT, or wants ECHO | agreed (a serial device echoes by itself) |
//! | offers or wants anything else | declined |
//! | has neither BINARY nor COM-PORT | its CR NUL is a CR (RFC 854, *carriage return*) |
//! | sends a COM port request that is too short, or unknown | no event, no answer, as RFC 2217 section 3 has it |
//! | sends a sub-negotiation beyond 256 bytes | [`ProtocolViolation`] |

mod client;
mod com_port;
mod server;
mod telnet;

pub use client::{Rfc2217Client, Rfc2217ClientEvent};
pub use com_port::{ComPortReply, ComPortRequest};
pub use server::{Rfc2217Conn, Rfc2217Event};
