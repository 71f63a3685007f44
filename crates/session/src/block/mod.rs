//! Block devices: a store as a device, and views as layers on a device (requirement N14).
//!
//! | layer | what its user sees |
//! |---|---|
//! | [`StoreDevice`] | a store, which answers at once |
//! | [`ReadOnly`] | the device, unchangeable |
//! | [`Range`] | a part of it, as a device of its own |
//! | [`AnyByte`] | a device of larger blocks, asked for any byte |
//! | [`Behind`] | a device far away, with a write cache: what is to be durable is flushed |
//! | [`Ahead`] | a device far away, whose next bytes are there when they are read in order |
//! | [`Scratch`] | the device as it was, with changes of one's own that go away |
//! | [`MemoryMedium`] | memory that several have open, by a handle each |
//! | [`Switch`] | a medium behind which another may be put while it is in use, which [`Swap`] does |
//! | [`Answered`] | a device that answers at once, as a store |
//! | [`BlockExport`] | a medium on offer: each of its users opens it |
//! | [`Traced`] | the device; who asked what, and when it was answered, is noted |
//!
//! A layer is a [`BlockDevice`](farbus_model::BlockDevice) over one, so they stack in any order: `ReadOnly<Range<_>>`
//! for one importer and `Scratch<_>` for another, over the same export.

mod ahead;
mod answered;
mod any_byte;
mod behind;
mod below;
mod export;
mod granules;
mod memory;
mod range;
mod rate;
mod read_only;
mod scratch;
mod sparse;
mod stripes;
pub mod swap;
mod switch;
mod traced;

pub use ahead::{AHEAD_KIND, Ahead};
pub use answered::{Answered, make_durable};
pub use any_byte::{ANY_BYTE_KIND, AnyByte};
pub use behind::{BEHIND_KIND, Behind};
pub use export::{BlockExport, Changes, View};
/// A store as a device: the layer at the bottom.
pub use farbus_model::StoreDevice;
pub use memory::MemoryMedium;
pub use range::Range;
pub use read_only::ReadOnly;
pub use scratch::Scratch;
pub use sparse::SparseMemory;
pub use swap::Swap;
pub use switch::{Switch, SwitchStore};
pub use traced::Traced;
