//! Where blocks are kept: implementations of the model's [`BlockStore`](farbus_model::BlockStore).

pub mod file;

pub use file::{BlockSizes, FileStore, OpenError, Trouble};
