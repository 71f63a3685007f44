//! Stores for blocks: implementations of the model's [`BlockStore`](farbus_model::BlockStore).

pub mod file;
pub mod in_use;

pub use file::{BlockSizes, FileStore, OpenError, OtherUsers, Trouble};
pub use in_use::ImageUser;
