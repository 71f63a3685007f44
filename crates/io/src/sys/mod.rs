//! The kernel's own doors, and the only place where its error numbers are spoken.

pub mod activation;
pub mod confine;
pub mod confine_program;
pub mod cpuset;
pub mod errno;
pub mod lease;
pub mod passing;
pub mod peer;
pub mod pi_lock;
pub mod scheduling;
pub mod shared_words;
pub mod tcp;
pub mod unread;
pub mod usbfs;
pub mod vhci;
pub mod writeback;
