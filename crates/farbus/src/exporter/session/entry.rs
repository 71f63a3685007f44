//! A connection, as those see it who count it, end it or ask something of it.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use farbus_io::link::Link;
use farbus_model::budget::{Account, Exhausted, Taken};
use farbus_model::limits::CREDIT_BYTES_MAX;
use farbus_model::{Device, Instant};
use farbus_session::Ending;
use farbus_session::native::control as native;
use farbus_session::reserve::ReservationReport;
use farbus_session::reserve::suspension::Behind;

use crate::exporter::access::memory::fixed_bytes;
use crate::exporter::access::paired_host::Guest;
use crate::exporter::access::quota::{self, Place, Visitor};
use crate::exporter::session::engine::Mailbox;
use crate::exporter::session::threads::{HandoverOutcome, SessionHandle};
use crate::link::meters::Meters;
use crate::link::status::Links;

/// One connection of a peer, or one device that a session of its uses.
pub struct Session {
    pub(crate) since: Instant,
    /// The link that it is, and ends with; none if it belongs to a session, or is one, whose thread is told.
    pub(crate) link: Mutex<Option<Link>>,
    pub(crate) is_told: AtomicBool,
    /// Another process serves it from now on.
    pub(crate) is_replaced: AtomicBool,
    /// Its peer, as people write it.
    pub peer: String,
    /// The paired host that it is, on an encrypted link.
    pub guest: Option<Guest>,
    pub visitor: Visitor,
    pub place: Place,
    /// Its peer's, and what it took of that: for itself, or for its device.
    pub account: Arc<Account>,
    pub taken: Mutex<Option<Taken>>,
    pub credit_bytes: AtomicUsize,
    pub(crate) mailbox: Mailbox,
    pub(crate) meters: Meters,
    /// Those of the session that it is, or belongs to.
    pub links: Links,
    pub bus_id: Mutex<Option<String>>,
    /// The device that it looks on at.
    pub observes: OnceLock<String>,
    pub is_taken_back: AtomicBool,
    /// What it uses was used by the process before this one.
    pub is_successor: AtomicBool,
    /// A session's: how it ended.
    pub ending: Mutex<Option<Ending>>,
    /// What became of a device that it has handed over.
    pub(crate) handover_outcome: Mutex<Waiting>,
    /// How what is reserved for its device stands, as it is yet to hear.
    pub(crate) reserved: Mutex<Option<ReservationReport>>,
    pub(crate) has_news: AtomicBool,
    /// Its device, if that is behind a gate.
    pub(crate) behind: Mutex<Option<Behind>>,
}

/// Whose a session is, and what it shares with others of the same peer.
pub struct Belonging {
    /// The paired host, on an encrypted link.
    pub guest: Option<Guest>,
    /// As whom its peer is counted.
    pub visitor: Visitor,
    /// Its place among the connections.
    pub place: Place,
    /// Its peer's memory.
    pub account: Arc<Account>,
    /// The links of the session that it is, or belongs to.
    pub links: Links,
}

/// Whether somebody wants to know what became of a device.
#[derive(Default)]
pub(crate) enum Waiting {
    #[default]
    Yes,
    Told(HandoverOutcome),
    Gone,
}

impl Session {
    /// A session that has no device yet.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(since: Instant, link: Option<Link>, peer: String, of: Belonging) -> io::Result<Self> {
        let Belonging { guest, visitor, place, account, links } = of;
        Ok(Self {
            since,
            link: Mutex::new(link),
            is_told: AtomicBool::new(false),
            is_replaced: AtomicBool::new(false),
            peer,
            guest,
            visitor,
            place,
            account,
            taken: Mutex::default(),
            credit_bytes: AtomicUsize::new(CREDIT_BYTES_MAX),
            mailbox: Mailbox::new()?,
            meters: Meters::default(),
            links,
            bus_id: Mutex::default(),
            observes: OnceLock::new(),
            is_taken_back: AtomicBool::new(false),
            is_successor: AtomicBool::new(false),
            ending: Mutex::default(),
            handover_outcome: Mutex::default(),
            reserved: Mutex::default(),
            has_news: AtomicBool::new(false),
            behind: Mutex::default(),
        })
    }

    /// Takes what its device needs from its peer's account, where `devices` are shared.
    ///
    /// # Errors
    /// The account does not have as much.
    pub fn take_for(&self, open: &native::Open, devices: usize) -> Result<(), Exhausted> {
        let taken = match fixed_bytes(open) {
            Some(bytes) => self.account.take_fixed_for_device(bytes)?,
            None => {
                let (taken, credit_bytes) = self.account.take_for_device(devices)?;
                self.credit_bytes.store(credit_bytes, Ordering::Release);
                taken
            }
        };
        self.keep(taken);
        Ok(())
    }

    /// Keeps what was taken from its peer's account until it ends.
    pub fn keep(&self, taken: Taken) {
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

    /// It uses the device with this bus id from now on.
    pub fn hold(&self, bus_id: &str) {
        *self.bus_id.lock().unwrap_or_else(PoisonError::into_inner) = Some(bus_id.to_owned());
    }

    /// It does not use its device any more: the bus id that this had.
    pub fn take_device(&self) -> Option<String> {
        self.bus_id.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether its owner took its device back.
    pub fn is_taken_back(&self) -> bool {
        self.is_taken_back.load(Ordering::Acquire)
    }

    /// Whether the process before this one had what it uses.
    pub fn is_successor(&self) -> bool {
        self.is_successor.load(Ordering::Acquire)
    }

    /// Tells it what became of the device that it has handed over; the fate again if it is gone.
    #[must_use]
    pub fn leave_handover_outcome(&self, handover_outcome: HandoverOutcome) -> Option<HandoverOutcome> {
        {
            let mut waiting = self.handover_outcome.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*waiting, Waiting::Gone) {
                return Some(handover_outcome);
            }
            *waiting = Waiting::Told(handover_outcome);
        }
        self.mailbox.wake();
        None
    }

    /// It is told how what is reserved for its device stands.
    pub fn leave_reserved(&self, report: ReservationReport) {
        *self.reserved.lock().unwrap_or_else(PoisonError::into_inner) = Some(report);
        self.has_news.store(true, Ordering::Release);
        self.mailbox.wake();
    }

    /// Its device is behind a gate from now on.
    pub fn keep_behind(&self, behind: Behind) {
        *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = Some(behind);
    }

    /// Its device, without the gate that it may be behind.
    pub fn without_gate(&self, device: Box<dyn Device>) -> Box<dyn Device> {
        let behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(behind) = behind else { return device };
        drop(device);
        behind.take().expect("the gate is gone")
    }

    /// Its place among others; none of one that was ended and never had a device.
    pub(crate) fn counted(&self) -> Option<(Visitor, Place)> {
        (!self.is_idle() || !self.is_told.load(Ordering::Acquire)).then_some((self.visitor, self.place))
    }

    /// Whether it is a link of somebody's who is known by an address alone, and no device's.
    pub(crate) fn is_idle(&self) -> bool {
        let has_device = self.bus_id.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        let has_link = self.link.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        !self.visitor.is_known() && !has_device && has_link
    }

    /// Whether it was ended just now, because it did nothing for too long while others wait.
    pub(crate) fn gave_way(&self, now: Instant) -> bool {
        let gives_way = self.is_idle() && !self.is_told.load(Ordering::Acquire) && now >= self.since + quota::IDLE_TIME;
        if gives_way {
            self.end();
        }
        gives_way
    }

    pub(crate) fn handover_outcome(&self, next: Waiting) -> Option<HandoverOutcome> {
        match std::mem::replace(&mut *self.handover_outcome.lock().unwrap_or_else(PoisonError::into_inner), next) {
            Waiting::Told(handover_outcome) => Some(handover_outcome),
            Waiting::Yes | Waiting::Gone => None,
        }
    }

    pub(crate) fn end(&self) {
        self.is_told.store(true, Ordering::Release);
        match &*self.link.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(link) => link.shut_down(),
            None => self.mailbox.wake(),
        }
    }

    /// Whether it goes on in another process.
    pub fn is_handed_over(&self) -> bool {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) == Some(Ending::HandedOver)
    }

    /// It goes on when its link ends.
    pub(crate) fn outlive_link(&self) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl SessionHandle for Session {
    fn credit_bytes(&self) -> usize {
        self.credit_bytes.load(Ordering::Acquire)
    }

    fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    fn links(&self) -> &Links {
        &self.links
    }

    fn end(&self) -> Option<native::End> {
        self.is_told.load(Ordering::Acquire).then(|| {
            let message = match self.is_taken_back.load(Ordering::Acquire) {
                true => "taken back by its owner",
                false => "not shared with you any more",
            };
            native::End { cause: native::Cause::Refused, message: message.to_owned() }
        })
    }

    fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Acquire)
    }

    fn note_ending(&self, ending: Ending) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
    }

    fn take_handover_outcome(&self) -> Option<HandoverOutcome> {
        self.handover_outcome(Waiting::Yes)
    }

    fn leave(&self) -> Option<HandoverOutcome> {
        self.handover_outcome(Waiting::Gone)
    }

    fn take_reserved(&self) -> Option<ReservationReport> {
        if !self.has_news.swap(false, Ordering::AcqRel) {
            return None;
        }
        self.reserved.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
