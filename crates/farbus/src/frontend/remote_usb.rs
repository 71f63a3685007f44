//! A USB device of another host, over either protocol, which a front end on this machine passes on.
//!
//! Over plain USB/IP it is lost with its one link; in a session it outlives its links ([`LinkedDevice`]). An engine
//! sees both as a [`Device`] with a descriptor to wait on; when it ends, it says why.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use farbus_io_net::link::{BoottimeClock, EpollSet};
use farbus_model::{
    CompletionQueue, ConfigurationSelection, DescriptorSet, Device, DeviceLayer, Instant, ReadinessSource,
    TransferDirection, UrbId, UrbInFlight, UsbSpeed,
};
use farbus_session::RemoteDevice;
use farbus_session::native::control::AttachmentEndCause;
use farbus_session::native::{AttachmentState, ImporterAttachment, RemoteUsb};
use farbus_session::redir::FROZEN_MAGIC;
use farbus_session::snapshot::SnapshotWriter;

use crate::frontend::AttachmentEnd;
use crate::importer::client::{ClientError, DeviceTarget, ImporterClient, local, local_address};
use crate::importer::port::usbip::HoldingLink;
use crate::importer::session::connection::LinkedDevice;
use crate::importer::session::status::SessionStatus;

/// A USB device of another host.
pub enum FarDevice {
    /// Over a link of plain USB/IP.
    Plain(Box<PlainDevice>),
    /// In a session.
    Session(Box<LinkedDevice<RemoteUsb>>),
}

impl FarDevice {
    /// Takes `target`. If there is to be a session, it outlives its links for `grace` unless the client's options say
    /// otherwise.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(client: &ImporterClient, target: &DeviceTarget, grace: Duration) -> Result<Self, ClientError> {
        let target = &*client.meant(target)?;
        if let Some(linked) = client.session(target, grace)? {
            return Ok(FarDevice::Session(Box::new(linked)));
        }
        let (link, device) = client.enumerate(target)?;
        Ok(FarDevice::Plain(Box::new(PlainDevice::new(link, device).map_err(local)?)))
    }

    /// Takes `target` as soon as another host hands it over to this one, with the stream of a guest as its migration
    /// state ([`FROZEN_MAGIC`]).
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn inherit(client: &ImporterClient, target: &DeviceTarget, grace: Duration) -> Result<Self, ClientError> {
        let linked = client.inherit(target, *FROZEN_MAGIC, grace)?;
        Ok(FarDevice::Session(Box::new(linked)))
    }

    /// Whether it is here; a device that another host has yet to hand over is not.
    pub fn is_open(&self) -> bool {
        match self {
            FarDevice::Plain(_) => true,
            FarDevice::Session(linked) => *linked.remote().state() == AttachmentState::Open,
        }
    }

    /// The number by which a kernel calls it: its bus and its number there, at its exporter.
    pub fn device_id(&self) -> u32 {
        match self {
            FarDevice::Plain(plain) => plain.device.record().device_id(),
            FarDevice::Session(linked) => {
                let described = linked.remote().description();
                described.map_or(0, |described| described.bus << 16 | described.device & 0xffff)
            }
        }
    }

    /// How it is attached, in a few words.
    pub fn how(&self) -> &'static str {
        match self {
            FarDevice::Plain(_) => "over a plain connection",
            FarDevice::Session(_) => "in a session",
        }
    }

    /// The open requests of a device in a session: id, direction, length.
    pub fn in_flight_of(&self) -> Vec<(UrbId, TransferDirection, u32)> {
        match self {
            FarDevice::Plain(_) => Vec::new(),
            FarDevice::Session(linked) => linked.remote().in_flight_of(),
        }
    }

    /// Whether it has a link.
    pub fn is_linked(&self) -> bool {
        match self {
            FarDevice::Plain(plain) => plain.over.is_none(),
            FarDevice::Session(linked) => linked.is_linked(),
        }
    }

    /// How many requests of one user its exporter takes at a time; `None` over plain USB/IP, which does not say it.
    pub fn requests_max(&self) -> Option<u16> {
        match self {
            FarDevice::Plain(_) => None,
            FarDevice::Session(linked) => Some(linked.remote().credit().requests),
        }
    }

    /// Whether a replacement process can continue with it.
    pub fn is_movable(&self) -> bool {
        match self {
            FarDevice::Plain(_) => false,
            FarDevice::Session(linked) => linked.is_movable(),
        }
    }

    /// Takes its migration state.
    pub fn take_migration_state(&mut self) -> Vec<u8> {
        match self {
            FarDevice::Plain(_) => Vec::new(),
            FarDevice::Session(linked) => linked.remote_mut().take_migration_state(),
        }
    }

    /// Whether it can migrate to another host.
    pub fn may_move(&self) -> bool {
        matches!(self, FarDevice::Session(_))
    }

    /// Writes a snapshot for a replacement process; returns whether that is possible.
    pub fn save_to(&mut self, to: &mut SnapshotWriter) -> bool {
        match self {
            FarDevice::Session(linked) if linked.end().is_none() && linked.is_movable() => {
                LinkedDevice::save(linked, to);
                true
            }
            FarDevice::Session(_) | FarDevice::Plain(_) => false,
        }
    }

    /// Lets go of it without giving it back: a replacement process continues.
    pub fn leave(&mut self) {
        if let FarDevice::Session(linked) = self {
            LinkedDevice::let_go(linked);
        }
    }

    /// Whether no request is under way.
    pub fn is_still(&self) -> bool {
        match self {
            FarDevice::Plain(plain) => plain.device.in_flight() == 0,
            FarDevice::Session(linked) => linked.remote().is_still(),
        }
    }

    /// Migrates it to the host with this key, with this migration state. It ends once that host has it; otherwise it is
    /// ours again.
    pub fn migrate(&mut self, successor: [u8; 32], migration_state: Vec<u8>) {
        if let FarDevice::Session(linked) = self {
            linked.remote_mut().migrate_with(successor, migration_state);
        }
    }

    /// Whether it was handed over, and its successor has not come for it yet.
    pub fn is_moving(&self) -> bool {
        match self {
            FarDevice::Plain(_) => false,
            FarDevice::Session(linked) => linked.remote().is_moving(),
        }
    }

    /// The local address of the link, which identifies the user to the exporter; the user of a session is known by its
    /// key.
    pub fn local_address(&self) -> Option<SocketAddr> {
        match self {
            FarDevice::Plain(plain) => local_address(&plain.link),
            FarDevice::Session(_) => None,
        }
    }

    /// The status of its session, if it has one.
    pub fn status(&self) -> Option<SessionStatus> {
        match self {
            FarDevice::Plain(_) => None,
            FarDevice::Session(linked) => Some(linked.status()),
        }
    }

    /// The clock that the times of its requests and timeouts are measured with.
    pub fn clock(&self) -> BoottimeClock {
        match self {
            FarDevice::Plain(plain) => plain.clock,
            FarDevice::Session(linked) => linked.clock(),
        }
    }

    /// Why it ended, if it has. All requests to it have completed by then.
    pub fn ended(&self) -> Option<AttachmentEnd> {
        match self {
            FarDevice::Plain(plain) => plain.over.as_ref().map(UsbipLinkLoss::ended),
            FarDevice::Session(linked) => linked.end().map(AttachmentEnd::by),
        }
    }

    /// Gives it back; open requests end.
    pub fn close(&mut self, done: &mut CompletionQueue) {
        match self {
            FarDevice::Plain(plain) => plain.end(UsbipLinkLoss::Given, done),
            FarDevice::Session(linked) => {
                linked.close(done);
                if linked.end().is_none() {
                    linked.remote_mut().handle_over(AttachmentEndCause::Requested, "given back", done);
                }
            }
        }
    }
}

/// A device, and the one link to it.
pub struct PlainDevice {
    link: HoldingLink,
    device: RemoteDevice,
    all: EpollSet,
    readiness: ReadinessSource,
    /// Whether the link takes no more for now.
    is_blocked: bool,
    clock: BoottimeClock,
    over: Option<UsbipLinkLoss>,
}

/// Why there is no link any more.
enum UsbipLinkLoss {
    Given,
    Lost(String),
    Broken(farbus_session::ProtocolViolation),
}

impl UsbipLinkLoss {
    fn ended(&self) -> AttachmentEnd {
        match self {
            UsbipLinkLoss::Given => AttachmentEnd::Requested,
            UsbipLinkLoss::Lost(why) => AttachmentEnd::Lost(why.clone()),
            UsbipLinkLoss::Broken(reject) => AttachmentEnd::Broken(reject.clone()),
        }
    }
}

impl PlainDevice {
    /// A device whose descriptors are known, and its link.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new(link: HoldingLink, device: RemoteDevice) -> io::Result<Self> {
        let all = EpollSet::new()?;
        all.watch(link.as_fd(), false)?;
        let readiness = all.readiness();
        Ok(Self { link, device, all, readiness, is_blocked: false, clock: BoottimeClock::start(), over: None })
    }

    fn end(&mut self, over: UsbipLinkLoss, done: &mut CompletionQueue) {
        if self.over.is_none() {
            self.all.forget(self.link.as_fd());
            match over {
                UsbipLinkLoss::Given => self.link.give_back(),
                UsbipLinkLoss::Lost(_) | UsbipLinkLoss::Broken(_) => self.link.shut_down(),
            }
            self.over = Some(over);
        }
        self.device.handle_lost(done);
    }

    fn lose(&mut self, error: &io::Error, done: &mut CompletionQueue) {
        self.end(UsbipLinkLoss::Lost(error.to_string()), done);
    }

    fn receive(&mut self, done: &mut CompletionQueue) {
        if self.over.is_some() {
            return;
        }
        match self.link.try_receive(self.device.receive_space()) {
            Ok(Some(0)) => self.end(UsbipLinkLoss::Lost("the exporter closed the connection".into()), done),
            Ok(Some(count)) => {
                if let Err(reject) = self.device.handle_received(count, done) {
                    self.end(UsbipLinkLoss::Broken(reject), done);
                }
            }
            Ok(None) => {}
            Err(error) => self.lose(&error, done),
        }
    }

    fn send(&mut self, done: &mut CompletionQueue) {
        if self.over.is_some() {
            return;
        }
        if let Err(error) = self.try_send(done) {
            self.lose(&error, done);
        }
    }

    fn try_send(&mut self, done: &mut CompletionQueue) -> io::Result<()> {
        let mut is_out = true;
        while is_out && self.device.has_transmit() {
            let sent = self.link.try_send(&self.device.poll_transmit())?;
            match sent {
                Some(count) => self.device.handle_transmitted(count, done),
                None => is_out = false,
            }
        }
        let is_blocked = !(is_out && self.link.try_flush()?);
        if std::mem::replace(&mut self.is_blocked, is_blocked) != is_blocked {
            self.all.watch(self.link.as_fd(), is_blocked)?;
        }
        Ok(())
    }
}

impl Device for PlainDevice {
    fn descriptors(&self) -> &DescriptorSet {
        self.device.descriptors()
    }

    fn speed(&self) -> UsbSpeed {
        self.device.speed()
    }

    fn selection(&self) -> &ConfigurationSelection {
        self.device.selection()
    }

    fn submit(&mut self, now: Instant, urb: UrbInFlight, done: &mut CompletionQueue) {
        self.device.submit(now, urb, done);
    }

    fn cancel(&mut self, now: Instant, id: UrbId, done: &mut CompletionQueue) {
        self.device.cancel(now, id, done);
    }

    fn reset(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.device.reset(now, done);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        // Data that an encrypted link has already decrypted makes no socket readable.
        (self.over.is_none() && self.link.has_received()).then_some(Instant::ZERO)
    }

    fn handle_timeout(&mut self, now: Instant, done: &mut CompletionQueue) {
        self.handle_ready(now, done);
    }

    fn end_turn(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.send(done);
    }

    fn readiness(&self) -> Option<&ReadinessSource> {
        Some(&self.readiness)
    }

    fn handle_ready(&mut self, _now: Instant, done: &mut CompletionQueue) {
        self.receive(done);
        self.send(done);
    }

    fn is_gone(&self) -> bool {
        self.over.is_some()
    }
}

impl DeviceLayer for FarDevice {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        match self {
            FarDevice::Plain(plain) => &**plain,
            FarDevice::Session(linked) => &**linked,
        }
    }

    fn inner_mut(&mut self) -> &mut (dyn Device + 'static) {
        match self {
            FarDevice::Plain(plain) => &mut **plain,
            FarDevice::Session(linked) => &mut **linked,
        }
    }
}
