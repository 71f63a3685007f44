//! The contract of every USB device, real or a gadget.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::descriptor::{ConfigurationSelection, DescriptorSet};
use crate::payload::BufferPool;
use crate::tally::NamedCounters;
use crate::time::Instant;
use crate::urb::{UrbCompletion, UrbId, UrbInFlight};
use crate::usb::UsbSpeed;

/// A USB device: a gadget, a device behind usbfs, or a device on another machine.
///
/// Sans-IO: its caller tells it what happened and when; it leaves finished requests in [`CompletionQueue`]. Every
/// request given to [`Device::submit`] comes back there exactly once, during that call or any later one. Requests of
/// one endpoint (of one stream, where it has streams) complete in the order in which they were submitted.
///
/// | the race | what comes back |
/// |---|---|
/// | cancelled before it finished | the request with [`Status::Cancelled`](crate::UrbStatus::Cancelled) |
/// | finished before it was cancelled | the request with its true status; the cancel does nothing |
/// | cancelled, unknown id | nothing |
/// | reset or dropped configuration | every request with [`Status::Shutdown`](crate::UrbStatus::Shutdown) |
pub trait Device: Send {
    /// The device's descriptors; constant while it is attached.
    fn descriptors(&self) -> &DescriptorSet;

    /// The speed it runs at.
    fn speed(&self) -> UsbSpeed;

    /// What SET_CONFIGURATION and SET_INTERFACE have selected.
    fn selection(&self) -> &ConfigurationSelection;

    /// Starts a request. May finish it at once. A device that keeps an OUT request beyond the call
    /// first calls [`UrbInFlight::own_payload`], because its bytes may lie in a link's receive buffer.
    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue);

    /// Cancels a request. May finish it at once or later.
    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue);

    /// Port reset (USB 2.0 §7.1.7.5): cancels every request and clears configuration, alternate settings and halts.
    /// Every request is finished before this returns: an engine that gives the device back afterwards relies on that. A
    /// device outside the process may itself still be resetting: requests submitted meanwhile wait for it.
    fn reset(&mut self, now: Instant, done: &mut CompletionQueue);

    /// When [`Device::handle_timeout`] wants to be called, if at all.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    /// Called when the moment of [`Device::poll_timeout`] has come.
    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        let _ = (now, done);
    }

    /// Called after the last submission of a turn: a device behind a link then sends them together.
    fn end_turn(&mut self, now: Instant, done: &mut CompletionQueue) {
        let _ = (now, done);
    }

    /// What the engine has to wait on besides the link, if the device is outside the process. The engine then calls
    /// [`Device::handle_ready`]. A gadget has none.
    fn readiness(&self) -> Option<&ReadinessSource> {
        None
    }

    /// Called when [`Device::readiness`] became ready.
    fn handle_ready(&mut self, now: Instant, done: &mut CompletionQueue) {
        let _ = (now, done);
    }

    /// Whether the device itself is gone (unplugged): it has answered every request it held with
    /// [`Status::Gone`](crate::UrbStatus::Gone), and takes no more.
    fn is_gone(&self) -> bool {
        false
    }

    /// The commands that [`Device::command`] knows, by the words its owner types. A device without commands needs no
    /// way in besides its link: its engine blocks on the link alone.
    fn verbs(&self) -> &'static [&'static str] {
        &[]
    }

    /// Carries out a command of the owner's, such as typing a text or ejecting a medium.
    ///
    /// # Errors
    /// [`OwnerCommandError`] when this device does not know the command or refuses it.
    fn command(
        &mut self,
        now: Instant,
        command: &OwnerCommand,
        done: &mut CompletionQueue,
    ) -> Result<(), OwnerCommandError> {
        let _ = (now, done);
        Err(OwnerCommandError::unknown(command))
    }

    /// The device's own counters, readable while it is in use; `None` if it has none.
    fn tally(&self) -> Option<NamedCounters> {
        None
    }

    /// What a replacement process needs, besides [`Device::selection`], to continue with what is behind this device;
    /// called while it has no request. `None`: no other process can.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Makes this new device continue as the device that another process saved, with this selection. Returns whether it
    /// can; if not, the device is unchanged.
    fn restore(&mut self, selection: &ConfigurationSelection, state: &[u8]) -> bool {
        let _ = (selection, state);
        false
    }

    /// Tells the device that a replacement process continues: from now on this device leaves what is behind it
    /// untouched, also when it is dropped.
    fn leave(&mut self) {}
}

/// What an engine waits on for a device outside the process. Opaque here, because this crate knows no descriptors: only
/// the code that made it can look inside. A simulator puts in something of its own.
#[derive(Clone)]
pub struct ReadinessSource(Arc<dyn Any + Send + Sync>);

impl ReadinessSource {
    /// Whether both are the same object: a busy device may be waited for by another one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wraps an object that the engine will look for.
    pub fn new(inside: impl Any + Send + Sync) -> Self {
        Self(Arc::new(inside))
    }

    /// The wrapped object, if it is a `T`.
    pub fn inside<T: Any>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

impl fmt::Debug for ReadinessSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Readiness")
    }
}

/// A command of a device's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerCommand {
    /// A keyboard: type this text.
    Type(String),
    /// Removable storage: take the medium out.
    Eject,
    /// Removable storage: put the medium back.
    Insert,
    /// Make every acknowledged write durable; sent before a device is withdrawn.
    Sync,
    /// Replace the device by another one like it. If accepted, the exchange runs by itself, and [`SwapCandidate::tell`]
    /// reports its outcome.
    Swap(SwapCandidate),
}

/// Why a [`OwnerCommand`] was not carried out; a sentence for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerCommandError(pub String);

impl OwnerCommandError {
    /// This device has no such command.
    pub fn unknown(command: &OwnerCommand) -> Self {
        let verb = match command {
            OwnerCommand::Type(_) => "type",
            OwnerCommand::Eject => "eject",
            OwnerCommand::Insert => "insert",
            OwnerCommand::Sync => "sync",
            OwnerCommand::Swap(_) => "swap",
        };
        Self(format!("this device does not know '{verb}'"))
    }
}

impl fmt::Display for OwnerCommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OwnerCommandError {}

/// A device that is to take another's place while that one is in use (requirement N12), and the function to tell the
/// outcome to.
pub struct SwapCandidate<D: ?Sized = dyn Device>(Arc<SwapCandidateInner<D>>);

struct SwapCandidateInner<D: ?Sized> {
    device: Mutex<Option<Box<D>>>,
    tell: Box<dyn Fn(DeviceSwapOutcome<D>) + Send + Sync>,
}

/// The outcome of an exchange.
pub enum DeviceSwapOutcome<D: ?Sized = dyn Device> {
    /// The twin is now the device.
    Done {
        /// The former device, which is the owner's again.
        left: Box<D>,
        /// What the exchange took.
        report: DeviceSwapReport,
    },
    /// The device is unchanged.
    Failed {
        /// The twin, if it was taken already; it is the owner's again.
        twin: Option<Box<D>>,
        /// A sentence for a person.
        why: String,
    },
}

/// What an exchange of devices took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSwapReport {
    /// Requests that were replayed to the twin to bring it to the former device's state.
    pub replayed: usize,
    /// Requests that waited for data, withdrawn from the former device and submitted to the twin.
    pub asked_again: usize,
    /// Requests that came during the exchange and waited.
    pub held: usize,
    /// How long requests were held: the quiet time.
    pub quiet: Duration,
}

impl<D: ?Sized> SwapCandidate<D> {
    /// `device` is to take another's place; `tell` is called once, on the thread that has the device.
    pub fn new(device: Box<D>, tell: impl Fn(DeviceSwapOutcome<D>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(SwapCandidateInner { device: Mutex::new(Some(device)), tell: Box::new(tell) }))
    }

    /// Takes the device, which the caller puts into its place; `None` if it was taken before.
    pub fn take(&self) -> Option<Box<D>> {
        self.0.device.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reports the outcome.
    pub fn tell(&self, exchange: DeviceSwapOutcome<D>) {
        (self.0.tell)(exchange);
    }
}

impl<D: ?Sized> Clone for SwapCandidate<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: ?Sized> PartialEq for SwapCandidate<D> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<D: ?Sized> Eq for SwapCandidate<D> {}

impl<D: ?Sized> fmt::Debug for SwapCandidate<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Twin")
    }
}

impl<D: ?Sized> fmt::Debug for DeviceSwapOutcome<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSwapOutcome::Done { report, .. } => f.debug_tuple("Done").field(report).finish(),
            DeviceSwapOutcome::Failed { why, .. } => f.debug_tuple("Failed").field(why).finish(),
        }
    }
}

/// Where a device leaves finished requests, and the buffers it fills.
#[derive(Debug)]
pub struct CompletionQueue<D = UrbCompletion> {
    queue: VecDeque<D>,
    /// Buffers for read data; the reader of a finished request recycles its payload here.
    pub pool: BufferPool,
}

impl<D> CompletionQueue<D> {
    /// Makes an empty one over `pool`.
    pub fn new(pool: BufferPool) -> Self {
        Self { queue: VecDeque::new(), pool }
    }

    /// For the device: this request is finished.
    pub fn push(&mut self, done: D) {
        self.queue.push_back(done);
    }

    /// For the requester: the next finished request, oldest first.
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

    /// The waiting requests, oldest first, without the first `count`: a layer over a device looks at them, and leaves
    /// them for the requester.
    pub fn after(&self, count: usize) -> impl Iterator<Item = &D> {
        self.queue.range(count.min(self.queue.len())..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readiness_equals_itself_and_its_clones_only() {
        let (one, other) = (ReadinessSource::new(1), ReadinessSource::new(1));
        assert!(one.is(&one.clone()));
        assert!(!one.is(&other), "what is inside may be alike");
    }
}
