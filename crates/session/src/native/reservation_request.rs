//! What an importer asks to have reserved for a device, of any class: stated before the device is opened, measured, and
//! reported.

use farbus_model::Instant;
use farbus_wire::native::control::{AttachmentEndCause, AttachmentEndNotice};
use farbus_wire::native::reserve::{CAR_BYTES, ReservationMessage, ReservationReport, ReservationTerms};

use crate::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// A reservation request with its report; by default nothing is requested.
#[derive(Debug, Default)]
pub struct ReservationRequest {
    reservation: Option<ReservationTerms>,
    report: Option<ReservationReport>,
    /// When the last car of a train's first half arrived, and when its first car arrived.
    half_at: Option<Instant>,
    first_at: Option<Instant>,
    /// Number of measurements answered since the request was sent.
    answers: u8,
}

/// Limit of answered measurements. An exporter measures a path up to three times with two answers each; later versions
/// may do so more often.
const ANSWERS_MAX: u8 = 32;

impl ReservationRequest {
    /// Requests this reservation.
    pub fn of(reservation: ReservationTerms) -> Self {
        let reservation = ReservationTerms { wants_thread: true, wants_budget: true, ..reservation };
        Self { reservation: Some(reservation), ..Self::default() }
    }

    /// The statement to send before the device is opened, for the first time or again.
    pub fn ask(&mut self) -> Option<ReservationMessage> {
        (self.report, self.half_at, self.first_at) = (None, None, None);
        self.answers = 0;
        self.reservation.clone().map(ReservationMessage::Ask)
    }

    /// The exporter's latest reservation report.
    pub fn report(&self) -> Option<ReservationReport> {
        self.report
    }

    /// Checks, once the device was opened, that the exporter has sent a report. If it has not, it cannot reserve, and
    /// the attachment ends.
    pub fn unheard(&self) -> Option<AttachmentEndNotice> {
        let message = "its exporter is of a version that reserves nothing for it".to_owned();
        (self.reservation.is_some() && self.report.is_none())
            .then_some(AttachmentEndNotice { cause: AttachmentEndCause::Reservation, message })
    }

    /// Handles a statement of the exporter; returns the answer to send.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the exporter broke the protocol.
    pub fn hear(&mut self, now: Instant, bytes: &[u8]) -> Result<Option<ReservationMessage>, ProtocolViolation> {
        let answer = self.heard(now, bytes)?;
        self.answers += u8::from(answer.is_some());
        if self.answers > ANSWERS_MAX || (answer.is_some() && self.reservation.is_none()) {
            return Err(ProtocolViolation::new(
                "word",
                bytes[0].into(),
                "a path is measured a few times, for what is to be reserved",
            ));
        }
        Ok(answer)
    }

    fn heard(&mut self, now: Instant, bytes: &[u8]) -> Result<Option<ReservationMessage>, ProtocolViolation> {
        match ReservationMessage::decode(bytes)? {
            ReservationMessage::Report(report) => self.report = Some(report),
            ReservationMessage::Echo => return Ok(Some(ReservationMessage::Echo)),
            ReservationMessage::Train { position, cars } if position + 1 == cars => {
                // Cars that were received at once say nothing, so both the second half and the whole train are
                // measured, and the slower result counts.
                let rate = |from: Option<Instant>, cars: u8| {
                    let span_ns = from.map_or(0, |at| (now - at).as_nanos()).max(1000);
                    u64::try_from(u128::from(cars) * CAR_BYTES as u128 * 8 * 1_000_000_000 / span_ns)
                        .unwrap_or(u64::MAX)
                };
                let (first_at, half_at) = (self.first_at.take(), self.half_at.take());
                let bits_per_s = rate(half_at, cars - cars / 2).min(rate(first_at, cars - 1));
                return Ok(Some(ReservationMessage::Measured(bits_per_s)));
            }
            ReservationMessage::Train { position, cars } if position + 1 == cars / 2 => self.half_at = Some(now),
            ReservationMessage::Train { position: 0, .. } => self.first_at = Some(now),
            ReservationMessage::Train { .. } => {}
            ReservationMessage::Ask(_) | ReservationMessage::Measured(_) => {
                return Err(ProtocolViolation::new(
                    "word",
                    bytes[0].into(),
                    "an exporter does not say that of a reservation",
                ));
            }
        }
        Ok(None)
    }

    /// Writes it to a snapshot.
    pub fn save(&self, to: &mut SnapshotWriter) {
        // An earlier release that continues it knows no budget; the exporter reports the next change of it.
        let report = self.report.map(|report| ReservationReport { budget: None, ..report });
        let words = [self.reservation.clone().map(ReservationMessage::Ask), report.map(ReservationMessage::Report)];
        words.iter().for_each(|word| to.bytes(&word.as_ref().map(ReservationMessage::encode).unwrap_or_default()));
    }

    /// Restores it from a snapshot.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the snapshot is inconsistent.
    pub fn restore(from: &mut FieldReader<'_>) -> Result<Self, ProtocolViolation> {
        let wrong = |_| ProtocolViolation::new("reservation", 0, "it is what was asked for, and how it stands");
        let reservation = match from.bytes("reservation")? {
            [] => None,
            bytes => match ReservationMessage::decode(bytes).map_err(wrong)? {
                ReservationMessage::Ask(reservation) => Some(reservation),
                _ => return Err(ProtocolViolation::new("reservation", bytes[0].into(), "it is one")),
            },
        };
        let report = match from.bytes("report")? {
            [] => None,
            bytes => match ReservationMessage::decode(bytes).map_err(wrong)? {
                ReservationMessage::Report(report) => Some(report),
                _ => return Err(ProtocolViolation::new("report", bytes[0].into(), "it is one")),
            },
        };
        Ok(Self { reservation, report, ..Self::default() })
    }
}
