//! Requests to a bus, and their refusals.

use std::fmt;

use crate::bus::{BusSpeed, TransferKind};
use crate::transfer::{PacketShape, asynchronous_share_ps, carrying_ps, interval_ps};

/// Endpoints of one bus instance: a hub tree holds 127 devices with at most 30 endpoints each, a schedule far fewer.
pub const ENDPOINTS_MAX: usize = 256;

/// The longest period of a periodic endpoint, in intervals: bInterval 16 (USB 2.0 9.6.6).
pub const PERIOD_MAX: u32 = 1 << 15;

/// The work limit of a search, in visits of bins: well under a second.
pub const WORK_MAX: u64 = 20_000_000;

/// What happens to an endpoint when bus time is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointCriticality {
    /// It has its budget each period, or nothing is admitted.
    High,
    /// It has its budget if high criticality leaves enough, and is suspended when high criticality needs it.
    Low,
}

/// An endpoint's request: `budget_bytes` each `period` intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointRequest {
    /// The caller's number for the endpoint, unique in the set.
    pub id: u32,
    /// The shape of its packets.
    pub shape: PacketShape,
    /// Bytes each period, `B`.
    pub budget_bytes: u32,
    /// The period `T`, in bus intervals. That of a periodic endpoint is a power of two.
    pub period: u32,
    /// What happens to it when bus time is short. Asynchronous endpoints may be of either, too.
    pub criticality: EndpointCriticality,
}

/// How bus time is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SchedulingMode {
    /// The algorithms as the paper prints them: each periodic endpoint has its whole quantum in one interval of its
    /// period. Two quanta of 45.43 % do not fit 90 %, so this mode refuses the camera sets that the paper's own
    /// experiments run.
    Printed {
        /// Step of Algorithm 2 in picoseconds; 0 is the smallest quantum of the set, as the paper advises.
        step_ps: u64,
    },
    /// A quantum is divided evenly over its period. That yields the paper's figures (68.1 %, 51.1 %), but no wire
    /// carries a part of a packet.
    Spread,
    /// Whole packets: a budget is divided over its period only as far as necessary, and the asynchronous reservation
    /// accounts for packets that wait because they would cross the end of an interval (Equation 6 ignores them). What
    /// this mode admits keeps its bounds on a controller that serves its places, at the times of Equation 3.
    Sound,
    /// For a controller that chooses the interval of each packet itself, as xHCI controllers do. A periodic endpoint
    /// may have its whole quantum in any interval of its period, so it is counted in every one, as in `t_P` of
    /// Algorithm 2.
    /// Packets take the time of the wire ([`PacketShape::wire_ps`]).
    #[default]
    Controller,
}

/// Settings of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleOptions {
    /// How bus time is computed.
    pub mode: SchedulingMode,
    /// The work limit of the search that follows an unsuccessful first-fit, in visits of bins; 0 is first-fit alone.
    pub work_max: u64,
}

/// A periodic endpoint's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointPlacement {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
    /// The first interval of the cycle that carries it, counted from 0; below `every`.
    pub start: u32,
    /// The distance to the next interval: the endpoint's period, or a fraction of it where the budget is divided.
    pub every: u32,
    /// Packets each time; in [`SchedulingMode::Spread`], those of the whole period; in [`SchedulingMode::Controller`],
    /// those of its quantum, which are counted in every interval and sent in one or some of each period.
    pub packets: u32,
    /// Bus time each time, in picoseconds.
    pub time_ps: u64,
}

/// The bound of an asynchronous endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsynchronousBound {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
    /// Visits of the round robin for one budget, `k` of Equation 4.
    pub passes: u32,
    /// Intervals until its budget is transferred at the latest, `c` of Equation 6.
    pub intervals: u64,
    /// That bound in nanoseconds.
    pub latency_ns: u64,
}

/// A low-criticality endpoint without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedEndpoint {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
    /// Bus time that is missing in the fullest interval of the best place there is, in picoseconds; for an asynchronous
    /// endpoint, in the fullest of all intervals.
    pub missing_ps: u64,
}

/// Why a set of requests has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleRefusal {
    /// One request is impossible by itself.
    Invalid {
        /// The number of the endpoint whose request is impossible.
        id: u32,
        /// What is wrong with the request.
        why: EndpointRequestError,
    },
    /// No requests, or more than [`ENDPOINTS_MAX`].
    Count {
        /// How many requests the set has.
        wanted: usize,
    },
    /// The asynchronous endpoints need more of each interval than is left for them (Equation 8).
    Asynchronous {
        /// The endpoint that misses its period.
        id: u32,
        /// What `t_A` would have to be, in picoseconds.
        needed_ps: u64,
        /// What it can be, Equation 7, in picoseconds.
        available_ps: u64,
    },
    /// A periodic endpoint of high criticality has no place.
    High {
        /// The number of the endpoint without a place.
        id: u32,
        /// Bus time that is missing in the fullest interval of the best place there is, in picoseconds.
        missing_ps: u64,
        /// Whether the search tried every possibility: if not, a place may exist.
        is_proven: bool,
    },
}

/// Why a request is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointRequestError {
    /// The id is another request's.
    Twice,
    /// The speeds differ; a bus instance has one speed.
    OtherSpeed {
        /// The speed of the set's first request.
        first: BusSpeed,
        /// The speed of this request.
        this: BusSpeed,
    },
    /// The budget is zero.
    NoBudget,
    /// The period of a periodic endpoint is no power of two (USB 2.0 9.6.6, bInterval).
    PeriodNotPowerOfTwo {
        /// What was asked for.
        wanted: u32,
        /// The next shorter valid period, which serves the endpoint at least as often.
        shorter: u32,
    },
    /// The period is zero or too long.
    Period {
        /// What was asked for.
        wanted: u32,
        /// The longest period that is valid, in intervals.
        max: u32,
    },
    /// The budget is more than one quantum each period, which is all that the wire carries (Equation 2).
    BudgetOverWire {
        /// What was asked for.
        asked_bytes: u32,
        /// One quantum, in bytes: what the endpoint carries each period (Equation 2).
        max_bytes: u32,
    },
}

impl SchedulingMode {
    /// The worst-case time of a packet, in picoseconds.
    pub const fn packet_ps(self, shape: &PacketShape) -> u64 {
        match self {
            Self::Controller => shape.wire_ps(),
            Self::Printed { .. } | Self::Spread | Self::Sound => shape.packet_ps(),
        }
    }

    /// The part of an interval that carries packets, in picoseconds.
    pub const fn carrying_ps(self, speed: BusSpeed) -> u64 {
        match self {
            Self::Controller => carrying_ps(speed),
            Self::Printed { .. } | Self::Spread | Self::Sound => interval_ps(speed),
        }
    }

    /// The part of an interval that periodic endpoints never take, in picoseconds.
    pub const fn asynchronous_share_ps(self, speed: BusSpeed) -> u64 {
        self.carrying_ps(speed) - (interval_ps(speed) - asynchronous_share_ps(speed))
    }
}

impl ScheduleOptions {
    /// [`SchedulingMode::Sound`] with a full search.
    pub const SOUND: Self = Self { mode: SchedulingMode::Sound, work_max: WORK_MAX };
}

impl Default for ScheduleOptions {
    fn default() -> Self {
        Self { mode: SchedulingMode::default(), work_max: WORK_MAX }
    }
}

impl EndpointRequest {
    /// Whether the request is possible by itself.
    pub fn check(&self) -> Result<(), EndpointRequestError> {
        if self.budget_bytes == 0 {
            return Err(EndpointRequestError::NoBudget);
        }
        let max = match (self.shape.speed(), self.shape.kind()) {
            // 1 to 255 frames, of which hosts use the power of two below.
            (BusSpeed::Low | BusSpeed::Full, TransferKind::Interrupt) => 128,
            _ => PERIOD_MAX,
        };
        if self.period == 0 || self.period > max {
            return Err(EndpointRequestError::Period { wanted: self.period, max });
        }
        if !self.shape.is_periodic() {
            return Ok(());
        }
        if !self.period.is_power_of_two() {
            let shorter = 1 << self.period.ilog2();
            return Err(EndpointRequestError::PeriodNotPowerOfTwo { wanted: self.period, shorter });
        }
        let max_bytes = self.shape.quantum_bytes();
        if self.budget_bytes > max_bytes {
            return Err(EndpointRequestError::BudgetOverWire { asked_bytes: self.budget_bytes, max_bytes });
        }
        Ok(())
    }

    /// Its guaranteed payload, in bits a second.
    pub fn throughput_bits_per_s(&self) -> u64 {
        let bits = u128::from(self.budget_bytes) * 8 * 1_000_000_000_000;
        (bits / (u128::from(self.period) * u128::from(interval_ps(self.shape.speed())))) as u64
    }

    /// The share of the bus time that its packets take, in parts per million: budget over period, as in Table 5.
    pub fn utilization_ppm(&self, mode: SchedulingMode) -> u32 {
        let busy = u128::from(self.shape.packets(self.budget_bytes)) * u128::from(mode.packet_ps(&self.shape));
        let all = u128::from(self.period) * u128::from(interval_ps(self.shape.speed()));
        u32::try_from(busy * 1_000_000 / all).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for EndpointRequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice => write!(f, "the same endpoint twice"),
            Self::OtherSpeed { first, this } => {
                write!(f, "{this:?} speed on a bus of {first:?} speed: each speed has a bus instance of its own")
            }
            Self::NoBudget => write!(f, "a budget of no bytes"),
            Self::PeriodNotPowerOfTwo { wanted, shorter } => {
                write!(f, "a period of {wanted} intervals is no power of two; {shorter} serves it at least as often")
            }
            Self::Period { wanted, max } => write!(f, "a period of {wanted} intervals: there are 1 to {max}"),
            Self::BudgetOverWire { asked_bytes, max_bytes } => {
                write!(
                    f,
                    "a budget of {asked_bytes} bytes: the wire carries {max_bytes} a period for such an endpoint, "
                )?;
                write!(f, "{} too few", asked_bytes - max_bytes)
            }
        }
    }
}

impl fmt::Display for ScheduleRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { id, why } => write!(f, "endpoint {id}: {why}"),
            Self::Count { wanted } => write!(f, "{wanted} endpoints: a bus has 1 to {ENDPOINTS_MAX}"),
            Self::Asynchronous { id, needed_ps, available_ps } => {
                let missing_ps = needed_ps.saturating_sub(*available_ps);
                write!(f, "endpoint {id}: the asynchronous endpoints need {needed_ps} ps of each interval, ")?;
                write!(f, "{available_ps} ps are left: {missing_ps} ps are missing")
            }
            Self::High { id, missing_ps, is_proven } => {
                write!(f, "endpoint {id}: no place; {missing_ps} ps are missing in an interval")?;
                if *is_proven { Ok(()) } else { write!(f, " (not every arrangement was tried)") }
            }
        }
    }
}

impl std::error::Error for EndpointRequestError {}
impl std::error::Error for ScheduleRefusal {}
