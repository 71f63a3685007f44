//! A timer among the descriptors of an [`super::EpollSet`]: its owner wakes up for it without a timeout of its own, and
//! reads no clock for it while it has other work.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use farbus_model::Instant;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime};

use super::BoottimeClock;
use super::wait::timespec;

/// Becomes readable every `span`, by the clock that continues while the machine sleeps.
#[derive(Debug)]
pub struct TickTimer {
    fd: OwnedFd,
    span: Duration,
    due_at: Instant,
}

impl TickTimer {
    /// Starts a timer.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn start(clock: BoottimeClock, span: Duration) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        let mut timer = Self { fd, span, due_at: Instant::ZERO };
        timer.rearm(clock.now())?;
        Ok(timer)
    }

    /// Whether `now` is a tick; the next one is `span` later, however late this one was noticed. Makes a system call
    /// only then.
    ///
    /// # Errors
    /// The system's error.
    pub fn take(&mut self, now: Instant) -> io::Result<bool> {
        let is_due = now >= self.due_at;
        if is_due {
            self.rearm(now)?;
        }
        Ok(is_due)
    }

    /// Once: a descriptor that is set again is not readable until then.
    fn rearm(&mut self, now: Instant) -> io::Result<()> {
        self.due_at = now + self.span;
        let once = Itimerspec { it_interval: timespec(Duration::ZERO), it_value: timespec(self.span) };
        timerfd_settime(&self.fd, TimerfdTimerFlags::empty(), &once)?;
        Ok(())
    }
}

impl AsFd for TickTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::EpollSet;

    #[test]
    fn tick_wakes_its_owner_and_is_due_then_and_not_again_before_the_next() {
        let clock = BoottimeClock::start();
        let all = EpollSet::new().unwrap();
        let mut timer = TickTimer::start(clock, Duration::from_millis(20)).unwrap();
        all.watch(timer.as_fd(), false).unwrap();
        for _ in 0..3 {
            let begun = clock.now();
            assert!(!timer.take(begun).unwrap());
            all.wait(Some(Duration::from_secs(60))).unwrap();
            let now = clock.now();
            assert!(now - begun < Duration::from_secs(60), "the timer ended the wait");
            assert!(timer.take(now).unwrap(), "what woke the owner is due");
        }
    }
}
