//! A port to a device in this process, on a clock that only waiting moves.

use std::time::Duration;

use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Payload, SessionLimits, Urb, UrbCompletion, UrbId};

use crate::port::{HostPort, HostPortError};

/// A device in this process, in simulated time: the clock stands still while anything can happen and jumps to the next
/// due moment when nothing can, so that thirty-second timeouts take no time.
#[derive(Debug)]
pub struct LocalPort<D: Device> {
    device: D,
    now: Instant,
    done: CompletionQueue,
}

impl<D: Device> LocalPort<D> {
    /// A port to `device`, at the epoch.
    pub fn new(device: D) -> Self {
        let pool = BufferPool::new(SessionLimits::DEFAULT.pool_bytes);
        Self { device, now: Instant::ZERO, done: CompletionQueue::new(pool) }
    }

    /// The device behind the port, to read its state.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The device, for its owner to command.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// The device and where it leaves what it has finished, as an engine holds them.
    pub fn parts_mut(&mut self) -> (&mut D, &mut CompletionQueue) {
        (&mut self.device, &mut self.done)
    }

    /// Lets time pass.
    pub fn advance(&mut self, span: Duration) {
        self.now = self.now + span;
    }
}

/// Dropping a port takes the device away from its host: requests in flight are answered.
impl<D: Device> Drop for LocalPort<D> {
    fn drop(&mut self) {
        self.device.reset(self.now, &mut self.done);
    }
}

impl<D: Device> HostPort for LocalPort<D> {
    fn submit(&mut self, urb: Urb) {
        self.device.submit(self.now, urb.launch(), &mut self.done);
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.now, id, &mut self.done);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        loop {
            if let Some(done) = self.done.pop() {
                return Ok(Some(done));
            }
            match (self.device.poll_timeout(), until) {
                (Some(due), until) if until.is_none_or(|until| due <= until) => {
                    self.now = self.now.max(due);
                    self.device.handle_timeout(self.now, &mut self.done);
                }
                (_, Some(until)) => {
                    self.now = self.now.max(until);
                    return Ok(None);
                }
                (_, None) => return Err(HostPortError::Idle),
            }
        }
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn recycle(&mut self, payload: Payload) {
        self.done.pool.recycle(payload);
    }
}
