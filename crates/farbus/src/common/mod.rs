//! Used by every part of farbus: sockets on which it listens, programs and processors that
//! it uses, and locks.
//!
//! This folder knows no other host and no device, and imports no other folder of this crate.

pub mod child_program;
pub mod listen_words;
pub mod networks;
pub mod ordered_mutex;
pub mod page_address;
pub mod processor_leases;
pub mod socket_access;
pub mod socket_place;
pub mod stop_signal;
pub mod terminal_link;
pub mod turns;
pub mod write_out;
