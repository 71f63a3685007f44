//! Reservations for attachments that will be opened, and measuring the path to their importer.
//!
//! | the importer says | the exporter |
//! |---|---|
//! | ask | says *echo* |
//! | open | keeps the open request |
//! | echo | says *echo* again, a few times: each wakes the thread that will serve the device, which counts what that takes |
//! | the last echo | knows the round trip, and sends a train |
//! | measured | knows the rate and opens the device; if the rate is too low, it says *echo* again, up to twice |
//!
//! Other work of the two machines makes a path seem slower than it is, never faster, so the best measurement counts.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use farbus_model::budget::{ANSWERS_BYTES_MAX, ASKED_MAX};
use farbus_model::{Instant, Payload};
use farbus_wire::native::control::OpenRequest;
use farbus_wire::native::frame::FrameHeader;
use farbus_wire::native::reserve::{CAR_BYTES, ReservationMessage, ReservationTerms, TRAIN_CARS};
use farbus_wire::native::{FlowId, FrameKind, LaneArray, MessageUrgency, OutboundMessage};

use crate::ProtocolViolation;
use crate::reserve::ledger::MeasuredPath;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// How often a path that seems too slow is measured.
const TRIES_MAX: u8 = 3;
/// Round trips of the first measurement, as many as there is time for. With those of further measurements they are
/// fewer than an importer answers.
const ECHOES: u8 = 16;
const ECHOES_TIME: Duration = Duration::from_millis(20);

/// Requested reservations, by attachment.
#[derive(Default)]
pub(super) struct PendingReservations {
    reservations: BTreeMap<u16, PendingReservation>,
    /// Attachments whose path is measured next: one train at a time, because trains would disturb each other.
    trains: VecDeque<u16>,
}

pub(super) struct PendingReservation {
    pub reservation: ReservationTerms,
    /// The best measurement so far.
    pub path: MeasuredPath,
    /// How often the path was measured before.
    tries: u8,
    /// When *echo* was sent; `None` if another process sent it.
    echo_at: Option<Instant>,
    /// Echoes that were answered, and when the first was sent.
    echoes: u8,
    echoes_from: Option<Instant>,
    has_echoed: bool,
    is_measured: bool,
    open: Option<OpenRequest>,
}

impl PendingReservations {
    /// Number of requested reservations whose device is not opened yet.
    pub fn len(&self) -> usize {
        self.reservations.len()
    }

    /// Whether a path waits to be measured.
    pub fn has_trains(&self) -> bool {
        !self.trains.is_empty()
    }

    /// Sends the next train; call it when the link has taken everything sent before.
    pub fn send_train(&mut self, lanes: &mut LaneArray) {
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
        lanes: &mut LaneArray,
    ) -> Result<Option<OpenRequest>, ProtocolViolation> {
        let wrong = |rule| ProtocolViolation::new("attachment", number.into(), rule);
        let word = ReservationMessage::decode(bytes)?;
        if let ReservationMessage::Ask(reservation) = word {
            if number == 0 || is_used || self.reservations.len() >= ASKED_MAX || self.reservations.contains_key(&number)
            {
                return Err(wrong("a reservation is for a device that is opened next"));
            }
            let echo_at = Some(now);
            let path = MeasuredPath::default();
            let (has_echoed, is_measured) = (false, false);
            let (tries, echoes, echoes_from, open) = (0, 0, echo_at, None);
            let asking = PendingReservation {
                reservation,
                path,
                tries,
                echo_at,
                echoes,
                echoes_from,
                has_echoed,
                is_measured,
                open,
            };
            self.reservations.insert(number, asking);
            send_echo(number, lanes);
            return Ok(None);
        }
        let Some(asking) = self.reservations.get_mut(&number) else {
            // The attachment was closed meanwhile.
            return Ok(None);
        };
        match word {
            ReservationMessage::Echo if !asking.has_echoed => {
                let round_trip = asking.echo_at.map(|at| now - at).unwrap_or_default();
                let round_trip_ns = round_trip.as_nanos().try_into().unwrap_or(u64::MAX);
                let before = asking.path.round_trip_ns;
                asking.path.round_trip_ns = if before == 0 { round_trip_ns } else { before.min(round_trip_ns) };
                if asking.wants_echo(now) {
                    (asking.echo_at, asking.echoes) = (Some(now), asking.echoes + 1);
                    send_echo(number, lanes);
                    return Ok(None);
                }
                asking.has_echoed = true;
                self.trains.push_back(number);
                if lanes.untaken_bytes() <= ANSWERS_BYTES_MAX {
                    self.send_train(lanes);
                }
                Ok(None)
            }
            ReservationMessage::Measured(bits_per_s) if asking.has_echoed && !asking.is_measured => {
                (asking.is_measured, asking.path.bits_per_s) = (true, asking.path.bits_per_s.max(bits_per_s));
                Ok(asking.open.take())
            }
            _ => Err(wrong("an importer does not say that of a reservation now")),
        }
    }

    /// Keeps an open request while its path is being measured; returns whether it does.
    pub fn keep(&mut self, number: u16, open: &OpenRequest) -> Result<bool, ProtocolViolation> {
        match self.reservations.get_mut(&number) {
            Some(PendingReservation { open: Some(_), .. }) => {
                Err(ProtocolViolation::new("attachment", number.into(), "a device is opened once"))
            }
            Some(asking) if !asking.is_measured => {
                asking.open = Some(open.clone());
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Takes the reservation that is requested for this attachment, with the measured path.
    pub fn take(&mut self, number: u16) -> Option<PendingReservation> {
        self.reservations.remove(&number)
    }

    /// Measures a path again that seems too slow; returns `false` if it was measured often enough.
    pub fn measure_again(
        &mut self,
        now: Instant,
        number: u16,
        asking: PendingReservation,
        open: &OpenRequest,
        lanes: &mut LaneArray,
    ) -> bool {
        let tries = asking.tries + 1;
        if tries >= TRIES_MAX {
            return false;
        }
        let (echo_at, open) = (Some(now), Some(open.clone()));
        self.reservations.insert(
            number,
            PendingReservation { tries, echo_at, has_echoed: false, is_measured: false, open, ..asking },
        );
        send_echo(number, lanes);
        true
    }

    /// Drops the request because the device is not opened after all; returns whether an open request waited.
    pub fn forget(&mut self, number: u16) -> bool {
        self.trains.retain(|other| *other != number);
        self.reservations.remove(&number).is_some_and(|asking| asking.open.is_some())
    }

    pub fn save(&self, to: &mut SnapshotWriter) {
        to.count(self.reservations.len());
        for (&number, PendingReservation { reservation, path, tries, has_echoed, is_measured, open, .. }) in
            &self.reservations
        {
            to.u16(number);
            to.bytes(&ReservationMessage::Ask(reservation.clone()).encode());
            to.u64(path.round_trip_ns);
            to.u64(path.bits_per_s);
            to.u8(*tries);
            to.flag(*has_echoed);
            to.flag(*is_measured);
            to.bytes(&open.as_ref().map(OpenRequest::encode).unwrap_or_default());
        }
    }

    /// Restores it from a snapshot.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let mut all = BTreeMap::new();
        for _ in 0..from.count("reservations", 29)? {
            let number = from.u16("attachment")?;
            let ReservationMessage::Ask(reservation) = ReservationMessage::decode(from.bytes("reservation")?)? else {
                return Err(ProtocolViolation::new("reservation", number.into(), "it is one"));
            };
            let path = MeasuredPath {
                round_trip_ns: from.u64("round trip")?,
                bits_per_s: from.u64("bits a second")?,
                wake_up_ns: 0,
            };
            let tries = from.u8("tries")?;
            let (has_echoed, is_measured) = (from.flag("echoed")?, from.flag("measured")?);
            let open = from.bytes("open")?;
            let open = if open.is_empty() { None } else { Some(OpenRequest::decode(open)?) };
            let is_sound =
                number > 0 && tries < TRIES_MAX && (has_echoed || !is_measured) && !(is_measured && open.is_some());
            let (echo_at, echoes, echoes_from) = (None, 0, None);
            let asking = PendingReservation {
                reservation,
                path,
                tries,
                echo_at,
                echoes,
                echoes_from,
                has_echoed,
                is_measured,
                open,
            };
            if !is_sound || all.insert(number, asking).is_some() || all.len() > ASKED_MAX {
                return Err(ProtocolViolation::new(
                    "attachment",
                    number.into(),
                    "each is asked for once, and measured before",
                ));
            }
        }
        Ok(Self { reservations: all, trains: VecDeque::new() })
    }
}

impl PendingReservation {
    /// Whether a further round trip belongs to the first measurement.
    fn wants_echo(&self, now: Instant) -> bool {
        let has_time = self.echoes_from.is_some_and(|from| now < from + ECHOES_TIME);
        self.tries == 0 && self.echoes + 1 < ECHOES && has_time
    }
}

fn send_echo(number: u16, lanes: &mut LaneArray) {
    lanes.send(OutboundMessage::control(FrameKind::Reserve, number, 0, ReservationMessage::Echo.encode().into()));
}

/// Sends a train, as fast as the path takes it.
fn send_train(number: u16, lanes: &mut LaneArray) {
    for position in 0..TRAIN_CARS {
        let part = ReservationMessage::Train { position, cars: TRAIN_CARS }.encode().into();
        let (head, payload) =
            (FrameHeader::new(FrameKind::Reserve, number, 0), Payload::pattern(&[0; CAR_BYTES], CAR_BYTES));
        let flow = FlowId(u32::from(number) << 8);
        lanes.send(OutboundMessage { head, part, payload, urgency: MessageUrgency::Low, flow, done_at: None });
    }
}
