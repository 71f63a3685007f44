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
//! | run a function once a period on a device's channel | the crate `farbus-pipe` |
//! | admit only hosts that were paired, over encrypted links | [`trust`] |
//!
//! ```no_run
//! use farbus::gadgets::keyboard::KeyboardGadget;
//! use farbus::{Share, client};
//!
//! // One machine offers a device,
//! let share = Share::default();
//! share.add("keyboard", KeyboardGadget::device())?;
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
//! - `wasm` (on by default): modules that are WebAssembly programs.
//!
//! # Inside
//!
//! **This crate is** the crate that gives the pure crates sockets, threads, files and clocks: both ends of a link, the
//! front ends, and the half of a process that keeps its rights. Daemon, page, pipes and command are crates above it,
//! which use its modules as they are; what a program of one's own uses is re-exported here.
//!
//! **It may touch** all of `io-net` and `io-linux`: sockets, threads, clocks, the kernel.
//!
//! **It never touches** the bytes of a protocol or the inside of a device: `session` and `wire` do.
//!
//! **Start reading at** `exporter/session/engine.rs` (one thread serves one link and its device) and at
//! `importer/client/opening.rs` (how a device is opened).
//!
//! **Why** a library with a thin command on top: what the command can do, a program can do.

pub mod broker;
pub mod common;
pub mod devices;
pub mod exporter;
pub mod frontend;
#[cfg(test)]
#[path = "../../wire/tests/fuzzing/mod.rs"]
mod fuzzing;
pub mod hosts;
pub mod importer;
pub mod link;

pub use farbus_gadgets as gadgets;
pub use farbus_host as host;
pub use farbus_model as model;

pub use exporter::share::Share;
pub use importer::client::{self, ClientError};

/// Offering devices to other hosts: what a [`Share`] reports.
pub mod share {
    pub use crate::exporter::error::ShareError;
    pub use crate::exporter::share::Share;
    pub use farbus_control::device::{DeviceStatus, PastStatus, UserStatus, WaitingStatus};
    pub use farbus_control::reservation::ReservationStatus;
    pub use farbus_io_net::link::host_address::DEFAULT_PORT;
}

/// Attaches a device of another host to this machine: to its kernel, as a file, to programs, to a virtual machine.
///
/// A [`AttachRequest`](attach::AttachRequest) says what and how, [`FrontEnd::take`](attach::FrontEnd::take) takes the
/// device, and [`Attachment::run`](attach::Attachment::run) serves it until a
/// [`AttachmentHandle`](attach::AttachmentHandle) or its exporter ends it.
pub mod attach {
    pub use crate::frontend::{
        AttachRequest, Attachment, AttachmentEnd, AttachmentFacts, AttachmentHandle, AttachmentIntroduction,
        AttachmentRefusal, FRONT_ENDS, FileAttachment, FrontEnd, FrontEndChoice, FrontEndPreparation,
        FrontEndRequirement, MigrationTiming, NbdExportAddress, RestoredAttachment,
    };
    pub use crate::importer::disk::DiskMode;
}

/// Stream exports of another host, frame by frame.
pub mod frames {
    pub use crate::frontend::stream::{
        FrameSelection, PixelFormat, RemoteStreamReader, StreamDescription, StreamFormat, StreamFrame, open_stream,
    };
}

/// This host's key and the hosts that it is paired with.
pub mod trust {
    pub use crate::hosts::trust::TrustStore;
    pub use farbus_io_net::trust::{HostFolder, StateError};
}

/// What the data of a device passes through on its way: compression, sealing, recording, and external programs.
pub mod modules {
    pub use crate::link::modules::{allowed, recipe};
    pub use farbus_modules::{ModuleRefusal, ModuleSpec, PipelineRecipe};
    pub use farbus_session::native::AllowedModules;
}

/// What is reserved for a device: time on its bus and on the way to it.
pub mod reservation {
    pub use crate::devices::reservation::{ReservationRequest, together};
    pub use farbus_control::reservation::ReservationStatus;
    pub use farbus_session::reserve::{EndpointBandwidth, ReservationCriticality, ReservationTerms};
}
