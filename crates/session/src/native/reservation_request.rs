//! What an importer wants reserved for what it opens, whatever class that is of: said before it is opened, measured,
//! and told.

use farbus_model::Instant;
use farbus_wire::native::control::{Cause, End};
use farbus_wire::native::reserve::{CAR_BYTES, Reservation, ReservationReport, Word};

use crate::Reject;
use crate::snapshot::{Reader, Writer};

/// Nothing, unless somebody wants something.
#[derive(Debug, Default)]
pub struct ReservationRequest {
    reservation: Option<Reservation>,
    report: Option<ReservationReport>,
    /// When the first half of a train was there, and its first car.
    half_at: Option<Instant>,
    first_at: Option<Instant>,
    /// Answers that were given since it was asked for.
    answers: u8,
}

/// An exporter measures a path up to three times, with two answers each; later versions may do so more often.
const ANSWERS_MAX: u8 = 32;

impl ReservationRequest {
    /// For this.
    pub fn of(reservation: Reservation) -> Self {
        Self { reservation: Some(reservation), ..Self::default() }
    }

    /// What is to be said before a device is asked for, be it for the first time or anew.
    pub fn ask(&mut self) -> Option<Word> {
        (self.report, self.half_at, self.first_at) = (None, None, None);
        self.answers = 0;
        self.reservation.clone().map(Word::Ask)
    }

    /// How what is reserved stands, by the exporter's last word.
    pub fn report(&self) -> Option<ReservationReport> {
        self.report
    }

    /// The exporter has opened what was asked for. If it has said nothing of what was to be reserved, it cannot do
    /// that.
    pub fn unheard(&self) -> Option<End> {
        let message = "its exporter is of a version that reserves nothing for it".to_owned();
        (self.reservation.is_some() && self.report.is_none()).then_some(End { cause: Cause::Reservation, message })
    }

    /// The exporter says something of it. Answers with what is to be said to that.
    ///
    /// # Errors
    /// [`Reject`]: the exporter broke the protocol.
    pub fn hear(&mut self, now: Instant, bytes: &[u8]) -> Result<Option<Word>, Reject> {
        let answer = self.heard(now, bytes)?;
        self.answers += u8::from(answer.is_some());
        if self.answers > ANSWERS_MAX || (answer.is_some() && self.reservation.is_none()) {
            return Err(Reject::new(
                "word",
                bytes[0].into(),
                "a path is measured a few times, for what is to be reserved",
            ));
        }
        Ok(answer)
    }

    fn heard(&mut self, now: Instant, bytes: &[u8]) -> Result<Option<Word>, Reject> {
        match Word::decode(bytes)? {
            Word::Report(report) => self.report = Some(report),
            Word::Echo => return Ok(Some(Word::Echo)),
            Word::Train { place, cars } if place + 1 == cars => {
                // Cars that were received together tell nothing: the longer way round is the surer.
                let rate = |from: Option<Instant>, cars: u8| {
                    let span_ns = from.map_or(0, |at| (now - at).as_nanos()).max(1000);
                    u64::try_from(u128::from(cars) * CAR_BYTES as u128 * 8 * 1_000_000_000 / span_ns)
                        .unwrap_or(u64::MAX)
                };
                let (first_at, half_at) = (self.first_at.take(), self.half_at.take());
                let bits_per_s = rate(half_at, cars - cars / 2).min(rate(first_at, cars - 1));
                return Ok(Some(Word::Measured(bits_per_s)));
            }
            Word::Train { place, cars } if place + 1 == cars / 2 => self.half_at = Some(now),
            Word::Train { place: 0, .. } => self.first_at = Some(now),
            Word::Train { .. } => {}
            Word::Ask(_) | Word::Measured(_) => {
                return Err(Reject::new("word", bytes[0].into(), "an exporter does not say that of a reservation"));
            }
        }
        Ok(None)
    }

    /// For another process.
    pub fn save(&self, to: &mut Writer) {
        let words = [self.reservation.clone().map(Word::Ask), self.report.map(Word::Report)];
        words.iter().for_each(|word| to.bytes(&word.as_ref().map(Word::encode).unwrap_or_default()));
    }

    /// As another process wrote it down.
    ///
    /// # Errors
    /// [`Reject`]: it is none.
    pub fn restore(from: &mut Reader<'_>) -> Result<Self, Reject> {
        let wrong = |_| Reject::new("reservation", 0, "it is what was asked for, and how it stands");
        let reservation = match from.bytes("reservation")? {
            [] => None,
            bytes => match Word::decode(bytes).map_err(wrong)? {
                Word::Ask(reservation) => Some(reservation),
                _ => return Err(Reject::new("reservation", bytes[0].into(), "it is one")),
            },
        };
        let report = match from.bytes("standing")? {
            [] => None,
            bytes => match Word::decode(bytes).map_err(wrong)? {
                Word::Report(report) => Some(report),
                _ => return Err(Reject::new("standing", bytes[0].into(), "it is one")),
            },
        };
        Ok(Self { reservation, report, ..Self::default() })
    }
}
