//! Used by every part of farbus: addresses of hosts and sockets, the runtime folder in which an owner's processes find
//! each other, their control sockets, kinds of failures, and limits of the log.
//!
//! This folder knows no other host and no device, and imports no other folder of this crate.

pub mod asking;
#[cfg(feature = "cli")]
pub mod bus_drawing;
pub mod child_program;
#[cfg(feature = "cli")]
pub mod console_text;
pub mod control;
pub mod events;
pub mod failure;
#[cfg(feature = "cli")]
pub mod happenings;
pub mod host_address;
pub mod lease_words;
pub mod listen_words;
#[cfg(feature = "cli")]
pub mod log_limit;
#[cfg(feature = "cli")]
pub mod page_address;
pub mod passed_files;
#[cfg(feature = "cli")]
pub mod pictures;
pub mod processor_leases;
pub mod runtime_folder;
#[cfg(feature = "cli")]
pub mod schema;
pub mod socket_access;
pub mod socket_place;
pub mod stop_signal;
pub mod turns;
pub mod units;
pub mod write_out;
