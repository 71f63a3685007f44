//! A device in this process, on a real clock: what a remote one is compared with.

use std::{thread, time::Duration};

use farbus::{
    host::{HostPort, HostPortError},
    importer::session::bare::BoottimeClock,
    model::{BufferPool, CompletionQueue, Device, Instant, Payload, Urb, UrbCompletion, UrbId},
};

/// Idle buffers that are kept.
const POOL_BYTES: usize = 8 << 20;

/// A port to the device that takes the time that the device's bus takes.
pub struct LocalDevice<D: Device> {
    device: D,
    clock: BoottimeClock,
    done: CompletionQueue,
}

impl<D: Device> LocalDevice<D> {
    pub fn new(device: D) -> Self {
        Self { device, clock: BoottimeClock::start(), done: CompletionQueue::new(BufferPool::new(POOL_BYTES)) }
    }
}

impl<D: Device> Drop for LocalDevice<D> {
    fn drop(&mut self) {
        self.device.reset(self.clock.now(), &mut self.done);
    }
}

impl<D: Device> HostPort for LocalDevice<D> {
    fn submit(&mut self, urb: Urb) {
        self.device.submit(self.clock.now(), urb.launch(), &mut self.done);
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.clock.now(), id, &mut self.done);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        loop {
            if let Some(done) = self.done.pop() {
                return Ok(Some(done));
            }
            let now = self.clock.now();
            let due = self.device.poll_timeout();
            if due.is_some_and(|due| due <= now) {
                self.device.handle_timeout(now, &mut self.done);
            } else if until.is_some_and(|until| until <= now) {
                return Ok(None);
            } else if let Some(next) = due.into_iter().chain(until).min() {
                thread::sleep(Duration::from_nanos((next - now).as_nanos() as u64));
            } else {
                return Err(HostPortError::Idle);
            }
        }
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn recycle(&mut self, payload: Payload) {
        self.done.pool.recycle(payload);
    }
}
