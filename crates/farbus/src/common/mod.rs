//! What every part of the product uses: how hosts and sockets are addressed, the folder in which an owner's processes
//! find each other, and the control sockets there; whose fault a failure is; limits of the log.
//!
//! It knows no other host and no device, and imports no other folder of this crate.

pub mod asking;
pub mod control;
pub mod failure;
pub mod host_address;
pub mod listen_words;
#[cfg(feature = "cli")]
pub mod log_limit;
pub mod passed_files;
pub mod process_status;
pub mod processor_leases;
pub mod runtime_folder;
pub mod socket_place;
pub mod units;
