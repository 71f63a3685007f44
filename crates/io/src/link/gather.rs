//! Many descriptors, waited on as one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use farbus_model::Readiness;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::wait::{Interest, Watched, timespec, wait};

/// A moment nearer than this is one of a device's schedule, and met exactly; others are timeouts.
const NEAR: Duration = Duration::from_secs(1);

/// Descriptors that are waited on together, by one who asks all of them when one is ready. What is in it can change
/// while somebody waits on the whole.
#[derive(Clone, Debug)]
pub struct Gathering {
    epoll: Arc<OwnedFd>,
}

impl Gathering {
    /// An empty one.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC)?) })
    }

    /// Waits for something to read at `fd` too, and for room to write if `write`. One that is in it already is waited
    /// for so from now on.
    ///
    /// # Errors
    /// What the system says of the descriptor.
    pub fn watch(&self, fd: BorrowedFd<'_>, write: bool) -> io::Result<()> {
        let flags = if write { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
        self.put(fd, flags)
    }

    /// Waits for a device too.
    ///
    /// # Errors
    /// What the system says of its descriptor.
    pub fn watch_device(&self, readiness: &Readiness) -> io::Result<()> {
        let Some(interest) = Watched::interest(readiness) else { return Ok(()) };
        let flags = if interest.is_for_room() { EventFlags::OUT } else { EventFlags::IN };
        self.put(interest.descriptor(), flags)
    }

    fn put(&self, fd: BorrowedFd<'_>, flags: EventFlags) -> io::Result<()> {
        let data = EventData::new_u64(0);
        match epoll::add(&self.epoll, fd, data, flags) {
            Err(Errno::EXIST) => Ok(epoll::modify(&self.epoll, fd, data, flags)?),
            result => Ok(result?),
        }
    }

    /// Waits for `fd` no more; to be called before it is closed, if others have it as well.
    pub fn forget(&self, fd: BorrowedFd<'_>) {
        // One that is not in it is not waited for either.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until one of them is ready or `timeout` has passed (`None`: for ever).
    ///
    /// # Errors
    /// What the system says; an interruption by a signal counts as nothing ready.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        // Linux counts milliseconds here, and nanoseconds there: a moment that is near is to be met.
        if let Some(span) = timeout.filter(|span| (Duration::from_nanos(1)..NEAR).contains(span)) {
            return wait(&mut [Interest::new(self.as_fd(), false)], Some(span));
        }
        let timeout = timeout.map(timespec);
        // Which of them it is does not matter: all are asked.
        let mut any = [const { MaybeUninit::uninit() }; 1];
        match epoll::wait(&self.epoll, &mut any, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// What an engine waits on for all of them.
    pub fn readiness(&self) -> Readiness {
        Watched::readable(Arc::clone(&self.epoll))
    }
}

impl AsFd for Gathering {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{Link, Wake, wait};

    #[test]
    fn a_near_moment_is_met_within_less_than_a_millisecond() {
        let all = Gathering::new().unwrap();
        let wake = Wake::new().unwrap();
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
    fn one_of_many_wakes_and_is_forgotten() {
        let all = Gathering::new().unwrap();
        let (one, two) = (Wake::new().unwrap(), Wake::new().unwrap());
        all.watch(one.as_fd(), false).unwrap();
        all.watch(two.as_fd(), false).unwrap();
        let is_ready = || {
            let readiness = all.readiness();
            let mut interests = [Watched::interest(&readiness).unwrap()];
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
