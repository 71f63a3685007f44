//! Driving a disk: Bulk-Only mass storage with SCSI commands, as bytes at offsets.
//!
//! From the top down; each layer knows only the one below it:
//!
//! | layer | what it knows |
//! |---|---|
//! | [`ScsiDisk`] | one operation at a time: bring-up, read, write, clear, flush, eject |
//! | `bring_up`, `operation` | which commands an operation takes, one after another |
//! | `command` | why a command failed and whether it is worth repeating |
//! | [`bulk_only`] | command, data and status in flight together, and how to get back in step |
//! | `scsi`, `sense`, `verdict`, `wrapper` | the bytes, and what a failure's mean |

mod bring_up;
pub mod bulk_only;
mod command;
mod data;
mod disk;
mod error;
mod info;
mod operation;
mod scsi;
mod sense;
mod step;
mod target;
mod verdict;
mod wrapper;

pub use data::ReadData;
pub use disk::ScsiDisk;
pub use error::{DiskError, TransportFault};
pub use info::{DiskInfo, ScsiDiskOptions};
pub use sense::SenseCode;
pub use step::OperationResult;
pub use target::{BULK_ONLY, BulkOnlyInterface, NO_DISK};
