//! Block devices: a store as a device, and views as layers over a device (requirement N14).
//!
//! | layer | what its user sees |
//! |---|---|
//! | [`StoreDevice`] | a store as a device that answers at once |
//! | [`ReadOnly`] | the device, read-only |
//! | [`Range`] | a part of it, as a device of its own |
//! | [`AnyByte`] | a device of larger blocks, accessed at any byte |
//! | [`Behind`] | a far device with a write cache: a flush makes writes durable |
//! | [`Ahead`] | a far device with read-ahead for sequential reads |
//! | [`Scratch`] | the device with private changes that are discarded at the end |
//! | [`MemoryMedium`] | memory that several users open, each by its own handle |
//! | [`Switch`] | a medium that [`Swap`] can exchange while it is in use |
//! | [`Swappable`] | a device, local or far, that is exchanged for another one while it is in use |
//! | [`Answered`] | a device that answers at once, as a store |
//! | [`BlockExport`] | a medium on offer, which each of its users opens |
//! | [`Traced`] | the device, with requests and answers recorded in a trace |
//!
//! A layer is a [`BlockDevice`](farbus_model::BlockDevice) over one, so layers stack in any order: `ReadOnly<Range<_>>`
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
mod swappable;
mod switch;
mod traced;

pub use ahead::{AHEAD_KIND, Ahead};
pub use answered::{Answered, make_durable};
pub use any_byte::{ANY_BYTE_KIND, AnyByte};
pub use behind::{BEHIND_KIND, Behind};
pub use export::{BlockExport, Changes, View};
/// A store as a device: the bottom of a stack of layers.
pub use farbus_model::StoreDevice;
pub use memory::MemoryMedium;
pub use range::Range;
pub use read_only::ReadOnly;
pub use scratch::Scratch;
pub use sparse::SparseMemory;
pub use swap::Swap;
pub use swappable::{AWAY_KIND, SWAPPED_KIND, Swappable, Work};
pub use switch::{Switch, SwitchStore};
pub use traced::Traced;
