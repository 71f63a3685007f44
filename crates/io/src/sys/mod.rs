//! Calls to the kernel, and the only place where its error numbers are used.

pub(crate) mod accounts;
pub mod acting;
pub mod activation;
pub mod confine;
pub mod confine_program;
pub mod cpuset;
pub mod errno;
pub mod file_handle;
pub mod inherited;
pub mod lease;
pub mod leash;
pub mod loop_device;
pub mod own_mounts;
pub mod passing;
pub mod peer;
pub mod pi_lock;
pub mod process_memory;
pub mod scheduling;
pub mod shared_words;
pub mod tcp;
pub mod tcp_owner;
pub mod unread;
pub mod usbfs;
pub mod users;
pub mod vhci;
pub mod writeback;
