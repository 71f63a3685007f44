//! # The transformation modules: pairs that change what passes, and change it back
//!
//! **This crate is** the modules that ship with farbus, a folder each with its code and its manual, and how pipelines
//! of them are asked for, agreed on and run (requirements I1, I2, N14). A [`Recipe`] is what the importer wants, an
//! [`Allowance`] what the exporter's owner lets it have; each becomes a [`Pipeline`], and the two undo each other.
//!
//! **It may touch** nothing: bytes, moments and randomness are handed in.
//!
//! **It never touches** a socket, a file, a thread or a clock; a key file is read by the shell.
//!
//! **Start reading at** [`Pipeline::handle`]; then read [`null`] and [`delay`], which are modules at their shortest.
//!
//! **Why** faults are modules: a test that cuts, delays and corrupts does so with what ships.

pub mod buffer;
pub mod bundle;
mod capture;
pub mod catalogue;
pub mod compress;
pub mod corrupt;
pub mod cost;
pub mod cut;
pub mod delay;
mod dice;
pub mod drop;
pub mod files;
mod heads;
pub mod jitter;
mod later;
pub mod lz4;
pub mod maker;
pub mod null;
pub mod pause;
pub mod pipeline;
pub mod pointer;
pub mod rate;
pub mod recipe;
pub mod record;
pub mod refusal;
pub mod replay;
pub mod seal;
pub mod settings;
pub mod stale;
pub mod zstd;

/// A recording that nothing passed.
pub use capture::{SeenTransfer, empty as empty_recording, usb_section};
pub use catalogue::Catalogue;
pub use cost::{ModuleCost, PipelineCost};
/// The contract of a module.
pub use farbus_model::module;
pub use files::{Files, Sink};
pub use maker::{Begun, Fill, Maker, Place};
pub use pipeline::Pipeline;
pub use recipe::{Allowance, Beginning, Recipe};
pub use refusal::{Mismatch, Refusal};
pub use settings::{Asked, Settings};
