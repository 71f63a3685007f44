//! # The transformation modules: pairs that change what passes, and change it back
//!
//! **This crate is** the modules that ship with farbus, a folder each with its code and its manual, and how pipelines
//! of them are asked for, agreed on and run (requirements I1, I2, N14). A [`PipelineRecipe`] is what the importer
//! wants, an [`ModuleAllowance`] what the exporter's owner lets it have; each becomes a [`ModulePipeline`], and the two
//! undo each other.
//!
//! **It may touch** nothing: bytes, moments and randomness are handed in.
//!
//! **It never touches** a socket, a file, a thread or a clock; a key file is read by the shell.
//!
//! **Start reading at** [`ModulePipeline::handle`]; then read [`null`] and [`delay`], which are modules at their
//! shortest.
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
pub use catalogue::ModuleCatalogue;
pub use cost::{ModuleCost, PipelineCost};
/// The contract of a module.
pub use farbus_model::module;
pub use files::{ModuleFileSink, ModuleFiles};
pub use maker::{ModuleContext, ModuleMaker, PendingModule, RandomSource};
pub use pipeline::ModulePipeline;
pub use recipe::{ModuleAllowance, PendingPipeline, PipelineRecipe};
pub use refusal::{ModuleMismatch, ModuleRefusal};
pub use settings::{ModuleSettings, ModuleSpec};
