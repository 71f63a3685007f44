//! Waiting on several descriptors at once, with nanoseconds: a frame is 125 us long.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farbus_model::Readiness;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// A descriptor, and what to wait for on it.
#[derive(Debug)]
pub struct Interest<'a> {
    fd: BorrowedFd<'a>,
    flags: PollFlags,
    /// After [`wait`]: there is something to read, an end or an error among it.
    pub readable: bool,
    /// After [`wait`]: there is room to write.
    pub writable: bool,
}

impl<'a> Interest<'a> {
    /// Waits for something to read, and for room to write if `write`.
    pub fn new(fd: BorrowedFd<'a>, write: bool) -> Self {
        let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        Self { fd, flags, readable: false, writable: false }
    }

    /// Waits for room to write alone.
    pub fn room(fd: BorrowedFd<'a>) -> Self {
        Self { fd, flags: PollFlags::OUT, readable: false, writable: false }
    }

    /// Waits for the end of both directions alone: the peer may have said its last and still listen.
    pub fn end(fd: BorrowedFd<'a>) -> Self {
        Self { fd, flags: PollFlags::empty(), readable: false, writable: false }
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'a> {
        self.fd
    }

    pub(super) fn is_for_room(&self) -> bool {
        self.flags.contains(PollFlags::OUT)
    }

    /// Waits for the peer's end alone, leaving what it sent.
    pub fn hangup(fd: BorrowedFd<'a>) -> Self {
        Self { fd, flags: PollFlags::RDHUP, readable: false, writable: false }
    }
}

/// What a device that lives outside is waited for on.
#[derive(Debug)]
pub struct Watched(On);

#[derive(Debug)]
enum On {
    /// Becomes writable when the device has finished something, as usbfs's descriptor does.
    Room(Arc<OwnedFd>),
    /// Is woken.
    Wake(Arc<Wake>),
    /// Becomes readable.
    Readable(Arc<OwnedFd>),
}

impl Watched {
    /// What an engine is told to wait on: a descriptor that becomes writable when its device has finished something.
    pub fn readiness(fd: Arc<OwnedFd>) -> Readiness {
        Readiness::new(Self(On::Room(fd)))
    }

    /// What an engine is told to wait on: somebody who will wake it.
    pub fn woken(wake: Arc<Wake>) -> Readiness {
        Readiness::new(Self(On::Wake(wake)))
    }

    /// What an engine is told to wait on: a descriptor that becomes readable.
    pub(super) fn readable(fd: Arc<OwnedFd>) -> Readiness {
        Readiness::new(Self(On::Readable(fd)))
    }

    /// The interest in a device that was given by [`Watched::readiness`] or [`Watched::woken`]; `None` for another
    /// shell's.
    pub fn interest(readiness: &Readiness) -> Option<Interest<'_>> {
        match &readiness.inside::<Self>()?.0 {
            On::Room(fd) => Some(Interest::room(fd.as_fd())),
            On::Wake(wake) => Some(Interest::new(wake.as_fd(), false)),
            On::Readable(fd) => Some(Interest::new(fd.as_fd(), false)),
        }
    }
}

/// Waits until one of `interests` is ready or `timeout` has passed (`None`: for ever).
///
/// # Errors
/// What the system says; an interruption by a signal counts as nothing ready.
///
/// # Panics
/// Without any interest, or with more than [`INTERESTS_MAX`]: an engine owns few descriptors.
pub fn wait(interests: &mut [Interest<'_>], timeout: Option<Duration>) -> io::Result<()> {
    assert!((1..=INTERESTS_MAX).contains(&interests.len()), "an engine owns few descriptors");
    let first = PollFd::from_borrowed_fd(interests[0].fd, interests[0].flags);
    if interests.len() <= FEW {
        let mut fds: [PollFd<'_>; FEW] = std::array::from_fn(|_| first.clone());
        wait_on(&mut fds, interests, timeout)
    } else {
        let mut fds: [PollFd<'_>; INTERESTS_MAX] = std::array::from_fn(|_| first.clone());
        wait_on(&mut fds, interests, timeout)
    }
}

/// What an engine of one device and one link waits on, at most.
const FEW: usize = 4;
/// What an engine with many connections waits on, at most.
pub const INTERESTS_MAX: usize = 32;

fn wait_on<'a>(fds: &mut [PollFd<'a>], interests: &mut [Interest<'a>], timeout: Option<Duration>) -> io::Result<()> {
    for (fd, interest) in fds.iter_mut().zip(interests.iter()) {
        *fd = PollFd::from_borrowed_fd(interest.fd, interest.flags);
    }
    let timeout = timeout.map(timespec);
    match poll(&mut fds[..interests.len()], timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    }
    let bad = PollFlags::ERR | PollFlags::HUP | PollFlags::RDHUP | PollFlags::NVAL;
    for (fd, interest) in fds.iter().zip(interests.iter_mut()) {
        let ready = fd.revents();
        interest.readable = ready.intersects(PollFlags::IN | bad);
        interest.writable = ready.intersects(PollFlags::OUT | bad);
    }
    Ok(())
}

/// A span as the system counts it.
pub(super) fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: span.as_secs().min(i64::MAX as u64).cast_signed(), tv_nsec: span.subsec_nanos().into() }
}

/// Lets this thread's timeouts end when they are due and not up to 50 us later, which is Linux's
/// default and nearly half a microframe.
pub fn wait_exactly() {
    // A system that refuses only makes isochronous devices less regular.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Wakes a thread that waits: it puts this among its interests.
#[derive(Debug)]
pub struct Wake {
    event: OwnedFd,
    /// Set behind the event: whoever looks often and is seldom woken makes no system call for it.
    is_woken: AtomicBool,
}

impl Wake {
    /// A fresh one.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, is_woken: AtomicBool::new(false) })
    }

    /// Wakes the waiting thread, now or when it next waits.
    pub fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        self.is_woken.store(true, Ordering::Release);
    }

    /// Forgets that it was woken. Look at what a waker may have left after this and not before: one who is just waking
    /// may be forgotten by the next call only, and wakes once more until then.
    pub fn clear(&self) {
        self.take();
    }

    /// The same, and says whether it was woken.
    pub fn take(&self) -> bool {
        // Nearly always not; a plain look is cheaper than an exchange.
        let was_woken = self.is_woken.load(Ordering::Acquire) && self.is_woken.swap(false, Ordering::AcqRel);
        if was_woken {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        was_woken
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_ends_a_wait_once() {
        let wake = Wake::new().unwrap();
        wake.wake();
        let mut interests = [Interest::new(wake.as_fd(), false)];
        wait(&mut interests, None).unwrap();
        assert!(interests[0].readable);
        wake.clear();
        let mut interests = [Interest::new(wake.as_fd(), false)];
        wait(&mut interests, Some(Duration::from_micros(125))).unwrap();
        assert!(!interests[0].readable);
    }
}
