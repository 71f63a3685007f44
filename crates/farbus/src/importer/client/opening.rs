//! Opening devices: [`ImporterClient`].
//!
//! The journey of a device that is opened in a session is one function, `ImporterClient::request`: connect, begin the
//! session, open the device, read the answer. Every kind of device takes it; they differ in what they ask for.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_control::failure::{FailureKind, FailureReport};
use farbus_control::lease::{LeaseAct, LeaseAnswer};
use farbus_host::storage::{BULK_ONLY, NO_DISK};
use farbus_host::{DiskError, RemoteDisk, RemoteError, ScsiDiskOptions};
use farbus_io_net::link::host_address::LOCAL;
use farbus_io_net::link::{BoottimeClock, Link};
use farbus_io_net::trust::{AttachedDevice, LinkTraffic, Peer};
use farbus_model::{BufferPool, CompletionQueue, Device, ExportIdentity};
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::{
    ImporterAttachment, PipedAttachment, RemoteBlock, RemoteConsole, RemoteObserver, RemoteStream, RemoteUsb,
    console::ConsoleOutput, control as native, stream::StreamFrame, usb::ObservedTransfer,
};
use farbus_session::registry::{in_use, is_of_farbus};
use farbus_session::reserve::{ReservationReport, ReservationTerms};
use farbus_session::{DeviceRecord, OpStatus, RemoteDevice};

use super::config::{ClientConfig, GRACE, GRACE_DISK};
use super::connector::HostConnector;
use super::error::{ClientError, local, lost, unreachable};
use super::no_disk::{is_no_disk, is_serial, no_disk, no_disk_but_serial};
use super::remembered::{RememberedDevice, device_of, with_identity};
use super::selector::DeviceSelector;
use super::strings::with_strings;
use super::target::DeviceTarget;
use super::{offers, usbip};
use crate::broker::{BrokerClient, SystemAccess};
use crate::devices::media_journal::UNFINISHED;
use crate::devices::offer::ListedDevice;
use crate::hosts::questions::HostStatus;
use crate::hosts::reach::ANSWER_TIME_MAX;
use crate::importer::port::DevicePort;
use crate::importer::port::session::SessionPort;
use crate::importer::port::usbip::{HoldingLink, RemotePort};
use crate::importer::session::connection::{LinkedDevice, SessionResumption, SessionTerms};
use crate::link::modules::through;

/// Why an exporter refused a device that was to be reserved: the end, and its report if it refused the reservation.
type ReservationRefusal = (native::AttachmentEndNotice, Option<ReservationReport>);

/// A session carries one device here: the number of its attachment.
const ATTACHMENT: u16 = 1;
/// How long an exporter may take to note that a disk was moved.
const STEP_TIME_MAX: Duration = Duration::from_secs(5);

/// Takes devices from other hosts.
///
/// A client holds options and no link: each call connects. A link to a paired host's name is encrypted; a link to any
/// other address is plain.
#[derive(Clone, Debug)]
pub struct ImporterClient {
    connector: HostConnector,
    config: ClientConfig,
    /// Which device its target has to be, if that is to be the same each time.
    remembered: Option<RememberedDevice>,
}

/// How an exporter answers the request to open a device in a session: the open device, or why it is refused.
pub(crate) type DeviceOpenResult<A> = Result<LinkedDevice<A>, native::AttachmentEndNotice>;

impl Default for ImporterClient {
    fn default() -> Self {
        Self::new(ClientConfig::default())
    }
}

impl ImporterClient {
    /// A client with these options.
    pub fn new(config: ClientConfig) -> Self {
        Self::through(SystemAccess::Own, config)
    }

    /// A client that connects, plugs in and mounts through `system`, the rights of another process among them.
    #[doc(hidden)]
    pub fn through(system: SystemAccess, config: ClientConfig) -> Self {
        Self { connector: HostConnector::new(system, config.transport), config, remembered: None }
    }

    /// A client for a single host (`HOST:PORT`), which it looks up now; it reads no files later.
    ///
    /// # Errors
    /// [`ClientError::Local`] if the list of paired hosts cannot be read.
    #[doc(hidden)]
    pub fn for_host(address: &str, system: SystemAccess, config: ClientConfig) -> Result<Self, ClientError> {
        Ok(Self { connector: HostConnector::for_host(address, system, config.transport)?, config, remembered: None })
    }

    /// As [`ImporterClient::for_host`], for a paired host that is now at `moved` (`HOST[:PORT]`). Once it has proved
    /// its key there, that address is remembered.
    ///
    /// # Errors
    /// [`ClientError::Local`] if it is not a paired host.
    #[doc(hidden)]
    pub fn for_host_at(
        address: &str,
        moved: &str,
        system: SystemAccess,
        config: ClientConfig,
    ) -> Result<Self, ClientError> {
        let connector = HostConnector::for_host_at(address, moved, system, config.transport)?;
        Ok(Self { connector, config, remembered: None })
    }

    /// A client with the same options for another host, for this process or, if that may not connect to it, through the
    /// broker that came along. `peer` is the host's entry in the list of paired hosts, if it has one.
    ///
    /// # Errors
    /// [`ClientError::Local`]: this process does not have what proves to that host who this one is.
    pub(crate) fn to_another(
        &self,
        address: &str,
        broker: Option<OwnedFd>,
        peer: Option<Peer>,
    ) -> Result<Self, ClientError> {
        let system = match (self.system(), broker) {
            (SystemAccess::Own, _) => SystemAccess::Own,
            (SystemAccess::Through(_), Some(broker)) => SystemAccess::Through(Arc::new(BrokerClient::passed(broker))),
            (SystemAccess::Through(_), None) => {
                return Err(ClientError::Local(format!("no broker came along that may connect to {address}")));
            }
        };
        let connector = self.connector.to_another(address, system, peer)?;
        Ok(Self { connector, config: self.config.clone(), remembered: None })
    }

    /// What lets a replacement process connect as this client does ([`ImporterClient::to_another`]); `None` if every
    /// process may.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub(crate) fn passage(&self) -> std::io::Result<Option<OwnedFd>> {
        match self.system() {
            SystemAccess::Own => Ok(None),
            SystemAccess::Through(broker) => broker.duplicate().map(Some),
        }
    }

    /// This client, which opens a target again only if the device that it had before is there.
    #[must_use]
    pub fn remembering(self, remembered: RememberedDevice) -> Self {
        Self { remembered: Some(remembered), ..self }
    }

    /// Which device the target has to be, if that is to be the same each time.
    fn remembered(&self, target: &DeviceTarget) -> Option<&RememberedDevice> {
        self.remembered.as_ref().filter(|remembered| remembered.is_of(target))
    }

    /// Checks that the device of `target` that was opened is the one that it was before.
    fn check_is_the_same(&self, target: &DeviceTarget, seen: AttachedDevice) -> Result<(), ClientError> {
        self.remembered(target).map_or(Ok(()), |remembered| remembered.check(seen, self.system()))
    }

    /// The options with which this client opens devices.
    pub fn config(&self) -> &ClientConfig {
        &self.config
    }

    /// The rights that it acts with.
    #[doc(hidden)]
    pub fn system(&self) -> &SystemAccess {
        self.connector.system()
    }

    /// What makes its links.
    pub(super) fn connector(&self) -> &HostConnector {
        &self.connector
    }

    /// The target by its bus id, if `target` names the device by its vendor and product, or by its serial number. For a
    /// serial number, devices that nobody uses are asked for theirs, one after the other.
    ///
    /// # Errors
    /// [`ClientError::NoDevice`]: there is no such device, or somebody uses it; [`ClientError`].
    pub(crate) fn meant<'t>(&self, target: &'t DeviceTarget) -> Result<Cow<'t, DeviceTarget>, ClientError> {
        let record = match DeviceSelector::of(&target.device) {
            DeviceSelector::Name(_) => return Ok(Cow::Borrowed(target)),
            DeviceSelector::Make(..) => {
                offers::resolve(&self.connector, target).or_else(|error| self.followed(target).ok_or(error))?
            }
            DeviceSelector::Serial(serial) => {
                let (make, last) = self.remembered(target).map(RememberedDevice::marks).unwrap_or_default();
                let mut candidates = offers::candidates(&self.connector, target, last.as_deref())?;
                let follows = |make| self.remembered(target).is_some_and(|remembered| remembered.follows(make));
                candidates.retain(|record| {
                    let its = (record.vendor, record.product);
                    make.is_none_or(|make| make == its || follows(its))
                });
                usbip::with_serial(&self.connector, target, candidates, serial)?
            }
        };
        let meant = DeviceTarget { address: target.address.clone(), device: record.bus_id };
        if let Some(remembered) = self.remembered(target) {
            remembered.note_meant(&meant);
        }
        Ok(Cow::Owned(meant))
    }

    /// The device that is where the one of `target` was, if it is one that is followed.
    fn followed(&self, target: &DeviceTarget) -> Option<DeviceRecord> {
        let remembered = self.remembered(target)?;
        let (_, bus_id) = remembered.marks();
        let there = DeviceTarget { address: target.address.clone(), device: bus_id? };
        let record = offers::resolve(&self.connector, &there).ok()?;
        remembered.follows((record.vendor, record.product)).then_some(record)
    }

    /// The devices that a host (`HOST:PORT`) offers, as USB/IP describes them. The host may take 10 s to answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn list(&self, address: &str) -> Result<Vec<DeviceRecord>, ClientError> {
        offers::records(&self.connector, address, ANSWER_TIME_MAX)
    }

    /// The devices that a host (`HOST:PORT`) offers. A paired host also says who uses each device, and since when. The
    /// host may take `time_max` to answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn offers(&self, address: &str, time_max: Duration) -> Result<Vec<ListedDevice>, ClientError> {
        offers::offers(&self.connector, address, time_max)
    }

    /// The status of a paired host, as far as this host may see it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn host_status(&self, address: &str, time_max: Duration) -> Result<HostStatus, ClientError> {
        offers::host_status(&self.connector, address, time_max)
    }

    /// Tells an exporter what its device is used for. `user` is this end of the link that carries the device; a paired
    /// host does not need it. Plain USB/IP has no such message.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn explain(&self, target: &DeviceTarget, reason: &str, user: Option<SocketAddr>) -> Result<(), ClientError> {
        offers::explain(&self.connector, target, reason, user)
    }

    /// Asks a paired host for something about the lease of a device. The inner error is the host's.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn lease(
        &self,
        target: &DeviceTarget,
        act: LeaseAct,
    ) -> Result<Result<LeaseAnswer, FailureReport>, ClientError> {
        self.lease_within(target, act, ANSWER_TIME_MAX)
    }

    /// As [`ImporterClient::lease`]; the host may take `time_max` to answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn lease_within(
        &self,
        target: &DeviceTarget,
        act: LeaseAct,
        time_max: Duration,
    ) -> Result<Result<LeaseAnswer, FailureReport>, ClientError> {
        offers::lease(&self.connector, target, act, time_max)
    }

    /// The key of the paired host that `address` names; `None` if it names none.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn key_of(&self, address: &str) -> Result<Option<String>, ClientError> {
        Ok(self.connector.known(address)?.map(|known| known.fingerprint().to_string()))
    }

    /// A link on which a paired host answers many questions; `None` if `address` names no paired host.
    pub fn question_link(&self, address: &str, time_max: Duration) -> Result<Option<Link>, ClientError> {
        offers::question_link(&self.connector, address, time_max)
    }

    /// Why the link of a device ended, as far as its host says: it is asked once more, for 1 s at most.
    pub fn why_lost(&self, target: &DeviceTarget) -> FailureKind {
        offers::why_lost(&self.connector, target)
    }

    /// Opens a USB device, reads its descriptors and selects its first configuration: it is ready for transfers.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open(&self, target: &DeviceTarget) -> Result<farbus_host::RemoteDevice<DevicePort>, ClientError> {
        let target = &*self.meant(target)?;
        let (speed, descriptors, port) = match self.session(target, GRACE_DISK)? {
            Some(linked) => {
                let (speed, descriptors) = (linked.speed(), linked.descriptors().clone());
                (speed, descriptors, DevicePort::Session(SessionPort::new(linked)))
            }
            None => {
                let (link, device) = self.enumerate(target)?;
                let (speed, descriptors) = (device.speed(), device.descriptors().clone());
                let port = RemotePort::new(link, device).map_err(local)?;
                (speed, descriptors, DevicePort::Plain(Box::new(port)))
            }
        };
        farbus_host::RemoteDevice::enumerated(port, speed, descriptors).map_err(|error| match error {
            RemoteError::Port(error) => unreachable(target, error),
            error => ClientError::Device { target: target.clone(), what: error.to_string() },
        })
    }

    /// Opens a USB disk and waits until its medium is ready.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn open_disk(&self, target: &DeviceTarget) -> Result<RemoteDisk<DevicePort>, ClientError> {
        let device = self.open(target)?;
        let known = (device.descriptors().clone(), device.speed());
        device.into_disk(ScsiDiskOptions::default()).map_err(|error| match error {
            DiskError::Port(error) => unreachable(target, error),
            DiskError::Unsupported(NO_DISK) => {
                let what = no_disk(target, Some((&known.0, known.1)));
                ClientError::Device { target: target.clone(), what }
            }
            error => ClientError::Device { target: target.clone(), what: error.to_string() },
        })
    }

    /// Imports a device by plain USB/IP: its link, and what speaks USB/IP on it.
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn import(&self, target: &DeviceTarget) -> Result<(HoldingLink, RemoteDevice), ClientError> {
        self.check_has_not_moved(target, None)?;
        usbip::import(&self.connector, target)
    }

    /// Imports a device by plain USB/IP and reads its descriptors. It stays unconfigured, for another host to
    /// configure.
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn enumerate(&self, target: &DeviceTarget) -> Result<(HoldingLink, RemoteDevice), ClientError> {
        self.check_has_not_moved(target, None)?;
        let (link, device) = usbip::enumerate(&self.connector, target)?;
        let seen = device_of(None, device.descriptors());
        self.check_is_the_same(target, AttachedDevice { bus_id: Some(device.record().bus_id.clone()), ..seen })?;
        Ok((link, device))
    }

    /// Opens a USB device in a session with a grace period as configured, else `usual`. `None` if there is to be no
    /// session; see [`ClientConfig::grace`].
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn session(
        &self,
        target: &DeviceTarget,
        usual: Duration,
    ) -> Result<Option<LinkedDevice<RemoteUsb>>, ClientError> {
        let grace = self.grace_period(&target.address, usual)?;
        if grace.is_zero() {
            return Ok(None);
        }
        let open = request_to_open(target, native::AttachmentClass::USB, native::AttachmentMode::Exclusive);
        let remote = match self.config.reservation.clone() {
            Some(reservation) => RemoteUsb::reserving(ATTACHMENT, open, reservation),
            None => RemoteUsb::new(ATTACHMENT, open),
        };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let linked = self.accepted(
            target,
            self.request(target, traffic_of(native::AttachmentClass::USB), remote, grace, &mut done)?,
        )?;
        self.check_has_not_moved(target, linked.remote().identity())?;
        let linked = with_strings(linked, target)?;
        let seen = device_of(linked.remote().identity(), linked.descriptors());
        self.check_is_the_same(target, AttachedDevice { is_lasting: linked.remote().is_lasting(), ..seen })?;
        Ok(Some(linked))
    }

    /// Opens a USB device in a session with this reservation at its exporter, whatever the configuration says. The
    /// inner error is the exporter's refusal.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn session_reserving(
        &self,
        target: &DeviceTarget,
        reservation: ReservationTerms,
        usual: Duration,
    ) -> Result<Result<LinkedDevice<RemoteUsb>, ReservationRefusal>, ClientError> {
        let open = request_to_open(target, native::AttachmentClass::USB, native::AttachmentMode::Exclusive);
        let remote = RemoteUsb::reserving(ATTACHMENT, open, reservation);
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let terms = self.config.terms(self.config.grace.unwrap_or(usual));
        let linked = self.begin_on(target, traffic_of(native::AttachmentClass::USB), terms, remote, &mut done)?;
        Ok(match linked.end().cloned() {
            None => Ok(linked),
            Some(end) => Err((end, linked.status().reserved())),
        })
    }

    /// Whether the host is a farbus, which has sessions and reservations, as its list of devices shows.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn is_farbus(&self, target: &DeviceTarget) -> Result<bool, ClientError> {
        Ok(is_of_farbus(&offers::resolve(&self.connector, target)?))
    }

    /// Opens a block device in a session. The inner result is the exporter's refusal, if it refuses the device.
    ///
    /// # Errors
    /// [`ClientError`].
    pub(crate) fn block(
        &self,
        target: &DeviceTarget,
        mode: native::AttachmentMode,
        grace: Duration,
    ) -> Result<DeviceOpenResult<RemoteBlock>, ClientError> {
        let open = request_to_open(target, native::AttachmentClass::BLOCK, mode);
        let remote = match self.config.reservation.clone() {
            Some(reservation) => RemoteBlock::reserving(ATTACHMENT, open, reservation),
            None => RemoteBlock::new(ATTACHMENT, open),
        };
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let mut opened = self.request(target, traffic_of(native::AttachmentClass::BLOCK), remote, grace, &mut done)?;
        if matches!(&opened, Err(end) if end.cause == native::AttachmentEndCause::Refused) {
            // Its exporter may say that it was moved; where it is now is known here.
            self.check_has_not_moved(target, None)?;
        }
        if let Ok(linked) = &mut opened {
            let is_here = self.check_has_not_moved(target, linked.remote().identity());
            // Its exporter may not know what became of a move that was cut off.
            match &is_here {
                Ok(()) if mode == native::AttachmentMode::Exclusive => linked.status().tell_later(DiskMoveStep::Stays),
                // Of an unfinished copy nothing is said: its exporter gives it to no other host.
                Err(ClientError::Moved { what, .. })
                    if mode == native::AttachmentMode::Exclusive && !is_unfinished(target, what) =>
                {
                    linked.tell(DiskMoveStep::Moved, STEP_TIME_MAX, &mut done);
                }
                _ => {}
            }
            is_here?;
            let is_lasting = linked.remote().is_lasting();
            let seen = AttachedDevice { stores_data: true, is_lasting, ..with_identity(linked.remote().identity()) };
            self.check_is_the_same(target, seen)?;
        }
        Ok(opened)
    }

    /// Opens a block device alone, to overwrite it: whatever the journals of this machine say of it. It keeps `clock`,
    /// the one of the attachment that it becomes the disk of. Returns it with the exporter's answer to that: it gives
    /// the disk to no other host until it has all data.
    ///
    /// # Errors
    /// [`ClientError`]; the host has to have sessions.
    pub(crate) fn overwrite(
        &self,
        target: &DeviceTarget,
        clock: BoottimeClock,
    ) -> Result<(LinkedDevice<RemoteBlock>, Result<(), String>), ClientError> {
        let grace = self.grace_period(&target.address, GRACE_DISK)?;
        if grace.is_zero() {
            let what =
                "a disk moves to another host in a session: attach it from a paired host, or with --grace SECONDS";
            return Err(ClientError::Local(what.to_owned()));
        }
        let open = request_to_open(target, native::AttachmentClass::BLOCK, native::AttachmentMode::Exclusive);
        let remote = match self.config.reservation.clone() {
            Some(reservation) => RemoteBlock::reserving(ATTACHMENT, open, reservation),
            None => RemoteBlock::new(ATTACHMENT, open),
        };
        let remote = remote.overwriting();
        let mut done = CompletionQueue::new(BufferPool::new(0));
        let terms = SessionTerms { clock, ..self.config.terms(grace) };
        let linked = self.begin_on(target, traffic_of(native::AttachmentClass::BLOCK), terms, remote, &mut done)?;
        if let Some(end) = linked.end() {
            return Err(self.refusal(target, end));
        }
        let mut linked = linked;
        let noted = match linked.tell(DiskMoveStep::Moving, STEP_TIME_MAX, &mut done) {
            true => Ok(()),
            false => Err("its farbus is of an earlier version, or the disk has no lasting identity".to_owned()),
        };
        Ok((linked, noted))
    }

    /// Refuses a disk whose data 'farbus swap' moved to this machine. Without an identity its name counts.
    ///
    /// # Errors
    /// [`ClientError::Moved`].
    pub fn check_has_not_moved(
        &self,
        target: &DeviceTarget,
        identity: Option<ExportIdentity>,
    ) -> Result<(), ClientError> {
        let why = self.system().objection_to_attaching(&target.to_string(), identity.map(Into::into));
        why.map_or(Ok(()), |what| Err(ClientError::Moved { what, identity }))
    }

    /// Opens a USB device beside its user, to see what the device sends. What it sends before this returns is in
    /// `seen`.
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn observe(
        &self,
        target: &DeviceTarget,
        seen: &mut Vec<ObservedTransfer>,
    ) -> Result<LinkedDevice<RemoteObserver>, ClientError> {
        let open = request_to_open(target, native::AttachmentClass::USB, native::AttachmentMode::Observe);
        let remote = RemoteObserver::new(ATTACHMENT, open);
        let opened = self.request(
            target,
            traffic_of(native::AttachmentClass::USB),
            remote,
            self.config.grace.unwrap_or(GRACE),
            seen,
        )?;
        self.accepted(target, opened)
    }

    /// Opens a USB device beside its user, to see what its serial ports send. What they send before this returns is in
    /// `seen`.
    ///
    /// # Errors
    /// [`ClientError`]; an exporter of an earlier version has no console to show.
    #[doc(hidden)]
    pub fn console(
        &self,
        target: &DeviceTarget,
        seen: &mut Vec<ConsoleOutput>,
    ) -> Result<LinkedDevice<RemoteConsole>, ClientError> {
        let class = native::AttachmentClass::CONSOLE;
        let remote = RemoteConsole::new(ATTACHMENT, request_to_open(target, class, native::AttachmentMode::Observe));
        let grace = self.config.grace.unwrap_or(GRACE);
        let opened = self.request(target, traffic_of(class), remote, grace, seen)?.map_err(|mut end| {
            // One of this version knows the class, and refuses a device without a port for another cause.
            if end.cause == native::AttachmentEndCause::Class {
                end.message = "the exporter's version of farbus does not show a console".to_owned();
            }
            end
        });
        self.accepted(target, opened)
    }

    /// Opens a stream of frames: exclusively, and its exporter waits for this reader; else the latest frames, beside
    /// other readers. Frames that come before this returns are in `frames`.
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn stream(
        &self,
        target: &DeviceTarget,
        mode: native::AttachmentMode,
        frames: &mut Vec<StreamFrame>,
    ) -> Result<LinkedDevice<RemoteStream>, ClientError> {
        let open = request_to_open(target, native::AttachmentClass::STREAM, mode);
        let remote = match self.config.reservation.clone() {
            Some(reservation) => RemoteStream::reserving(ATTACHMENT, open, reservation),
            None => RemoteStream::new(ATTACHMENT, open),
        };
        let opened = self.request(
            target,
            traffic_of(native::AttachmentClass::STREAM),
            remote,
            self.config.grace.unwrap_or(GRACE),
            frames,
        )?;
        self.accepted(target, opened)
    }

    /// Opens a USB device of which this host is the successor: the device is there once its user hands it over, with
    /// migration state that begins with `state_name` ([`ImporterAttachment::state`]).
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn inherit(
        &self,
        target: &DeviceTarget,
        state_name: [u8; native::MIGRATION_STATE_NAME_BYTES],
        usual: Duration,
    ) -> Result<LinkedDevice<RemoteUsb>, ClientError> {
        let grace = self.successors_grace_period(target, usual)?;
        let open = request_to_open(target, native::AttachmentClass::USB, native::AttachmentMode::Exclusive);
        let remote =
            PipedAttachment::new(RemoteUsb::successor(ATTACHMENT, open, state_name), through(&self.config.modules));
        let (dial, exporter) = self.connector.dial(&target.address, LinkTraffic::Prompt)?;
        LinkedDevice::begin(self.config.terms(grace), dial, remote).map_err(|source| lost(&exporter, source))
    }

    /// Opens a block device of which this host is the successor. It may be read before it is handed over
    /// ([`SessionStatus::is_expected`](crate::importer::session::status::SessionStatus::is_expected)).
    ///
    /// # Errors
    /// [`ClientError`].
    #[doc(hidden)]
    pub fn inherit_block(
        &self,
        target: &DeviceTarget,
        usual: Duration,
    ) -> Result<LinkedDevice<RemoteBlock>, ClientError> {
        let grace = self.successors_grace_period(target, usual)?;
        let open = request_to_open(target, native::AttachmentClass::BLOCK, native::AttachmentMode::Exclusive);
        let remote = RemoteBlock::successor(ATTACHMENT, open);
        let opened = self.request(
            target,
            traffic_of(native::AttachmentClass::BLOCK),
            remote,
            grace,
            &mut CompletionQueue::new(BufferPool::new(0)),
        )?;
        let linked = self.accepted(target, opened)?;
        self.check_has_not_moved(target, linked.remote().identity())?;
        Ok(linked)
    }

    /// What a session of another process needs to continue here: links, and the modules that its device's data passes.
    pub(crate) fn redial(&self, target: &DeviceTarget, traffic: LinkTraffic) -> Result<SessionResumption, ClientError> {
        let dial = self.connector.redial(&target.address, traffic)?;
        Ok(SessionResumption { dial, through: through(&self.config.modules), hold: self.config.hold })
    }

    /// Opens a device in a session: connect → begin the session → open the device → read the answer. What the device
    /// sends before the answer is in `done`.
    fn request<A: ImporterAttachment>(
        &self,
        target: &DeviceTarget,
        traffic: LinkTraffic,
        remote: A,
        grace: Duration,
        done: &mut A::Done,
    ) -> Result<DeviceOpenResult<A>, ClientError> {
        let mut remote = remote;
        let remembered = self.remembered(target);
        if let Some(expected) = remembered.and_then(RememberedDevice::expectation) {
            remote.expect(expected);
        }
        let stores_data = traffic == traffic_of(native::AttachmentClass::BLOCK);
        let linked = self.begin_on(target, traffic, self.config.terms(grace), remote, done)?;
        // Read the answer.
        let Some(end) = linked.end().cloned() else { return Ok(Ok(linked)) };
        if let (Some(remembered), Some(identity)) = (remembered, linked.remote().identity())
            && end.cause == native::AttachmentEndCause::Busy
        {
            remembered.note_awaited(identity, linked.remote().is_lasting(), stores_data);
        }
        Ok(Err(end))
    }

    /// Connects, begins the session, sends the request and waits until the device is open or refused, which the
    /// session's end tells.
    fn begin_on<A: ImporterAttachment>(
        &self,
        target: &DeviceTarget,
        traffic: LinkTraffic,
        terms: SessionTerms,
        remote: A,
        done: &mut A::Done,
    ) -> Result<LinkedDevice<A>, ClientError> {
        // Connect. The session makes further links, and new ones for those it loses, in the same way.
        let (dial, exporter) = self.connector.dial(&target.address, traffic)?;
        // What the device's data passes through is part of the request.
        let remote = PipedAttachment::new(remote, through(&self.config.modules));
        // Begin the session, send the request and wait until the device is open or refused.
        LinkedDevice::open_on(terms, dial, remote, done)
            .map_err(|source| lost(&exporter, self.without_session(&target.address, source)))
    }

    /// The error of a link on which no session began. A server that is no farbus closes it, so the error says what
    /// needs a session.
    fn without_session(&self, address: &str, source: std::io::Error) -> std::io::Error {
        let is_paired = address.starts_with(LOCAL) || !matches!(self.connector.known(address), Ok(None));
        let wants = [
            (!self.config.modules.is_empty()).then_some("modules"),
            self.config.reservation.is_some().then_some("reservations"),
        ];
        let wants: Vec<_> = wants.into_iter().flatten().collect();
        if is_paired || wants.is_empty() || source.kind() == std::io::ErrorKind::TimedOut {
            return source;
        }
        let what = format!(
            "{source}\n  {} need farbus at both ends; a server that speaks USB/IP alone closes the link: leave {} away, or \
             run 'farbus share' there",
            wants.join(" and "),
            if wants.len() == 1 { "that option" } else { "those options" }
        );
        std::io::Error::new(source.kind(), what)
    }

    fn accepted<A: ImporterAttachment>(
        &self,
        target: &DeviceTarget,
        opened: DeviceOpenResult<A>,
    ) -> Result<LinkedDevice<A>, ClientError> {
        opened.map_err(|end| self.refusal(target, &end))
    }

    /// The error of a refusal. Who uses the device, or what there is instead, is asked of the exporter now.
    pub fn refusal(&self, target: &DeviceTarget, end: &native::AttachmentEndNotice) -> ClientError {
        let (target, what) = (target.clone(), end.message.clone());
        if let Some(remembered) = self.remembered(&target).filter(|remembered| remembered.expectation().is_some()) {
            // Its exporter compared it. A device that is not there at all is not another one.
            let is_another = match end.cause {
                native::AttachmentEndCause::Stale => true,
                native::AttachmentEndCause::Gone => offers::resolve(&self.connector, &target).is_ok(),
                _ => false,
            };
            if is_another {
                return remembered.another(what);
            }
        }
        if let Some(limit) = end.limit() {
            return ClientError::Limit { address: target.to_string(), limit: limit.to_owned(), what };
        }
        match end.cause {
            native::AttachmentEndCause::Busy => {
                let user = offers::resolve(&self.connector, &target).ok().as_ref().and_then(in_use);
                ClientError::Refused { target, status: OpStatus::Busy, user }
            }
            native::AttachmentEndCause::Gone => {
                let offered = offers::names_offered(&self.connector, &target.address);
                ClientError::NoDevice { target, offered }
            }
            native::AttachmentEndCause::Device => ClientError::Device { target, what },
            native::AttachmentEndCause::Network => lost(&target.address, std::io::Error::other(what)),
            native::AttachmentEndCause::Refused
            | native::AttachmentEndCause::Stale
            | native::AttachmentEndCause::Requested
            | native::AttachmentEndCause::Class
            | native::AttachmentEndCause::Module
            | native::AttachmentEndCause::Reservation => ClientError::Untrusted { address: target.to_string(), what },
        }
    }

    /// The grace period of a session with a host; zero means that there is to be no session.
    pub(crate) fn grace_period(&self, address: &str, usual: Duration) -> Result<Duration, ClientError> {
        // A socket of this machine belongs to a farbus, which has sessions as a paired host has.
        let has_sessions = || Ok(address.starts_with(LOCAL) || self.connector.known(address)?.is_some());
        self.config.grace_period(usual, has_sessions)
    }

    fn successors_grace_period(&self, target: &DeviceTarget, usual: Duration) -> Result<Duration, ClientError> {
        match self.grace_period(&target.address, usual)? {
            Duration::ZERO => {
                Err(ClientError::Local("what is inherited comes in a session, from a paired host".to_owned()))
            }
            grace => Ok(grace),
        }
    }

    /// Checks that a device's host does not list it as something else than a disk.
    ///
    /// # Errors
    /// [`ClientError::Device`], which says what can show it.
    pub(crate) fn check_is_disk(&self, target: &DeviceTarget) -> Result<(), ClientError> {
        // If the device is not listed, or without its interfaces, the attempt to open it says what it is.
        match offers::resolve(&self.connector, target) {
            Ok(record) if is_no_disk(&record.interfaces) => {
                let what = match is_serial((record.vendor, record.product), &record.interfaces) {
                    true => no_disk_but_serial(target),
                    false => no_disk(target, None),
                };
                Err(ClientError::Device { target: target.clone(), what })
            }
            _ => Ok(()),
        }
    }

    /// Whether a device is a Bulk-Only disk and nothing else, of a host with which there are sessions.
    pub(crate) fn is_lone_disk(&self, target: &DeviceTarget) -> Result<bool, ClientError> {
        if self.grace_period(&target.address, GRACE_DISK)?.is_zero() {
            return Ok(false);
        }
        // If the device is not listed, the attempt to open it says why.
        Ok(offers::resolve(&self.connector, target).is_ok_and(|record| record.interfaces == [BULK_ONLY]))
    }
}

/// Whether an objection to attaching a disk is that it holds a part of a copy alone.
fn is_unfinished(target: &DeviceTarget, what: &str) -> bool {
    what.starts_with(&format!("{target} is {UNFINISHED}"))
}

/// What the links of a session are for that opens a device of this class. What a USB device is like is known only when
/// it is open.
fn traffic_of(class: native::AttachmentClass) -> LinkTraffic {
    match class {
        native::AttachmentClass::BLOCK | native::AttachmentClass::STREAM => LinkTraffic::Bulk,
        _ => LinkTraffic::Prompt,
    }
}

fn request_to_open(
    target: &DeviceTarget,
    class: native::AttachmentClass,
    mode: native::AttachmentMode,
) -> native::OpenRequest {
    native::OpenRequest { class, mode, epoch: 0, name: target.device.clone(), reason: String::new() }
}
