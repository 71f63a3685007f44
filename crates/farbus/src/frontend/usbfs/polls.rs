//! Programs that wait in `poll(2)` for an open of a device.
//!
//! The kernel asks, hears that there is nothing yet, waits to be woken and asks again. Where transfers end at once, the
//! first answer is held until one has ended: that saves the wake-up and the second question.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use farbus_io_linux::frontend::tree::{RequestId, TreeServer};
use farbus_session::usbfs::{OpenId, UsbfsPollEvents};

/// An open of a device.
pub type DeviceOpenId = (usize, OpenId);

/// An answer is held so long, which is half of the shortest time that a program can wait in `poll(2)`: what else it
/// waits for is late by this at most.
const HELD_MAX: Duration = Duration::from_micros(500);

/// Events of `poll(2)`: POLLERR, POLLHUP, and POLLOUT with POLLWRNORM.
const POLL_GONE: u32 = 0x008 | 0x010;
const POLL_REAP: u32 = 0x004 | 0x100;

/// A question that is not answered yet.
struct HeldPoll {
    id: RequestId,
    open: DeviceOpenId,
    waiter: u64,
    until: Instant,
}

/// All that wait.
#[derive(Default)]
pub struct PendingPolls {
    held: Vec<HeldPoll>,
    /// Those that the kernel wakes, and since when.
    waiters: BTreeMap<DeviceOpenId, (Instant, Vec<u64>)>,
    /// Opens whose last transfer ended soon after the question.
    quick: BTreeSet<DeviceOpenId>,
}

impl PendingPolls {
    /// The kernel asks for a program that waits for an open, if it says how it is woken.
    pub fn ask(
        &mut self,
        server: &TreeServer,
        (id, waiter): (RequestId, Option<u64>),
        open: DeviceOpenId,
        events: UsbfsPollEvents,
    ) {
        let Some(waiter) = waiter.filter(|_| events == UsbfsPollEvents::default()) else {
            return server.polled(id, poll_bits(events));
        };
        let now = Instant::now();
        if self.quick.contains(&open) {
            return self.held.push(HeldPoll { id, open, waiter, until: now + HELD_MAX });
        }
        server.polled(id, poll_bits(events));
        self.wait(now, open, waiter);
    }

    fn wait(&mut self, now: Instant, open: DeviceOpenId, waiter: u64) {
        let (_, waiters) = self.waiters.entry(open).or_insert((now, Vec::new()));
        if !waiters.contains(&waiter) {
            waiters.push(waiter);
        }
    }

    /// An open has something new to say.
    pub fn change(&mut self, server: &TreeServer, open: DeviceOpenId, events: UsbfsPollEvents) {
        for held in self.held.extract_if(.., |held| held.open == open) {
            server.polled(held.id, poll_bits(events));
        }
        let Some((since, waiters)) = self.waiters.remove(&open) else { return };
        if since.elapsed() < HELD_MAX {
            self.quick.insert(open);
        }
        waiters.into_iter().for_each(|waiter| server.wake(waiter));
    }

    /// How long until [`PendingPolls::end`] has something to do.
    pub fn left(&self) -> Option<Duration> {
        let now = Instant::now();
        self.held.iter().map(|held| held.until.saturating_duration_since(now)).min()
    }

    /// Answers what was held for long enough: its kernel waits from now on.
    pub fn end(&mut self, server: &TreeServer) {
        if self.held.is_empty() {
            return;
        }
        let now = Instant::now();
        let late: Vec<HeldPoll> = self.held.extract_if(.., |held| held.until <= now).collect();
        for held in late {
            self.quick.remove(&held.open);
            self.answer_none(server, now, &held);
        }
    }

    /// A signal came to the program that asked.
    pub fn interrupt(&mut self, server: &TreeServer, id: RequestId) {
        if let Some(index) = self.held.iter().position(|held| held.id == id) {
            let held = self.held.swap_remove(index);
            self.answer_none(server, Instant::now(), &held);
        }
    }

    fn answer_none(&mut self, server: &TreeServer, now: Instant, held: &HeldPoll) {
        server.polled(held.id, 0);
        self.wait(now, held.open, held.waiter);
    }

    /// Nobody has it open any more.
    pub fn close(&mut self, open: DeviceOpenId) {
        self.waiters.remove(&open);
        self.quick.remove(&open);
    }
}

fn poll_bits(UsbfsPollEvents { can_reap, is_gone }: UsbfsPollEvents) -> u32 {
    let reap = if can_reap { POLL_REAP } else { 0 };
    if is_gone { reap | POLL_GONE } else { reap }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;

    const OPEN: DeviceOpenId = (1, OpenId(1));
    const NONE: UsbfsPollEvents = UsbfsPollEvents { can_reap: false, is_gone: false };
    const REAP: UsbfsPollEvents = UsbfsPollEvents { can_reap: true, is_gone: false };

    /// What the kernel was told.
    #[derive(Debug, PartialEq)]
    enum PollNotice {
        Polled(u64, u32),
        Woken(u64),
        Nothing,
    }

    fn kernel() -> (UnixDatagram, TreeServer) {
        let (kernel, server) = UnixDatagram::pair().unwrap();
        kernel.set_nonblocking(true).unwrap();
        (kernel, TreeServer::new(OwnedFd::from(server)).unwrap())
    }

    fn next_notice(kernel: &UnixDatagram) -> PollNotice {
        let mut bytes = [0; 64];
        let Ok(count) = kernel.recv(&mut bytes) else { return PollNotice::Nothing };
        assert_eq!(count, 24);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        if word(8) == 0 { PollNotice::Woken(word(16)) } else { PollNotice::Polled(word(8), word(16) as u32) }
    }

    /// An open whose transfers end soon.
    fn quick(kernel: &UnixDatagram, server: &TreeServer) -> PendingPolls {
        let mut polls = PendingPolls::default();
        // However slow this machine is: no time has passed since.
        polls.wait(Instant::now() + Duration::from_secs(3600), OPEN, 9);
        polls.change(server, OPEN, REAP);
        assert!(polls.quick.contains(&OPEN));
        assert_eq!(next_notice(kernel), PollNotice::Woken(9));
        polls
    }

    #[test]
    fn the_first_question_is_answered_at_once_and_its_waiter_is_woken() {
        let (kernel, server) = kernel();
        let mut polls = PendingPolls::default();
        polls.ask(&server, (RequestId(5), Some(9)), OPEN, NONE);
        assert_eq!(next_notice(&kernel), PollNotice::Polled(5, 0));
        polls.ask(&server, (RequestId(6), Some(9)), OPEN, NONE);
        assert_eq!(next_notice(&kernel), PollNotice::Polled(6, 0));
        polls.change(&server, OPEN, REAP);
        assert_eq!((next_notice(&kernel), next_notice(&kernel)), (PollNotice::Woken(9), PollNotice::Nothing));
    }

    #[test]
    fn where_transfers_end_soon_the_answer_waits_for_the_next_one() {
        let (kernel, server) = kernel();
        let mut polls = quick(&kernel, &server);
        polls.ask(&server, (RequestId(5), Some(9)), OPEN, NONE);
        assert_eq!(next_notice(&kernel), PollNotice::Nothing);
        assert!(polls.left().is_some_and(|left| left <= HELD_MAX));
        polls.change(&server, OPEN, REAP);
        assert_eq!(
            (next_notice(&kernel), next_notice(&kernel)),
            (PollNotice::Polled(5, POLL_REAP), PollNotice::Nothing)
        );
        assert_eq!(polls.left(), None);
    }

    #[test]
    fn who_does_not_wait_is_answered_at_once() {
        let (kernel, server) = kernel();
        let mut polls = quick(&kernel, &server);
        polls.ask(&server, (RequestId(5), None), OPEN, NONE);
        assert_eq!(next_notice(&kernel), PollNotice::Polled(5, 0));
        polls.ask(&server, (RequestId(6), Some(9)), OPEN, UsbfsPollEvents { is_gone: true, ..REAP });
        assert_eq!(next_notice(&kernel), PollNotice::Polled(6, POLL_REAP | POLL_GONE));
    }

    #[test]
    fn an_answer_that_was_held_for_long_enough_or_is_interrupted_says_that_there_is_nothing() {
        let (kernel, server) = kernel();
        let mut polls = quick(&kernel, &server);
        polls.ask(&server, (RequestId(5), Some(9)), OPEN, NONE);
        polls.interrupt(&server, RequestId(4));
        assert_eq!(next_notice(&kernel), PollNotice::Nothing);
        polls.interrupt(&server, RequestId(5));
        assert_eq!(next_notice(&kernel), PollNotice::Polled(5, 0));
        polls.ask(&server, (RequestId(6), Some(9)), OPEN, NONE);
        std::thread::sleep(HELD_MAX);
        assert_eq!(polls.left(), Some(Duration::ZERO));
        polls.end(&server);
        assert_eq!(next_notice(&kernel), PollNotice::Polled(6, 0));
        // The next is not held, and the kernel wakes whom it was told of.
        polls.ask(&server, (RequestId(7), Some(9)), OPEN, NONE);
        assert_eq!(next_notice(&kernel), PollNotice::Polled(7, 0));
        polls.change(&server, OPEN, REAP);
        assert_eq!((next_notice(&kernel), next_notice(&kernel)), (PollNotice::Woken(9), PollNotice::Nothing));
        polls.close(OPEN);
        assert!(polls.waiters.is_empty() && polls.quick.is_empty());
    }
}
