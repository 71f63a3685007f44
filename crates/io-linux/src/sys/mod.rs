//! Calls to the kernel that only Linux has, or that only the modules of this crate need: devices, disks, mounts,
//! confinement, scheduling. [`errno`] makes errors of the model of the kernel's error numbers.
//!
//! The `sys` of `io-net` has what this one has not: the calls that links, trust and control sockets need (options of
//! sockets, peers of local sockets, passed descriptors, the users that root's processes switch to). This one uses it.

pub mod activation;
pub mod confine;
pub mod confine_program;
pub mod cpuset;
pub mod descriptors;
pub mod errno;
pub mod event_sockets;
pub mod file_handle;
pub mod file_locks;
pub mod inherited;
pub mod lease;
pub mod leash;
pub mod loop_device;
pub mod own_descriptors;
pub mod own_mounts;
pub mod pi_lock;
pub mod process_memory;
pub mod processor;
pub mod program_commit;
pub mod scheduling;
pub mod shared_words;
pub mod startup_memory;
pub mod tcp_owner;
pub mod terminal;
pub mod usbfs;
pub mod users;
pub mod vhci;
pub mod writeback;
