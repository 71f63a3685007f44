//! How a device is shown to programs on this machine.

pub mod fuse;
pub mod holders;
