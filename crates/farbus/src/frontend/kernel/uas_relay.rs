//! The relay between this machine's kernel and a remote disk that the kernel sees as a gadget: a USB Attached SCSI
//! disk, which takes many commands at a time, whatever the exporter's disk is.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use farbus_gadgets::EmulatedDevice;
use farbus_gadgets::storage::{AttachedScsi, InvalidSavedState, StorageOptions};
use farbus_io_net::link::{BoottimeClock, DeviceWaitSource, Link, PollInterest, wait};
use farbus_model::{Device, OwnerCommand, SessionLimits, Urb, UsbSpeed};
use farbus_session::snapshot::{FieldReader, SnapshotWriter};
use farbus_session::{Exporter, PortResetPolicy, ProtocolViolation};
use tracing::warn;

use crate::frontend::AttachmentEnd;
use crate::frontend::kernel::relay_loop::{
    KERNEL, KernelRelay, KernelSide, RelayFacts, RelayStopCause, RelayTurnResult,
};
use crate::importer::client::{ClientError, DeviceTarget, ImporterClient};
use crate::importer::disk::{DiskConnection, DiskMode, OpenedDisk};
use crate::importer::disk_swap::DiskSwap;
use crate::importer::port::DeviceCutter;
use crate::importer::session::status::SessionStatus;
use crate::link::meters::EngineMeters;

/// The kernel's id of the device: bus 1, device 1, since nothing else is on its bus.
pub const DEVICE_ID: u32 = 1 << 16 | 1;

/// How long written data may take to become durable when the attachment ends.
const DURABLE_TIME_MAX: Duration = Duration::from_secs(20);

/// The least number of bytes of a waiting request in a snapshot.
const URB_BYTES_MIN: usize = 8;

/// The gadget disk.
type UasGadgetDisk = EmulatedDevice<AttachedScsi>;

/// Relays between this kernel and a disk in a session, which the kernel sees as a USB Attached SCSI disk.
pub struct DiskRelay {
    side: KernelSide<UasGadgetDisk>,
    cutter: DeviceCutter,
    status: Option<SessionStatus>,
    mode: DiskMode,
    swap: Option<DiskSwap>,
    is_movable: bool,
}

impl DiskRelay {
    /// A relay to an open disk.
    ///
    /// # Errors
    /// [`ClientError::Local`]: its sector size is none that a disk has, or its host offers no block devices. In the
    /// second case a driver that waits for each request would lie in between, and the gadget would gain nothing.
    pub fn new(kernel: Link, disk: OpenedDisk, target: &DeviceTarget) -> Result<Self, ClientError> {
        let mode = disk.mode();
        let OpenedDisk { device, clock, way, cutter, status, swap } = disk;
        let DiskConnection::Device { is_movable } = way else {
            return Err(ClientError::Local(format!(
                "{target} can be had as a USB disk alone, which takes one command at a time whatever it is shown as: --via uas wants a \
                 disk of a farbus that drives it, with a session (a paired host, or --grace SECONDS)\n  \
                 try: --via kernel"
            )));
        };
        let disk = AttachedScsi::device(device, options_of(target, mode)).map_err(|error| {
            ClientError::Local(format!("{target}: no disk for a kernel: {error}\n  try: --via fuse"))
        })?;
        let exporter =
            Exporter::imported(clock.now(), SessionLimits::RELAYED, DEVICE_ID, disk, PortResetPolicy::ResetDevice);
        Ok(Self { side: KernelSide::new(kernel, exporter, clock), cutter, status, mode, swap, is_movable })
    }

    /// Restores a relay from the whole snapshot of another process, with its socket, and with the medium that its disk
    /// was moved to, if it was. It does nothing before its first turn.
    ///
    /// # Errors
    /// The snapshot is invalid, or the system has no more threads or descriptors.
    pub fn restore(
        mut reader: FieldReader<'_>,
        (socket, medium): (OwnedFd, Option<OwnedFd>),
        client: &ImporterClient,
        target: &DeviceTarget,
    ) -> io::Result<Self> {
        let wrong = |reject: ProtocolViolation| io::Error::new(io::ErrorKind::InvalidData, reject.to_string());
        let is_read = reader.flag("read only").map_err(wrong)?;
        let mode = if is_read { DiskMode::Read } else { DiskMode::Exclusive };
        let mut known = None;
        let device = |saved: &[u8]| {
            let (OpenedDisk { device, clock, way, cutter, status, swap }, pending) =
                OpenedDisk::restore(client, target, saved, medium)?;
            known = Some((clock, way, cutter, status, swap));
            Ok::<_, UasRestoreError>((device, pending))
        };
        let state = reader.bytes("disk").map_err(wrong)?;
        let disk =
            AttachedScsi::restore(state, options_of(target, mode), device).map_err(|UasRestoreError(error)| error)?;
        let (clock, way, cutter, status, swap) = known.expect("its device was restored");
        let exporter = Self::resume(disk, clock, &mut reader).map_err(wrong)?;
        let is_movable = matches!(way, DiskConnection::Device { is_movable: true });
        let side = KernelSide::new(Link::over_local(socket, KERNEL), exporter, clock);
        let relay = Self { side, cutter, status, mode, swap, is_movable };
        match reader.end("snapshot") {
            Ok(()) => Ok(relay),
            Err(reject) => {
                relay.hand_over();
                Err(wrong(reject))
            }
        }
    }

    /// Restores the kernel's open requests; lets go of the disk if the snapshot is invalid.
    fn resume(
        mut disk: UasGadgetDisk,
        clock: BoottimeClock,
        from: &mut FieldReader<'_>,
    ) -> Result<Exporter<UasGadgetDisk>, ProtocolViolation> {
        let resume = |disk: &mut UasGadgetDisk, from: &mut FieldReader<'_>| {
            let (selection, halts) = (from.selection(disk.descriptors())?, from.u32("halts")?);
            let count = from.count("requests", URB_BYTES_MIN)?;
            let waiting: Vec<Urb> = (0..count).map(|_| from.urb()).collect::<Result<_, _>>()?;
            let wrong = |rule| ProtocolViolation::new("requests", count as u64, rule);
            disk.resume(selection, halts, waiting).map_err(wrong)
        };
        if let Err(reject) = resume(&mut disk, from) {
            disk.leave();
            return Err(reject);
        }
        let waiting = |disk: &UasGadgetDisk| disk.waiting().map(|urb| (urb.id, urb.direction, urb.length)).collect();
        let (now, limits) = (clock.now(), SessionLimits::RELAYED);
        Exporter::restore(now, limits, PortResetPolicy::ResetDevice, disk, waiting, from).map_err(
            |(mut disk, reject)| {
                disk.leave();
                reject
            },
        )
    }

    /// The speed with which it is plugged in.
    pub fn speed(&self) -> UsbSpeed {
        self.side.device().speed()
    }

    /// Flushes the disk. Returns whether all data that the kernel believes written is known to be durable.
    fn make_durable(&mut self) -> bool {
        let clock = self.side.clock;
        let until = clock.now() + DURABLE_TIME_MAX;
        let sync = |disk: &mut UasGadgetDisk, done: &mut _| disk.command(clock.now(), &OwnerCommand::Sync, done);
        if !matches!(self.side.exporter.with_device(clock.now(), sync), Some(Ok(()))) {
            return false;
        }
        loop {
            let now = clock.now();
            self.side.exporter.with_device(now, |disk, done| disk.end_turn(now, done));
            let disk = self.side.device();
            if disk.function().is_quiet() || disk.is_gone() || now >= until {
                return disk.function().is_quiet() && disk.function().untold_loss().is_none() && !disk.is_gone();
            }
            let due = disk.poll_timeout().map_or(until, |due| due.min(until));
            let on_device = disk.readiness().map(DeviceWaitSource::interest);
            let Some(Some(on_device)) = on_device else { return false };
            if wait(&mut [on_device], Some(due - now)).is_err() {
                return false;
            }
            let now = clock.now();
            self.side.exporter.handle_ready(now);
            if self.side.device().poll_timeout().is_some_and(|due| due <= now) {
                self.side.exporter.with_device(now, |disk, done| disk.handle_timeout(now, done));
            }
        }
    }
}

/// The options of the gadget: how the kernel sees the disk.
fn options_of(target: &DeviceTarget, mode: DiskMode) -> StorageOptions {
    StorageOptions {
        product: target.device.clone(),
        serial: StorageOptions::serial_of(&target.to_string()),
        read_only: mode == DiskMode::Read,
        ..StorageOptions::default()
    }
}

impl KernelRelay for DiskRelay {
    fn relayed(&self) -> RelayFacts {
        RelayFacts {
            mode: Some(self.mode),
            session: self.status.clone(),
            cutter: Some(self.cutter.clone()),
            swap: self.swap.clone(),
            is_movable: self.is_movable,
            ..RelayFacts::how("via uas")
        }
    }

    fn turn(&mut self, stop: PollInterest<'_>, meters: &EngineMeters) -> RelayTurnResult {
        let status = &self.status;
        self.side.turn(stop, meters, |disk| {
            let end = status
                .as_ref()
                .and_then(SessionStatus::end)
                .map(|end| RelayStopCause::Ended(Box::new(AttachmentEnd::by(&end))));
            end.or_else(|| disk.is_gone().then_some(RelayStopCause::Gone))
        })
    }

    fn save(&mut self, to: &mut SnapshotWriter) -> Result<Option<OwnedFd>, RelayStopCause> {
        let status = self.status.as_ref();
        self.side.come_to_rest(|exporter| match status.and_then(SessionStatus::end) {
            Some(end) => Err(RelayStopCause::Ended(Box::new(AttachmentEnd::by(&end)))),
            None => {
                let disk = exporter.device().expect("a relay has its device from the start");
                Ok(disk.function().is_quiet() || status.is_some_and(|status| status.unlinked().is_some()))
            }
        })?;
        let socket = self.side.socket()?;
        let now = self.side.clock.now();
        to.flag(self.mode == DiskMode::Read);
        let saved = self.side.exporter.with_device(now, |disk, _| {
            to.bytes(&disk.function_mut().save(now)?);
            to.selection(disk.selection());
            to.u32(disk.halts());
            to.count(disk.waiting().count());
            disk.waiting().for_each(|urb| to.urb(urb));
            Some(())
        });
        self.side.exporter.save(now, to);
        Ok(saved.flatten().map(|()| socket))
    }

    fn hand_over(self) {
        if let Some(mut disk) = self.side.exporter.hand_over() {
            disk.leave();
        }
    }

    fn close(&mut self) -> bool {
        let now = self.side.clock.now();
        self.side.exporter.with_device(now, |disk, done| disk.reset(now, done));
        self.side.say_the_rest(now);
        // Waits for the exporter once all is durable, too: the next importer finds the device given back.
        let is_durable = self.make_durable();
        if !is_durable {
            warn!("the last writes may not be durable");
            self.cutter.cut();
        }
        is_durable
    }
}

/// Why a disk cannot be restored: the snapshot is invalid, or the system has run out of something.
struct UasRestoreError(io::Error);

impl From<io::Error> for UasRestoreError {
    fn from(error: io::Error) -> Self {
        Self(error)
    }
}

impl From<InvalidSavedState> for UasRestoreError {
    fn from(_: InvalidSavedState) -> Self {
        Self(io::Error::new(io::ErrorKind::InvalidData, "a disk's commands can have stood so"))
    }
}
