//! Locks of ranges of a file, by which QEMU says how it uses an image (fcntl(2), *Open file description locks*).

#![allow(unsafe_code, reason = "rustix takes the process of such a lock, -1, for a fault")]

use std::os::fd::{AsRawFd as _, BorrowedFd};

/// Whether another open file has locked this byte, shared or not. `false` where the file system has no locks.
pub fn conflicts(file: BorrowedFd<'_>, byte: u64) -> bool {
    // SAFETY: all its fields are integers.
    let mut lock: libc::flock64 = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte as i64;
    lock.l_len = 1;
    // SAFETY: F_OFD_GETLK reads and writes one `flock64`, and `l_pid` is 0 as it asks.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    result == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}
