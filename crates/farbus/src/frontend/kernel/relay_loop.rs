//! The loop of a relay between this machine's kernel and a remote device: one thread, which waits on both and on its
//! stop signal.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, DeviceWaitSource, Link, PollInterest, wait};
use farbus_model::{Device, Instant};
use farbus_session::snapshot::SnapshotWriter;
use farbus_session::{ConnectionFault, DeviceRecord, ExportOffers, Exporter, OpStatus};
use tracing::debug;

use crate::frontend::AttachmentEnd;
use crate::frontend::usb_swap::UsbSwap;
use crate::importer::disk::DiskMode;
use crate::importer::disk_swap::DiskSwap;
use crate::importer::port::DeviceCutter;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::{EngineMeters, SyscallCounts};

/// Why a relay ended by itself.
#[derive(Debug)]
pub enum RelayStopCause {
    /// The kernel released the device.
    Released,
    /// The kernel broke the protocol.
    Fault(ConnectionFault),
    /// The device ended, and why.
    Ended(Box<AttachmentEnd>),
    /// The device no longer answers.
    Gone,
}

/// The name of the kernel as a link's peer.
pub const KERNEL: &str = "this kernel";

/// The result of one turn; an error says why it was the last.
pub type RelayTurnResult = Result<(), RelayStopCause>;

/// How long open requests may take to be answered before the rest is passed on unanswered: longer than a disk takes,
/// shorter than a program that uses the device notices. An interrupt transfer that waits for a key never ends.
const QUIET_TIME_MAX: Duration = Duration::from_millis(100);

/// The facts about a relay that do not change while it runs.
#[derive(Clone)]
pub struct RelayFacts {
    /// How the device is attached, in a few words.
    pub how: &'static str,
    /// How the disk is used, if the relay shows a gadget disk.
    pub mode: Option<DiskMode>,
    /// Its session, if it is in one.
    pub session: Option<SessionStatus>,
    /// The local address of its link, which identifies the user to the exporter; `None` in a session.
    pub local_address: Option<SocketAddr>,
    /// Takes the device from the kernel without waiting, if the relay waits for anything when it closes.
    pub cutter: Option<DeviceCutter>,
    /// Exchanges its disk for one of this machine, if it can be.
    pub swap: Option<DiskSwap>,
    /// Exchanges its USB device for its twin, if it shows the device itself.
    pub usb_swap: Option<UsbSwap>,
    /// Whether a replacement process can continue it.
    pub is_movable: bool,
    /// Whether it is a disk that needs bulk streams.
    pub lacks_streams: bool,
}

impl RelayFacts {
    /// A relay of which only `how` is known.
    pub const fn how(how: &'static str) -> Self {
        let (mode, session, local_address, cutter, swap, usb_swap) = (None, None, None, None, None, None);
        Self { how, mode, session, local_address, cutter, swap, usb_swap, is_movable: false, lacks_streams: false }
    }
}

/// What relays between a kernel and a device, and may continue in a replacement process.
pub trait KernelRelay: Send + Sized {
    /// The facts about it that do not change.
    fn relayed(&self) -> RelayFacts;

    /// One turn: does what can be done, then waits for the next event, `stop` included.
    ///
    /// # Errors
    /// [`RelayStopCause`]: this was the last turn.
    fn turn(&mut self, stop: PollInterest<'_>, meters: &EngineMeters) -> RelayTurnResult;

    /// Writes a snapshot for a replacement process. Reads nothing from the kernel meanwhile; answers open requests
    /// first, if they complete quickly. The relay may continue here if the replacement does not. Returns our end of the
    /// kernel's socket; `None` if the relay cannot be saved.
    ///
    /// # Errors
    /// [`RelayStopCause`]: the relay ended instead.
    fn save(&mut self, to: &mut SnapshotWriter) -> Result<Option<OwnedFd>, RelayStopCause>;

    /// Lets go of the device without giving it back: a replacement process continues.
    fn hand_over(self);

    /// Gives the device back; the kernel's open requests end as gone, as far as its socket takes the answers. Returns
    /// whether all data written through the relay is known to be durable, as far as the relay is responsible for that.
    fn close(&mut self) -> bool;
}

/// The kernel's socket, and the device behind it.
pub struct KernelSide<D> {
    /// Our end of the socket.
    pub kernel: Link,
    /// Speaks USB/IP to the kernel.
    pub exporter: Exporter<D>,
    /// The device's clock.
    pub clock: BoottimeClock,
    calls: SyscallCounts,
}

impl<D: Device> KernelSide<D> {
    /// The kernel's side of a relay whose exporter has its device from the start.
    pub fn new(kernel: Link, exporter: Exporter<D>, clock: BoottimeClock) -> Self {
        Self { kernel, exporter, clock, calls: SyscallCounts::default() }
    }

    /// The exported device that the kernel's requests go to.
    pub fn device(&self) -> &D {
        self.exporter.device().expect("a relay has its device from the start")
    }

    /// One turn: does what can be done, then waits for the next event, `stop` included. `end` returns why the device
    /// ended, if it did.
    ///
    /// # Errors
    /// [`RelayStopCause`]: this was the last turn.
    pub fn turn(
        &mut self,
        stop: PollInterest<'_>,
        meters: &EngineMeters,
        end: impl FnOnce(&D) -> Option<RelayStopCause>,
    ) -> RelayTurnResult {
        let is_full = !self.act()?;
        meters.publish(self.exporter.counters(), self.calls);
        if let Some(stop) = end(self.device()) {
            return Err(stop);
        }
        if self.exporter.has_held() && !is_full {
            return Ok(());
        }
        self.calls.wait += 1;
        let now = self.clock.now();
        let device = self.device();
        let timeout = device.poll_timeout();
        // A twin that is made of code has its time alone.
        let on_device = device.readiness().and_then(DeviceWaitSource::interest);
        let has_descriptor = on_device.is_some();
        let on_kernel = PollInterest::new(self.kernel.as_fd(), is_full);
        let mut interests = [on_kernel, stop, on_device.unwrap_or(PollInterest::new(self.kernel.as_fd(), false))];
        let count = if has_descriptor { 3 } else { 2 };
        wait(&mut interests[..count], timeout.map(|at| at - now)).map_err(kernel_ended)?;
        let (on_kernel, on_device) = (interests[0].readable, interests[2].is_ready());
        let now = self.clock.now();
        if on_device {
            self.exporter.handle_ready(now);
        }
        if timeout.is_some_and(|at| at <= now) {
            self.exporter.with_device(now, |device, done| device.handle_timeout(now, done));
        }
        if on_kernel { self.receive() } else { Ok(()) }
    }

    /// Does what can be done without waiting; returns whether all answers were sent.
    ///
    /// # Errors
    /// [`RelayStopCause`]: the kernel ended the relay.
    pub fn act(&mut self) -> Result<bool, RelayStopCause> {
        let now = self.clock.now();
        self.exporter.advance(now, &mut EmptyOfferList).map_err(RelayStopCause::Fault)?;
        self.exporter.with_device(now, |device, done| device.end_turn(now, done));
        self.flush()
    }

    /// Waits until `is_quiet`, for [`QUIET_TIME_MAX`] at most, so that open requests are answered. Reads nothing from
    /// the kernel meanwhile.
    ///
    /// # Errors
    /// [`RelayStopCause`]: the relay ended instead.
    pub fn come_to_rest(&mut self, is_quiet: impl Fn(&Exporter<D>) -> Result<bool, RelayStopCause>) -> RelayTurnResult {
        let until = self.clock.now() + QUIET_TIME_MAX;
        loop {
            let now = self.clock.now();
            let is_out = self.act()?;
            if (is_quiet(&self.exporter)? && is_out) || now >= until {
                return Ok(());
            }
            let device = self.device();
            let at = device.poll_timeout().map_or(until, |at| at.min(until));
            let on_device = device.readiness().and_then(DeviceWaitSource::interest);
            let room = (!is_out).then(|| PollInterest::room(self.kernel.as_fd()));
            let mut interests: Vec<PollInterest<'_>> = on_device.into_iter().chain(room).collect();
            wait(&mut interests, Some(at - now)).map_err(kernel_ended)?;
            let now = self.clock.now();
            self.exporter.handle_ready(now);
            if at <= now {
                self.exporter.with_device(now, |device, done| device.handle_timeout(now, done));
            }
        }
    }

    /// A duplicate of our end of the kernel's socket.
    ///
    /// # Errors
    /// [`RelayStopCause`]: the system has no more descriptors.
    pub fn socket(&self) -> Result<OwnedFd, RelayStopCause> {
        self.kernel.as_fd().try_clone_to_owned().map_err(kernel_ended)
    }

    fn receive(&mut self) -> RelayTurnResult {
        self.calls.receive += 1;
        match self.kernel.try_receive(self.exporter.receive_space()).map_err(kernel_ended)? {
            Some(0) => Err(RelayStopCause::Released),
            Some(count) => {
                self.exporter.handle_received(count);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn flush(&mut self) -> Result<bool, RelayStopCause> {
        while self.exporter.has_transmit() {
            self.calls.send += 1;
            let sent = self.kernel.try_send(&self.exporter.poll_transmit()).map_err(kernel_ended)?;
            match sent {
                Some(count) => self.exporter.handle_transmitted(count),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Sends the kernel the answers to its open requests, as far as its socket takes them.
    pub fn say_the_rest(&mut self, now: Instant) {
        while let Ok(true) = self.flush()
            && self.exporter.has_held()
            && self.exporter.advance(now, &mut EmptyOfferList).is_ok()
        {}
    }
}

/// Maps an error of the kernel's socket to a stop.
pub fn kernel_ended(error: io::Error) -> RelayStopCause {
    debug!(%error, "the kernel's socket ended");
    RelayStopCause::Released
}

/// Offers no devices: a kernel asks for no list and no import.
pub struct EmptyOfferList;

impl<D> ExportOffers<D> for EmptyOfferList {
    fn list(&mut self) -> Vec<DeviceRecord> {
        Vec::new()
    }

    fn claim(&mut self, _bus_id: &str) -> Result<(DeviceRecord, D), OpStatus> {
        Err(OpStatus::NotAvailable)
    }
}
