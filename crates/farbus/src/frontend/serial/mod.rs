//! A remote serial port for programs, without a serial driver in this machine's kernel: by RFC 2217, which carries
//! rate, format, control lines and breaks, as bare bytes over TCP, or as a terminal's file.
//!
//! A terminal's file carries rate, stop bits and hardware flow control. What a program sets there besides, Linux shows
//! to nobody. DTR and RTS are raised while a program has it open.
//!
//! | file | what is in it |
//! |---|---|
//! | `front_end` | the front ends of programs that connect, and the attachment of all |
//! | `terminal` | the front end of programs that open a file |
//! | `program_link` | how programs reach the port: a connection or a terminal |
//! | `relay` | the engine: one thread, the device, its port, one program at a time |
//! | `program` | what one program has sent and is to be sent |
//! | `com_port` | RFC 2217's numbers for what a line has |

mod com_port;
mod front_end;
mod program;
mod program_link;
mod relay;
mod terminal;

pub use front_end::{BareSerialFrontEnd, Rfc2217FrontEnd};
pub use terminal::TerminalFrontEnd;
