//! Waits on several descriptors at once, with nanosecond timeouts: a frame is 125 us long.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farbus_model::ReadinessSource;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// A descriptor, and what to wait for on it.
#[derive(Debug)]
pub struct PollInterest<'a> {
    fd: BorrowedFd<'a>,
    flags: PollFlags,
    /// After [`wait`]: there is something to read; an end or an error counts.
    pub readable: bool,
    /// After [`wait`]: there is room to write.
    pub writable: bool,
}

impl<'a> PollInterest<'a> {
    /// Waits for something to read, and for room to write if `write`.
    pub fn new(fd: BorrowedFd<'a>, write: bool) -> Self {
        let flags = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        Self { fd, flags, readable: false, writable: false }
    }

    /// Waits only for room to write.
    pub fn room(fd: BorrowedFd<'a>) -> Self {
        Self { fd, flags: PollFlags::OUT, readable: false, writable: false }
    }

    /// Waits only for the end of both directions: the peer may have sent its last byte and still receive.
    pub fn end(fd: BorrowedFd<'a>) -> Self {
        Self { fd, flags: PollFlags::empty(), readable: false, writable: false }
    }

    /// After [`wait`]: whether what was waited for has come. A device tells by one or the other of the two flags,
    /// depending on where it is: usbfs by room to write, a session by something to read.
    pub fn is_ready(&self) -> bool {
        self.readable || self.writable
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'a> {
        self.fd
    }

    pub(super) fn is_for_room(&self) -> bool {
        self.flags.contains(PollFlags::OUT)
    }

    /// Waits only for the peer's end, and leaves what it sent.
    pub fn hangup(fd: BorrowedFd<'a>) -> Self {
        Self { fd, flags: PollFlags::RDHUP, readable: false, writable: false }
    }
}

/// What to wait on for a remote or real device.
#[derive(Debug)]
pub struct DeviceWaitSource(WaitSourceKind);

#[derive(Debug)]
enum WaitSourceKind {
    /// Becomes writable when the device has completed something, as usbfs's descriptor does.
    Room(Arc<OwnedFd>),
    /// Is woken by another thread.
    Wake(Arc<ThreadWaker>),
    /// Becomes readable when the device has completed something.
    Readable(Arc<OwnedFd>),
}

impl DeviceWaitSource {
    /// Tells an engine to wait on a descriptor that becomes writable when its device has completed something.
    pub fn readiness(fd: Arc<OwnedFd>) -> ReadinessSource {
        ReadinessSource::new(Self(WaitSourceKind::Room(fd)))
    }

    /// Tells an engine to wait until another thread wakes it.
    pub fn woken(wake: Arc<ThreadWaker>) -> ReadinessSource {
        ReadinessSource::new(Self(WaitSourceKind::Wake(wake)))
    }

    /// Tells an engine to wait on a descriptor that becomes readable.
    pub(super) fn readable(fd: Arc<OwnedFd>) -> ReadinessSource {
        ReadinessSource::new(Self(WaitSourceKind::Readable(fd)))
    }

    /// The interest in a device, from [`DeviceWaitSource::readiness`] or [`DeviceWaitSource::woken`]; `None` for a
    /// readiness of another origin.
    pub fn interest(readiness: &ReadinessSource) -> Option<PollInterest<'_>> {
        match &readiness.inside::<Self>()?.0 {
            WaitSourceKind::Room(fd) => Some(PollInterest::room(fd.as_fd())),
            WaitSourceKind::Wake(wake) => Some(PollInterest::new(wake.as_fd(), false)),
            WaitSourceKind::Readable(fd) => Some(PollInterest::new(fd.as_fd(), false)),
        }
    }
}

/// Waits until one of `interests` is ready or `timeout` has passed (`None`: for ever).
///
/// # Errors
/// The system's error; an interruption by a signal counts as nothing ready.
///
/// # Panics
/// Without any interest, or with more than [`INTERESTS_MAX`]: an engine owns few descriptors.
pub fn wait(interests: &mut [PollInterest<'_>], timeout: Option<Duration>) -> io::Result<()> {
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

/// The most that an engine of one device and one link waits on.
const FEW: usize = 4;
/// The most that an engine with many connections waits on.
pub const INTERESTS_MAX: usize = 32;

fn wait_on<'a>(
    fds: &mut [PollFd<'a>],
    interests: &mut [PollInterest<'a>],
    timeout: Option<Duration>,
) -> io::Result<()> {
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

/// Converts a duration for the system.
pub(super) fn timespec(span: Duration) -> Timespec {
    Timespec { tv_sec: span.as_secs().min(i64::MAX as u64).cast_signed(), tv_nsec: span.subsec_nanos().into() }
}

/// Lets this thread's timeouts end exactly when they are due and not up to 50 us later, which is Linux's default and
/// nearly half a microframe.
pub fn wait_exactly() {
    // If the system refuses, isochronous devices are only less regular.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Wakes a waiting thread, which has this among its interests.
#[derive(Debug)]
pub struct ThreadWaker {
    event: OwnedFd,
    /// Set before the event and after it: a thread that checks often and is seldom woken makes no system call for it.
    is_woken: AtomicBool,
}

impl ThreadWaker {
    /// An event that is not set.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, is_woken: AtomicBool::new(false) })
    }

    /// Wakes the waiting thread, now or when it next waits.
    pub fn wake(&self) {
        self.set_event();
        // The thread that cleared the flag before the event was set has to clear the event, too.
        self.is_woken.store(true, Ordering::Release);
    }

    /// The first part of [`ThreadWaker::wake`]. The woken thread often runs before this one goes on, on its processor:
    /// it has to find the flag, or it would find the event and nothing to do, again and again, for as long as it may
    /// run.
    fn set_event(&self) {
        self.is_woken.store(true, Ordering::Release);
        // A full counter wakes the thread as well.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Clears the event. Check what a waking thread may have left after this call and not before it: an event that is
    /// being set at the same time may be cleared only by the next call, and wakes once more until then.
    pub fn clear(&self) {
        self.take();
    }

    /// Clears the event, and returns whether it was set.
    pub fn take(&self) -> bool {
        // It is nearly always clear; a plain load is cheaper than an exchange.
        let was_woken = self.is_woken.load(Ordering::Acquire) && self.is_woken.swap(false, Ordering::AcqRel);
        if was_woken {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
        }
        was_woken
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_ready_by_room_to_write_and_by_something_to_read() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let one = Arc::new(OwnedFd::from(one));
        let usbfs = DeviceWaitSource::readiness(Arc::clone(&one));
        let mut interests = [DeviceWaitSource::interest(&usbfs).unwrap()];
        wait(&mut interests, None).unwrap();
        assert!(interests[0].is_ready() && !interests[0].readable, "there is room and nothing to read");
        let session = DeviceWaitSource::readable(one);
        let mut interests = [DeviceWaitSource::interest(&session).unwrap()];
        wait(&mut interests, Some(Duration::ZERO)).unwrap();
        assert!(!interests[0].is_ready());
        rustix::io::write(&other, b"x").unwrap();
        wait(&mut interests, None).unwrap();
        assert!(interests[0].is_ready());
    }

    #[test]
    fn thread_that_runs_before_its_waker_goes_on_clears_the_event() {
        let wake = ThreadWaker::new().unwrap();
        let is_set = || {
            let mut interests = [PollInterest::new(wake.as_fd(), false)];
            wait(&mut interests, Some(Duration::ZERO)).unwrap();
            interests[0].readable
        };
        wake.set_event();
        assert!(is_set() && wake.take());
        assert!(!is_set(), "it waits, and does not look again and again until its waker runs");
        wake.wake();
        assert!(is_set() && wake.take() && !is_set(), "the next one wakes it, too");
    }

    #[test]
    fn a_wake_ends_a_wait_once() {
        let wake = ThreadWaker::new().unwrap();
        wake.wake();
        let mut interests = [PollInterest::new(wake.as_fd(), false)];
        wait(&mut interests, None).unwrap();
        assert!(interests[0].readable);
        wake.clear();
        let mut interests = [PollInterest::new(wake.as_fd(), false)];
        wait(&mut interests, Some(Duration::from_micros(125))).unwrap();
        assert!(!interests[0].readable);
    }
}
