//! The kernel's own doors, and the only place where its error numbers are spoken.

pub mod activation;
pub mod errno;
pub mod usbfs;
pub mod vhci;
pub mod writeback;
