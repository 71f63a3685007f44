//! What a session needs of whoever has the devices: it opens them, hands them over, and is told how they are used.

use std::sync::Arc;

use farbus_host::DrivenDisk;
use farbus_io::link::{Clock, Progress};
use farbus_model::budget::Allowance;
use farbus_model::limits::CREDIT_BYTES_MAX;
use farbus_model::{BlockDevice, BlockInfo, BufferPool, Completions, Device, Identity, Instant, Limits, Readiness};
use farbus_session::native::control::{End, Inherit, Open};
use farbus_session::native::served_observer::Shown;
use farbus_session::native::{
    Allowed, Left, Migration, Served, ServedBlock, ServedObserver, ServedUsb, SuspendableServed,
};
use farbus_session::reserve::ledger::Path;
use farbus_session::reserve::{Reservation, ReservationReport, Suspension};
use farbus_session::{DeviceRecord, Ending, Reject};

use crate::exporter::access::quota::Visitor;
use crate::exporter::session::engine::Mailbox;
use crate::exporter::session::saved::Owner;
use crate::link::status::Links;

/// What a session is for those who may end it or ask something of it.
pub trait SessionHandle: Send + Sync {
    /// Where its owner's orders are left; woken when [`SessionHandle::end`] has something to say.
    fn mailbox(&self) -> &Mailbox;

    /// Where the links of its session are shown.
    fn links(&self) -> &Links;

    /// What may be in flight on its device, bytes of data.
    fn credit_bytes(&self) -> usize {
        CREDIT_BYTES_MAX
    }

    /// Why it is to end, if it is.
    fn end(&self) -> Option<End>;

    /// Whether it ends here because another process goes on in this one's place: then its importer is told nothing, and
    /// comes back.
    fn is_replaced(&self) -> bool;

    /// It has ended, and how; said before its device is given back.
    fn note_ending(&self, ending: Ending);

    /// What became of its device, which was handed over; none so far, or it was not.
    fn take_handover_outcome(&self) -> Option<HandoverOutcome>;

    /// How what is reserved for its device stands, if that is news.
    fn take_reserved(&self) -> Option<ReservationReport>;

    /// The same for the last time: nobody waits for one any more.
    fn leave(&self) -> Option<HandoverOutcome>;
}

/// What became of a device that was handed over.
pub enum HandoverOutcome {
    /// It is somebody else's, and why.
    Over(End),
    /// Nobody came for it: it is its user's again, under this lease.
    Back(OpenedDevice, u64),
}

/// A device that was opened for a session, and who may ask something of its attachment.
pub struct Opened {
    /// The device, as the class that was asked for.
    pub opened_device: OpenedDevice,
    /// Whoever may end the attachment.
    pub session_handle: Arc<dyn SessionHandle>,
    /// By which it may be handed over; 0 if it cannot be.
    pub lease: u64,
}

/// Takes a device back.
pub type GiveBack<D> = Box<dyn FnOnce(D, Instant) + Send>;

/// Takes a device that is handed over; says whether it waits for its successor.
pub type PassOn<D> = Box<dyn FnOnce(D, Instant, Migration) -> bool + Send>;

/// As what a device was opened.
pub enum OpenedDevice {
    /// A USB device.
    Usb {
        /// What it is called.
        record: DeviceRecord,
        /// The device, reset and not configured, or as its former user left it.
        device: Box<dyn Device>,
        /// Where it goes in the end.
        give_back: GiveBack<Box<dyn Device>>,
        /// Or where if it is handed over.
        pass_on: PassOn<Box<dyn Device>>,
    },
    /// What shows itself: a USB device that somebody else may use, a stream of frames.
    Observer {
        /// Where it is looked at from.
        observer: Box<dyn Shown>,
        /// Ready when there is something to see.
        readiness: Readiness,
        /// Makes it unready.
        hush: Box<dyn Fn() + Send>,
        /// What it is.
        description: Vec<u8>,
        /// Told in the end.
        leave: Box<dyn FnOnce(Instant) + Send>,
        /// What suspends it, if anything does.
        suspension: Option<Suspension>,
    },
    /// A block device that somebody else uses, for whoever is to inherit it.
    Shown {
        /// It, to be read.
        device: Box<dyn BlockDevice>,
        /// What it will be.
        info: BlockInfo,
        /// What to say of what is not flushed.
        durability: u64,
        /// Told in the end.
        leave: Box<dyn FnOnce(Instant) + Send>,
    },
    /// A block device.
    Block {
        /// The disk, as this user sees it: whole, a part, or with changes of its own.
        device: Box<dyn BlockDevice>,
        /// What to say of what is not flushed.
        durability: u64,
        /// Where it goes in the end.
        give_back: GiveBack<Box<dyn BlockDevice>>,
        /// Or where if it is handed over.
        pass_on: PassOn<Box<dyn BlockDevice>>,
        /// What suspends it, if anything does.
        suspension: Option<Suspension>,
    },
    /// A USB disk that is driven here, as a block device.
    Disk {
        /// The disk, driven on this machine.
        disk: Box<DrivenDisk<Box<dyn Device>>>,
        /// What to say of what is not flushed.
        durability: u64,
        /// Where the USB device goes in the end.
        give_back: GiveBack<Box<dyn Device>>,
        /// What suspends it, if anything does.
        suspension: Option<Suspension>,
    },
}

impl OpenedDevice {
    pub fn served(self, number: u16, limits: Limits, clock: Clock) -> Box<dyn Served> {
        let clock = Box::new(move || clock.now());
        let credit = limits.payload_bytes_max;
        match self {
            OpenedDevice::Usb { record, device, give_back, pass_on } => {
                let usb = ServedUsb::new(number, device, record, limits, give_back);
                Box::new(usb.inheritable(pass_on).timed_by(clock))
            }
            OpenedDevice::Block { device, durability, give_back, pass_on, suspension } => {
                let block = ServedBlock::new(number, device, durability, give_back).with_credit(credit);
                behind(suspension, Box::new(block.inheritable(pass_on).timed_by(clock)))
            }
            OpenedDevice::Shown { device, info, durability, leave } => {
                let block = ServedBlock::new(number, device, durability, move |_, now| leave(now));
                Box::new(block.with_credit(credit).promising(info).timed_by(clock))
            }
            OpenedDevice::Disk { disk, durability, give_back, suspension } => {
                let give_back = move |disk: Box<DrivenDisk<Box<dyn Device>>>, now| {
                    let mut unheard = Completions::new(BufferPool::new(0));
                    let device = disk.into_device(now, &mut unheard);
                    while unheard.pop().is_some() {}
                    give_back(device, now);
                };
                let block = ServedBlock::new(number, disk, durability, give_back).with_credit(credit);
                behind(suspension, Box::new(block.timed_by(clock)))
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

    /// The same, where another process wrote down how it stood; what does not make sense is given back, after a reset.
    pub fn serve_again(self, clock: Clock, limits: Limits, left: &Left) -> Result<Box<dyn Served>, Reject> {
        let mut served = self.served(left.number, limits, clock);
        let missing = Reject::new("state", 0, "it is one that can go on in another process");
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

fn behind(suspension: Option<Suspension>, served: Box<dyn Served>) -> Box<dyn Served> {
    match suspension {
        None => served,
        Some(suspension) => Box::new(SuspendableServed::new(served, suspension)),
    }
}

/// What sessions are offered.
pub trait DeviceProvider: Send + Sync + 'static {
    /// Whoever has a session, while it has one.
    type Caller: SessionHandle + 'static;

    /// The time there.
    fn clock(&self) -> Clock;

    /// What one session may hold.
    fn limits(&self) -> Limits;

    /// Whose a caller's session is; none where nobody knows who it is.
    fn owner(caller: &Self::Caller) -> Option<Visitor>;

    /// Of which what a caller's session holds is taken.
    fn allowance(caller: &Self::Caller) -> Allowance;

    /// Which modules may be asked for.
    fn modules(&self) -> Option<Arc<Allowed>> {
        None
    }

    /// Opens a device for `caller`, who is called `peer` now. `is_compared`: `caller` named the identity of the device
    /// that it had, and it is that one.
    ///
    /// # Errors
    /// [`End`]: why not.
    fn open(self: &Arc<Self>, caller: &Self::Caller, peer: &str, open: &Open, is_compared: bool)
    -> Result<Opened, End>;

    /// Which device `open` names now; none: there is none of that name, or it has no identity.
    fn device_identity(&self, open: &Open) -> Option<Identity> {
        let _ = open;
        None
    }

    /// Changes whenever the identity of a device has changed.
    fn identity_changes(&self) -> u64 {
        0
    }

    /// The same for a device that is to be handed over to `caller`, and what came along with it; none: it was not yet.
    ///
    /// # Errors
    /// [`End`]: it never will.
    fn inherit(
        self: &Arc<Self>,
        caller: &Self::Caller,
        peer: &str,
        inherit: &Inherit,
    ) -> Option<Result<(Opened, Vec<u8>), End>>;

    /// What `caller` may see of a device before it is handed over to him; none: nothing, he just waits.
    ///
    /// # Errors
    /// [`End`]: it never will be; *gone* may pass by.
    fn show(self: &Arc<Self>, caller: &Self::Caller, peer: &str, inherit: &Inherit) -> Option<Result<Opened, End>>;

    /// Whose a session is, for another process.
    fn identity(caller: &Self::Caller) -> Owner;

    /// The name in the lists of a device that was opened by this one.
    fn name_of(&self, opened_as: &str) -> String;

    /// Opens what another process had opened for the same caller.
    ///
    /// # Errors
    /// [`End`]: why not; *gone* may pass by.
    fn reopen(self: &Arc<Self>, caller: &Self::Caller, left: &Left) -> Result<Opened, End>;

    /// What was opened so and handed over, if nobody knows yet what becomes of it: it goes on in another process.
    fn recall(self: &Arc<Self>, open: &Open) -> Option<(Opened, Migration)>;

    /// Reserves what is asked for the device that `caller` opens next, over a path that was measured.
    ///
    /// # Errors
    /// How it stands, and why in words.
    fn reserve(
        &self,
        caller: &Self::Caller,
        open: &Open,
        reservation: &Reservation,
        path: Path,
    ) -> Result<ReservationReport, (ReservationReport, End)>;

    /// What was reserved so is not needed.
    fn unreserve(&self, open: &Open);

    /// How what is reserved for a device stands.
    fn reserved(&self, open: &Open) -> Option<ReservationReport>;

    /// The link that carries a device for which something is reserved has come so far.
    fn note_progress(&self, open: &Open, progress: Progress);

    /// All that is reserved, for another process.
    fn reservations(&self) -> Vec<u8>;

    /// What another process had opened is opened here, or will not be.
    fn settle(&self, left: &Left);
}

/// What one of its devices may hold.
pub fn limits_of<H: DeviceProvider>(provider: &H, session_handle: &dyn SessionHandle) -> Limits {
    let limits = provider.limits();
    Limits { payload_bytes_max: limits.payload_bytes_max.min(session_handle.credit_bytes()), ..limits }
}
