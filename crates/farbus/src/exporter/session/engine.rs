//! Serves one USB/IP link and its device on one thread, without hand-offs or locks.
//!
//! The engine waits on its link, its mailbox and its device. If the device is made of code and accepts no commands of
//! its owner, only the link remains, and the engine blocks on it: two system calls a request, receive and send.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use std::os::fd::{AsFd, BorrowedFd};

use farbus_io_net::link::{
    BoottimeClock, DeviceWaitSource, Link, LinkEnd, PollInterest, ThreadWaker, wait, wait_exactly,
};
use farbus_model::{Device, OwnerCommand, OwnerCommandError};
use farbus_session::{ConnectionFault, ExportOffers, Exporter, SendSlices};

use crate::link::meters::{EngineMeters, SyscallCounts};

/// Commands that other threads leave for a running engine.
#[derive(Debug)]
pub struct EngineMailbox {
    orders: Mutex<MailboxQueue>,
    numbers: AtomicU64,
    wake: ThreadWaker,
}

#[derive(Debug, Default)]
struct MailboxQueue {
    waiting: Vec<MailboxCommand>,
    is_closed: bool,
}

#[derive(Debug)]
struct MailboxCommand {
    number: u64,
    command: OwnerCommand,
    answer: SyncSender<Result<(), OwnerCommandError>>,
}

impl EngineMailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { orders: Mutex::default(), numbers: AtomicU64::new(0), wake: ThreadWaker::new()? })
    }

    /// Leaves a command and waits for its answer, for `time_max` at most. Returns `None` if the command was not carried
    /// out; it never will be then. If it is being carried out at that moment, waits for `time_max` once more. If the
    /// mailbox is closed, or becomes so, returns at once.
    pub fn ask(&self, command: OwnerCommand, time_max: Duration) -> Option<Result<(), OwnerCommandError>> {
        let (answer, answered) = mpsc::sync_channel(1);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        {
            let mut orders = self.orders();
            if orders.is_closed {
                return None;
            }
            orders.waiting.push(MailboxCommand { number, command, answer });
        }
        self.wake.wake();
        answered.recv_timeout(time_max).ok().or_else(|| {
            // The caller may retry after `None`, so the command must not run later.
            let is_withdrawn = self.orders().waiting.extract_if(.., |order| order.number == number).count() > 0;
            if is_withdrawn { None } else { answered.recv_timeout(time_max).ok() }
        })
    }

    /// Takes no more commands until it is opened, and gives those back that nobody has carried out.
    pub fn close(&self) {
        *self.orders() = MailboxQueue { waiting: Vec::new(), is_closed: true };
    }

    /// Takes commands again, after [`EngineMailbox::close`].
    pub fn open(&self) {
        self.orders().is_closed = false;
    }

    fn orders(&self) -> MutexGuard<'_, MailboxQueue> {
        self.orders.lock().expect("nobody panics with the mailbox open")
    }

    /// Wakes the thread that waits on the mailbox.
    pub fn wake(&self) {
        self.wake.wake();
    }

    /// Clears the wake-up.
    pub fn clear(&self) {
        self.wake.clear();
    }

    /// Carries out all commands in the mailbox and answers them.
    pub fn carry_out(&self, mut act: impl FnMut(&OwnerCommand) -> Result<(), OwnerCommandError>) {
        for order in self.take() {
            let result = act(&order.command);
            // The caller may have stopped waiting.
            let _ = order.answer.try_send(result);
        }
    }

    fn take(&self) -> Vec<MailboxCommand> {
        self.wake.clear();
        std::mem::take(&mut self.orders().waiting)
    }
}

impl AsFd for EngineMailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Why an engine stopped.
#[derive(Debug)]
pub enum UsbipEngineEnd {
    /// The protocol reached its end, and all is sent.
    Finished,
    /// The peer closed the link.
    Closed,
    /// The link failed.
    Lost(io::Error),
    /// The device was unplugged.
    Gone,
    /// The peer broke the protocol.
    Fault(ConnectionFault),
    /// An assertion of farbus failed.
    Bug,
}

/// Joins a link and an exporter, with what they need.
pub struct UsbipEngine<'a, D, O> {
    pub(crate) link: &'a Link,
    pub(crate) exporter: Exporter<D>,
    pub(crate) offers: O,
    pub(crate) clock: BoottimeClock,
    pub(crate) mailbox: &'a EngineMailbox,
    pub(crate) meters: &'a EngineMeters,
    pub(crate) calls: SyscallCounts,
}

impl<D: Device, O: ExportOffers<D>> UsbipEngine<'_, D, O> {
    /// Serves the link until it ends.
    pub fn run(&mut self) -> UsbipEngineEnd {
        wait_exactly();
        loop {
            match self.turn() {
                Ok(None) => {}
                Ok(Some(end)) => return end,
                Err(error) => match LinkEnd::of(&error) {
                    LinkEnd::Closed => return UsbipEngineEnd::Closed,
                    LinkEnd::Lost => return UsbipEngineEnd::Lost(error),
                },
            }
        }
    }

    /// Advances the protocol, sends what is ready, and waits for the next event.
    fn turn(&mut self) -> io::Result<Option<UsbipEngineEnd>> {
        if let Err(fault) = self.exporter.advance(self.clock.now(), &mut self.offers) {
            // The refusal goes out if the socket takes it at once.
            let _ = self.flush();
            return Ok(Some(UsbipEngineEnd::Fault(fault)));
        }
        let now = self.clock.now();
        self.exporter.with_device(now, |device, done| device.end_turn(now, done));
        let is_blocked = !self.flush()?;
        if self.exporter.has_held() && !is_blocked {
            return Ok(None);
        }
        self.meters.publish(self.exporter.counters(), self.calls);
        if self.exporter.is_finished() {
            self.link.finish_sending();
            return Ok(Some(UsbipEngineEnd::Finished));
        }
        if self.exporter.device().is_some_and(Device::is_gone) {
            // The last answers went out if the socket took them at once.
            return Ok(Some(UsbipEngineEnd::Gone));
        }
        self.wait(is_blocked)
    }

    /// Sends until nothing is left (`true`) or the socket takes no more (`false`).
    fn flush(&mut self) -> io::Result<bool> {
        while self.exporter.has_transmit() {
            self.calls.send += 1;
            let mut runs = SendSlices::new();
            self.exporter.poll_transmit_into(&mut runs);
            let sent = self.link.try_send(&runs)?;
            drop(runs);
            match sent {
                Some(count) => self.exporter.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        self.link.try_flush()
    }

    fn wait(&mut self, is_blocked: bool) -> io::Result<Option<UsbipEngineEnd>> {
        let timeout = self.exporter.poll_timeout();
        let device = self.exporter.device();
        let has_verbs = device.is_some_and(|device| !device.verbs().is_empty());
        let readiness = device.and_then(Device::readiness);
        if timeout.is_none() && !has_verbs && readiness.is_none() && !is_blocked {
            self.calls.receive += 1;
            let count = self.link.receive(self.exporter.receive_space())?;
            return Ok(self.received(count));
        }
        self.calls.wait += 1;
        // Bytes that an encrypted link has decrypted already do not make its socket readable.
        let has_received = self.link.has_received();
        let span = if has_received { Some(Duration::ZERO) } else { timeout.map(|at| at - self.clock.now()) };
        let on_link = PollInterest::new(self.link.as_fd(), is_blocked);
        let on_mailbox = PollInterest::new(self.mailbox.wake.as_fd(), false);
        let [on_link, on_mailbox, on_device] = match readiness.and_then(DeviceWaitSource::interest) {
            Some(on_device) => {
                let mut interests = [on_link, on_mailbox, on_device];
                wait(&mut interests, span)?;
                interests.map(|interest| interest.is_ready())
            }
            None => {
                let mut interests = [on_link, on_mailbox];
                wait(&mut interests, span)?;
                let [on_link, on_mailbox] = interests.map(|interest| interest.readable);
                [on_link, on_mailbox, false]
            }
        };
        if on_mailbox {
            self.carry_out_orders();
        }
        let now = self.clock.now();
        if on_device {
            self.exporter.handle_ready(now);
        }
        if timeout.is_some_and(|at| at <= now) {
            self.exporter.handle_timeout(now);
        }
        if on_link || has_received {
            self.calls.receive += 1;
            if let Some(count) = self.link.try_receive(self.exporter.receive_space())? {
                return Ok(self.received(count));
            }
        }
        Ok(None)
    }

    fn received(&mut self, count: usize) -> Option<UsbipEngineEnd> {
        self.exporter.handle_received(count);
        (count == 0).then_some(UsbipEngineEnd::Closed)
    }

    fn carry_out_orders(&mut self) {
        let (exporter, clock) = (&mut self.exporter, self.clock);
        self.mailbox.carry_out(|command| exporter.command(clock.now(), command));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn command_that_timed_out_in_the_mailbox_is_never_carried_out() {
        let mailbox = EngineMailbox::new().unwrap();
        assert_eq!(mailbox.ask(OwnerCommand::Eject, Duration::from_millis(1)), None);
        mailbox.carry_out(|command| panic!("{command:?} was withdrawn"));
        let answer = thread::scope(|scope| {
            let handle = scope.spawn(|| mailbox.ask(OwnerCommand::Insert, Duration::from_secs(60)));
            while !handle.is_finished() {
                mailbox.carry_out(|command| match command {
                    OwnerCommand::Insert => Ok(()),
                    other => panic!("{other:?}"),
                });
            }
            handle.join().unwrap()
        });
        assert_eq!(answer, Some(Ok(())));
    }
}
