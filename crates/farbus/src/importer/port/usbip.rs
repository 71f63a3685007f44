//! Access to a remote device over plain USB/IP, for a blocking caller: one thread, one link.

use std::ops::Deref;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use farbus_host::{HostPort, HostPortError};
use farbus_io_net::link::{BoottimeClock, Link, PollInterest, wait};
use farbus_model::{BufferPool, CompletionQueue, Device, Instant, Payload, Urb, UrbCompletion, UrbId};
use farbus_session::RemoteDevice;

/// How often a blocked receive looks at the clock. Deadlines are tens of seconds; waiting more exactly would cost a
/// system call per request.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(1);

/// How long an exporter may take to release a device whose link has ended.
const RELEASE_TIME_MAX: Duration = Duration::from_secs(2);

/// The link that holds a device of plain USB/IP. When it is dropped, it waits until the exporter has ended it too: the
/// device is free for the next importer from then on. An exporter that does not answer is waited for 2 s at most.
#[derive(Debug)]
pub struct HoldingLink(Link);

impl HoldingLink {
    /// A link on which a device was imported.
    pub fn new(link: Link) -> Self {
        Self(link)
    }

    /// Gives the device back and waits until its exporter has released it; later requests fail. See [`give_back`].
    pub fn give_back(&self) {
        give_back(&self.0);
    }
}

/// Gives back the device that `link` holds, and waits until its exporter has released it. Later requests fail.
pub fn give_back(link: &Link) {
    link.close_in_order(RELEASE_TIME_MAX);
    link.shut_down();
}

impl Deref for HoldingLink {
    type Target = Link;

    fn deref(&self) -> &Link {
        &self.0
    }
}

impl Drop for HoldingLink {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.give_back();
        }
    }
}

/// A port over a link. Requests that are submitted between two waits leave in one send.
#[derive(Debug)]
pub struct RemotePort {
    link: HoldingLink,
    device: RemoteDevice,
    done: CompletionQueue,
    clock: BoottimeClock,
    lost: Option<HostPortError>,
}

impl RemotePort {
    /// A port over an imported device.
    ///
    /// # Errors
    /// The socket refuses its timeout.
    pub fn new(link: HoldingLink, device: RemoteDevice) -> std::io::Result<Self> {
        link.set_receive_timeout(Some(LOOK_AT_CLOCK))?;
        let done = CompletionQueue::new(BufferPool::new(device.limits().pool_bytes));
        Ok(Self { link, device, done, clock: BoottimeClock::start(), lost: None })
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
    pub fn into_parts(self) -> (HoldingLink, RemoteDevice) {
        (self.link, self.device)
    }

    fn lose(&mut self, error: HostPortError) -> HostPortError {
        self.device.handle_lost(&mut self.done);
        while self.done.pop().is_some() {}
        self.link.shut_down();
        self.lost = Some(error.clone());
        error
    }

    /// Sends everything. While the link is full, receives what arrives: otherwise both ends could wait for each other.
    fn flush(&mut self) -> Result<(), HostPortError> {
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

    fn wait_for_room(&mut self) -> Result<(), HostPortError> {
        let span = if self.link.has_received() { Duration::ZERO } else { LOOK_AT_CLOCK };
        let mut interests = [PollInterest::new(self.link.as_fd(), true)];
        wait(&mut interests, Some(span)).map_err(|e| world("wait", &e))?;
        if interests[0].readable || span.is_zero() {
            let received = self.link.try_receive(self.device.receive_space());
            if let Some(count) = received.map_err(|e| world("receive", &e))? {
                self.take_in(count)?;
            }
        }
        Ok(())
    }

    fn take_in(&mut self, count: usize) -> Result<(), HostPortError> {
        if count == 0 {
            return Err(HostPortError::Gone);
        }
        self.device.handle_received(count, &mut self.done).map_err(|reject| HostPortError::Peer(reject.to_string()))
    }

    fn wait_inner(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        loop {
            if let Some(done) = self.done.pop() {
                return Ok(Some(done));
            }
            self.flush()?;
            if !self.done.is_empty() {
                continue;
            }
            if self.device.in_flight() == 0 && until.is_none() {
                return Err(HostPortError::Idle);
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

/// How the message of a [`HostPortError::World`] begins.
pub(crate) const LOST: &str = "the link was lost: ";

fn world(operation: &str, error: &std::io::Error) -> HostPortError {
    HostPortError::World(format!("{LOST}{operation}: {error}"))
}

impl HostPort for RemotePort {
    fn submit(&mut self, urb: Urb) {
        let now = self.clock.now();
        if self.lost.is_none() {
            self.device.submit(now, urb.launch(), &mut self.done);
        }
    }

    fn cancel(&mut self, id: UrbId) {
        self.device.cancel(self.clock.now(), id, &mut self.done);
    }

    fn wait(&mut self, until: Option<Instant>) -> Result<Option<UrbCompletion>, HostPortError> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        self.wait_inner(until).map_err(|error| match error {
            HostPortError::Idle => error,
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn dropped_link_waits_until_its_exporter_has_released_the_device() {
        let (link, theirs) = Link::pair("exporter").unwrap();
        let exporter = Link::over_local(theirs, "importer");
        let is_released = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Bytes that nobody reads any more, and a release that takes its time.
                exporter.try_send(&[std::io::IoSlice::new(&[0; 4096])]).unwrap();
                assert_eq!(exporter.receive(&mut [0; 1]).unwrap(), 0, "the importer has ended its side");
                thread::sleep(Duration::from_millis(50));
                is_released.store(true, Ordering::SeqCst);
                exporter.shut_down();
            });
            drop(HoldingLink::new(link));
            assert!(is_released.load(Ordering::SeqCst));
        });
    }

    #[test]
    fn exporter_that_never_releases_is_not_waited_for_beyond_the_limit() {
        let (link, theirs) = Link::pair("exporter").unwrap();
        let begun = std::time::Instant::now();
        drop(HoldingLink::new(link));
        assert!(begun.elapsed() >= RELEASE_TIME_MAX);
        drop(theirs);
    }
}
