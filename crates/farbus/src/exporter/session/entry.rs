//! An entry in the table of sessions, by which other threads count, end or command a connection.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use farbus_io_net::link::Link;
use farbus_model::budget::{BudgetExhaustion, MemoryAccount, MemoryCharge};
use farbus_model::limits::{CREDIT_BYTES_MAX, USB_CREDIT_BYTES_MAX};
use farbus_model::{Device, Instant};
use farbus_session::UseEnding;
use farbus_session::native::control as native;
use farbus_session::reserve::ReservationReport;
use farbus_session::reserve::suspension::DeviceReturnSlot;

use crate::common::ordered_mutex::OrderedMutex;
use crate::exporter::access::memory::fixed_bytes;
use crate::exporter::access::paired_host::PairedPeer;
use crate::exporter::access::quota::{self, ConnectionClass, PeerIdentity};
use crate::exporter::session::engine::EngineMailbox;
use crate::exporter::session::threads::{HandoverOutcome, SessionHandle};
use crate::link::meters::EngineMeters;
use crate::link::status::SessionLinks;

/// One connection of a peer, or one device that a peer's session has open.
pub struct SessionEntry {
    pub(crate) since: Instant,
    /// The connection's link, which ends with it. `None` if the entry is a session or one of its devices: their thread
    /// is told instead.
    pub(crate) link: OrderedMutex<Option<Link>, 3>,
    pub(crate) is_told: AtomicBool,
    /// Whether it ends because its host may not use the device any more.
    is_forbidden: AtomicBool,
    /// Another process serves it from now on.
    pub(crate) is_replaced: AtomicBool,
    /// The peer, as people write it.
    pub peer: String,
    /// The paired host, if the peer proved a key.
    pub paired_peer: Option<PairedPeer>,
    pub(crate) peer_identity: PeerIdentity,
    pub(crate) class: ConnectionClass,
    /// The account of its peer. `taken` is what this entry took from it, for itself or for its device.
    pub account: Arc<MemoryAccount>,
    pub(crate) taken: OrderedMutex<Option<MemoryCharge>, 3>,
    pub(crate) credit_bytes: AtomicUsize,
    pub(crate) mailbox: EngineMailbox,
    pub(crate) meters: Arc<EngineMeters>,
    /// The links of the session that this entry is, or belongs to.
    pub links: SessionLinks,
    pub(crate) bus_id: OrderedMutex<Option<String>, 3>,
    /// The bus id of the device that it observes.
    pub observes: OnceLock<String>,
    pub(crate) is_taken_back: AtomicBool,
    /// How the lease ended under which it used the device, if that is why the device was taken back.
    pub lease_end: OnceLock<UseEnding>,
    /// The owner's remark on taking its device back.
    pub remark: OnceLock<String>,
    /// Its device was used in the process before this one, and it continues that use.
    pub is_successor: AtomicBool,
    /// How the session ended, if it did.
    pub ending: OrderedMutex<Option<UseEnding>, 3>,
    /// What became of the device that it handed over.
    pub(crate) handover_outcome: OrderedMutex<HandoverWait, 3>,
    /// The latest reservation report of its device, if the session has not taken it.
    pub(crate) reserved: OrderedMutex<Option<ReservationReport>, 3>,
    pub(crate) has_news: AtomicBool,
    /// In how long its lease ends, if the session has not told its peer.
    pub(crate) lease_left: OrderedMutex<Option<Duration>, 3>,
    /// The inner device, if its device is suspendable.
    pub(crate) behind: OrderedMutex<Option<DeviceReturnSlot>, 3>,
}

/// The peer of an entry, and what the entry shares with others of the same peer.
pub struct SessionEntryPeer {
    /// The paired host, if the peer proved a key.
    pub paired_peer: Option<PairedPeer>,
    /// The peer that the entry is counted for.
    pub peer_identity: PeerIdentity,
    /// Its place among the connections.
    pub class: ConnectionClass,
    /// The account of its peer.
    pub account: Arc<MemoryAccount>,
    /// The links of the session that the entry is, or belongs to.
    pub links: SessionLinks,
}

/// The outcome of a handover, if it is known and still needed.
#[derive(Default)]
pub(crate) enum HandoverWait {
    #[default]
    Yes,
    Outcome(HandoverOutcome),
    Gone,
}

impl SessionEntry {
    /// What the peer has proved of itself: a key, a user of this machine, or where it is. It is the same on each of its
    /// connections.
    pub fn proof(&self) -> String {
        match self.peer_identity {
            PeerIdentity::Host(fingerprint) => format!("key {fingerprint}"),
            PeerIdentity::User(user) | PeerIdentity::Own(_, user) => format!("user {user}"),
            PeerIdentity::Address(address) => format!("address {address}"),
        }
    }

    /// An entry without a device.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(since: Instant, link: Option<Link>, peer: String, of: SessionEntryPeer) -> io::Result<Self> {
        let SessionEntryPeer { paired_peer, peer_identity, class, account, links } = of;
        Ok(Self {
            since,
            link: OrderedMutex::new(link),
            is_told: AtomicBool::new(false),
            is_forbidden: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            peer,
            paired_peer,
            peer_identity,
            class,
            account,
            taken: OrderedMutex::default(),
            credit_bytes: AtomicUsize::new(CREDIT_BYTES_MAX),
            mailbox: EngineMailbox::new()?,
            meters: Arc::default(),
            links,
            bus_id: OrderedMutex::default(),
            observes: OnceLock::new(),
            is_taken_back: AtomicBool::new(false),
            lease_end: OnceLock::new(),
            remark: OnceLock::new(),
            is_successor: AtomicBool::new(false),
            ending: OrderedMutex::default(),
            handover_outcome: OrderedMutex::default(),
            reserved: OrderedMutex::default(),
            has_news: AtomicBool::new(false),
            lease_left: OrderedMutex::default(),
            behind: OrderedMutex::default(),
        })
    }

    /// Takes what the device needs from the peer's account, where `devices` are shared.
    ///
    /// # Errors
    /// The account does not have as much.
    pub fn take_for(&self, open: &native::OpenRequest, devices: usize) -> Result<(), BudgetExhaustion> {
        let taken = match fixed_bytes(open) {
            Some(bytes) => self.account.take_fixed_for_device(bytes)?,
            None => {
                let most =
                    if open.class == native::AttachmentClass::BLOCK { CREDIT_BYTES_MAX } else { USB_CREDIT_BYTES_MAX };
                let (taken, credit_bytes) = self.account.take_for_device(devices, most)?;
                self.credit_bytes.store(credit_bytes, Ordering::Release);
                taken
            }
        };
        self.keep(taken);
        Ok(())
    }

    /// Keeps what was taken from the peer's account until the entry is dropped.
    pub fn keep(&self, taken: MemoryCharge) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
    }

    /// The bus id of the device that it uses.
    pub fn device(&self) -> Option<String> {
        self.bus_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it uses the device with this bus id.
    pub fn holds(&self, bus_id: &str) -> bool {
        self.bus_id.lock().is_ok_and(|held| held.as_deref() == Some(bus_id))
    }

    /// Notes that it uses the device with this bus id from now on.
    pub fn hold(&self, bus_id: &str) {
        self.mailbox.open();
        *self.bus_id.lock().unwrap_or_else(PoisonError::into_inner) = Some(bus_id.to_owned());
    }

    /// Notes that it no longer uses its device. Returns the device's bus id.
    pub fn take_device(&self) -> Option<String> {
        self.mailbox.close();
        self.bus_id.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// How its use ended, if neither the peer nor the device ended it: the owner took the device back, or the lease
    /// ended.
    pub fn forced_ending(&self) -> Option<UseEnding> {
        let is_taken_back = self.is_taken_back.load(Ordering::Acquire);
        is_taken_back.then(|| self.lease_end.get().copied().unwrap_or(UseEnding::TakenBack))
    }

    /// Whether it continues a use that began in the process before this one.
    pub fn is_successor(&self) -> bool {
        self.is_successor.load(Ordering::Acquire)
    }

    /// Tells the session what became of the device that it handed over. Returns the outcome if the session has ended.
    #[must_use]
    pub fn leave_handover_outcome(&self, handover_outcome: HandoverOutcome) -> Option<HandoverOutcome> {
        {
            let mut waiting = self.handover_outcome.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*waiting, HandoverWait::Gone) {
                return Some(handover_outcome);
            }
            *waiting = HandoverWait::Outcome(handover_outcome);
        }
        self.mailbox.wake();
        None
    }

    /// Leaves a reservation report for the session, and wakes its thread.
    pub fn leave_reserved(&self, report: ReservationReport) {
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.has_news.store(true, Ordering::Release);
        self.mailbox.wake();
    }

    /// Leaves word for the session that its lease ends in so long, and wakes its thread.
    pub fn leave_lease_left(&self, left: Duration) {
        *self.lease_left.lock().unwrap_or_else(PoisonError::into_inner) = Some(left);
        self.mailbox.wake();
    }

    /// Keeps the handle of its suspendable device, to get the inner device back.
    pub fn keep_behind(&self, behind: DeviceReturnSlot) {
        *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = Some(behind);
    }

    /// Returns the inner device if `device` is suspendable, and `device` itself otherwise.
    pub fn without_gate(&self, device: Box<dyn Device>) -> Box<dyn Device> {
        let behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(behind) = behind else { return device };
        drop(device);
        behind.take().expect("the gate is gone")
    }

    /// The peer and place to count. `None` for an entry that was told to end and has no device.
    pub(crate) fn counted(&self) -> Option<(PeerIdentity, ConnectionClass)> {
        (!self.is_idle() || !self.is_told.load(Ordering::Acquire)).then_some((self.peer_identity, self.class))
    }

    /// Whether it is a link of a peer known by address only, without a device.
    pub(crate) fn is_idle(&self) -> bool {
        let has_device = self.bus_id.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let has_link = self.link.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        !self.peer_identity.is_known() && !has_device && has_link
    }

    /// Ends an idle entry that did nothing for [`quota::IDLE_TIME`]. Returns whether this call ended it.
    pub(crate) fn gave_way(&self, now: Instant) -> bool {
        let gives_way = self.is_idle() && !self.is_told.load(Ordering::Acquire) && now >= self.since + quota::IDLE_TIME;
        if gives_way {
            self.end();
        }
        gives_way
    }

    pub(crate) fn handover_outcome(&self, next: HandoverWait) -> Option<HandoverOutcome> {
        match std::mem::replace(&mut *self.handover_outcome.lock().unwrap_or_else(PoisonError::into_inner), next) {
            HandoverWait::Outcome(handover_outcome) => Some(handover_outcome),
            HandoverWait::Yes | HandoverWait::Gone => None,
        }
    }

    pub(crate) fn end(&self) {
        self.is_told.store(true, Ordering::Release);
        match &*self.link.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(link) => link.shut_down(),
            None => self.mailbox.wake(),
        }
    }

    /// Ends the session because its host may not use the device any more.
    pub(crate) fn forbid(&self) {
        self.is_forbidden.store(true, Ordering::Release);
        self.end();
    }

    /// Whether the session continues in another process.
    pub fn is_handed_over(&self) -> bool {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) == Some(UseEnding::HandedOver)
    }

    /// Notes that the session outlives its link.
    pub(crate) fn outlive_link(&self) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What a host hears whose lease has ended.
pub(crate) fn lease_over(ending: UseEnding) -> String {
    format!("the lease under which this host used it is over: {}", ending.as_str())
}

impl SessionHandle for SessionEntry {
    fn credit_bytes(&self) -> usize {
        self.credit_bytes.load(Ordering::Acquire)
    }

    fn mailbox(&self) -> &EngineMailbox {
        &self.mailbox
    }

    fn links(&self) -> &SessionLinks {
        &self.links
    }

    fn meters(&self) -> Option<Arc<EngineMeters>> {
        Some(Arc::clone(&self.meters))
    }

    fn end(&self) -> Option<native::AttachmentEndNotice> {
        self.is_told.load(Ordering::Acquire).then(|| {
            let refused = native::AttachmentEndCause::Refused;
            let (cause, message) = match (self.forced_ending(), self.remark.get()) {
                (Some(UseEnding::TakenBack), Some(remark)) => (refused, format!("released by its owner: {remark}")),
                (Some(UseEnding::TakenBack), None) => (refused, "released by its owner".to_owned()),
                (Some(ending), _) => (refused, lease_over(ending)),
                (None, _) if self.is_forbidden.load(Ordering::Acquire) => {
                    (refused, "not shared with you any more".to_owned())
                }
                (None, _) => (native::AttachmentEndCause::Gone, "its share has ended".to_owned()),
            };
            native::AttachmentEndNotice { cause, message }
        })
    }

    fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    fn note_ending(&self, ending: UseEnding) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
    }

    fn take_handover_outcome(&self) -> Option<HandoverOutcome> {
        self.handover_outcome(HandoverWait::Yes)
    }

    fn leave(&self) -> Option<HandoverOutcome> {
        self.handover_outcome(HandoverWait::Gone)
    }

    fn take_lease_left(&self) -> Option<Duration> {
        self.lease_left.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn take_reserved(&self) -> Option<ReservationReport> {
        if !self.has_news.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
