//! Reservations for devices: the importer's request before it opens a device, the exporter's reports, and the messages
//! that measure the path (requirement R2).
//!
//! ```text
//!   ask       importer: 0, criticality 1, claims 1, flags 1, latency ns 8, then of each claim: endpoint 1, 0 0 0, bytes 4, period 4
//!   report    exporter: 1, state 1, lack 1, criticality 1, missing 8, bound ns 8, bits a second 8, share of the bus ppm 4,
//!             and thread 1 if the flags of *ask* have bit 0
//!   echo      exporter: 2; importer: the same at once
//!   train     exporter: 3, place 1, cars 1, then zeros
//!   measured  importer: 4, bits a second 8
//! ```
//!
//! A peer may ignore frames of this kind: an exporter that does not know reservations opens the device and sends no
//! report.

use super::reader::Reader;
use crate::reject::Reject;

/// Claims of one reservation: a device has 30 endpoints beside its control endpoint, and few of them matter at once.
pub const CLAIMS_MAX: usize = 16;
/// Messages in a train. The second half is measured: a traffic shaper's burst falls into the first half.
pub const TRAIN_CARS: u8 = 4;
/// Bytes of one message of a train.
pub const CAR_BYTES: usize = 32 << 10;

/// What happens to a reservation when resources are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Criticality {
    /// It is suspended when a reservation of high criticality needs its resources.
    Low,
    /// It keeps its resources.
    #[default]
    High,
}

/// Bytes of one endpoint in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The endpoint's address; 0 lets the exporter choose the device's data endpoint.
    pub endpoint: u8,
    /// Bytes each period.
    pub bytes: u32,
    /// The period in intervals of the device's bus: microframes, or frames at low and full speed.
    pub period: u32,
}

/// A reservation request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Reservation {
    /// The criticality.
    pub criticality: Criticality,
    /// The longest that data may take from the bus to the importer, ns; 0 for no limit.
    pub latency_ns: u64,
    /// The endpoints' claims.
    pub claims: Vec<Claim>,
    /// Whether the importer knows [`ReservationReport::thread`] and wants to be told. Exporters of earlier versions
    /// ignore it.
    pub wants_thread: bool,
}

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The request is reserved in full.
    Admitted,
    /// Suspended now; a later report says when it is admitted again.
    Suspended,
    /// Never admitted.
    Refused,
}

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lack {
    /// None.
    None,
    /// Bus time; `missing` counts picoseconds of an interval.
    Bus,
    /// Processor time; `missing` counts billionths of a processor.
    Processor,
    /// The rate of the path to the importer; `missing` counts bits a second.
    Rate,
    /// The path's latency is too high; `missing` counts nanoseconds.
    Delay,
    /// The device has no such endpoint, or the endpoint carries no such data; `missing` is its address.
    Endpoint,
    /// The bus or the endpoint does not have this period; `missing` is one that would do, or 0.
    Period,
    /// The claim is more than the bus carries each period; `missing` counts bytes.
    Budget,
    /// Nothing can be reserved for this kind of device.
    Kind,
    /// The importer may not ask for high criticality.
    Permission,
}

/// Whether the exporter's thread that serves a device has the processor time of the reservation from its system, so
/// that other programs there cannot take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadTime {
    /// It has not: it runs as every thread does.
    Ordinary,
    /// It has, in each period.
    Reserved,
}

/// The exporter's report about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationReport {
    /// The state.
    pub state: State,
    /// The resource that is short.
    pub lack: Lack,
    /// The criticality.
    pub criticality: Criticality,
    /// How much is missing, in the unit of [`Lack`].
    pub missing: u64,
    /// While admitted: the longest that data take from the bus to the importer, ns.
    pub bound_ns: u64,
    /// What the reservation takes of the path, bits a second.
    pub path_bits_per_s: u64,
    /// What the reservation takes of its bus, parts per million.
    pub bus_ppm: u32,
    /// The processor time of the thread that serves the device. `None`: not said; it is said only to importers that
    /// ask for it ([`Reservation::wants_thread`]).
    pub thread: Option<ThreadTime>,
}

/// A message about a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Importer: the request for the device that is opened next. The exporter opens it once the path was measured.
    Ask(Reservation),
    /// Exporter: a report.
    Report(ReservationReport),
    /// Exporter: answer this at once. Importer: the answer.
    Echo,
    /// Exporter: one of several messages, sent as fast as the path takes them.
    Train {
        /// Its number, from 0.
        place: u8,
        /// How many there are.
        cars: u8,
    },
    /// Importer: the rate at which the second half of the train arrived, bits a second.
    Measured(u64),
}

const CRITICALITIES: [Criticality; 2] = [Criticality::Low, Criticality::High];
const THREAD_TIMES: [ThreadTime; 2] = [ThreadTime::Ordinary, ThreadTime::Reserved];
/// The flag of *ask* that says [`Reservation::wants_thread`].
const WANTS_THREAD: u8 = 1;
const STATES: [State; 3] = [State::Admitted, State::Suspended, State::Refused];
const LACKS: [Lack; 10] = [
    Lack::None,
    Lack::Bus,
    Lack::Processor,
    Lack::Rate,
    Lack::Delay,
    Lack::Endpoint,
    Lack::Period,
    Lack::Budget,
    Lack::Kind,
    Lack::Permission,
];

fn code_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|known| known == one).expect("all are listed") as u8
}

fn of_code<T: Copy>(all: &[T], code: u8, field: &'static str, rule: &'static str) -> Result<T, Reject> {
    all.get(usize::from(code)).copied().ok_or(Reject::new(field, code.into(), rule))
}

impl Word {
    /// Encodes the message; a train's message is followed by [`CAR_BYTES`] of zeros.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Word::Ask(Reservation { criticality, latency_ns, claims, wants_thread }) => {
                let flags = if *wants_thread { WANTS_THREAD } else { 0 };
                let mut bytes = vec![0, code_of(&CRITICALITIES, criticality), claims.len() as u8, flags];
                bytes.extend(latency_ns.to_le_bytes());
                for Claim { endpoint, bytes: budget, period } in claims {
                    bytes.extend([*endpoint, 0, 0, 0]);
                    bytes.extend(budget.to_le_bytes());
                    bytes.extend(period.to_le_bytes());
                }
                bytes
            }
            Word::Report(report) => {
                let ReservationReport { state, lack, criticality, .. } = report;
                let mut bytes =
                    vec![1, code_of(&STATES, state), code_of(&LACKS, lack), code_of(&CRITICALITIES, criticality)];
                for number in [report.missing, report.bound_ns, report.path_bits_per_s] {
                    bytes.extend(number.to_le_bytes());
                }
                bytes.extend(report.bus_ppm.to_le_bytes());
                bytes.extend(report.thread.map(|thread| code_of(&THREAD_TIMES, &thread)));
                bytes
            }
            Word::Echo => vec![2],
            Word::Train { place, cars } => vec![3, *place, *cars],
            Word::Measured(bits_per_s) => [&[4][..], &bits_per_s.to_le_bytes()].concat(),
        }
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Reject> {
        let mut reader = Reader::new(bytes);
        let word = match reader.u8("word")? {
            0 => Word::Ask(reservation(&mut reader)?),
            1 => Word::Report(report(&mut reader)?),
            2 => Word::Echo,
            3 => {
                let (place, cars) = (reader.u8("place")?, reader.u8("cars")?);
                if place >= cars {
                    return Err(Reject::new("place", place.into(), "a car is one of its train"));
                }
                // The rest only takes time on the link.
                return Ok(Word::Train { place, cars });
            }
            4 => Word::Measured(reader.u64("bits a second")?),
            other => return Err(Reject::new("word", other.into(), "nobody says that of a reservation")),
        };
        reader.end("reservation").map(|()| word)
    }
}

fn reservation(reader: &mut Reader<'_>) -> Result<Reservation, Reject> {
    let criticality = of_code(&CRITICALITIES, reader.u8("criticality")?, "criticality", "it is low or high")?;
    let count = reader.u8("claims")?;
    if count == 0 || usize::from(count) > CLAIMS_MAX {
        return Err(Reject::new("claims", count.into(), "a reservation has 1 to 16"));
    }
    let wants_thread = reader.u8("flags")? & WANTS_THREAD != 0;
    let latency_ns = reader.u64("latency")?;
    let mut claims = Vec::new();
    for _ in 0..count {
        let endpoint = reader.u8("endpoint")?;
        if endpoint & 0x70 != 0 {
            return Err(Reject::new("endpoint", endpoint.into(), "an endpoint's number is below 16"));
        }
        if claims.iter().any(|claim: &Claim| claim.endpoint == endpoint) {
            return Err(Reject::new("endpoint", endpoint.into(), "each endpoint is claimed once"));
        }
        reader.take(3, "zeros")?;
        claims.push(Claim { endpoint, bytes: reader.u32("bytes")?, period: reader.u32("period")? });
    }
    Ok(Reservation { criticality, latency_ns, claims, wants_thread })
}

fn report(reader: &mut Reader<'_>) -> Result<ReservationReport, Reject> {
    Ok(ReservationReport {
        state: of_code(&STATES, reader.u8("state")?, "state", "it is admitted, suspended or refused")?,
        lack: of_code(&LACKS, reader.u8("lack")?, "lack", "a reservation lacks nothing such")?,
        criticality: of_code(&CRITICALITIES, reader.u8("criticality")?, "criticality", "it is low or high")?,
        missing: reader.u64("missing")?,
        bound_ns: reader.u64("bound")?,
        path_bits_per_s: reader.u64("bits a second")?,
        bus_ppm: reader.u32("share of the bus")?,
        thread: match reader.left() {
            0 => None,
            _ => Some(of_code(&THREAD_TIMES, reader.u8("thread")?, "thread", "its time is ordinary or reserved")?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_survives_the_way_and_none_without_its_end() {
        let claims =
            vec![Claim { endpoint: 0x83, bytes: 1024, period: 8 }, Claim { endpoint: 2, bytes: 64, period: 1 }];
        let wants_thread = true;
        let ask = Word::Ask(Reservation { criticality: Criticality::Low, latency_ns: 5_000_000, claims, wants_thread });
        let report = |state, lack| {
            Word::Report(ReservationReport {
                state,
                lack,
                criticality: Criticality::High,
                missing: 7,
                bound_ns: 8,
                path_bits_per_s: 9,
                bus_ppm: 10,
                thread: None,
            })
        };
        let reports = STATES.map(|state| report(state, Lack::None)).into_iter();
        let lacking = LACKS.map(|lack| report(State::Refused, lack)).into_iter();
        for word in [ask, Word::Echo, Word::Measured(20_000_000)].into_iter().chain(reports).chain(lacking) {
            let bytes = word.encode();
            assert_eq!(Word::decode(&bytes), Ok(word));
            assert!((0..bytes.len()).all(|end| Word::decode(&bytes[..end]).is_err()));
            // A report may have one byte more.
            let (more, field) = if bytes[0] == 1 { (&[2][..], "thread") } else { (&[0][..], "reservation") };
            assert_eq!(Word::decode(&[&bytes[..], more].concat()).map_err(|reject| reject.field), Err(field));
        }
        let car = Word::Train { place: 3, cars: 4 };
        assert_eq!(Word::decode(&[&car.encode()[..], &[0; CAR_BYTES]].concat()), Ok(car));
    }

    #[test]
    fn report_says_whether_the_thread_has_its_time_in_one_byte_more() {
        let report = |thread| {
            let (state, lack, criticality) = (State::Admitted, Lack::None, Criticality::High);
            let numbers = (0, 8, 9, 10);
            let (missing, bound_ns, path_bits_per_s, bus_ppm) = numbers;
            Word::Report(ReservationReport {
                state,
                lack,
                criticality,
                missing,
                bound_ns,
                path_bits_per_s,
                bus_ppm,
                thread,
            })
        };
        let without = report(None).encode();
        for (thread, code) in [(ThreadTime::Ordinary, 0), (ThreadTime::Reserved, 1)] {
            let bytes = report(Some(thread)).encode();
            assert_eq!(bytes, [&without[..], &[code]].concat());
            assert_eq!(Word::decode(&bytes), Ok(report(Some(thread))));
            assert!(Word::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }

    #[test]
    fn invalid_reservation_is_refused_with_its_field() {
        let claim = |endpoint| [endpoint, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
        let field = |count: u8, endpoints: &[u8]| {
            let claims = endpoints.iter().flat_map(|&endpoint| claim(endpoint));
            let bytes: Vec<u8> = [0, 1, count, 0, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(claims).collect();
            Word::decode(&bytes).unwrap_err().field
        };
        assert_eq!((field(0, &[]), field(17, &[])), ("claims", "claims"));
        assert_eq!((field(1, &[0x71]), field(2, &[1, 1])), ("endpoint", "endpoint"));
        assert_eq!(Word::decode(&[9]).unwrap_err().field, "word");
        assert_eq!(Word::decode(&[3, 4, 4]).unwrap_err().field, "place");
        assert_eq!(Word::decode(&[1, 3]).unwrap_err().field, "state");
    }
}
