//! Loop devices.

#![allow(unsafe_code, reason = "one ioctl that the standard library and rustix have no name for")]

use std::io;
use std::os::fd::AsFd;

use rustix::ioctl::{NoArg, Opcode, ioctl};

/// `LOOP_CLR_FD`.
const CLEAR: Opcode = 0x4c01;

/// Detaches a loop device from its backing file: at once, or as soon as the last program that has it open closes it.
///
/// # Errors
/// The system's error.
pub fn release(device: impl AsFd) -> io::Result<()> {
    // SAFETY: LOOP_CLR_FD takes no argument (linux/loop.h, loop(4)).
    unsafe { ioctl(device, NoArg::<CLEAR>::new()) }?;
    Ok(())
}
