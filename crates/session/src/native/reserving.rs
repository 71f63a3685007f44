//! Reservations for attachments that will be opened, and measuring the path to their importer.
//!
//! | the importer says | the exporter |
//! |---|---|
//! | ask | says *echo* |
//! | open | keeps the open request |
//! | echo | knows the round trip, and sends a train |
//! | measured | knows the rate and opens the device; if the rate is too low, it says *echo* again, up to twice |
//!
//! Other work of the two machines makes a path seem slower than it is, never faster, so the best measurement counts.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::budget::{ANSWERS_BYTES_MAX, ASKED_MAX};
use farbus_model::{Instant, Payload};
use farbus_wire::native::control::Open;
use farbus_wire::native::frame::Head;
use farbus_wire::native::reserve::{CAR_BYTES, Reservation, TRAIN_CARS, Word};
use farbus_wire::native::{Flow, Kind, Lanes, Message, Urgency};

use crate::Reject;
use crate::reserve::ledger::Path;
use crate::snapshot::{Reader, Writer};

/// How often a path that seems too slow is measured.
const TRIES_MAX: u8 = 3;

/// Requested reservations, by attachment.
#[derive(Default)]
pub(super) struct Reserving {
    asked: BTreeMap<u16, Asking>,
    /// Attachments whose path is measured next: one train at a time, because trains would disturb each other.
    trains: VecDeque<u16>,
}

pub(super) struct Asking {
    pub reservation: Reservation,
    /// The best measurement so far.
    pub path: Path,
    /// How often the path was measured before.
    tries: u8,
    /// When *echo* was sent; `None` if another process sent it.
    echo_at: Option<Instant>,
    has_echoed: bool,
    is_measured: bool,
    open: Option<Open>,
}

impl Reserving {
    /// Number of requested reservations whose device is not opened yet.
    pub fn len(&self) -> usize {
        self.asked.len()
    }

    /// Whether a path waits to be measured.
    pub fn has_trains(&self) -> bool {
        !self.trains.is_empty()
    }

    /// Sends the next train; call it when the link has taken everything sent before.
    pub fn send_train(&mut self, lanes: &mut Lanes) {
        if let Some(number) = self.trains.pop_front() {
            send_train(number, lanes);
        }
    }

    /// Handles a statement about a reservation; returns the open request that can proceed now.
    pub fn hear(
        &mut self,
        now: Instant,
        number: u16,
        is_used: bool,
        bytes: &[u8],
        lanes: &mut Lanes,
    ) -> Result<Option<Open>, Reject> {
        let wrong = |rule| Reject::new("attachment", number.into(), rule);
        let word = Word::decode(bytes)?;
        if let Word::Ask(reservation) = word {
            if number == 0 || is_used || self.asked.len() >= ASKED_MAX || self.asked.contains_key(&number) {
                return Err(wrong("a reservation is for a device that is opened next"));
            }
            let echo_at = Some(now);
            let path = Path::default();
            let (has_echoed, is_measured) = (false, false);
            let asking = Asking { reservation, path, tries: 0, echo_at, has_echoed, is_measured, open: None };
            self.asked.insert(number, asking);
            lanes.send(Message::control(Kind::Reserve, number, 0, Word::Echo.encode().into()));
            return Ok(None);
        }
        let Some(asking) = self.asked.get_mut(&number) else {
            // The attachment was closed meanwhile.
            return Ok(None);
        };
        match word {
            Word::Echo if !asking.has_echoed => {
                asking.has_echoed = true;
                let round_trip = asking.echo_at.map(|at| now - at).unwrap_or_default();
                let round_trip_ns = round_trip.as_nanos().try_into().unwrap_or(u64::MAX);
                let before = asking.path.round_trip_ns;
                asking.path.round_trip_ns = if before == 0 { round_trip_ns } else { before.min(round_trip_ns) };
                self.trains.push_back(number);
                if lanes.untaken_bytes() <= ANSWERS_BYTES_MAX {
                    self.send_train(lanes);
                }
                Ok(None)
            }
            Word::Measured(bits_per_s) if asking.has_echoed && !asking.is_measured => {
                (asking.is_measured, asking.path.bits_per_s) = (true, asking.path.bits_per_s.max(bits_per_s));
                Ok(asking.open.take())
            }
            _ => Err(wrong("an importer does not say that of a reservation now")),
        }
    }

    /// Keeps an open request while its path is being measured; returns whether it does.
    pub fn keep(&mut self, number: u16, open: &Open) -> Result<bool, Reject> {
        match self.asked.get_mut(&number) {
            Some(Asking { open: Some(_), .. }) => {
                Err(Reject::new("attachment", number.into(), "a device is opened once"))
            }
            Some(asking) if !asking.is_measured => {
                asking.open = Some(open.clone());
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Takes the reservation that is requested for this attachment, with the measured path.
    pub fn take(&mut self, number: u16) -> Option<Asking> {
        self.asked.remove(&number)
    }

    /// Measures a path again that seems too slow; returns `false` if it was measured often enough.
    pub fn measure_again(&mut self, now: Instant, number: u16, asking: Asking, open: &Open, lanes: &mut Lanes) -> bool {
        let tries = asking.tries + 1;
        if tries >= TRIES_MAX {
            return false;
        }
        let (echo_at, open) = (Some(now), Some(open.clone()));
        self.asked.insert(number, Asking { tries, echo_at, has_echoed: false, is_measured: false, open, ..asking });
        lanes.send(Message::control(Kind::Reserve, number, 0, Word::Echo.encode().into()));
        true
    }

    /// Drops the request because the device is not opened after all; returns whether an open request waited.
    pub fn forget(&mut self, number: u16) -> bool {
        self.trains.retain(|other| *other != number);
        self.asked.remove(&number).is_some_and(|asking| asking.open.is_some())
    }

    pub fn save(&self, to: &mut Writer) {
        to.count(self.asked.len());
        for (&number, Asking { reservation, path, tries, has_echoed, is_measured, open, .. }) in &self.asked {
            to.u16(number);
            to.bytes(&Word::Ask(reservation.clone()).encode());
            to.u64(path.round_trip_ns);
            to.u64(path.bits_per_s);
            to.u8(*tries);
            to.flag(*has_echoed);
            to.flag(*is_measured);
            to.bytes(&open.as_ref().map(Open::encode).unwrap_or_default());
        }
    }

    /// Restores it from a snapshot.
    pub fn restore(from: &mut Reader<'_>) -> Result<Self, Reject> {
        let mut all = BTreeMap::new();
        for _ in 0..from.count("reservations", 29)? {
            let number = from.u16("attachment")?;
            let Word::Ask(reservation) = Word::decode(from.bytes("reservation")?)? else {
                return Err(Reject::new("reservation", number.into(), "it is one"));
            };
            let path = Path { round_trip_ns: from.u64("round trip")?, bits_per_s: from.u64("bits a second")? };
            let tries = from.u8("tries")?;
            let (has_echoed, is_measured) = (from.flag("echoed")?, from.flag("measured")?);
            let open = from.bytes("open")?;
            let open = if open.is_empty() { None } else { Some(Open::decode(open)?) };
            let is_sound =
                number > 0 && tries < TRIES_MAX && (has_echoed || !is_measured) && !(is_measured && open.is_some());
            let asking = Asking { reservation, path, tries, echo_at: None, has_echoed, is_measured, open };
            if !is_sound || all.insert(number, asking).is_some() || all.len() > ASKED_MAX {
                return Err(Reject::new("attachment", number.into(), "each is asked for once, and measured before"));
            }
        }
        Ok(Self { asked: all, trains: VecDeque::new() })
    }
}

/// Sends a train, as fast as the path takes it.
fn send_train(number: u16, lanes: &mut Lanes) {
    for place in 0..TRAIN_CARS {
        let part = Word::Train { place, cars: TRAIN_CARS }.encode().into();
        let (head, payload) = (Head::new(Kind::Reserve, number, 0), Payload::pattern(&[0; CAR_BYTES], CAR_BYTES));
        let flow = Flow(u32::from(number) << 8);
        lanes.send(Message { head, part, payload, urgency: Urgency::Low, flow, done_at: None });
    }
}
