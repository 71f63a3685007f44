//! # farbus: any machine's devices on any other machine
//!
//! An exporter offers devices to other hosts, an importer uses them there as if they were plugged in. This library is
//! both ends; the `farbus` command is made of it.
//!
//! | to … | use |
//! |---|---|
//! | offer a device, real or made of code | [`Share`] |
//! | make a device of code | [`gadgets`] |
//! | list and open the devices of another host | [`client`] |
//! | talk to an opened device | [`host`] |
//! | attach a device to this machine's kernel, or show its disk as a file | [`attach`] |
//! | read a stream of frames, such as a camera's | [`frames`] |
//! | run a function once a period on a device's channel | [`tuned`] |
//! | admit only hosts that were paired, over encrypted links | [`trust`] |
//!
//! ```no_run
//! use farbus::gadgets::keyboard::Keyboard;
//! use farbus::{Share, client};
//!
//! // One machine offers a device,
//! let share = Share::default();
//! share.add("keyboard", Keyboard::device())?;
//! let address = share.listen(([192, 0, 2, 7], 3240).into())?;
//!
//! // another one uses it.
//! let keyboard = client::open(&"192.0.2.7/keyboard".parse()?)?;
//! println!("{} at {address}", keyboard.descriptors().title());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `cli` (on by default): the `farbus` command. A program that uses the library alone turns it off, and with it the
//!   crates that only the command needs: `farbus = { …, default-features = false }`.
//! - `wasm` (on by default): modules that are WebAssembly programs.
//!
//! # Inside
//!
//! **This crate is** the crate that gives the pure crates sockets, threads, files and clocks: both ends of a link, the
//! front ends, the daemon and the command.
//!
//! **It may touch** all of `io`: sockets, threads, clocks, the kernel.
//!
//! **It never touches** the bytes of a protocol or the inside of a device: `session` and `wire` do.
//!
//! **Start reading at** `exporter/session/engine.rs` (one thread serves one link and its device) and at
//! `importer/client/opening.rs` (how a device is opened).
//!
//! **Why** a library with a thin command on top: what the command can do, a program can do.

// Without the feature `cli`, code that only the command uses is unused where it stands.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

mod broker;
#[cfg(feature = "cli")]
mod cli;
mod common;
#[cfg(feature = "cli")]
mod daemon;
mod devices;
mod exporter;
mod frontend;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
mod hosts;
mod importer;
mod link;
#[cfg(feature = "cli")]
mod page;

use farbus_io::saving;

pub use farbus_gadgets as gadgets;
pub use farbus_host as host;
pub use farbus_model as model;

pub use exporter::share::Share;
pub use importer::client::{self, ClientError};

/// Offering devices to other hosts: what a [`Share`] reports.
pub mod share {
    pub use crate::common::host_address::DEFAULT_PORT;
    pub use crate::exporter::error::ShareError;
    pub use crate::exporter::share::Share;
    pub use farbus_control::device::{DeviceStatus, PastStatus, UserStatus, WaitingStatus};
    pub use farbus_control::reservation::ReservationStatus;
}

/// Attaches a device of another host to this machine: to its kernel, as a file, to programs, to a virtual machine.
///
/// A [`Request`](attach::Request) says what and how, [`FrontEnd::take`](attach::FrontEnd::take) takes the device, and
/// [`Attachment::run`](attach::Attachment::run) serves it until a [`Handle`](attach::Handle) or its exporter ends it.
pub mod attach {
    pub use crate::frontend::{
        Attachment, Ended, Export, FRONT_ENDS, FileAttachment, FrontEnd, Handle, Introduction, Migration, Need,
        Prepared, Refused, Request, Restored, Status, Via,
    };
    pub use crate::importer::disk::DiskMode;
}

/// Stream exports of another host, frame by frame.
pub mod frames {
    pub use crate::frontend::stream::{Description, Format, Frame, Frames, PixelFormat, Wanted, open_stream};
}

/// Functions that run once a period at one end of a device's channel, with a bound on their delay.
pub mod tuned {
    pub use crate::frontend::tuned_pipe::*;
}

/// This host's key and the hosts that it is paired with.
pub mod trust {
    pub use crate::hosts::trust::Trust;
    pub use farbus_io::trust::{Folder, StateError};
}

/// What the data of a device passes through on its way: compression, sealing, recording, and external programs.
pub mod modules {
    pub use crate::link::modules::{allowed, recipe};
    pub use farbus_modules::{Asked, Recipe, Refusal};
    pub use farbus_session::native::Allowed;
}

/// What is reserved for a device: time on its bus and on the way to it.
pub mod reservation {
    pub use crate::devices::reservation::{ReservationRequest, together};
    pub use farbus_control::reservation::ReservationStatus;
    pub use farbus_session::reserve::{Claim, Criticality, Reservation};
}

/// What farbus's own tests, benchmarks and command need beyond the public API. It changes without notice.
#[doc(hidden)]
pub mod internals {
    pub use crate::broker::SystemAccess;
    pub use crate::common::{control, socket_access, socket_place};
    pub use crate::devices::media_journal;
    pub use crate::frontend::{StopSignal, hold, nbd, open_users};
    pub use crate::importer::session::{bare, connection, status};
    pub use crate::importer::{disk, port};
    pub use farbus_io::saving;
    pub use farbus_io::sys::usbfs;

    /// The `farbus` command.
    #[cfg(feature = "cli")]
    pub mod command {
        pub use crate::cli::{Cli, bench, end_by, report, run};
        pub use crate::common::log_limit::LogLimit;
    }
}
