//! What holds a device still while whoever uses it moves: a virtual machine, and what comes along with it.
//!
//! An engine has one end of it and looks at the orders that are left there; its owner has the other, on any thread.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use farbus_io::link::{Interest, Wake};
use farbus_model::Instant;
use tracing::info;

/// How long what is under way may take in all to come to rest, and whoever uses the device to read what it is sent.
pub const QUIET_WITHIN: Duration = Duration::from_secs(8);
/// How long whoever uses a device may take to leave that is to be handed over: below the 30 s after which a guest's own
/// driver gives a command up.
pub const LEAVE_WITHIN: Duration = Duration::from_secs(20);

/// Holds a device still, from any thread.
#[derive(Clone, Debug)]
pub struct HoldHandle(Arc<Orders>);

#[derive(Debug)]
struct Orders {
    orders: Mutex<Vec<Order>>,
    wake: Wake,
    /// Whether its device is held still, or on its way.
    is_shut: AtomicBool,
}

/// What a device's owner wants of its engine.
#[derive(Debug)]
pub struct Order {
    /// What.
    pub command: HoldCommand,
    /// Where the answer goes.
    pub answer: Answer,
}

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCommand {
    /// Nothing more is under way.
    Hold,
    /// Held, it goes to the host with this key once whoever uses it has left.
    Move([u8; 32]),
    /// It goes on where it is.
    GoOn,
}

/// What came of a wish that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granted {
    /// Somebody uses it, and is held still, or goes on.
    ToUser,
    /// Nobody does: it goes at once.
    AtOnce,
}

/// Where the answer to a wish is waited for.
#[derive(Debug)]
pub struct Answer(SyncSender<Result<Granted, &'static str>>);

impl Answer {
    /// Gives it.
    pub fn give(self, result: Result<Granted, &'static str>) {
        // Whoever asked may have stopped waiting.
        let _ = self.0.try_send(result);
    }
}

impl HoldHandle {
    /// For an engine.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Orders { orders: Mutex::default(), wake: Wake::new()?, is_shut: AtomicBool::new(false) })))
    }

    /// Lets everything that is under way come to rest. When this returns whoever uses the device has all the answers
    /// that there are, and may be migrated: whoever connects when he has gone goes on with what he had asked.
    ///
    /// # Errors
    /// What stands against it.
    pub fn hold(&self) -> Result<Granted, &'static str> {
        self.ask(HoldCommand::Hold)
    }

    /// The same, and once its user has left the device goes with all that he had asked to the host with this key. One
    /// who does not leave within [`LEAVE_WITHIN`] keeps it. Without a user it goes as it is.
    ///
    /// # Errors
    /// What stands against it.
    pub fn hand_over(&self, successor: [u8; 32]) -> Result<Granted, &'static str> {
        self.ask(HoldCommand::Move(successor))
    }

    /// Whether its device is held still, or on its way: nobody else may go on with it meanwhile.
    pub fn is_shut(&self) -> bool {
        self.0.is_shut.load(Ordering::Acquire)
    }

    /// It is, or is not any more.
    pub(crate) fn shut(&self, is_shut: bool) {
        self.0.is_shut.store(is_shut, Ordering::Release);
    }

    /// It stays where it is.
    ///
    /// # Errors
    /// If it is not held.
    pub fn go_on(&self) -> Result<Granted, &'static str> {
        self.ask(HoldCommand::GoOn)
    }

    fn ask(&self, command: HoldCommand) -> Result<Granted, &'static str> {
        let answered = self.leave(command);
        answered.recv_timeout(QUIET_WITHIN + Duration::from_secs(1)).unwrap_or(Err("the attachment does not answer"))
    }

    fn leave(&self, command: HoldCommand) -> Receiver<Result<Granted, &'static str>> {
        let (answer, answered) = sync_channel(1);
        let order = Order { command, answer: Answer(answer) };
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner).push(order);
        self.0.wake.wake();
        answered
    }

    /// What was ordered since.
    pub(crate) fn take(&self) -> Vec<Order> {
        self.0.wake.clear();
        std::mem::take(&mut *self.0.orders.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What an engine waits on: readable when there are orders.
    pub(crate) fn interest(&self) -> Interest<'_> {
        Interest::new(self.0.wake.as_fd(), false)
    }
}

/// A device that was handed over to this host: how soon it answers here is worth a line.
#[derive(Debug, Default)]
pub struct Arrival(Option<Arrived>);

#[derive(Debug)]
struct Arrived {
    at: Instant,
    /// Requests that were answered in this process before.
    answered: u64,
    /// Whether some waited for it already.
    is_awaited: bool,
}

impl Arrival {
    /// It is here now, and has answered so many requests in this process; whether some wait for it already.
    pub fn note(&mut self, at: Instant, answered: u64, is_awaited: bool) {
        self.0 = Some(Arrived { at, answered, is_awaited });
    }

    /// It has answered so many by now.
    pub fn see(&mut self, now: Instant, answered: u64) {
        if let Some(arrived) = self.0.take_if(|arrived| answered > arrived.answered) {
            let after_us = (now - arrived.at).as_micros() as u64;
            info!(after_us, is_awaited = arrived.is_awaited, "answers its first request here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_after_an_arrival_is_told_once() {
        let mut arrival = Arrival::default();
        let at_us = |us: u64| Instant::from_nanos(us * 1000);
        arrival.see(at_us(1), 5);
        arrival.note(at_us(2), 5, true);
        arrival.see(at_us(3), 5);
        assert!(arrival.0.is_some());
        arrival.see(at_us(4), 6);
        assert!(arrival.0.is_none());
    }

    #[test]
    fn an_order_waits_for_its_engine_and_is_answered_once() {
        let gate = HoldHandle::new().unwrap();
        let answered = gate.leave(HoldCommand::Move([7; 32]));
        let mut orders = gate.take();
        assert!(gate.take().is_empty());
        let Order { command, answer } = orders.pop().unwrap();
        assert_eq!(command, HoldCommand::Move([7; 32]));
        answer.give(Ok(Granted::AtOnce));
        assert_eq!(answered.recv(), Ok(Ok(Granted::AtOnce)));
        drop(answered);
        let forgotten = gate.leave(HoldCommand::GoOn);
        drop(forgotten);
        gate.take().into_iter().for_each(|order| order.answer.give(Err("nobody listens")));
    }
}
