//! A remote serial port for programs, without a serial driver in this machine's kernel: by RFC 2217, which carries
//! rate, format, control lines and breaks, or as bare bytes over TCP.
//!
//! | file | what is in it |
//! |---|---|
//! | `front_end` | the two front ends, and their attachment |
//! | `relay` | the engine: one thread, the device, its port, one program at a time |
//! | `program` | what one program has sent and is to be sent |
//! | `com_port` | RFC 2217's numbers for what a line has |

mod com_port;
mod front_end;
mod program;
mod relay;

pub use front_end::{BareSerialFrontEnd, Rfc2217FrontEnd};
