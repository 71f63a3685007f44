//! Serial ports of USB devices, driven without a kernel: CDC-ACM, and the chips of FTDI, Silicon Labs, WCH and
//! Prolific.
//!
//! [`SerialPort`] is the state machine for all of them; [`line`] is what a serial line has (rate, format, control
//! lines), and [`chips`] is how each chip is asked for it. Which device has a port, and where, says
//! [`farbus_model::serial_port`].

pub mod chips;
pub mod line;
pub mod port;

pub use line::{FlowControl, LineChange, LineCoding, LineFaults, ModemState, Parity, StopBits};
pub use port::{SerialError, SerialPort};
