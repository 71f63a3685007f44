//! Evidence identifies a device: it stays the same when the device's name, path or bus id changes.
//!
//! | device | evidence |
//! |---|---|
//! | file | the file system's UUID (or `f_fsid`, where that is made of it), the file's handle (`name_to_handle_at`), its size |
//! | loop device | its backing file's evidence, and which part of it |
//! | device mapper | its UUID |
//! | partition | its GUID, and its disk's evidence |
//! | disk | WWN, serial number, or the card's id, and its size |
//! | USB device | vendor, product and serial number; without one its port and a digest of its descriptors |
//!
//! A device with none of these has evidence that is valid only while this machine runs: a device number, an inode
//! number. Evidence is text that is compared, stored and shown, but never parsed. Start reading at
//! [`DeviceEvidence::of_open`].

mod block;
mod file;
mod secret;
mod text;
mod usb;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{FileType, fstat};

pub use secret::{ProcessSecret, derive_from};
pub use text::DeviceEvidence;

/// The kernel's number of the attachment of the block device that an open file is or lies on: another number means that
/// the device was taken away and came back meanwhile, also if it is the same device. `None` where Linux does not number
/// it: before 5.15, and for file systems without a single block device below (btrfs, ZFS, tmpfs, FUSE, NFS).
pub fn attachment_number(file: BorrowedFd<'_>) -> Option<u64> {
    let about = fstat(file).ok()?;
    let is_block_device = FileType::from_raw_mode(about.st_mode) == FileType::BlockDevice;
    block::sequence(Path::new("/"), if is_block_device { about.st_rdev } else { about.st_dev })
}

impl DeviceEvidence {
    /// The evidence of an open file or block device.
    ///
    /// # Errors
    /// The file cannot be examined.
    pub fn of_open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let about = fstat(file)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::BlockDevice => block::of(Path::new("/"), about.st_rdev, Some(file)),
            _ => file::of(file),
        }
    }
}
