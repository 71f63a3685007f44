//! # The lowest layer: words and contracts
//!
//! **This crate is** the vocabulary that every other crate uses: ids, speeds, descriptors, setup
//! packets, URBs and their completions, payload buffers, limits, our own [`Instant`], and the
//! traits by which crates meet ([`Device`], [`BlockDevice`], [`BlockStore`], [`Module`]).
//!
//! **It may touch** nothing: no socket, no file, no thread, no clock.
//!
//! **It never touches** another farbus crate, nor any third-party one.
//!
//! **Start reading at** [`Device`]: the one contract that a keyboard made of code, a device behind usbfs
//! and a device on another machine all keep. Then read [`urb`] for what travels through it.
//!
//! **Why** a crate and not a module: contracts change more slowly than what keeps them, and a
//! crate is the only wall through which an import can never turn round.

pub mod block;
pub mod block_device;
pub mod budget;
pub mod definition;
pub mod descriptor;
pub mod device;
pub mod extents;
pub mod identity;
pub mod layer;
pub mod limits;
pub mod losses;
pub mod module;
pub mod module_abi;
pub mod payload;
pub mod repair;
pub mod serial_port;
pub mod store_device;
pub mod tally;
pub mod time;
pub mod trace;
pub mod urb;
pub mod usb;

pub use block::{BlockMedium, BlockStore, StoreError};
pub use block_device::{
    BlockCompletion, BlockDevice, BlockId, BlockInFlight, BlockInfo, BlockOp, BlockRequest, PendingBlockRequests,
};
pub use definition::DeviceDefinition;
pub use descriptor::{ConfigurationSelection, DescriptorSet, EndpointDescriptor};
pub use device::{
    CompletionQueue, Device, DeviceSwapOutcome, DeviceSwapReport, OwnerCommand, OwnerCommandError, ReadinessSource,
    SwapCandidate,
};
pub use extents::{ExtentList, StoreExtent};
pub use identity::{ExportIdentity, MediumNumber};
pub use layer::{BlockLayer, DeviceLayer};
pub use limits::SessionLimits;
pub use losses::{LossCounter, LossCursor};
pub use module::Module;
pub use payload::{BufferPool, Payload, PayloadAssembler, new_chunk};
pub use repair::{DescriptorRepair, DescriptorRepairs};
pub use store_device::StoreDevice;
pub use tally::NamedCounters;
pub use time::Instant;
pub use urb::{IsoPacket, Urb, UrbCompletion, UrbFlags, UrbId, UrbInFlight, UrbStatus};
pub use usb::{EpAddr, SetupPacket, TransferDirection, TransferType, UsbSpeed};
