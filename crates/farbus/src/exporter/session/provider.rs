//! What a session needs from its device provider: opening devices, handing them over, and reporting their use.

use std::sync::Arc;
use std::time::Duration;

use farbus_host::DrivenDisk;
use farbus_io_net::link::{BoottimeClock, TcpSendProgress};
use farbus_model::budget::ConnectionAllowance;
use farbus_model::limits::CREDIT_BYTES_MAX;
use farbus_model::{
    BlockDevice, BlockInfo, BufferPool, CompletionQueue, Device, ExportIdentity, Instant, ReadinessSource,
    SessionLimits,
};
use farbus_realtime::vcpu::VcpuReserve;
use farbus_session::native::control::{AttachmentEndNotice, OpenRequest, SuccessorOpenRequest};
use farbus_session::native::retire::DiskMoveStep;
use farbus_session::native::served_observer::ObserverFeed;
use farbus_session::native::{
    AllowedModules, CountRequest, DeviceMigration, HOLD, ServedBlock, ServedExport, ServedObserver, ServedUsb,
    SuspendableServed, UnservedAttachment,
};
use farbus_session::reserve::ledger::MeasuredPath;
use farbus_session::reserve::{ReservationReport, ReservationTerms, SuspensionSwitch};
use farbus_session::{DeviceRecord, ProtocolViolation, UseEnding};

use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::session::engine::EngineMailbox;
use crate::exporter::session::saved::SessionOwner;
use crate::exporter::session::thread_time::SessionReservation;
use crate::link::meters::EngineMeters;
use crate::link::status::SessionLinks;

/// The exporter's reference to one attachment of a session, by which other threads end or command it.
pub trait SessionHandle: Send + Sync {
    /// The owner's commands. Woken when [`SessionHandle::end`] has a reason, too.
    fn mailbox(&self) -> &EngineMailbox;

    /// Where the session's links are shown.
    fn links(&self) -> &SessionLinks;

    /// What may be in flight on its device, bytes of data.
    fn credit_bytes(&self) -> usize {
        CREDIT_BYTES_MAX
    }

    /// Where the requests of its device are counted; `None`: they are not.
    fn meters(&self) -> Option<Arc<EngineMeters>> {
        None
    }

    /// Why the attachment has to end, if it has to.
    fn end(&self) -> Option<AttachmentEndNotice>;

    /// Whether the session ends because another process continues it. Its importer is told nothing then, and
    /// reconnects.
    fn is_replaced(&self) -> bool;

    /// Notes how the attachment ended, before its device is released.
    fn note_ending(&self, ending: UseEnding);

    /// Takes the outcome of a handover, if it is known.
    fn take_handover_outcome(&self) -> Option<HandoverOutcome>;

    /// Takes the latest reservation report, if it changed since the last call.
    fn take_reserved(&self) -> Option<ReservationReport>;

    /// Takes in how long the lease of its device ends, if that is to be told.
    fn take_lease_left(&self) -> Option<Duration> {
        None
    }

    /// Takes the outcome of a handover for the last time; later outcomes go back to the caller that reports them.
    fn leave(&self) -> Option<HandoverOutcome>;
}

/// What became of a device that was handed over.
pub enum HandoverOutcome {
    /// The device is not this importer's any more, for this reason.
    Over(AttachmentEndNotice),
    /// No successor came: the device is its user's again, under this lease.
    Back(OpenedDevice, u64),
}

/// A device that was opened for a session.
pub struct OpenedAttachment {
    /// The device, in the class that was asked for.
    pub opened_device: OpenedDevice,
    /// The handle by which the attachment is ended or commanded.
    pub session_handle: Arc<dyn SessionHandle>,
    /// The lease under which the device may be handed over; 0 if it cannot be.
    pub lease: u64,
}

/// Releases a device at the end of its use.
pub type GiveBack<D> = Box<dyn FnOnce(D, Instant) + Send>;

/// Hands a device over. Returns whether it waits for its successor.
pub type PassOn<D> = Box<dyn FnOnce(D, Instant, DeviceMigration) -> bool + Send>;

/// An open device, by its class.
pub enum OpenedDevice {
    /// A USB device.
    Usb {
        /// The device's entry in the device list.
        record: DeviceRecord,
        /// The device: reset and unconfigured, or as its former user left it.
        device: Box<dyn Device>,
        /// Releases the device at the end.
        give_back: GiveBack<Box<dyn Device>>,
        /// Hands the device over.
        pass_on: PassOn<Box<dyn Device>>,
    },
    /// A source that is observed: a USB device that another importer may use, or a stream of frames.
    Observer {
        /// Where the frames are read.
        observer: Box<dyn ObserverFeed>,
        /// Ready when there is a frame.
        readiness: ReadinessSource,
        /// Clears the readiness.
        hush: Box<dyn Fn() + Send>,
        /// The source's description, encoded.
        description: Vec<u8>,
        /// Called at the end.
        leave: Box<dyn FnOnce(Instant) + Send>,
        /// The suspension of the attachment, if it may be suspended.
        suspension: Option<SuspensionSwitch>,
    },
    /// A block device that another importer uses, shown to its future successor.
    Preview {
        /// The device, for reading.
        device: Box<dyn BlockDevice>,
        /// What the device will be when the successor has it.
        info: BlockInfo,
        /// The number that changes when data that is not flushed may be lost.
        durability: u64,
        /// Called at the end.
        leave: Box<dyn FnOnce(Instant) + Send>,
    },
    /// A block device.
    Block {
        /// The disk, as this user sees it: whole, a part, or with changes of its own.
        device: Box<dyn BlockDevice>,
        /// The number that changes when data that is not flushed may be lost.
        durability: u64,
        /// Releases the device at the end.
        give_back: GiveBack<Box<dyn BlockDevice>>,
        /// Hands the device over.
        pass_on: PassOn<Box<dyn BlockDevice>>,
        /// The suspension of the attachment, if it may be suspended.
        suspension: Option<SuspensionSwitch>,
    },
    /// A USB disk that the exporter drives, as a block device.
    Disk {
        /// The disk with its driver.
        disk: Box<DrivenDisk<Box<dyn Device>>>,
        /// The number that changes when data that is not flushed may be lost.
        durability: u64,
        /// Releases the USB device at the end.
        give_back: GiveBack<Box<dyn Device>>,
        /// The suspension of the attachment, if it may be suspended.
        suspension: Option<SuspensionSwitch>,
    },
}

impl OpenedDevice {
    /// Serves the device as attachment `number`, and counts its requests in `meters`.
    pub fn served(
        self,
        number: u16,
        limits: AttachmentLimits,
        clock: BoottimeClock,
        meters: Option<Arc<EngineMeters>>,
    ) -> Box<dyn ServedExport> {
        let count: CountRequest = Box::new(move |bytes_in, bytes_out| {
            if let Some(meters) = &meters {
                meters.add_request(bytes_in, bytes_out);
            }
        });
        let clock = Box::new(move || clock.now());
        let credit = limits.disk_credit_bytes;
        match self {
            OpenedDevice::Usb { record, device, give_back, pass_on } => {
                let usb = ServedUsb::new(number, device, record, limits.usb, give_back);
                Box::new(usb.inheritable(pass_on).timed_by(clock).counted_by(count))
            }
            OpenedDevice::Block { device, durability, give_back, pass_on, suspension } => {
                let block = ServedBlock::new(number, device, durability, give_back).with_credit(credit);
                behind(suspension, Box::new(block.inheritable(pass_on).timed_by(clock).counted_by(count)))
            }
            OpenedDevice::Preview { device, info, durability, leave } => {
                let block = ServedBlock::new(number, device, durability, move |_, now| leave(now));
                Box::new(block.with_credit(credit).promising(info).timed_by(clock).counted_by(count))
            }
            OpenedDevice::Disk { disk, durability, give_back, suspension } => {
                let give_back = move |disk: Box<DrivenDisk<Box<dyn Device>>>, now| {
                    let mut unheard = CompletionQueue::new(BufferPool::new(0));
                    let device = disk.into_device(now, &mut unheard);
                    while unheard.pop().is_some() {}
                    give_back(device, now);
                };
                let block = ServedBlock::new(number, disk, durability, give_back).with_credit(credit);
                behind(suspension, Box::new(block.timed_by(clock).counted_by(count)))
            }
            OpenedDevice::Observer { observer, readiness, hush, description, leave, suspension } => {
                let shown = Box::new(ServedObserver::new(number, observer, readiness, hush, description, leave));
                match suspension {
                    None => shown,
                    Some(suspension) => Box::new(SuspendableServed::new(shown, suspension).quiet()),
                }
            }
        }
    }

    /// Serves the device from the state that another process saved. If the state is invalid, resets and releases the
    /// device.
    pub fn serve_again(
        self,
        clock: BoottimeClock,
        limits: AttachmentLimits,
        left: &UnservedAttachment,
        meters: Option<Arc<EngineMeters>>,
    ) -> Result<Box<dyn ServedExport>, ProtocolViolation> {
        let mut served = self.served(left.number, limits, clock, meters);
        let missing = ProtocolViolation::new("state", 0, "it is one that can go on in another process");
        let state = left.state.as_ref().ok_or(missing);
        match state.and_then(|state| served.restore(clock.now(), &mut state.reader())) {
            Ok(()) => Ok(served),
            Err(reject) => {
                served.finish(clock.now());
                Err(reject)
            }
        }
    }
}

fn behind(suspension: Option<SuspensionSwitch>, served: Box<dyn ServedExport>) -> Box<dyn ServedExport> {
    match suspension {
        None => served,
        Some(suspension) => Box::new(SuspendableServed::new(served, suspension)),
    }
}

/// Provides devices to sessions.
pub trait DeviceProvider: Send + Sync + 'static {
    /// The peer of a session, as the provider knows it.
    type Caller: SessionHandle + 'static;

    /// The clock of all sessions.
    fn clock(&self) -> BoottimeClock;

    /// Limits of one session.
    fn limits(&self) -> SessionLimits;

    /// The peer that owns the caller's session; `None` if it is known by address only.
    fn owner(caller: &Self::Caller) -> Option<PeerIdentity>;

    /// The allowance that the caller's session draws on.
    fn allowance(caller: &Self::Caller) -> ConnectionAllowance;

    /// How long a device that was handed over waits for its successor at most.
    fn hold(&self) -> Duration {
        HOLD
    }

    /// The modules that importers may ask for; `None`: no list.
    fn modules(&self) -> Option<Arc<AllowedModules>> {
        None
    }

    /// Opens a device for `caller`, who is called `peer` now. `is_compared`: the caller named the identity of the
    /// device that it had, and this device has it.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: why the device is not opened.
    fn open(
        self: &Arc<Self>,
        caller: &Self::Caller,
        peer: &str,
        open: &OpenRequest,
        is_compared: bool,
    ) -> Result<OpenedAttachment, AttachmentEndNotice>;

    /// `caller` opens a disk next to overwrite it, and may have it for that if it moved it away earlier.
    fn note_overwriting(&self, caller: &Self::Caller, open: &OpenRequest) {
        let _ = (caller, open);
    }

    /// Notes durably what the importer says of the disk that `open` opened under this lease, and that it moves.
    ///
    /// # Errors
    /// Why it is not noted.
    fn note_step(
        &self,
        caller: &Self::Caller,
        open: &OpenRequest,
        lease: u64,
        step: DiskMoveStep,
    ) -> Result<(), String> {
        let _ = (caller, open, lease, step);
        Err("nothing is noted here".to_owned())
    }

    /// The identity of the device that `open` names; `None` if there is no such device, or it has no identity.
    fn device_identity(&self, open: &OpenRequest) -> Option<ExportIdentity> {
        let _ = open;
        None
    }

    /// Whether the identity of the device that `open` names is found again after this process was started anew.
    fn has_lasting_identity(&self, open: &OpenRequest) -> bool {
        let _ = open;
        false
    }

    /// A number that changes whenever the identity of a device changes.
    fn identity_changes(&self) -> u64 {
        0
    }

    /// Opens a handed over device for its successor `caller`, and returns its migration state. `None`: it is not handed
    /// over yet.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: it will never be the caller's.
    fn inherit(
        self: &Arc<Self>,
        caller: &Self::Caller,
        peer: &str,
        inherit: &SuccessorOpenRequest,
    ) -> Option<Result<(OpenedAttachment, Vec<u8>), AttachmentEndNotice>>;

    /// Opens for reading a device that is to be handed over to `caller`. `None`: the device cannot be shown, and the
    /// caller only waits.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: the device will never be shown; *gone* may be temporary.
    fn show(
        self: &Arc<Self>,
        caller: &Self::Caller,
        peer: &str,
        inherit: &SuccessorOpenRequest,
    ) -> Option<Result<OpenedAttachment, AttachmentEndNotice>>;

    /// The owner of the caller's session, to be saved for another process.
    fn identity(caller: &Self::Caller) -> SessionOwner;

    /// The listed name of the device that was opened as `opened_as`.
    fn name_of(&self, opened_as: &str) -> String;

    /// Opens a device again that another process had open for the same caller.
    ///
    /// # Errors
    /// [`AttachmentEndNotice`]: why the device is not opened; *gone* may be temporary.
    fn reopen(
        self: &Arc<Self>,
        caller: &Self::Caller,
        left: &UnservedAttachment,
    ) -> Result<OpenedAttachment, AttachmentEndNotice>;

    /// Takes back a handed over device that waits for its successor, so that another process can continue the handover.
    fn recall(self: &Arc<Self>, open: &OpenRequest) -> Option<(OpenedAttachment, DeviceMigration)>;

    /// Reserves for the device that `caller` opens next, over a path with these measurements.
    ///
    /// # Errors
    /// The report of the refusal, and its reason in words.
    fn reserve(
        &self,
        caller: &Self::Caller,
        open: &OpenRequest,
        reservation: &ReservationTerms,
        path: MeasuredPath,
    ) -> Result<ReservationReport, (ReservationReport, AttachmentEndNotice)>;

    /// Releases a reservation whose device is not opened after all.
    fn unreserve(&self, open: &OpenRequest);

    /// The reservation of a device, if it has one.
    fn reserved(&self, open: &OpenRequest) -> Option<SessionReservation>;

    /// Gives the calling thread, a session's, processor time in each period, or takes it away (`None`).
    ///
    /// # Errors
    /// Why not, in words.
    fn schedule(&self, time: Option<VcpuReserve>) -> Result<(), String>;

    /// Reports the progress of the link that carries a device with a reservation.
    fn note_progress(&self, open: &OpenRequest, progress: TcpSendProgress);

    /// Reports what the calling thread needs each period for a device with a reservation, in nanoseconds. `device`: the
    /// name under which it was opened.
    fn note_need(&self, device: &str, needed_ns: u64);

    /// All reservations, saved for another process.
    fn reservations(&self) -> Vec<u8>;

    /// Notes that a device of another process is open here, or will not be.
    fn settle(&self, left: &UnservedAttachment);
}

/// What one attachment may hold.
#[derive(Clone, Copy)]
pub struct AttachmentLimits {
    /// Of a USB device: those of the provider, within the credit.
    usb: SessionLimits,
    /// What a disk may have in flight, bytes.
    disk_credit_bytes: usize,
}

impl AttachmentLimits {
    /// The limits of the attachment of this session.
    pub fn of<H: DeviceProvider>(provider: &H, session_handle: &dyn SessionHandle) -> Self {
        let (limits, credit) = (provider.limits(), session_handle.credit_bytes());
        let usb = SessionLimits { payload_bytes_max: limits.payload_bytes_max.min(credit), ..limits };
        Self { usb, disk_credit_bytes: credit }
    }
}

impl From<SessionLimits> for AttachmentLimits {
    /// A disk gets as many bytes in flight as a USB device.
    fn from(usb: SessionLimits) -> Self {
        Self { usb, disk_credit_bytes: usb.payload_bytes_max }
    }
}
