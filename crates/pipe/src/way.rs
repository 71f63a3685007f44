//! Access to a device for a thread that never waits for it: the thread looks, takes what arrived, sends what waits, and
//! sleeps until its next period.

use std::time::Duration;

use farbus::importer::port::usbip::HoldingLink;
use farbus::importer::session::connection::LinkedDevice;
use farbus_host::{HostPort, HostPortError};
use farbus_io_linux::sys::scheduling::{now_ns, sleep_until};
use farbus_io_net::link::BoottimeClock;
use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Payload, SessionLimits, Urb, UrbCompletion, UrbId};
use farbus_session::RemoteDevice;
use farbus_session::native::RemoteUsb;
use farbus_session::reserve::ReservationReport;

/// How often a waiting caller looks.
const LOOK: Duration = Duration::from_micros(200);

/// A device, here or on another machine.
pub trait PolledDevice: Send {
    /// Sends a request; may keep it until the next [`PolledDevice::turn`].
    fn submit(&mut self, urb: Urb);

    /// Cancels a request.
    fn cancel(&mut self, id: UrbId);

    /// Takes what arrived and sends what waits, without waiting.
    ///
    /// # Errors
    /// [`HostPortError`] when the device can no longer be reached.
    fn turn(&mut self) -> Result<(), HostPortError>;

    /// The next completed request.
    fn pop(&mut self) -> Option<UrbCompletion>;

    /// The buffers of transfers in both directions.
    fn pool(&mut self) -> &mut BufferPool;

    /// What the device's host has reported last of the reservation for it, if another host has it and reserves.
    fn reserved(&self) -> Option<ReservationReport> {
        None
    }

    /// Gives the device back.
    fn close(&mut self);
}

/// A device that this process drives itself.
pub struct LocalPolledDevice<D: Device> {
    device: D,
    done: CompletionQueue,
    clock: BoottimeClock,
}

impl<D: Device> LocalPolledDevice<D> {
    /// Takes a device that no other code drives.
    pub fn new(device: D) -> Self {
        Self {
            device,
            done: CompletionQueue::new(BufferPool::new(SessionLimits::DEFAULT.pool_bytes)),
            clock: BoottimeClock::start(),
        }
    }

    /// The device itself, for reading its state. Requests go through [`PolledDevice`].
    pub fn device(&self) -> &D {
        &self.device
    }
}

impl<D: Device> PolledDevice for LocalPolledDevice<D> {
    fn submit(&mut self, urb: Urb) {
        self.device.submit(self.clock.now(), urb.launch(), &mut self.done);
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.clock.now(), id, &mut self.done);
    }

    fn turn(&mut self) -> Result<(), HostPortError> {
        let now = self.clock.now();
        if self.device.readiness().is_some() {
            self.device.handle_ready(now, &mut self.done);
        }
        if self.device.poll_timeout().is_some_and(|due| due <= now) {
            self.device.handle_timeout(now, &mut self.done);
        }
        self.device.end_turn(now, &mut self.done);
        if self.device.is_gone() && self.done.is_empty() { Err(HostPortError::Gone) } else { Ok(()) }
    }

    fn pop(&mut self) -> Option<UrbCompletion> {
        self.done.pop()
    }

    fn pool(&mut self) -> &mut BufferPool {
        &mut self.done.pool
    }

    fn close(&mut self) {
        self.device.reset(self.clock.now(), &mut self.done);
        while self.done.pop().is_some() {}
    }
}

/// A device in a session of farbus's own.
pub struct SessionPolledDevice {
    linked: LinkedDevice<RemoteUsb>,
    done: CompletionQueue,
}

impl SessionPolledDevice {
    /// Takes an open device.
    pub fn new(linked: LinkedDevice<RemoteUsb>) -> Self {
        Self { linked, done: CompletionQueue::new(BufferPool::new(SessionLimits::DEFAULT.pool_bytes)) }
    }
}

impl PolledDevice for SessionPolledDevice {
    fn submit(&mut self, urb: Urb) {
        self.linked.submit(self.linked.clock().now(), urb.launch(), &mut self.done);
    }

    fn cancel(&mut self, id: UrbId) {
        self.linked.cancel(self.linked.clock().now(), id, &mut self.done);
    }

    fn turn(&mut self) -> Result<(), HostPortError> {
        self.linked.turn(&mut self.done);
        match self.linked.end() {
            Some(end) if self.done.is_empty() => Err(HostPortError::World(end.message.clone())),
            _ => Ok(()),
        }
    }

    fn pop(&mut self) -> Option<UrbCompletion> {
        self.done.pop()
    }

    fn pool(&mut self) -> &mut BufferPool {
        &mut self.done.pool
    }

    fn reserved(&self) -> Option<ReservationReport> {
        self.linked.status().reserved()
    }

    fn close(&mut self) {
        self.linked.close(&mut self.done);
        while self.done.pop().is_some() {}
    }
}

/// A device behind a plain USB/IP link.
pub struct UsbipPolledDevice {
    link: HoldingLink,
    device: RemoteDevice,
    done: CompletionQueue,
    clock: BoottimeClock,
}

impl UsbipPolledDevice {
    /// Takes an imported device.
    pub fn new(link: HoldingLink, device: RemoteDevice) -> Self {
        let done = CompletionQueue::new(BufferPool::new(device.limits().pool_bytes));
        Self { link, device, done, clock: BoottimeClock::start() }
    }

    fn send(&mut self) -> std::io::Result<()> {
        while self.device.has_transmit() {
            let sent = self.link.try_send(&self.device.poll_transmit())?;
            match sent {
                Some(count) => self.device.handle_transmitted(count, &mut self.done),
                None => return Ok(()),
            }
        }
        self.link.try_flush().map(|_| ())
    }
}

impl PolledDevice for UsbipPolledDevice {
    fn submit(&mut self, urb: Urb) {
        self.device.submit(self.clock.now(), urb.launch(), &mut self.done);
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.clock.now(), id, &mut self.done);
    }

    fn turn(&mut self) -> Result<(), HostPortError> {
        let world = |error: std::io::Error| HostPortError::World(format!("the link was lost: {error}"));
        self.send().map_err(world)?;
        while let Some(count) = self.link.try_receive(self.device.receive_space()).map_err(world)? {
            if count == 0 {
                return if self.done.is_empty() { Err(HostPortError::Gone) } else { Ok(()) };
            }
            let taken = self.device.handle_received(count, &mut self.done);
            taken.map_err(|reject| HostPortError::Peer(reject.to_string()))?;
        }
        Ok(())
    }

    fn pop(&mut self) -> Option<UrbCompletion> {
        self.done.pop()
    }

    fn pool(&mut self) -> &mut BufferPool {
        &mut self.done.pool
    }

    fn close(&mut self) {
        self.device.handle_lost(&mut self.done);
        while self.done.pop().is_some() {}
        self.link.give_back();
    }
}

/// A way for a caller that may wait: to set a device up before its pipes run.
pub struct BlockingPort {
    way: Box<dyn PolledDevice>,
    lost: Option<HostPortError>,
    clock: BoottimeClock,
    overslept_ns: u64,
}

impl BlockingPort {
    /// Waits on `way`.
    pub fn new(way: Box<dyn PolledDevice>) -> Self {
        Self { way, lost: None, clock: BoottimeClock::start(), overslept_ns: 0 }
    }

    /// For how long in all this thread slept on after it should have looked, since the last call, in nanoseconds.
    pub(super) fn take_overslept_ns(&mut self) -> u64 {
        std::mem::take(&mut self.overslept_ns)
    }

    /// The way, for a caller that does not wait. No request may be in flight.
    pub fn into_way(self) -> Box<dyn PolledDevice> {
        self.way
    }
}

impl HostPort for BlockingPort {
    fn submit(&mut self, urb: Urb) {
        self.way.submit(urb);
    }

    fn cancel(&mut self, id: UrbId) {
        self.way.cancel(id);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        loop {
            if let Some(error) = &self.lost {
                return Err(error.clone());
            }
            if let Some(done) = self.way.pop() {
                return Ok(Some(done));
            }
            if let Err(error) = self.way.turn() {
                self.lost = Some(error);
                continue;
            }
            if let Some(done) = self.way.pop() {
                return Ok(Some(done));
            }
            if until.is_some_and(|until| self.clock.now() >= until) {
                return Ok(None);
            }
            let due_ns = now_ns() + LOOK.as_nanos() as u64;
            sleep_until(due_ns);
            self.overslept_ns += now_ns().saturating_sub(due_ns);
        }
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn recycle(&mut self, payload: Payload) {
        self.way.pool().recycle(payload);
    }
}
