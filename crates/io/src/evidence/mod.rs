//! Evidence of which device this is: what stays when its name, its path or its bus id changes.
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
//! What has none of these has evidence that is good only as long as this machine runs: a device number, an inode
//! number. Evidence is text: it is compared, kept and shown, and never taken apart. Enter at [`Evidence::of_open`].

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
pub use text::Evidence;

impl Evidence {
    /// Of an open file or block device.
    ///
    /// # Errors
    /// If the file cannot be looked at.
    pub fn of_open(file: BorrowedFd<'_>) -> io::Result<Self> {
        let about = fstat(file)?;
        match FileType::from_raw_mode(about.st_mode) {
            FileType::BlockDevice => block::of(Path::new("/"), about.st_rdev, Some(file)),
            _ => file::of(file),
        }
    }
}
