//! Holds the requests of a suspended device.
//!
//! | a request for a reserved endpoint | suspension open | suspension closed |
//! |---|---|---|
//! | is submitted | goes to the device | waits, in order |
//! | is cancelled while it waits | | ends as cancelled |
//! | waits when the suspension opens | goes to the device | |
//! | waits when the device is reset | | ends as withdrawn |
//!
//! All other requests pass. The caller of [`SuspensionSwitch::close`] must wake the device's thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farbus_model::usb::{RequestRecipient, request};
use farbus_model::{CompletionQueue, Device, DeviceLayer, EpAddr, Instant, UrbId, UrbInFlight, UrbStatus};

/// A switch that lets the requests of a device pass or wait.
#[derive(Clone, Debug, Default)]
pub struct SuspensionSwitch(Arc<AtomicBool>);

impl SuspensionSwitch {
    /// Closes (`true`) or opens the suspension for reserved endpoints.
    pub fn close(&self, is_closed: bool) {
        self.0.store(is_closed, Ordering::Release);
    }

    /// Whether requests wait.
    pub fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Gives the device back after its [`SuspendableDevice`] was dropped.
#[derive(Clone, Default)]
pub struct DeviceReturnSlot(Arc<Mutex<Option<Box<dyn Device>>>>);

impl DeviceReturnSlot {
    /// Takes the device; `Some` once, after [`SuspendableDevice`] was dropped.
    pub fn take(&self) -> Option<Box<dyn Device>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// A device whose requests can be suspended.
pub struct SuspendableDevice {
    /// `Some` until it is dropped.
    device: Option<Box<dyn Device>>,
    behind: DeviceReturnSlot,
    suspension: SuspensionSwitch,
    endpoints: Vec<EpAddr>,
    held: VecDeque<UrbInFlight>,
}

impl SuspendableDevice {
    /// Wraps a device whose requests to these endpoints wait while `suspension` is closed. The second value gives the
    /// device back in the end.
    pub fn new(
        device: Box<dyn Device>,
        suspension: SuspensionSwitch,
        endpoints: Vec<EpAddr>,
    ) -> (Self, DeviceReturnSlot) {
        let behind = DeviceReturnSlot::default();
        let for_end = behind.clone();
        (Self { device: Some(device), behind, suspension, endpoints, held: VecDeque::new() }, for_end)
    }

    fn release(&mut self, now: Instant, done: &mut CompletionQueue) {
        while !self.suspension.is_closed()
            && let Some(urb) = self.held.pop_front()
        {
            self.inner_mut().submit(now, urb, done);
        }
    }
}

impl Drop for SuspendableDevice {
    fn drop(&mut self) {
        for urb in self.held.drain(..) {
            drop(urb.recall());
        }
        *self.behind.0.lock().unwrap_or_else(PoisonError::into_inner) = self.device.take();
    }
}

impl DeviceLayer for SuspendableDevice {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        &**self.device.as_ref().expect("it is there until the gate is gone")
    }

    fn inner_mut(&mut self) -> &mut (dyn Device + 'static) {
        &mut **self.device.as_mut().expect("it is there until the gate is gone")
    }

    fn submit(&mut self, now: Instant, mut urb: UrbInFlight, done: &mut CompletionQueue) {
        self.release(now, done);
        if urb.endpoint.is_control() && urb.setup.is_standard(request::SET_CONFIGURATION, RequestRecipient::Device) {
            self.held.drain(..).for_each(|urb| done.push(urb.fail(UrbStatus::Shutdown)));
        }
        if (self.suspension.is_closed() || !self.held.is_empty()) && self.endpoints.contains(&urb.endpoint) {
            urb.own_payload();
            return self.held.push_back(urb);
        }
        self.inner_mut().submit(now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        match self.held.iter().position(|urb| urb.id == id) {
            Some(at) => {
                let urb = self.held.remove(at).expect("found just now");
                done.push(urb.fail(UrbStatus::Cancelled));
            }
            None => self.inner_mut().cancel(now, id, done),
        }
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        for urb in self.held.drain(..) {
            done.push(urb.fail(UrbStatus::Shutdown));
        }
        self.inner_mut().reset(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self.held.is_empty() || self.suspension.is_closed() {
            true => self.inner().poll_timeout(),
            false => Some(Instant::ZERO),
        }
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.release(now, done);
        if self.inner().poll_timeout().is_some_and(|at| at <= now) {
            self.inner_mut().handle_timeout(now, done);
        }
    }
}
