//! Waits for the ends of many descriptors at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::wait::ThreadWaker;

/// Waits until one of `fds` has ended, or `wake` is woken; returns for each whether it has ended. A descriptor whose
/// other end is closed has ended; a descriptor without another end never does.
///
/// # Errors
/// The system's error; an interruption by a signal counts as no end.
pub fn wait_for_ends(wake: &ThreadWaker, fds: &[BorrowedFd<'_>]) -> io::Result<Vec<bool>> {
    let mut polled = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
    polled.extend(fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::empty())));
    match poll(&mut polled, None) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(vec![false; fds.len()]),
        Err(errno) => return Err(errno.into()),
    }
    Ok(polled[1..].iter().map(|fd| !fd.revents().is_empty()).collect())
}
