//! # The tongues, as sans-IO state machines
//!
//! **This crate is** where bytes become typed messages and back, and where the state of a
//! connection lives. Today: [`usbip`], the protocol 0x0111 that Linux's and Windows' clients speak, [`native`], our
//! own, [`nbd`], by which programs and kernels use a block device, [`usbredir`], which QEMU's `usb-redir` device
//! speaks, [`rfc2217`], by which programs use a serial port, and [`pairing`], by which two hosts that share a short
//! code come to know each other's keys. [`snapshot`] is how the state of a connection goes on in another process.
//!
//! **It may touch** the bytes it is handed.
//!
//! **It never touches** a socket or a clock, nor what the messages mean to a device.
//!
//! **Start reading at** [`usbip::UsbipServerConn`], then [`usbip::message`] for the bytes themselves.
//!
//! **Why** two layers, message and connection: a fuzzer wants the first without the second, a peer
//! in another tongue shares neither, and every stranger's length is compared with a limit in the
//! first before the second can act on it.

mod buffer;
mod flights;
pub mod native;
pub mod nbd;
pub mod pairing;
mod reader;
mod reject;
pub mod rfc2217;
pub mod snapshot;
pub mod usbfs;
pub mod usbip;
pub mod usbredir;

pub use buffer::SendSlices;
pub use reject::ProtocolViolation;
