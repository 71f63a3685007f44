//! The relay between this machine's kernel and a device over plain USB/IP: one thread, two sockets. It ends when its
//! link is lost.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farbus_io::link::{Clock, Interest, Link, wait};
use farbus_model::Limits;
use farbus_session::snapshot::Writer;
use farbus_session::{Exporter, OnReset, RemoteDevice};

use crate::frontend::kernel::relay_loop::{Nothing, Relayed, Relaying, Stop, Turn, kernel_ended};
use crate::importer::client::local_address;
use crate::importer::port::usbip::HoldingLink;
use crate::link::meters::{Calls, Meters};

/// Relays between this kernel and a device over plain USB/IP.
pub struct PlainRelay {
    kernel: Link,
    remote: HoldingLink,
    exporter: Exporter<RemoteDevice>,
    clock: Clock,
    calls: Calls,
    local_address: Option<SocketAddr>,
    /// The last turn stopped the relay: [`Relaying::close`] answers what the kernel still waits for.
    has_stopped: bool,
}

impl PlainRelay {
    /// A relay for a device whose link is `remote`.
    pub fn new(kernel: Link, remote: HoldingLink, device: RemoteDevice) -> Self {
        let (clock, device_id, local_address) = (Clock::start(), device.record().device_id(), local_address(&remote));
        let exporter = Exporter::imported(clock.now(), Limits::DEFAULT, device_id, device, OnReset::PassOn);
        Self { kernel, remote, exporter, clock, calls: Calls::default(), local_address, has_stopped: false }
    }

    fn receive_from_kernel(&mut self) -> Turn {
        self.calls.receive += 1;
        match self.kernel.try_receive(self.exporter.receive_space()).map_err(kernel_ended)? {
            Some(0) => Err(Stop::Released),
            Some(count) => {
                self.exporter.handle_received(count);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn receive_from_remote(&mut self) -> Turn {
        self.calls.receive += 1;
        let remote = &self.remote;
        let received = self.exporter.with_device(self.clock.now(), |device, done| {
            match remote.try_receive(device.receive_space()).map_err(lost)? {
                Some(0) => Err(Stop::Lost("the exporter closed the connection".into())),
                Some(count) => device.handle_received(count, done).map_err(Stop::Broken),
                None => Ok(()),
            }
        });
        received.expect("a relay has its device from the start")
    }

    fn flush_kernel(&mut self) -> io::Result<bool> {
        while self.exporter.has_transmit() {
            self.calls.send += 1;
            let sent = self.kernel.try_send(&self.exporter.poll_transmit())?;
            match sent {
                Some(count) => self.exporter.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn flush_remote(&mut self) -> io::Result<bool> {
        while let Some(device) = self.exporter.device().filter(|device| device.has_transmit()) {
            self.calls.send += 1;
            let sent = self.remote.try_send(&device.poll_transmit())?;
            match sent {
                Some(count) => {
                    let sent = |device: &mut RemoteDevice, done: &mut _| device.handle_transmitted(count, done);
                    self.exporter.with_device(self.clock.now(), sent);
                }
                None => return Ok(false),
            }
        }
        self.remote.try_flush()
    }

    fn relay(&mut self, stop: Interest<'_>) -> Turn {
        self.exporter.advance(self.clock.now(), &mut Nothing).map_err(Stop::Fault)?;
        let remote_full = !self.flush_remote().map_err(lost)?;
        let kernel_full = !self.flush_kernel().map_err(kernel_ended)?;
        if self.exporter.has_held() && !kernel_full {
            return Ok(());
        }
        self.calls.wait += 1;
        let mut interests =
            [Interest::new(self.kernel.as_fd(), kernel_full), Interest::new(self.remote.as_fd(), remote_full), stop];
        // Data that an encrypted link has already decrypted makes no socket readable.
        let has_received = self.remote.has_received();
        wait(&mut interests, has_received.then_some(Duration::ZERO)).map_err(kernel_ended)?;
        let [on_kernel, on_remote, _] = interests.map(|interest| interest.readable);
        if on_kernel {
            self.receive_from_kernel()?;
        }
        if on_remote || has_received {
            self.receive_from_remote()?;
        }
        Ok(())
    }
}

impl Relaying for PlainRelay {
    fn relayed(&self) -> Relayed {
        Relayed { local_address: self.local_address, ..Relayed::how("over a plain connection") }
    }

    fn turn(&mut self, stop: Interest<'_>, meters: &Meters) -> Turn {
        let turn = self.relay(stop);
        self.has_stopped = turn.is_err();
        if turn.is_ok() {
            meters.publish(self.exporter.counters(), self.calls);
        }
        turn
    }

    /// Always `None`: the device is lost with its link.
    fn save(&mut self, _: &mut Writer) -> Result<Option<OwnedFd>, Stop> {
        Ok(None)
    }

    fn hand_over(self) {}

    fn close(&mut self) -> bool {
        if self.has_stopped {
            let now = self.clock.now();
            // The kernel's open requests end as gone, as far as its socket takes the answers, including those queued
            // for room.
            self.exporter.with_device(now, RemoteDevice::handle_lost);
            while let Ok(true) = self.flush_kernel()
                && self.exporter.has_held()
                && self.exporter.advance(now, &mut Nothing).is_ok()
            {}
        }
        self.remote.give_back();
        // The kernel flushes what it drives itself.
        true
    }
}

fn lost(error: io::Error) -> Stop {
    Stop::Lost(error.to_string())
}
