//! The one contract that every device keeps, whatever it is made of.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::descriptor::{Descriptors, Selection};
use crate::payload::BufferPool;
use crate::tally::Tally;
use crate::time::Instant;
use crate::urb::{Done, InFlight, UrbId};
use crate::usb::Speed;

/// A USB device: one made of code, one behind usbfs, one on another machine.
///
/// Sans-IO: it is told what happened and when; it leaves what it has finished in [`Completions`].
/// Every request given to [`Device::submit`] comes back there exactly once, during that call or any
/// later one. One endpoint's requests (one stream's, where it has streams) complete in the order in which they were
/// submitted.
///
/// | the race | what comes back |
/// |---|---|
/// | cancelled before it finished | the request with [`Status::Cancelled`](crate::Status::Cancelled) |
/// | finished before it was cancelled | the request with its true status; the cancel does nothing |
/// | cancelled, unknown id | nothing |
/// | reset or dropped configuration | every request with [`Status::Shutdown`](crate::Status::Shutdown) |
pub trait Device: Send {
    /// What the device says of itself; constant while it is attached.
    fn descriptors(&self) -> &Descriptors;

    /// The speed it runs at.
    fn speed(&self) -> Speed;

    /// What SET_CONFIGURATION and SET_INTERFACE have made active.
    fn selection(&self) -> &Selection;

    /// Starts a request. May finish it at once. A device that keeps an OUT request beyond the call
    /// first calls [`InFlight::own_payload`], because its bytes may lie in a link's receive buffer.
    fn submit(&mut self, now: Instant, urb: InFlight, done: &mut Completions);

    /// Withdraws a request. May finish it at once or later.
    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut Completions);

    /// Port reset (USB 2.0 §7.1.7.5): withdraws every request and forgets configuration,
    /// alternate settings and halts. Every request is finished before this returns: whoever gives a
    /// device back after it counts on that. A device that lives outside may itself still be on its way back: what is
    /// submitted meanwhile waits for it.
    fn reset(&mut self, now: Instant, done: &mut Completions);

    /// When [`Device::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// The moment of [`Device::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, done: &mut Completions) {
        let _ = (now, done);
    }

    /// Everything that was to be submitted for now has been: a device behind a link sends it together.
    fn end_turn(&mut self, now: Instant, done: &mut Completions) {
        let _ = (now, done);
    }

    /// What its engine waits on besides the link, if the device lives outside: [`Device::handle_ready`] is
    /// called when it is ready. A device made of code has none.
    fn readiness(&self) -> Option<&Readiness> {
        None
    }

    /// Something happened to what [`Device::readiness`] stands for.
    fn handle_ready(&mut self, now: Instant, done: &mut Completions) {
        let _ = (now, done);
    }

    /// Whether the device itself is gone, unplugged: every request it held was answered with
    /// [`Status::Gone`](crate::Status::Gone), and it is of no use to anybody any more.
    fn is_gone(&self) -> bool {
        false
    }

    /// The commands that [`Device::command`] knows, by the word its owner types. A device without any
    /// needs no door beside its link, and its engine blocks on the link alone.
    fn verbs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Something its owner, not its user, asks of it: type this, eject that.
    ///
    /// # Errors
    /// [`CommandError`] when this device does not know the command or refuses it.
    fn command(&mut self, now: Instant, command: &Command, done: &mut Completions) -> Result<(), CommandError> {
        let _ = (now, done);
        Err(CommandError::unknown(command))
    }

    /// What it counts of itself, to be read while somebody uses it; none if it counts nothing.
    fn tally(&self) -> Option<Tally> {
        None
    }

    /// What another process needs besides [`Device::selection`] to go on with what is behind this; asked while it has
    /// no request. None: no other process can.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// A device that is new here is the one that another process saved, with this active. Says whether it can be; one
    /// that cannot is what it was.
    fn restore(&mut self, selection: &Selection, state: &[u8]) -> bool {
        let _ = (selection, state);
        false
    }

    /// Another process goes on with what is behind it: from now on nothing is done to that, not in the end either.
    fn leave(&mut self) {}
}

/// What an engine waits on for a device that lives outside. Opaque here, because this room knows no
/// descriptors: only the shell that made it can look inside, and a simulator puts in something of its own.
#[derive(Clone)]
pub struct Readiness(Arc<dyn Any + Send + Sync>);

impl Readiness {
    /// Whether both are one: a device may be waited for on something else while it is busy with itself.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wraps what the shell will look for.
    pub fn new(inside: impl Any + Send + Sync) -> Self {
        Self(Arc::new(inside))
    }

    /// What is inside, if it is a `T`.
    pub fn inside<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readiness")
    }
}

/// What an owner may ask of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A keyboard: type this text.
    Type(String),
    /// Removable storage: take the medium out, or put it back.
    Eject,
    /// Put the medium back.
    Insert,
    /// Make everything durable that was acknowledged; sent before a device is withdrawn.
    Sync,
    /// Let another device like this one take its place. Accepted, it goes on by itself: [`Twin::tell`] says what became
    /// of it.
    Swap(Twin),
}

/// Why a [`Command`] was not carried out; a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandError(pub String);

impl CommandError {
    /// This device has no such command.
    pub fn unknown(command: &Command) -> Self {
        let verb = match command {
            Command::Type(_) => "type",
            Command::Eject => "eject",
            Command::Insert => "insert",
            Command::Sync => "sync",
            Command::Swap(_) => "swap",
        };
        Self(format!("this device does not know '{verb}'"))
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CommandError {}

/// A device that is to take another's place while that one is in use (requirement N12), and who is told what becomes of
/// it.
#[derive(Clone)]
pub struct Twin(Arc<Inside>);

struct Inside {
    device: Mutex<Option<Box<dyn Device>>>,
    tell: Box<dyn Fn(Exchange) + Send + Sync>,
}

/// What became of an exchange.
pub enum Exchange {
    /// The twin is the device.
    Done {
        /// The device that it was: its owner's again.
        left: Box<dyn Device>,
        /// What was done.
        report: ExchangeReport,
    },
    /// The device is what it was.
    Failed {
        /// The twin, if it was taken already: its owner's again.
        twin: Option<Box<dyn Device>>,
        /// A sentence for a person.
        why: String,
    },
}

/// What an exchange took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeReport {
    /// Requests that told the twin what its forerunner had been told.
    pub replayed: usize,
    /// Requests that waited for data, taken back from the one and asked of the other.
    pub asked_again: usize,
    /// Requests that came meanwhile and waited.
    pub held: usize,
    /// For how long requests were held: the quiet time.
    pub quiet: Duration,
}

impl Twin {
    /// `device` is to take a place; `tell` is called once, by the thread that has the device.
    pub fn new(device: Box<dyn Device>, tell: impl Fn(Exchange) + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inside { device: Mutex::new(Some(device)), tell: Box::new(tell) }))
    }

    /// The device, for whoever puts it in its place: once.
    pub fn take(&self) -> Option<Box<dyn Device>> {
        self.0.device.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// This became of it.
    pub fn tell(&self, exchange: Exchange) {
        (self.0.tell)(exchange);
    }
}

impl PartialEq for Twin {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Twin {}

impl fmt::Debug for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Twin")
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exchange::Done { report, .. } => f.debug_tuple("Done").field(report).finish(),
            Exchange::Failed { why, .. } => f.debug_tuple("Failed").field(why).finish(),
        }
    }
}

/// Where a device leaves finished requests, and the buffers it fills.
#[derive(Debug)]
pub struct Completions<D = Done> {
    queue: VecDeque<D>,
    /// Buffers for what is read; whoever consumes what was finished recycles its payload here.
    pub pool: BufferPool,
}

impl<D> Completions<D> {
    /// An empty one over `pool`.
    pub fn new(pool: BufferPool) -> Self {
        Self { queue: VecDeque::new(), pool }
    }

    /// A device's side: this request is finished.
    pub fn push(&mut self, done: D) {
        self.queue.push_back(done);
    }

    /// The asker's side: the next finished request, oldest first.
    pub fn pop(&mut self) -> Option<D> {
        self.queue.pop_front()
    }

    /// Whether nothing is waiting to be read.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// How many are waiting to be read.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Those that wait to be read, oldest first, but for so many: what a layer over a device looks at, and leaves for
    /// the asker.
    pub fn after(&self, count: usize) -> impl Iterator<Item = &D> {
        self.queue.range(count.min(self.queue.len())..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_on_is_itself_and_its_copies() {
        let (one, other) = (Readiness::new(1), Readiness::new(1));
        assert!(one.is(&one.clone()));
        assert!(!one.is(&other), "what is inside may be alike");
    }
}
