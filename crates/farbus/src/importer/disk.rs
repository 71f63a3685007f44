//! An open disk of another machine: a block device, over whichever protocol it is reached.
//!
//! | its host | the disk is opened as | it outlives its link |
//! |---|---|---|
//! | has a session with us, and offers it as a block device | a block device of the session | yes |
//! | has a session with us, and offers it only as a USB disk | a USB disk that is driven here | yes |
//! | speaks plain USB/IP | a USB disk that is driven here | no |

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use farbus_host::RemoteDisk;
use farbus_io_net::link::{BoottimeClock, Link};
use farbus_io_net::trust::LinkTraffic;
use farbus_model::{BlockDevice, PendingBlockRequests};
use farbus_session::block::{
    AHEAD_KIND, ANY_BYTE_KIND, AnyByteLayer, BEHIND_KIND, ReadAheadLayer, SWAPPED_KIND, StoreDevice, WriteBackLayer,
};
use farbus_session::native::RemoteBlock;
use farbus_session::native::control::{AttachmentEndCause, AttachmentEndNotice, AttachmentMode};
use farbus_session::snapshot::{self, FieldReader};

use crate::importer::client::{ClientError, DeviceTarget, GRACE_DISK, ImporterClient, local, local_address};
use crate::importer::disk_swap::{DiskSwap, ELSEWHERE_KIND, SwapDisk};
use crate::importer::local_disk::DiskRestoreError;
use crate::importer::options::cache::DiskCacheMode;
use crate::importer::port::session::SessionPort;
use crate::importer::port::{DeviceCutter, DevicePort, usbip};
use crate::importer::session::connection::{BLOCK_KIND, LinkedDevice};
use crate::importer::session::status::SessionStatus;
use crate::importer::windows::windows_account;

/// How a disk is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskMode {
    /// By this importer alone, who may write to it.
    #[default]
    Exclusive,
    /// By this importer and others, read-only.
    Read,
}

impl DiskMode {
    /// The word for it in options and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            DiskMode::Exclusive => "exclusive",
            DiskMode::Read => "read",
        }
    }
}

impl FromStr for DiskMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [DiskMode::Exclusive, DiskMode::Read].into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| {
            format!("'{text}' is no mode: there are exclusive (one who may write) and read (many who may not)")
        })
    }
}

/// What may end an open disk, besides its local user.
pub enum DiskConnection {
    /// A link; the disk ends with it.
    Link(Link),
    /// A session that the front end has to look after while no request to the disk is under way.
    Port(SessionPort),
    /// A session that the device looks after.
    Device {
        /// Whether a replacement process can continue with it: not through modules.
        is_movable: bool,
    },
}

impl DiskConnection {
    /// Gives the disk back, and waits a moment until its exporter has released it. A block device of a session does
    /// that when it is dropped.
    pub fn give_back(&self) {
        match self {
            DiskConnection::Link(link) => usbip::give_back(link),
            DiskConnection::Port(port) => port.close(),
            DiskConnection::Device { .. } => {}
        }
    }
}

/// An open disk, for any front end.
pub struct OpenedDisk {
    /// The disk itself, local or far, which carries out block requests.
    pub device: Box<dyn BlockDevice>,
    /// The disk's clock.
    pub clock: BoottimeClock,
    /// What to watch while it is used.
    pub way: DiskConnection,
    /// Takes it from its users, from any thread.
    pub cutter: DeviceCutter,
    /// The status of its session, if it has one.
    pub status: Option<SessionStatus>,
    /// Exchanges it for another disk, if it can be.
    pub swap: Option<DiskSwap>,
}

impl OpenedDisk {
    /// Opens `target`, which has to be a disk, over whichever protocol is possible.
    ///
    /// # Errors
    /// [`ClientError`]; only a block device can be read beside other importers.
    pub fn open(client: &ImporterClient, target: &DeviceTarget, mode: DiskMode) -> Result<Self, ClientError> {
        let attachment_mode = match mode {
            DiskMode::Exclusive => AttachmentMode::Exclusive,
            DiskMode::Read => AttachmentMode::Read,
        };
        let target = &*client.meant(target)?;
        let grace = client.grace_period(&target.address, GRACE_DISK)?;
        if !grace.is_zero() {
            match client.block(target, attachment_mode, grace)? {
                Ok(linked) => {
                    return Ok(Self::block(linked, target, client).map_err(local)?.with(client.config().cache));
                }
                // No message: some devices have only a USB form.
                Err(end) if end.cause == AttachmentEndCause::Class => {}
                // A device that its exporter does not drive may be driven here: the first of several units, for
                // example.
                Err(end) if end.cause == AttachmentEndCause::Device && mode == DiskMode::Exclusive => {}
                Err(end) => return Err(client.refusal(target, &end)),
            }
        }
        match mode {
            DiskMode::Exclusive => {
                // A device that its host lists as no disk is not opened: until it is given back, nobody else has it.
                // Over plain USB/IP the end of the link gives it back.
                if !grace.is_zero() {
                    client.check_is_disk(target)?;
                }
                Self::usb(client.open_disk(target)?)
            }
            DiskMode::Read => Err(client.refusal(target, &usb_has_one_user())),
        }
    }

    /// Opens `target` as its successor: it is here once it is handed over, and may be read before.
    ///
    /// # Errors
    /// [`ClientError`]; it has to be a block device.
    pub fn inherit(client: &ImporterClient, target: &DeviceTarget) -> Result<Self, ClientError> {
        let linked = client.inherit_block(target, GRACE_DISK)?;
        Ok(Self::block(linked, target, client).map_err(local)?.with(client.config().cache))
    }

    /// Wraps an open USB disk.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn usb(mut disk: RemoteDisk<DevicePort>) -> Result<Self, ClientError> {
        let cutter = disk.port_mut().cutter().map_err(local)?;
        let (way, status) = match disk.port_mut() {
            DevicePort::Plain(port) => (DiskConnection::Link(port.link().map_err(local)?), None),
            DevicePort::Session(port) => (DiskConnection::Port(port.clone()), Some(port.ask(LinkedDevice::status))),
        };
        let sector_bytes = disk.info().block_bytes;
        let device = Box::new(StoreDevice::new(disk).preferring(sector_bytes));
        Ok(Self { device, clock: BoottimeClock::start(), way, cutter, status, swap: None })
    }

    /// Wraps a block device of a session.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn block(
        linked: LinkedDevice<RemoteBlock>,
        target: &DeviceTarget,
        client: &ImporterClient,
    ) -> io::Result<Self> {
        let (clock, way) = (linked.clock(), DiskConnection::Device { is_movable: linked.is_movable() });
        Ok(Self::swappable(SwapDisk::new(linked, target, client)?, clock, way))
    }

    /// A disk that can be exchanged: its status and its cutter are always those of the disk that it is now.
    fn swappable(device: SwapDisk, clock: BoottimeClock, way: DiskConnection) -> Self {
        let swap = device.swap();
        let (status, to_cut) = (swap.session(), swap.clone());
        let cutter = DeviceCutter::new(move || to_cut.cut());
        Self { device: Box::new(device), clock, way, cutter, status: Some(status), swap: Some(swap) }
    }

    /// Adds the layers that `cache` asks for.
    fn with(self, cache: DiskCacheMode) -> Self {
        let device = match cache {
            DiskCacheMode::None => self.device,
            DiskCacheMode::Ahead => Box::new(ReadAheadLayer::new(self.device).within(windows_account())),
            // In this order, data that is still waiting to be written is not fetched from the exporter.
            DiskCacheMode::Writeback => {
                let behind = WriteBackLayer::new(self.device).within(windows_account());
                Box::new(ReadAheadLayer::new(behind).within(windows_account()))
            }
        };
        Self { device, ..self }
    }

    /// Restores a disk whose device another process saved, with its open requests. `medium` is what
    /// [`DiskSwap::descriptor`] returned there: the file or block device of this machine that the disk was moved to, or
    /// the passage to a broker that may connect to the other host. Nothing is asked of its exporter before its first
    /// turn.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(
        client: &ImporterClient,
        target: &DeviceTarget,
        saved: &[u8],
        medium: Option<OwnedFd>,
    ) -> io::Result<(Self, PendingBlockRequests)> {
        Self::restore_from((client, target, medium), saved, LAYERS)
    }

    /// Restores a disk with those of these layers that the snapshot contains.
    fn restore_from(
        (client, target, medium): (&ImporterClient, &DeviceTarget, Option<OwnedFd>),
        saved: &[u8],
        layers: &[u16],
    ) -> io::Result<(Self, PendingBlockRequests)> {
        let [kind, rest @ ..] = layers else {
            return match (snapshot::open(saved, ELSEWHERE_KIND), medium) {
                (Ok(reader), passage) => Self::restore_elsewhere(client, passage, reader),
                (Err(_), Some(medium)) => Self::restore_moved(client, medium, saved),
                (Err(_), None) => Self::restore_block(client, target, saved),
            };
        };
        let below = (client, target, medium);
        let Ok(mut reader) = snapshot::open(saved, *kind) else { return Self::restore_from(below, saved, rest) };
        let mut known = None;
        let device = |bytes: &[u8]| {
            let (Self { device, clock, way, cutter, status, swap }, pending) =
                Self::restore_from(below, bytes, rest).map_err(DiskRestoreError)?;
            known = Some((clock, way, cutter, status, swap));
            Ok((device, pending))
        };
        let restored: Result<(Box<dyn BlockDevice>, PendingBlockRequests), DiskRestoreError> = match *kind {
            ANY_BYTE_KIND => {
                AnyByteLayer::restore(&mut reader, device).map(|(any, pending)| (Box::new(any) as _, pending))
            }
            AHEAD_KIND => {
                let restored = ReadAheadLayer::restore(&mut reader, device);
                restored.map(|(ahead, pending)| (Box::new(ahead.within(windows_account())) as _, pending))
            }
            _ => {
                let restored = WriteBackLayer::restore(&mut reader, device);
                restored.map(|(behind, pending)| (Box::new(behind.within(windows_account())) as _, pending))
            }
        };
        let (mut device, pending) = restored.map_err(|DiskRestoreError(error)| error)?;
        if let Err(reject) = reader.end("device") {
            device.leave();
            return Err(DiskRestoreError::from(reject).0);
        }
        let (clock, way, cutter, status, swap) = known.expect("it was restored");
        Ok((Self { device, clock, way, cutter, status, swap }, pending))
    }

    fn restore_block(
        client: &ImporterClient,
        target: &DeviceTarget,
        saved: &[u8],
    ) -> io::Result<(Self, PendingBlockRequests)> {
        let redial = client.redial(target, LinkTraffic::Bulk).map_err(io::Error::other)?;
        let mut reader = snapshot::open(saved, BLOCK_KIND).map_err(|reject| DiskRestoreError::from(reject).0)?;
        let mut linked = LinkedDevice::<RemoteBlock>::restore(redial, &mut reader)?;
        if let Err(reject) = reader.end("device") {
            linked.leave();
            return Err(DiskRestoreError::from(reject).0);
        }
        let wanted = linked.remote().requests();
        let pending = wanted.map(|wanted| (wanted.id, (wanted.op, wanted.offset, wanted.length))).collect();
        Ok((Self::block(linked, target, client)?, pending))
    }

    /// Restores a disk that was moved to `medium`. Its exporter has it back, and is not asked for anything.
    fn restore_moved(
        client: &ImporterClient,
        medium: OwnedFd,
        saved: &[u8],
    ) -> io::Result<(Self, PendingBlockRequests)> {
        let clock = BoottimeClock::start();
        let mut reader = snapshot::open(saved, SWAPPED_KIND).map_err(|reject| DiskRestoreError::from(reject).0)?;
        let (mut device, pending) =
            SwapDisk::restore(clock, &mut reader, medium, client).map_err(|DiskRestoreError(error)| error)?;
        if let Err(reject) = reader.end("device") {
            BlockDevice::leave(&mut device);
            return Err(DiskRestoreError::from(reject).0);
        }
        Ok((Self::swappable(device, clock, DiskConnection::Device { is_movable: true }), pending))
    }

    /// Restores a disk that was moved to one of another host, with the session that it has there.
    fn restore_elsewhere(
        client: &ImporterClient,
        passage: Option<OwnedFd>,
        mut reader: FieldReader<'_>,
    ) -> io::Result<(Self, PendingBlockRequests)> {
        let (mut device, pending, clock) =
            SwapDisk::restore_there(&mut reader, passage, client).map_err(|DiskRestoreError(error)| error)?;
        if let Err(reject) = reader.end("device") {
            BlockDevice::leave(&mut device);
            return Err(DiskRestoreError::from(reject).0);
        }
        Ok((Self::swappable(device, clock, DiskConnection::Device { is_movable: true }), pending))
    }

    /// Whether a replacement process can continue with it.
    pub fn is_movable(&self) -> bool {
        matches!(self.way, DiskConnection::Device { is_movable: true })
    }

    /// Adds a layer that allows access at any byte, as files need.
    #[must_use]
    pub fn with_any_byte(self) -> Self {
        match self.device.info().block_bytes {
            1 => self,
            _ => Self { device: Box::new(AnyByteLayer::new(self.device)), ..self },
        }
    }

    /// How it is used.
    pub fn mode(&self) -> DiskMode {
        if self.device.info().is_read_only { DiskMode::Read } else { DiskMode::Exclusive }
    }

    /// The local address of the link, which identifies the user to the exporter; `None` in a session, whose links
    /// change.
    pub fn local_address(&self) -> Option<SocketAddr> {
        if let DiskConnection::Link(link) = &self.way { local_address(link) } else { None }
    }
}

/// The layers over a disk of a session, the uppermost first.
const LAYERS: &[u16] = &[ANY_BYTE_KIND, AHEAD_KIND, BEHIND_KIND];

/// Why a disk that can only be opened as a USB disk cannot be read beside other importers.
fn usb_has_one_user() -> AttachmentEndNotice {
    let message = "it can be had as a USB disk alone, which has one user: --mode read wants a disk that a farbus shares \
                   ('disk:PATH' or 'block:PATH'), with a session (a paired host, or --grace SECONDS)";
    AttachmentEndNotice { cause: AttachmentEndCause::Refused, message: message.to_owned() }
}
