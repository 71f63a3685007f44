//! What holds the requests of a device that is suspended.
//!
//! | a request for an endpoint that is reserved | open | closed |
//! |---|---|---|
//! | is submitted | goes to the device | waits, in order |
//! | is cancelled while it waits | | ends as cancelled |
//! | waits when the gate opens, or the device is reset | goes to the device | ends as withdrawn |
//!
//! All other requests go through. Whoever opens or closes a gate wakes the device's thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farbus_model::usb::{Recipient, request};
use farbus_model::{
    Command, CommandError, Completions, Descriptors, Device, EpAddr, InFlight, Instant, Readiness, Selection, Speed,
    Status, Tally, UrbId,
};

/// Whether requests pass, for whoever decides that.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<AtomicBool>);

impl Gate {
    /// Nothing of what is reserved passes, or all.
    pub fn close(&self, is_closed: bool) {
        self.0.store(is_closed, Ordering::Release);
    }

    /// Whether nothing passes.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Where a device is found that stood behind a gate, once the gate is gone.
#[derive(Clone, Default)]
pub struct Behind(Arc<Mutex<Option<Box<dyn Device>>>>);

impl Behind {
    /// It; once, and not before [`Gated`] was dropped.
    pub fn take(&self) -> Option<Box<dyn Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A device behind a gate.
pub struct Gated {
    /// Some until it is dropped.
    device: Option<Box<dyn Device>>,
    behind: Behind,
    gate: Gate,
    endpoints: Vec<EpAddr>,
    held: VecDeque<InFlight>,
}

impl Gated {
    /// The device, whose requests to these endpoints wait while `gate` is closed; and where it is found in the end.
    pub fn new(device: Box<dyn Device>, gate: Gate, endpoints: Vec<EpAddr>) -> (Self, Behind) {
        let behind = Behind::default();
        let for_end = behind.clone();
        (Self { device: Some(device), behind, gate, endpoints, held: VecDeque::new() }, for_end)
    }

    fn device(&self) -> &dyn Device {
        &**self.device.as_ref().expect("it is there until the gate is gone")
    }

    fn device_mut(&mut self) -> &mut dyn Device {
        &mut **self.device.as_mut().expect("it is there until the gate is gone")
    }

    fn release(&mut self, now: Instant, done: &mut Completions) {
        while !self.gate.is_closed()
            && let Some(urb) = self.held.pop_front()
        {
            self.device_mut().submit(now, urb, done);
        }
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        for urb in self.held.drain(..) {
            drop(urb.recall());
        }
        *self.behind.0.lock().unwrap_or_else(PoisonError::into_inner) = self.device.take();
    }
}

impl Device for Gated {
    fn descriptors(&self) -> &Descriptors {
        self.device().descriptors()
    }

    fn speed(&self) -> Speed {
        self.device().speed()
    }

    fn selection(&self) -> &Selection {
        self.device().selection()
    }

    fn submit(&mut self, now: Instant, mut urb: InFlight, done: &mut Completions) {
        self.release(now, done);
        if urb.endpoint.is_control() && urb.setup.is_standard(request::SET_CONFIGURATION, Recipient::Device) {
            self.held.drain(..).for_each(|urb| done.push(urb.fail(Status::Shutdown)));
        }
        if (self.gate.is_closed() || !self.held.is_empty()) && self.endpoints.contains(&urb.endpoint) {
            urb.own_payload();
            return self.held.push_back(urb);
        }
        self.device_mut().submit(now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut Completions) {
        match self.held.iter().position(|urb| urb.id == id) {
            Some(at) => {
                let urb = self.held.remove(at).expect("found just now");
                done.push(urb.fail(Status::Cancelled));
            }
            None => self.device_mut().cancel(now, id, done),
        }
    }

    fn reset(&mut self, now: Instant, done: &mut Completions) {
        for urb in self.held.drain(..) {
            done.push(urb.fail(Status::Shutdown));
        }
        self.device_mut().reset(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.held.is_empty() || self.gate.is_closed() {
            true => self.device().poll_timeout(),
            false => Some(Instant::ZERO),
        }
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut Completions) {
        self.release(now, done);
        if self.device().poll_timeout().is_some_and(|at| at <= now) {
            self.device_mut().handle_timeout(now, done);
        }
    }

    fn end_turn(&mut self, now: Instant, done: &mut Completions) {
        self.device_mut().end_turn(now, done);
    }

    fn readiness(&self) -> Option<&Readiness> {
        self.device().readiness()
    }

    fn handle_ready(&mut self, now: Instant, done: &mut Completions) {
        self.device_mut().handle_ready(now, done);
    }

    fn is_gone(&self) -> bool {
        self.device().is_gone()
    }

    fn verbs(&self) -> &'static [&'static str] {
        self.device().verbs()
    }

    fn command(&mut self, now: Instant, command: &Command, done: &mut Completions) -> Result<(), CommandError> {
        self.device_mut().command(now, command, done)
    }

    fn tally(&self) -> Option<Tally> {
        self.device().tally()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.device().save()
    }

    fn restore(&mut self, selection: &Selection, state: &[u8]) -> bool {
        self.device_mut().restore(selection, state)
    }

    fn leave(&mut self) {
        self.device_mut().leave();
    }
}
