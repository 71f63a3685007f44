//! What can be shared: real USB devices, block devices, streams, bridges.

pub mod block;
pub mod bridge;
pub mod making;
mod ports;
pub mod stream;
pub mod usb;
pub mod what;
