//! Stores for blocks: implementations of the model's [`BlockStore`](farbus_model::BlockStore).

pub mod file;
pub mod in_use;

pub use file::{BlockSizes, FileStore, FileStoreOpenError, FileStoreProblem, OtherUsers};
pub use in_use::ImageUser;
