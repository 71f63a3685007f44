//! Holds a device still while its user, a virtual machine or an NBD client, moves to another host.
//!
//! An engine has one end and carries out the orders it finds there; its owner has the other end, on any thread.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farbus_io_net::link::{PollInterest, ThreadWaker};
use farbus_model::Instant;
use tracing::info;

use crate::importer::client::{HOLD_MAX, HOLD_STORAGE_MAX};

/// How long requests under way may take to complete, and the device's user to read the answers, in all.
pub const QUIET_WITHIN: Duration = Duration::from_secs(8);

/// The limit of so many seconds: how long a device that migrates may keep its user waiting.
///
/// # Errors
/// It is not 1 s to [`HOLD_MAX`].
pub fn limit_of(seconds: u64) -> Result<Duration, String> {
    let limit = Duration::from_secs(seconds);
    if seconds == 0 || limit > HOLD_MAX {
        let (any, disk) = (HOLD_MAX.as_secs(), HOLD_STORAGE_MAX.as_secs());
        return Err(format!("a device that migrates is held for 1 to {any} s, and a disk for {disk} s at most"));
    }
    Ok(limit)
}

/// Refuses a limit that a disk cannot have.
///
/// # Errors
/// It is longer than [`HOLD_STORAGE_MAX`].
pub fn check_for_disk(limit: Duration) -> Result<(), String> {
    let longest = HOLD_STORAGE_MAX.as_secs();
    if limit <= HOLD_STORAGE_MAX {
        return Ok(());
    }
    Err(format!("a disk is held for {longest} s at most: Linux gives up what it asked of one after 30 s"))
}

/// Why a device that follows its user is not held, migrated or told to follow again.
pub const FOLLOWS_ALREADY: &str = "it follows its virtual machine already (farbus resume ends that)";
/// Why a device does not depart with a process.
pub const FOLLOWS_NOT: &str = "it follows no virtual machine of that process";

/// Holds a device, from any thread.
#[derive(Clone, Debug)]
pub struct HoldHandle(Arc<HoldOrderQueue>);

#[derive(Debug)]
struct HoldOrderQueue {
    orders: Mutex<Vec<HoldOrder>>,
    /// The number of orders so far.
    count: AtomicU64,
    wake: ThreadWaker,
    /// Whether the device is held or migrating, or is to migrate after its user.
    is_shut: AtomicBool,
    /// Whether it is in use, and migrates as soon as its user leaves.
    is_following: AtomicBool,
}

/// An order of a device's owner to its engine.
#[derive(Debug)]
pub struct HoldOrder {
    /// What to do.
    pub command: HoldCommand,
    /// Where the answer goes.
    pub answer: HoldAnswerSender,
    /// Tells it from the other orders.
    number: u64,
}

/// What an engine is ordered to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldCommand {
    /// Hold the device until no request is under way.
    Hold,
    /// Hold it, and migrate it to the host with this key once its user has left.
    Move([u8; 32]),
    /// Serve its user as before, and migrate it to the host with this key as soon as its user has left.
    Follow([u8; 32]),
    /// The process with this number has stopped its virtual machine for good: a device that follows it has left by it,
    /// though the process is still connected.
    Depart(u32),
    /// Release it, or follow nobody: it continues where it is.
    GoOn,
}

/// The outcome of an order that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldGrant {
    /// The device has a user, which is held or continues.
    ToUser,
    /// The device has no user: it migrates at once.
    AtOnce,
}

/// Where an order's answer is awaited.
#[derive(Debug)]
pub struct HoldAnswerSender(SyncSender<Result<HoldGrant, &'static str>>);

impl HoldAnswerSender {
    /// Answers the order.
    pub fn give(self, result: Result<HoldGrant, &'static str>) {
        // The asking thread may have stopped waiting.
        let _ = self.0.try_send(result);
    }
}

impl HoldHandle {
    /// A handle for an engine and its owner, who clone it.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let (is_shut, is_following) = (AtomicBool::new(false), AtomicBool::new(false));
        let (orders, count) = Default::default();
        Ok(Self(Arc::new(HoldOrderQueue { orders, count, wake: ThreadWaker::new()?, is_shut, is_following })))
    }

    /// Lets all requests under way complete. When this returns, the device's user has all answers and may move to
    /// another host; the next user that connects continues its stream.
    ///
    /// # Errors
    /// Why the device cannot be held.
    pub fn hold(&self) -> Result<HoldGrant, &'static str> {
        self.ask(HoldCommand::Hold)
    }

    /// Like [`HoldHandle::hold`]; in addition the device migrates to the host with this key once its user has left,
    /// with the user's open requests. If the user does not leave within the limit of the session
    /// ([`SessionStatus::hold`](crate::importer::session::status::SessionStatus::hold)), the device stays. Without a
    /// user it migrates at once.
    ///
    /// # Errors
    /// Why it cannot migrate.
    pub fn hand_over(&self, successor: [u8; 32]) -> Result<HoldGrant, &'static str> {
        self.ask(HoldCommand::Move(successor))
    }

    /// Lets the device serve its user as before, and migrate to the host with this key as soon as its user has left,
    /// with the user's open requests. It waits for that without a limit, until [`HoldHandle::go_on`].
    ///
    /// # Errors
    /// Why it cannot follow its user.
    pub fn follow(&self, successor: [u8; 32]) -> Result<HoldGrant, &'static str> {
        self.ask(HoldCommand::Follow(successor))
    }

    /// Lets a device that follows the virtual machine of this process go now: the machine has stopped for good, and its
    /// process reads and asks nothing more, though its connection goes on. The connection is closed. A disk that other
    /// processes have, too, goes when these have left.
    ///
    /// # Errors
    /// Why it does not go yet: it follows nobody, or not that process.
    pub fn depart(&self, process: u32) -> Result<HoldGrant, &'static str> {
        self.ask(HoldCommand::Depart(process))
    }

    /// Whether the device is held, migrating or following: no replacement process may continue with it meanwhile.
    pub fn is_shut(&self) -> bool {
        self.0.is_shut.load(Ordering::Acquire)
    }

    /// Records whether the device is held, migrating or following.
    pub(crate) fn shut(&self, is_shut: bool) {
        self.0.is_shut.store(is_shut, Ordering::Release);
    }

    /// Whether the device serves its user, and migrates as soon as its user leaves.
    pub fn is_following(&self) -> bool {
        self.0.is_following.load(Ordering::Acquire)
    }

    /// Records whether the device follows its user.
    pub(crate) fn note_following(&self, is_following: bool) {
        self.0.is_following.store(is_following, Ordering::Release);
    }

    /// Releases the device, or lets it follow nobody: it continues here.
    ///
    /// # Errors
    /// If it is neither held nor following.
    pub fn go_on(&self) -> Result<HoldGrant, &'static str> {
        self.ask(HoldCommand::GoOn)
    }

    fn ask(&self, command: HoldCommand) -> Result<HoldGrant, &'static str> {
        self.ask_within(command, QUIET_WITHIN + Duration::from_secs(1))
    }

    /// An order that is not answered in time is not carried out later: its giver acts on that it was not.
    fn ask_within(&self, command: HoldCommand, time_max: Duration) -> Result<HoldGrant, &'static str> {
        let (number, answered) = self.leave(command);
        answered.recv_timeout(time_max).unwrap_or_else(|_| {
            self.orders().retain(|order| order.number != number);
            // It may have been taken just now.
            answered.try_recv().unwrap_or(Err("the attachment does not answer"))
        })
    }

    fn leave(&self, command: HoldCommand) -> (u64, Receiver<Result<HoldGrant, &'static str>>) {
        let (answer, answered) = sync_channel(1);
        let number = self.0.count.fetch_add(1, Ordering::Relaxed);
        self.orders().push(HoldOrder { command, answer: HoldAnswerSender(answer), number });
        self.0.wake.wake();
        (number, answered)
    }

    fn orders(&self) -> MutexGuard<'_, Vec<HoldOrder>> {
        self.0.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the orders that arrived since the last call.
    pub(crate) fn take(&self) -> Vec<HoldOrder> {
        self.0.wake.clear();
        std::mem::take(&mut *self.orders())
    }

    /// What an engine waits on: readable when there are orders.
    pub(crate) fn interest(&self) -> PollInterest<'_> {
        PollInterest::new(self.0.wake.as_fd(), false)
    }
}

/// Logs how soon a device that migrated to this host answers its first request here.
#[derive(Debug, Default)]
pub struct ArrivalTimer(Option<PendingArrival>);

#[derive(Debug)]
struct PendingArrival {
    at: Instant,
    /// Requests that were answered in this process before.
    answered: u64,
    /// Whether requests waited for the device when it arrived.
    is_awaited: bool,
}

impl ArrivalTimer {
    /// The device has arrived. `answered` counts this process's answers so far; `is_awaited` says whether requests wait
    /// for it.
    pub fn note(&mut self, at: Instant, answered: u64, is_awaited: bool) {
        self.0 = Some(PendingArrival { at, answered, is_awaited });
    }

    /// `answered` counts this process's answers by now; logs the first one after an arrival.
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
    fn limits_are_one_second_to_two_minutes_and_shorter_for_a_disk() {
        assert_eq!((limit_of(1), limit_of(120)), (Ok(Duration::from_secs(1)), Ok(HOLD_MAX)));
        for wrong in [0, 121, u64::MAX] {
            assert!(limit_of(wrong).is_err_and(|why| why.contains("1 to 120 s")), "{wrong}");
        }
        assert_eq!(check_for_disk(HOLD_STORAGE_MAX), Ok(()));
        assert!(check_for_disk(Duration::from_secs(26)).is_err_and(|why| why.contains("25 s at most")));
    }

    #[test]
    fn first_answer_after_an_arrival_is_logged_once() {
        let mut arrival = ArrivalTimer::default();
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
        let (_, answered) = gate.leave(HoldCommand::Move([7; 32]));
        let mut orders = gate.take();
        assert!(gate.take().is_empty());
        let HoldOrder { command, answer, .. } = orders.pop().unwrap();
        assert_eq!(command, HoldCommand::Move([7; 32]));
        answer.give(Ok(HoldGrant::AtOnce));
        assert_eq!(answered.recv(), Ok(Ok(HoldGrant::AtOnce)));
        drop(answered);
        let forgotten = gate.leave(HoldCommand::GoOn);
        drop(forgotten);
        gate.take().into_iter().for_each(|order| order.answer.give(Err("nobody listens")));
    }

    #[test]
    fn an_order_that_was_given_up_is_not_carried_out_later() {
        let gate = HoldHandle::new().unwrap();
        let _other = gate.leave(HoldCommand::GoOn);
        let given_up = gate.ask_within(HoldCommand::Follow([7; 32]), Duration::ZERO);
        assert_eq!(given_up, Err("the attachment does not answer"));
        assert!(matches!(&gate.take()[..], [HoldOrder { command: HoldCommand::GoOn, .. }]), "the other one is");
    }
}
