//! Descriptors that a process has from whoever started it: a shell's, a service manager's, another program's mistake.
//!
//! Ours close when a program is started (`FD_CLOEXEC`); those of others need not. Nobody who hears strangers is to have
//! them, and nobody whom farbus starts: [`note`] is called before anything else is opened, [`close`] once they are of
//! no more use.

#![allow(unsafe_code, reason = "descriptors that no type owns")]

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// The first after standard input, output and error.
const FIRST: RawFd = 3;
/// As far as is looked where `/proc` cannot say.
const LOOKED_AT: RawFd = 1024;

static INHERITED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Notes what is open now. To be called first of all in a process, before it opens anything or has a second thread.
pub fn note() {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<RawFd>>()
    });
    let mut open = listed.unwrap_or_else(|_| (FIRST..LOOKED_AT).collect());
    // The list itself was open, too, and is not any more.
    open.retain(|&number| number >= FIRST && is_open(number));
    *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = open;
}

/// Closes what was noted. Where a copy was taken of one, as of a service manager's sockets, the copy stays.
pub fn close() {
    for number in std::mem::take(&mut *INHERITED.lock().unwrap_or_else(PoisonError::into_inner)) {
        // SAFETY: it was open before this program opened anything, so no type of ours owns it, and it is closed once.
        unsafe { rustix::io::close(number) };
    }
}

fn is_open(number: RawFd) -> bool {
    // SAFETY: nothing is done to it; a number that is not open is answered with an error (fcntl(2), `EBADF`).
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(fd).is_ok()
}
