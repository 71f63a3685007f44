//! Descriptors that a process inherits from the program that started it: a shell's, a service manager's, another
//! program's mistake.
//!
//! Our own descriptors close when a program is started (`FD_CLOEXEC`); inherited ones may not. The process that talks
//! to the network must not have them, nor any program that farbus starts: [`note`] is called before anything else is
//! opened, [`close`] once they are no longer needed.

#![allow(unsafe_code, reason = "descriptors that no type owns")]

use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

/// The first descriptor after standard input, output and error.
const FIRST: RawFd = 3;
/// The highest descriptor that is checked if `/proc` is not available.
const LOOKED_AT: RawFd = 1024;

static INHERITED: Mutex<Vec<RawFd>> = Mutex::new(Vec::new());

/// Records which descriptors are open. Call it first in a process, before it opens anything or has a second thread.
pub fn note() {
    let listed = std::fs::read_dir("/proc/self/fd").map(|entries| {
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<RawFd>>()
    });
    let mut open = listed.unwrap_or_else(|_| (FIRST..LOOKED_AT).collect());
    // The listing itself was open, too, and is closed by now.
    open.retain(|&number| number >= FIRST && is_open(number));
    *INHERITED.lock().unwrap_or_else(PoisonError::into_inner) = open;
}

/// Closes the recorded descriptors. Duplicates, for example of a service manager's sockets, stay open.
pub fn close() {
    for number in std::mem::take(&mut *INHERITED.lock().unwrap_or_else(PoisonError::into_inner)) {
        // SAFETY: it was open before this program opened anything, so no object owns it, and it is closed once.
        unsafe { rustix::io::close(number) };
    }
}

/// Takes one of the recorded descriptors; `None` if it is not one of them, or was taken.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    let mut inherited = INHERITED.lock().unwrap_or_else(PoisonError::into_inner);
    let index = inherited.iter().position(|&other| other == number)?;
    inherited.swap_remove(index);
    // SAFETY: it was open before this program opened anything, so no object owns it, and it is taken once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

fn is_open(number: RawFd) -> bool {
    // SAFETY: it is only queried; for a number that is not open the answer is an error (fcntl(2), `EBADF`).
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_getfd(fd).is_ok()
}
