//! The connection to a device, and the loop that runs a driver over it.

use std::fmt;

use farbus_model::{Instant, Payload, Urb, UrbCompletion, UrbId};

use crate::driver::DeviceDriver;

/// The connection to one device: in this process ([`LocalPort`](crate::LocalPort)), or over a link.
///
/// Every submitted request comes back from [`HostPort::wait`] exactly once, cancelled or not, unless `wait` fails;
/// after that no request comes back.
pub trait HostPort {
    /// Sends a request. The port may keep it until the next [`HostPort::wait`], so that requests submitted together
    /// travel together.
    fn submit(&mut self, urb: Urb);

    /// Cancels a request that has not come back yet.
    fn cancel(&mut self, id: UrbId);

    /// The next request that came back; `None` when `until` passed first.
    ///
    /// # Errors
    /// [`HostPortError`] when the device can no longer be reached.
    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError>;

    /// Now, on the clock that `until` is measured by.
    fn now(&self) -> Instant;

    /// Takes back the buffer of a payload that was read. The default drops it.
    fn recycle(&mut self, payload: Payload) {
        drop(payload);
    }
}

impl<P: HostPort + ?Sized> HostPort for &mut P {
    fn submit(&mut self, urb: Urb) {
        (**self).submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        (**self).cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        (**self).wait(until)
    }

    fn now(&self) -> Instant {
        (**self).now()
    }

    fn recycle(&mut self, payload: Payload) {
        (**self).recycle(payload);
    }
}

impl<P: HostPort + ?Sized> HostPort for Box<P> {
    fn submit(&mut self, urb: Urb) {
        (**self).submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        (**self).cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
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
pub enum HostPortError {
    /// The device was withdrawn, or the connection was closed.
    Gone,
    /// The peer broke the protocol; a sentence for a person.
    Peer(String),
    /// The operating system failed: which operation and how; a sentence for a person.
    World(String),
    /// No request is in flight and nothing is due: waiting would never end. The caller's bug.
    Idle,
}

impl fmt::Display for HostPortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostPortError::Gone => f.write_str("the device is gone"),
            HostPortError::Peer(what) => write!(f, "the other side broke the rules: {what}"),
            HostPortError::World(what) => f.write_str(what),
            HostPortError::Idle => f.write_str("nothing is in flight that could be waited for"),
        }
    }
}

impl std::error::Error for HostPortError {}

/// Runs `driver` over `port` to its outcome: it sends everything that can be sent before it waits.
///
/// # Errors
/// [`HostPortError`] when the device can no longer be reached; the driver is of no use then.
pub fn run<D: DeviceDriver + ?Sized, P: HostPort + ?Sized>(
    driver: &mut D,
    port: &mut P,
) -> Result<D::Outcome, HostPortError> {
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
