//! Block devices: a store as a device, and views as layers on a device (requirement N14).
//!
//! | layer | what its user sees |
//! |---|---|
//! | [`StoreDevice`] | a store, which answers at once |
//! | [`ReadOnly`] | the device, unchangeable |
//! | [`Range`] | a part of it, as a device of its own |
//! | [`Scratch`] | the device as it was, with changes of one's own that go away |
//! | [`MemoryMedium`] | memory that several have open, by a handle each |
//! | [`Answered`] | a device that answers at once, as a store |
//! | [`BlockExport`] | a medium on offer: each of its users opens it |
//! | [`Traced`] | the device; who asked what, and when it was answered, is noted |
//!
//! A layer is a [`BlockDevice`](farbus_model::BlockDevice) over one, so they stack in any order: `ReadOnly<Range<_>>` for one
//! importer and `Scratch<_>` for another, over the same export.

mod answered;
mod below;
mod export;
mod memory;
mod range;
mod read_only;
mod scratch;
mod sparse;
mod store;
mod traced;

pub use answered::{Answered, make_durable};
pub use export::{BlockExport, Changes, View};
pub use memory::MemoryMedium;
pub use range::Range;
pub use read_only::ReadOnly;
pub use scratch::Scratch;
pub use sparse::SparseMemory;
pub use store::StoreDevice;
pub use traced::Traced;
