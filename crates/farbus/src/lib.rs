//! # The wiring and the product
//!
//! **This room is** where pure rooms get an outside: [`Share`] puts devices on a listening socket,
//! [`client`] takes a device from another machine, [`attach`] hands it to this machine's kernel or
//! shows its disk as a file, [`redir`] lends it to a virtual machine, [`trust`] decides with whom, [`neighbours`] finds who is
//! there, [`control`] lets the `farbus` command find what runs, [`broker`] keeps the rights that a share gives away.
//!
//! **It may touch** all of `io`: sockets, threads, clocks, the kernel.
//!
//! **It never touches** a protocol's bytes or a device's inside: it moves what the rooms below hand out.
//!
//! **Enter at** `engine.rs`: one thread, one link, one device, in one loop.
//!
//! **Why** a library with a thin command on top: a gadget of your own is a definition and thirty
//! lines, and what the command can do a program can do.

mod address;
pub mod ahead;
pub mod allow;
pub mod attach;
mod attachments;
pub mod bare;
pub mod block;
mod bridge;
pub mod broker;
mod cable;
pub mod cache;
pub mod cli;
pub mod client;
pub mod control;
mod crowd;
pub mod device_port;
mod device_status;
mod disk_relay;
mod distance;
mod door;
mod driven;
mod engine;
pub mod failure;
mod far_device;
mod favoured;
pub mod frames;
pub mod gate;
mod greeting;
mod guest;
mod inheritance;
mod kernel_side;
mod known_host;
pub mod latency;
mod legacies;
pub mod linked;
pub mod links;
pub mod listed;
pub mod listening;
pub mod meters;
mod module_program;
pub mod modules;
pub mod nbd;
mod nearby;
pub mod neighbours;
pub mod opened_disk;
pub mod over;
pub mod pairing;
pub mod place;
pub mod port;
pub mod promises;
pub mod questions;
mod reach;
mod recording;
pub mod redir;
pub mod reserve;
mod reserving;
pub mod session_port;
mod session_record;
mod session_relay;
mod sessions;
pub mod share;
pub mod share_error;
mod shared;
pub mod standing;
pub mod streams;
pub mod swap;
pub mod trust;
pub mod tuned;
pub mod usb;
pub mod wanted;

/// How what serves something is passed on to another process.
pub use farbus_io::parting;

/// Devices made of code, and how to make one.
pub use farbus_gadgets as gadgets;
/// The user-space host that drives a device.
pub use farbus_host as host;
/// The words in which both are written.
pub use farbus_model as model;

pub use client::ClientError;
pub use share::Share;
