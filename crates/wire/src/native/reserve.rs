//! Reservations for devices: the importer's request before it opens a device, the exporter's reports, and the messages
//! that measure the path (requirement R2).
//!
//! ```text
//!   ask       importer: 0, criticality 1, claims 1, flags 1, latency ns 8, then of each claim: endpoint 1, 0 0 0, bytes 4, period 4
//!   report    exporter: 1, state 1, lack 1, criticality 1, missing 8, bound ns 8, bits a second 8, share of the bus ppm 4,
//!             and thread 1 if the flags of *ask* have bit 0, and behind it budget ns 8, period ns 8, overruns 8 if they
//!             have bit 1 and the thread has a budget
//!   echo      exporter: 2; importer: the same at once
//!   train     exporter: 3, place 1, cars 1, then zeros
//!   measured  importer: 4, bits a second 8
//! ```
//!
//! A peer may ignore frames of this kind: an exporter that does not know reservations opens the device and sends no
//! report.

use super::reader::FieldReader;
use crate::reject::ProtocolViolation;

/// Claims of one reservation: a device has 30 endpoints beside its control endpoint, and few of them matter at once.
pub const CLAIMS_MAX: usize = 16;
/// Messages in a train. The second half is measured: a traffic shaper's burst falls into the first half.
pub const TRAIN_CARS: u8 = 4;
/// Bytes of one message of a train.
pub const CAR_BYTES: usize = 32 << 10;

/// What happens to a reservation when resources are short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReservationCriticality {
    /// It is suspended when a reservation of high criticality needs its resources.
    Low,
    /// It keeps its resources.
    #[default]
    High,
}

/// Bytes of one endpoint in each period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointBandwidth {
    /// The endpoint's address; 0 lets the exporter choose the device's data endpoint.
    pub endpoint: u8,
    /// Bytes each period.
    pub bytes: u32,
    /// The period in intervals of the device's bus: microframes, or frames at low and full speed.
    pub period: u32,
}

/// A reservation request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReservationTerms {
    /// Whether the reservation gives way when resources are short.
    pub criticality: ReservationCriticality,
    /// The longest that data may take from the bus to the importer, ns; 0 for no limit.
    pub latency_ns: u64,
    /// The endpoints' claims.
    pub claims: Vec<EndpointBandwidth>,
    /// Whether the importer knows [`ReservationReport::thread`] and wants to be told. Exporters of earlier versions
    /// ignore it.
    pub wants_thread: bool,
    /// Whether the importer knows [`ReservationReport::budget`] and wants to be told.
    pub wants_budget: bool,
}

/// The state of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReservationState {
    /// The request is reserved in full.
    Admitted,
    /// Suspended now; a later report says when it is admitted again.
    Suspended,
    /// The request is refused, and is not admitted later either.
    Refused,
}

/// The resource that is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScarceResource {
    /// Nothing is short, as in a report that the reservation is admitted.
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

/// The processor time of the exporter's thread that serves a device, and whether it was enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadBudget {
    /// Processor time in each period, in nanoseconds.
    pub budget_ns: u64,
    /// The period, in nanoseconds.
    pub period_ns: u64,
    /// The periods so far in which the thread ran for longer than its budget.
    pub overruns: u64,
}

/// The exporter's report about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationReport {
    /// Whether the reservation is in force.
    pub state: ReservationState,
    /// The resource that is short.
    pub lack: ScarceResource,
    /// The criticality that the reservation was asked for with.
    pub criticality: ReservationCriticality,
    /// How much is missing, in the unit of [`ScarceResource`].
    pub missing: u64,
    /// While admitted: the longest that data take from the bus to the importer, ns.
    pub bound_ns: u64,
    /// What the reservation takes of the path, bits a second.
    pub path_bits_per_s: u64,
    /// What the reservation takes of its bus, parts per million.
    pub bus_ppm: u32,
    /// The processor time of the thread that serves the device. `None`: not said; it is said only to importers that
    /// ask for it ([`ReservationTerms::wants_thread`]).
    pub thread: Option<ThreadTime>,
    /// How much time that is. `None`: the thread has none, or the importer did not ask for it
    /// ([`ReservationTerms::wants_budget`]).
    pub budget: Option<ThreadBudget>,
}

/// A message about a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationMessage {
    /// Importer: the request for the device that is opened next. The exporter opens it once the path was measured.
    Ask(ReservationTerms),
    /// Exporter: a report.
    Report(ReservationReport),
    /// Exporter: answer this at once. Importer: the answer.
    Echo,
    /// Exporter: one of several messages, sent as fast as the path takes them.
    Train {
        /// Its number, from 0.
        position: u8,
        /// How many there are.
        cars: u8,
    },
    /// Importer: the rate at which the second half of the train arrived, bits a second.
    Measured(u64),
}

const CRITICALITIES: [ReservationCriticality; 2] = [ReservationCriticality::Low, ReservationCriticality::High];
const THREAD_TIMES: [ThreadTime; 2] = [ThreadTime::Ordinary, ThreadTime::Reserved];
/// The flag of *ask* that says [`ReservationTerms::wants_thread`].
const WANTS_THREAD: u8 = 1;
/// The flag of *ask* that says [`ReservationTerms::wants_budget`].
const WANTS_BUDGET: u8 = 2;
const STATES: [ReservationState; 3] =
    [ReservationState::Admitted, ReservationState::Suspended, ReservationState::Refused];
const LACKS: [ScarceResource; 10] = [
    ScarceResource::None,
    ScarceResource::Bus,
    ScarceResource::Processor,
    ScarceResource::Rate,
    ScarceResource::Delay,
    ScarceResource::Endpoint,
    ScarceResource::Period,
    ScarceResource::Budget,
    ScarceResource::Kind,
    ScarceResource::Permission,
];

fn code_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|known| known == one).expect("all are listed") as u8
}

fn of_code<T: Copy>(all: &[T], code: u8, field: &'static str, rule: &'static str) -> Result<T, ProtocolViolation> {
    all.get(usize::from(code)).copied().ok_or(ProtocolViolation::new(field, code.into(), rule))
}

impl ReservationMessage {
    /// Encodes the message; a train's message is followed by [`CAR_BYTES`] of zeros.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            ReservationMessage::Ask(ReservationTerms {
                criticality,
                latency_ns,
                claims,
                wants_thread,
                wants_budget,
            }) => {
                let flags = [(*wants_thread, WANTS_THREAD), (*wants_budget, WANTS_BUDGET)];
                let flags = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
                let mut bytes = vec![0, code_of(&CRITICALITIES, criticality), claims.len() as u8, flags];
                bytes.extend(latency_ns.to_le_bytes());
                for EndpointBandwidth { endpoint, bytes: budget, period } in claims {
                    bytes.extend([*endpoint, 0, 0, 0]);
                    bytes.extend(budget.to_le_bytes());
                    bytes.extend(period.to_le_bytes());
                }
                bytes
            }
            ReservationMessage::Report(report) => {
                let ReservationReport { state, lack, criticality, .. } = report;
                let mut bytes =
                    vec![1, code_of(&STATES, state), code_of(&LACKS, lack), code_of(&CRITICALITIES, criticality)];
                for number in [report.missing, report.bound_ns, report.path_bits_per_s] {
                    bytes.extend(number.to_le_bytes());
                }
                bytes.extend(report.bus_ppm.to_le_bytes());
                bytes.extend(report.thread.map(|thread| code_of(&THREAD_TIMES, &thread)));
                if let Some(ThreadBudget { budget_ns, period_ns, overruns }) =
                    report.budget.filter(|_| report.thread.is_some())
                {
                    [budget_ns, period_ns, overruns].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
                }
                bytes
            }
            ReservationMessage::Echo => vec![2],
            ReservationMessage::Train { position, cars } => vec![3, *position, *cars],
            ReservationMessage::Measured(bits_per_s) => [&[4][..], &bits_per_s.to_le_bytes()].concat(),
        }
    }

    /// Decodes the message.
    ///
    /// # Errors
    /// [`ProtocolViolation`].
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolViolation> {
        let mut reader = FieldReader::new(bytes);
        let word = match reader.u8("word")? {
            0 => ReservationMessage::Ask(reservation(&mut reader)?),
            1 => ReservationMessage::Report(report(&mut reader)?),
            2 => ReservationMessage::Echo,
            3 => {
                let (position, cars) = (reader.u8("place")?, reader.u8("cars")?);
                if position >= cars {
                    return Err(ProtocolViolation::new("place", position.into(), "a car is one of its train"));
                }
                // The rest only takes time on the link.
                return Ok(ReservationMessage::Train { position, cars });
            }
            4 => ReservationMessage::Measured(reader.u64("bits a second")?),
            other => return Err(ProtocolViolation::new("word", other.into(), "nobody says that of a reservation")),
        };
        reader.end("reservation").map(|()| word)
    }
}

fn reservation(reader: &mut FieldReader<'_>) -> Result<ReservationTerms, ProtocolViolation> {
    let criticality = of_code(&CRITICALITIES, reader.u8("criticality")?, "criticality", "it is low or high")?;
    let count = reader.u8("claims")?;
    if count == 0 || usize::from(count) > CLAIMS_MAX {
        return Err(ProtocolViolation::new("claims", count.into(), "a reservation has 1 to 16"));
    }
    let flags = reader.u8("flags")?;
    let (wants_thread, wants_budget) = (flags & WANTS_THREAD != 0, flags & WANTS_BUDGET != 0);
    let latency_ns = reader.u64("latency")?;
    let mut claims = Vec::new();
    for _ in 0..count {
        let endpoint = reader.u8("endpoint")?;
        if endpoint & 0x70 != 0 {
            return Err(ProtocolViolation::new("endpoint", endpoint.into(), "an endpoint's number is below 16"));
        }
        if claims.iter().any(|claim: &EndpointBandwidth| claim.endpoint == endpoint) {
            return Err(ProtocolViolation::new("endpoint", endpoint.into(), "each endpoint is claimed once"));
        }
        reader.take(3, "zeros")?;
        claims.push(EndpointBandwidth { endpoint, bytes: reader.u32("bytes")?, period: reader.u32("period")? });
    }
    Ok(ReservationTerms { criticality, latency_ns, claims, wants_thread, wants_budget })
}

fn report(reader: &mut FieldReader<'_>) -> Result<ReservationReport, ProtocolViolation> {
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
        budget: match reader.left() {
            0 => None,
            _ => Some(ThreadBudget {
                budget_ns: reader.u64("budget")?,
                period_ns: reader.u64("period")?,
                overruns: reader.u64("overruns")?,
            }),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_survives_the_way_and_none_without_its_end() {
        let claims = vec![
            EndpointBandwidth { endpoint: 0x83, bytes: 1024, period: 8 },
            EndpointBandwidth { endpoint: 2, bytes: 64, period: 1 },
        ];
        let (wants_thread, wants_budget) = (true, true);
        let ask = ReservationMessage::Ask(ReservationTerms {
            criticality: ReservationCriticality::Low,
            latency_ns: 5_000_000,
            claims,
            wants_thread,
            wants_budget,
        });
        let report = |state, lack| {
            ReservationMessage::Report(ReservationReport {
                state,
                lack,
                criticality: ReservationCriticality::High,
                missing: 7,
                bound_ns: 8,
                path_bits_per_s: 9,
                bus_ppm: 10,
                thread: None,
                budget: None,
            })
        };
        let reports = STATES.map(|state| report(state, ScarceResource::None)).into_iter();
        let lacking = LACKS.map(|lack| report(ReservationState::Refused, lack)).into_iter();
        for word in [ask, ReservationMessage::Echo, ReservationMessage::Measured(20_000_000)]
            .into_iter()
            .chain(reports)
            .chain(lacking)
        {
            let bytes = word.encode();
            assert_eq!(ReservationMessage::decode(&bytes), Ok(word));
            assert!((0..bytes.len()).all(|end| ReservationMessage::decode(&bytes[..end]).is_err()));
            // A report may have one byte more.
            let (more, field) = if bytes[0] == 1 { (&[2][..], "thread") } else { (&[0][..], "reservation") };
            assert_eq!(
                ReservationMessage::decode(&[&bytes[..], more].concat()).map_err(|reject| reject.field),
                Err(field)
            );
        }
        let car = ReservationMessage::Train { position: 3, cars: 4 };
        assert_eq!(ReservationMessage::decode(&[&car.encode()[..], &[0; CAR_BYTES]].concat()), Ok(car));
    }

    #[test]
    fn report_says_whether_the_thread_has_its_time_in_one_byte_more() {
        let report = |thread, budget| {
            let (state, lack, criticality) =
                (ReservationState::Admitted, ScarceResource::None, ReservationCriticality::High);
            let numbers = (0, 8, 9, 10);
            let (missing, bound_ns, path_bits_per_s, bus_ppm) = numbers;
            ReservationMessage::Report(ReservationReport {
                state,
                lack,
                criticality,
                missing,
                bound_ns,
                path_bits_per_s,
                bus_ppm,
                thread,
                budget,
            })
        };
        let without = report(None, None).encode();
        for (thread, code) in [(ThreadTime::Ordinary, 0), (ThreadTime::Reserved, 1)] {
            let bytes = report(Some(thread), None).encode();
            assert_eq!(bytes, [&without[..], &[code]].concat());
            assert_eq!(ReservationMessage::decode(&bytes), Ok(report(Some(thread), None)));
            assert!(ReservationMessage::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        let budget = Some(ThreadBudget { budget_ns: 300_000, period_ns: 1_000_000, overruns: 2 });
        let bytes = report(Some(ThreadTime::Reserved), budget).encode();
        assert_eq!(bytes.len(), without.len() + 25);
        assert_eq!(ReservationMessage::decode(&bytes), Ok(report(Some(ThreadTime::Reserved), budget)));
        for end in without.len() + 2..bytes.len() {
            assert!(ReservationMessage::decode(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn invalid_reservation_is_refused_with_its_field() {
        let claim = |endpoint| [endpoint, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0];
        let field = |count: u8, endpoints: &[u8]| {
            let claims = endpoints.iter().flat_map(|&endpoint| claim(endpoint));
            let bytes: Vec<u8> = [0, 1, count, 0, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().chain(claims).collect();
            ReservationMessage::decode(&bytes).unwrap_err().field
        };
        assert_eq!((field(0, &[]), field(17, &[])), ("claims", "claims"));
        assert_eq!((field(1, &[0x71]), field(2, &[1, 1])), ("endpoint", "endpoint"));
        assert_eq!(ReservationMessage::decode(&[9]).unwrap_err().field, "word");
        assert_eq!(ReservationMessage::decode(&[3, 4, 4]).unwrap_err().field, "place");
        assert_eq!(ReservationMessage::decode(&[1, 3]).unwrap_err().field, "state");
    }
}
