//! Calls to the kernel without which there are no links, no trust and no control sockets: what every operating system
//! must give, a module each.
//!
//! The `sys` of `io-linux` has what this one has not: the calls for devices, disks, mounts, confinement and scheduling,
//! and the kernel's error numbers as errors of the model. That one uses this one; nothing here knows it.

pub mod accounts;
pub mod acting;
pub mod passing;
pub mod peer;
pub mod tcp;
pub mod udp;
pub mod unread;
