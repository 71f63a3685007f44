//! Block devices: a store as a device, and views as layers over a device (requirement N14).
//!
//! | layer | what its user sees |
//! |---|---|
//! | [`StoreDevice`] | a store as a device that answers at once |
//! | [`ReadOnlyView`] | the device, read-only |
//! | [`RangeView`] | a part of it, as a device of its own |
//! | [`AnyByteLayer`] | a device of larger blocks, accessed at any byte |
//! | [`WriteBackLayer`] | a far device with a write cache: a flush makes writes durable |
//! | [`ReadAheadLayer`] | a far device with read-ahead for sequential reads |
//! | [`CopyOnWriteView`] | the device with private changes that are discarded at the end |
//! | [`MemoryMedium`] | memory that several users open, each by its own handle |
//! | [`MediumSwitch`] | a medium that [`MediumSwap`] can exchange while it is in use |
//! | [`SwappableDevice`] | a device, local or far, that is exchanged for another one while it is in use |
//! | [`ImmediateDeviceStore`] | a device that answers at once, as a store |
//! | [`BlockExport`] | a medium on offer, which each of its users opens |
//! | [`TracingLayer`] | the device, with requests and answers recorded in a trace |
//!
//! A layer is a [`BlockDevice`](farbus_model::BlockDevice) over one, so layers stack in any order:
//! `ReadOnlyView<RangeView<_>>` for one importer and `CopyOnWriteView<_>` for another, over the same export.

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
mod rising;
mod scratch;
mod sparse;
mod stripes;
pub mod swap;
mod swappable;
mod switch;
mod traced;
mod window;

pub use ahead::{AHEAD_KIND, ReadAheadLayer};
pub use answered::{ImmediateDeviceStore, make_durable};
pub use any_byte::{ANY_BYTE_KIND, AnyByteLayer};
pub use behind::{BEHIND_KIND, WriteBackLayer};
pub use export::{BlockExport, ChangeStorage, MediumView};
/// A store as a device: the bottom of a stack of layers.
pub use farbus_model::StoreDevice;
pub use memory::MemoryMedium;
pub use range::RangeView;
pub use read_only::ReadOnlyView;
pub use scratch::CopyOnWriteView;
pub use sparse::SparseMemory;
pub use swap::MediumSwap;
pub use swappable::{AWAY_KIND, DeviceSwapAction, SWAPPED_KIND, SwappableDevice};
pub use switch::{MediumSwitch, SwitchStore};
pub use traced::TracingLayer;
pub use window::{WINDOW_BYTES_MAX, WINDOW_BYTES_OWN};
