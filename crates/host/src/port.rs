//! The connection to a device, and the loop that runs a driver over it.

use std::fmt;

use farbus_model::{Done, Instant, Payload, Urb, UrbId};

use crate::driver::Driver;

/// The connection to one device: in this process ([`LocalPort`](crate::LocalPort)), or over a link.
///
/// Every submitted request comes back from [`Port::wait`] exactly once, cancelled or not, unless `wait` fails; after
/// that no request comes back.
pub trait Port {
    /// Sends a request. The port may keep it until the next [`Port::wait`], so that requests submitted together travel
    /// together.
    fn submit(&mut self, urb: Urb);

    /// Cancels a request that has not come back yet.
    fn cancel(&mut self, id: UrbId);

    /// The next request that came back; `None` when `until` passed first.
    ///
    /// # Errors
    /// [`PortError`] when the device can no longer be reached.
    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError>;

    /// Now, on the clock that `until` is measured by.
    fn now(&self) -> Instant;

    /// Takes back the buffer of a payload that was read. The default drops it.
    fn recycle(&mut self, payload: Payload) {
        drop(payload);
    }
}

impl<P: Port + ?Sized> Port for &mut P {
    fn submit(&mut self, urb: Urb) {
        (**self).submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        (**self).cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError> {
        (**self).wait(until)
    }

    fn now(&self) -> Instant {
        (**self).now()
    }

    fn recycle(&mut self, payload: Payload) {
        (**self).recycle(payload);
    }
}

impl<P: Port + ?Sized> Port for Box<P> {
    fn submit(&mut self, urb: Urb) {
        (**self).submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        (**self).cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError> {
        (**self).wait(until)
    }

    fn now(&self) -> Instant {
        (**self).now()
    }

    fn recycle(&mut self, payload: Payload) {
        (**self).recycle(payload);
    }
}

/// Why a device can no longer be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortError {
    /// The device was withdrawn, or the connection was closed.
    Gone,
    /// The peer broke the protocol; a sentence for a person.
    Peer(String),
    /// The operating system failed: which operation and how; a sentence for a person.
    World(String),
    /// No request is in flight and nothing is due: waiting would never end. The caller's bug.
    Idle,
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::Gone => f.write_str("the device is gone"),
            PortError::Peer(what) => write!(f, "the other side broke the rules: {what}"),
            PortError::World(what) => f.write_str(what),
            PortError::Idle => f.write_str("nothing is in flight that could be waited for"),
        }
    }
}

impl std::error::Error for PortError {}

/// Runs `driver` over `port` to its outcome: it sends everything that can be sent before it waits.
///
/// # Errors
/// [`PortError`] when the device can no longer be reached; the driver is of no use then.
pub fn run<D: Driver + ?Sized, P: Port + ?Sized>(driver: &mut D, port: &mut P) -> Result<D::Outcome, PortError> {
    loop {
        while let Some(id) = driver.poll_cancel() {
            port.cancel(id);
        }
        while let Some(urb) = driver.poll_submit() {
            port.submit(urb);
        }
        if let Some(outcome) = driver.poll_outcome() {
            return Ok(outcome);
        }
        match port.wait(driver.poll_timeout())? {
            Some(done) => {
                driver.handle_done(port.now(), done);
                port.recycle(driver.poll_spent());
            }
            None => driver.handle_timeout(port.now()),
        }
    }
}
