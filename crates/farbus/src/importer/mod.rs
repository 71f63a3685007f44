//! The side that uses a device of another host: finding what is offered, opening it, and keeping it through lost links.
//!
//! What is done with an open device on this machine (a kernel's, a file, NBD, a virtual machine) is the front ends'
//! part: see `frontend`.

pub mod client;
pub mod dial;
pub mod discovery;
pub mod disk;
pub mod disk_swap;
pub mod local_disk;
pub mod local_error;
pub mod options;
pub mod port;
pub mod session;
mod session_disk;
mod windows;
