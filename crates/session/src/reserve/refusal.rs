//! Why a reservation is refused, and how much is missing.

use std::fmt;

use farbus_realtime::schedule::EndpointRequestError;
use farbus_wire::native::reserve::{ReservationCriticality, ReservationReport, ReservationState, ScarceResource};

/// Why a reservation is refused or suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationDenial {
    /// The device has no such endpoint, or no endpoint that carries data.
    NoEndpoint {
        /// Its address; 0 if any endpoint would do.
        endpoint: u8,
    },
    /// The endpoint's descriptor describes packets that its bus cannot carry.
    Unfit {
        /// The endpoint's address.
        endpoint: u8,
    },
    /// The claim is invalid, whatever else is reserved.
    Invalid {
        /// The endpoint's address.
        endpoint: u8,
        /// What is invalid.
        why: EndpointRequestError,
    },
    /// The endpoint is served less often than the claim asks.
    TooOften {
        /// The endpoint's address.
        endpoint: u8,
        /// Requested period, intervals.
        wanted: u32,
        /// The endpoint's own period, intervals.
        own: u32,
    },
    /// The bus has too little time left.
    Bus {
        /// The name of the bus that the device is on.
        bus: String,
        /// Missing time of an interval, ps.
        missing_ps: u64,
    },
    /// The processors have too little time left.
    Processor {
        /// Missing on the processor with the most time left, billionths.
        missing_ppb: u64,
    },
    /// The path's rate is too low.
    Rate {
        /// Missing rate, bits per second.
        missing_bits_per_s: u64,
        /// The rate that may be reserved on the path, bits per second.
        path_bits_per_s: u64,
    },
    /// Data would arrive too late.
    Delay {
        /// By how much, ns.
        missing_ns: u64,
        /// The latency that can be promised, ns.
        bound_ns: u64,
    },
    /// Reservations are not possible for a device that several may use at once, or for this many endpoints.
    Kind,
    /// The importer may not have high criticality here.
    NotAllowed {
        /// The command that would allow it, and where to give it.
        say: String,
    },
}

impl ReservationDenial {
    /// The resource that lacks, and how much is missing.
    pub fn lack(&self) -> (ScarceResource, u64) {
        match self {
            Self::NoEndpoint { endpoint } | Self::Unfit { endpoint } => (ScarceResource::Endpoint, (*endpoint).into()),
            Self::Invalid { why: EndpointRequestError::PeriodNotPowerOfTwo { shorter, .. }, .. } => {
                (ScarceResource::Period, (*shorter).into())
            }
            Self::Invalid { why: EndpointRequestError::Period { max, .. }, .. } => {
                (ScarceResource::Period, (*max).into())
            }
            Self::Invalid { why: EndpointRequestError::BudgetOverWire { asked_bytes, max_bytes }, .. } => {
                (ScarceResource::Budget, (asked_bytes - max_bytes).into())
            }
            Self::Invalid { why: EndpointRequestError::NoBudget, .. } => (ScarceResource::Budget, 0),
            Self::Invalid { endpoint, .. } => (ScarceResource::Endpoint, (*endpoint).into()),
            Self::TooOften { own, .. } => (ScarceResource::Period, (*own).into()),
            Self::Bus { missing_ps, .. } => (ScarceResource::Bus, *missing_ps),
            Self::Processor { missing_ppb } => (ScarceResource::Processor, *missing_ppb),
            Self::Rate { missing_bits_per_s, .. } => (ScarceResource::Rate, *missing_bits_per_s),
            Self::Delay { missing_ns, .. } => (ScarceResource::Delay, *missing_ns),
            Self::Kind => (ScarceResource::Kind, 0),
            Self::NotAllowed { .. } => (ScarceResource::Permission, 0),
        }
    }

    /// The refusal as a report for the importer.
    pub fn report(&self, criticality: ReservationCriticality, state: ReservationState) -> ReservationReport {
        let (lack, missing) = self.lack();
        ReservationReport {
            state,
            lack,
            criticality,
            missing,
            bound_ns: 0,
            path_bits_per_s: 0,
            bus_ppm: 0,
            thread: None,
            budget: None,
        }
    }
}

impl fmt::Display for ReservationDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |ps: u64| format!("{}.{:03}", ps / 1_000_000, ps % 1_000_000 / 1000);
        match self {
            Self::NoEndpoint { endpoint: 0 } => write!(f, "the device has no endpoint that carries data"),
            Self::NoEndpoint { endpoint } => {
                write!(f, "the device has no endpoint {endpoint:#04x}; without endpoint= its exporter chooses one")
            }
            Self::Unfit { endpoint } => {
                write!(f, "endpoint {endpoint:#04x} says of its packets what no bus of its speed carries")
            }
            Self::Invalid { endpoint, why } => write!(f, "endpoint {endpoint:#04x}: {why}"),
            Self::TooOften { endpoint, wanted, own } => write!(
                f,
                "endpoint {endpoint:#04x} is served once in {own} intervals, not in {wanted}: ask for period={own}"
            ),
            Self::Bus { bus, missing_ps } => {
                write!(f, "{bus}: {} us of an interval are missing", us(*missing_ps))
            }
            Self::Processor { missing_ppb } => {
                write!(
                    f,
                    "the processors: {}.{:07} % of one are missing",
                    missing_ppb / 10_000_000,
                    missing_ppb % 10_000_000
                )
            }
            Self::Rate { missing_bits_per_s, path_bits_per_s } => {
                write!(f, "the path: {missing_bits_per_s} bit/s are missing of {path_bits_per_s} that may be reserved")
            }
            Self::Delay { missing_ns, bound_ns } => write!(
                f,
                "{} ms are missing: data are there after {} ms at the latest",
                thousandths(*missing_ns),
                thousandths(*bound_ns)
            ),
            Self::Kind => {
                write!(f, "nothing is reserved for what several may use at once, nor for more than 256 endpoints")
            }
            Self::NotAllowed { say } => {
                write!(f, "high criticality is not for everybody: where it is shared {say}; or ask for criticality=low")
            }
        }
    }
}

/// Milliseconds of nanoseconds, rounded up.
fn thousandths(ns: u64) -> String {
    let us = ns.div_ceil(1000);
    format!("{}.{:03}", us / 1000, us % 1000)
}

impl std::error::Error for ReservationDenial {}
