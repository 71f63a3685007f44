//! Access to a remote device over plain USB/IP, for a blocking caller: one thread, one link.

use std::os::fd::AsFd;
use std::time::Duration;

use farbus_host::{Port, PortError};
use farbus_io::link::{Clock, Interest, Link, wait};
use farbus_model::{BufferPool, Completions, Device, Done, Instant, Payload, Urb, UrbId};
use farbus_session::RemoteDevice;

/// How often a blocked receive looks at the clock. Deadlines are tens of seconds; waiting more exactly would cost a
/// system call per request.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(1);

/// A port over a link. Requests that are submitted between two waits leave in one send.
#[derive(Debug)]
pub struct RemotePort {
    link: Link,
    device: RemoteDevice,
    done: Completions,
    clock: Clock,
    lost: Option<PortError>,
}

impl RemotePort {
    /// A port over an imported device.
    ///
    /// # Errors
    /// The socket refuses its timeout.
    pub fn new(link: Link, device: RemoteDevice) -> std::io::Result<Self> {
        link.set_receive_timeout(Some(LOOK_AT_CLOCK))?;
        let done = Completions::new(BufferPool::new(device.limits().pool_bytes));
        Ok(Self { link, device, done, clock: Clock::start(), lost: None })
    }

    /// The imported device.
    pub fn device(&self) -> &RemoteDevice {
        &self.device
    }

    /// A duplicate of the link, for a watcher.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn link(&self) -> std::io::Result<Link> {
        self.link.try_clone()
    }

    /// The link and the device, for another driver. No request may be in flight.
    pub fn into_parts(self) -> (Link, RemoteDevice) {
        (self.link, self.device)
    }

    fn lose(&mut self, error: PortError) -> PortError {
        self.device.handle_lost(&mut self.done);
        while self.done.pop().is_some() {}
        self.link.shut_down();
        self.lost = Some(error.clone());
        error
    }

    /// Sends everything. While the link is full, receives what arrives: otherwise both ends could wait for each other.
    fn flush(&mut self) -> Result<(), PortError> {
        while self.device.has_transmit() {
            let sent = self.link.try_send(&self.device.poll_transmit()).map_err(|e| world("send", &e))?;
            match sent {
                Some(count) => self.device.handle_transmitted(count, &mut self.done),
                None => self.wait_for_room()?,
            }
        }
        while !self.link.try_flush().map_err(|e| world("send", &e))? {
            self.wait_for_room()?;
        }
        Ok(())
    }

    fn wait_for_room(&mut self) -> Result<(), PortError> {
        let span = if self.link.has_received() { Duration::ZERO } else { LOOK_AT_CLOCK };
        let mut interests = [Interest::new(self.link.as_fd(), true)];
        wait(&mut interests, Some(span)).map_err(|e| world("wait", &e))?;
        if interests[0].readable || span.is_zero() {
            let received = self.link.try_receive(self.device.receive_space());
            if let Some(count) = received.map_err(|e| world("receive", &e))? {
                self.take_in(count)?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, count: usize) -> Result<(), PortError> {
        if count == 0 {
            return Err(PortError::Gone);
        }
        self.device.handle_received(count, &mut self.done).map_err(|reject| PortError::Peer(reject.to_string()))
    }

    fn wait_inner(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError> {
        loop {
            if let Some(done) = self.done.pop() {
                return Ok(Some(done));
            }
            self.flush()?;
            if !self.done.is_empty() {
                continue;
            }
            if self.device.in_flight() == 0 && until.is_none() {
                return Err(PortError::Idle);
            }
            match self.link.receive(self.device.receive_space()) {
                Ok(count) => self.take_in(count)?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if until.is_some_and(|at| self.clock.now() >= at) {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(world("receive", &error)),
            }
        }
    }
}

/// How the message of a [`PortError::World`] begins.
pub(crate) const LOST: &str = "the link was lost: ";

fn world(operation: &str, error: &std::io::Error) -> PortError {
    PortError::World(format!("{LOST}{operation}: {error}"))
}

impl Port for RemotePort {
    fn submit(&mut self, urb: Urb) {
        let now = self.clock.now();
        if self.lost.is_none() {
            self.device.submit(now, urb.launch(), &mut self.done);
        }
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.clock.now(), id, &mut self.done);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<Done>, PortError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        self.wait_inner(until).map_err(|error| match error {
            PortError::Idle => error,
            error => self.lose(error),
        })
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn recycle(&mut self, payload: Payload) {
        self.done.pool.recycle(payload);
    }
}
