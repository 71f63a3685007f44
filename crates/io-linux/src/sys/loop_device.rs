//! Loop devices.

#![allow(unsafe_code, reason = "ioctls that the standard library and rustix have no name for")]

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{Getter, NoArg, Opcode, ioctl};

/// Detaches a loop device from its file (`LOOP_CLR_FD`).
const CLEAR: Opcode = 0x4c01;

/// Reads which file a loop device has (`LOOP_GET_STATUS64`).
const STATUS: Opcode = 0x4c05;

/// `struct loop_info64` (linux/loop.h): the file is what is read of it.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    _rest: [u64; 27],
}

/// The file that a loop device is over: the number of its device and its inode, as `stat` has them.
///
/// # Errors
/// The system's error: it is over none.
pub fn backing_file(device: impl AsFd) -> io::Result<(u64, u64)> {
    // SAFETY: LOOP_GET_STATUS64 writes one `loop_info64`, 232 bytes of integers.
    let info: LoopInfo = unsafe { ioctl(device, Getter::<STATUS, LoopInfo>::new()) }?;
    Ok((info.device, info.inode))
}

/// Detaches a loop device from its backing file: at once, or as soon as the last program that has it open closes it.
///
/// # Errors
/// The system's error.
pub fn release(device: impl AsFd) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument (linux/loop.h, loop(4)).
    unsafe { ioctl(device, NoArg::<CLEAR>::new()) }?;
    Ok(())
}
