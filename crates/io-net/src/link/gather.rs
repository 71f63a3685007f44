//! Many descriptors, waited on as one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use farbus_model::ReadinessSource;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::wait::{DeviceWaitSource, PollInterest, timespec, wait};

/// A wait that is shorter than this belongs to a device's schedule, and ends exactly in time; longer ones are timeouts.
const NEAR: Duration = Duration::from_secs(1);

/// Descriptors that are waited on together; when one is ready, the caller checks all of them. The set can change while
/// another thread waits on it.
#[derive(Clone, Debug)]
pub struct EpollSet {
    epoll: Arc<OwnedFd>,
}

impl EpollSet {
    /// An empty set.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// Waits for data at `fd` too, and for room to write if `write`. If it is in the set already, this replaces what is
    /// waited for.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch(&self, fd: BorrowedFd<'_>, write: bool) -> io::Result<()> {
        let flags = if write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        self.put(fd, flags)
    }

    /// Waits for a device too.
    ///
    /// # Errors
    /// The system's error.
    pub fn watch_device(&self, readiness: &ReadinessSource) -> io::Result<()> {
        let Some(interest) = DeviceWaitSource::interest(readiness) else { return Ok(()) };
        let flags = if interest.is_for_room() { EventFlags::OUT } else { EventFlags::IN };
        self.put(interest.descriptor(), flags)
    }

    /// Waits for a device no more.
    pub fn forget_device(&self, readiness: &ReadinessSource) {
        if let Some(interest) = DeviceWaitSource::interest(readiness) {
            self.forget(interest.descriptor());
        }
    }

    fn put(&self, fd: BorrowedFd<'_>, flags: EventFlags) -> io::Result<()> {
        let data = EventData::new_u64(0);
        match epoll::add(&self.epoll, fd, data, flags) {
            Err(Errno::EXIST) => Ok(epoll::modify(&self.epoll, fd, data, flags)?),
            result => Ok(result?),
        }
    }

    /// Removes `fd`; call this before it is closed if there are duplicates of it.
    pub fn forget(&self, fd: BorrowedFd<'_>) {
        // Not being in the set is what was asked for.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until a descriptor is ready or `timeout` has passed (`None`: for ever).
    ///
    /// # Errors
    /// The system's error; an interruption by a signal counts as nothing ready.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        // epoll counts in milliseconds, ppoll in nanoseconds: short waits need the latter.
        if let Some(span) = timeout.filter(|span| (Duration::from_nanos(1)..NEAR).contains(span)) {
            return wait(&mut [PollInterest::new(self.as_fd(), false)], Some(span));
        }
        let timeout = timeout.map(timespec);
        // Which of them is ready does not matter: the caller checks all.
        let mut any = [const { MaybeUninit::uninit() }; 1];
        match epoll::wait(&self.epoll, &mut any, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What an engine waits on for the whole set.
    pub fn readiness(&self) -> ReadinessSource {
        DeviceWaitSource::readable(Arc::clone(&self.epoll))
    }
}

impl AsFd for EpollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Link, ThreadWaker, wait};

    #[test]
    fn a_near_moment_is_met_within_less_than_a_millisecond() {
        let all = EpollSet::new().unwrap();
        let wake = ThreadWaker::new().unwrap();
        all.watch(wake.as_fd(), false).unwrap();
        let span = Duration::from_micros(100);
        let times = (0..200).map(|_| {
            let begun = std::time::Instant::now();
            all.wait(Some(span)).unwrap();
            begun.elapsed()
        });
        let quickest = times.min().expect("there was one");
        assert!(quickest >= span && quickest < 5 * span, "{quickest:?}");
    }

    #[test]
    fn one_ready_descriptor_ends_a_wait_until_it_is_removed() {
        let all = EpollSet::new().unwrap();
        let (one, two) = (ThreadWaker::new().unwrap(), ThreadWaker::new().unwrap());
        all.watch(one.as_fd(), false).unwrap();
        all.watch(two.as_fd(), false).unwrap();
        let is_ready = || {
            let readiness = all.readiness();
            let mut interests = [DeviceWaitSource::interest(&readiness).unwrap()];
            wait(&mut interests, Some(Duration::ZERO)).unwrap();
            interests[0].readable
        };
        assert!(!is_ready());
        two.wake();
        assert!(is_ready());
        all.wait(None).unwrap();
        all.forget(two.as_fd());
        assert!(!is_ready());
        let (ours, theirs) = Link::pair("test").unwrap();
        all.watch(ours.as_fd(), false).unwrap();
        all.watch(ours.as_fd(), true).unwrap();
        assert!(is_ready(), "there is room");
        all.watch(ours.as_fd(), false).unwrap();
        assert!(!is_ready());
        drop(theirs);
        assert!(is_ready(), "an end is something to read");
    }
}
