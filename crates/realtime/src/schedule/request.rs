//! What is asked of a bus, and how it is refused.

use std::fmt;

use crate::bus::{Speed, TransferKind};
use crate::transfer::{Shape, interval_ps};

/// Endpoints of one bus instance: a hub tree holds 127 devices with at most 30 endpoints each, a schedule far fewer.
pub const ENDPOINTS_MAX: usize = 256;

/// The longest period of a periodic endpoint, in intervals: bInterval 16 (USB 2.0 9.6.6).
pub const PERIOD_MAX: u32 = 1 << 15;

/// What looking for a better schedule may cost, in visits of bins: well under a second.
pub const WORK_MAX: u64 = 20_000_000;

/// What happens to an endpoint when there is not enough for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Criticality {
    /// It has its budget each period, or nothing is admitted.
    High,
    /// It has its budget if high criticality leaves it, and is suspended when high criticality needs it.
    Low,
}

/// What an endpoint asks for: `budget_bytes` each `period` intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whose it is; the caller's own number, once a set.
    pub id: u32,
    /// Its packets.
    pub shape: Shape,
    /// Bytes each period, `B`.
    pub budget_bytes: u32,
    /// Intervals, `T`.
    pub period: u32,
    /// Asynchronous endpoints are always [`Criticality::High`]: the paper's set `A` has no low part.
    pub criticality: Criticality,
}

/// How exactly the bus is reckoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// The algorithms as the paper prints them: each periodic endpoint has its whole quantum in one interval of its
    /// period. Two quanta of 45.43 % do not fit 90 %, so the camera sets are refused that the paper's own experiments
    /// run.
    Printed {
        /// Step of Algorithm 2 in picoseconds; 0 is the smallest quantum of the set, as the paper advises.
        step_ps: u64,
    },
    /// A quantum is divided over its period like a fluid. That yields the paper's figures (68.1 %, 51.1 %), but no wire
    /// carries a part of a packet.
    Spread,
    /// Whole packets: a budget is divided over its period only as far as it must be, and the asynchronous reservation
    /// counts that a packet which would cross the end of an interval waits (Equation 6 ignores it). What this admits is
    /// kept.
    #[default]
    Sound,
}

/// Settings of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How exactly the bus is reckoned.
    pub mode: Mode,
    /// What a search may cost where first-fit finds nothing, in visits of bins; 0 is first-fit alone.
    pub work_max: u64,
}

/// A periodic endpoint's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Whose it is.
    pub id: u32,
    /// The first interval.
    pub start: u32,
    /// From there on each so many: the endpoint's period, or a fraction of it where the budget is divided.
    pub every: u32,
    /// Packets each time; where they are divided like a fluid, those of the whole period.
    pub packets: u32,
    /// Bus time each time, in picoseconds.
    pub time_ps: u64,
}

/// What an asynchronous endpoint is promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsynchronousBound {
    /// Whose it is.
    pub id: u32,
    /// Visits of the round robin for one budget, `k` of Equation 4.
    pub passes: u32,
    /// Intervals in which its budget is through at the latest, `c` of Equation 6.
    pub intervals: u64,
    /// The same in nanoseconds.
    pub latency_ns: u64,
}

/// A low-criticality endpoint without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// Whose it is.
    pub id: u32,
    /// Bus time that is missing in the fullest interval of the best place there is, in picoseconds.
    pub missing_ps: u64,
}

/// Why a set of requests has no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// One of them cannot be, whatever else there is.
    Invalid {
        /// Which.
        id: u32,
        /// Why.
        why: Invalid,
    },
    /// No requests, or more than [`ENDPOINTS_MAX`].
    Count {
        /// How many.
        asked: usize,
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
        /// Which.
        id: u32,
        /// Bus time that is missing in the fullest interval of the best place there is, in picoseconds.
        missing_ps: u64,
        /// Whether the search went through every possibility: if not, a place may exist.
        is_proven: bool,
    },
}

/// Why a request cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// The id is another request's.
    Twice,
    /// A bus instance has one speed.
    OtherSpeed {
        /// That of the set's first request.
        first: Speed,
        /// That of this one.
        this: Speed,
    },
    /// Nothing is asked for.
    NoBudget,
    /// A period of a periodic endpoint is a power of two intervals (USB 2.0 9.6.6, bInterval).
    PeriodNotPowerOfTwo {
        /// What was asked for.
        asked: u32,
        /// The next shorter one there is, which serves the endpoint at least as often.
        shorter: u32,
    },
    /// The period is zero or longer than there is.
    Period {
        /// What was asked for.
        asked: u32,
        /// The longest.
        max: u32,
    },
    /// The wire carries one quantum a period, and the budget is more (Equation 2).
    BudgetOverWire {
        /// What was asked for.
        asked_bytes: u32,
        /// The quantum.
        max_bytes: u32,
    },
    /// Asynchronous endpoints have no low criticality.
    LowAsynchronous,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::default(), work_max: WORK_MAX }
    }
}

impl Request {
    /// Whether it can be at all.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.budget_bytes == 0 {
            return Err(Invalid::NoBudget);
        }
        let max = match (self.shape.speed(), self.shape.kind()) {
            // Frames from 1 to 255, of which hosts keep the power of two below.
            (Speed::Low | Speed::Full, TransferKind::Interrupt) => 128,
            _ => PERIOD_MAX,
        };
        if self.period == 0 || self.period > max {
            return Err(Invalid::Period { asked: self.period, max });
        }
        if !self.shape.is_periodic() {
            return if self.criticality == Criticality::Low { Err(Invalid::LowAsynchronous) } else { Ok(()) };
        }
        if !self.period.is_power_of_two() {
            let shorter = 1 << self.period.ilog2();
            return Err(Invalid::PeriodNotPowerOfTwo { asked: self.period, shorter });
        }
        let max_bytes = self.shape.quantum_bytes();
        if self.budget_bytes > max_bytes {
            return Err(Invalid::BudgetOverWire { asked_bytes: self.budget_bytes, max_bytes });
        }
        Ok(())
    }

    /// Payload that it is promised, in bits a second.
    pub fn throughput_bits_per_s(&self) -> u64 {
        let bits = u128::from(self.budget_bytes) * 8 * 1_000_000_000_000;
        (bits / (u128::from(self.period) * u128::from(interval_ps(self.shape.speed())))) as u64
    }

    /// Bus time that its packets take of the whole, in parts per million: budget over period, as Table 5 has it.
    pub fn utilization_ppm(&self) -> u32 {
        let busy = u128::from(self.shape.packets(self.budget_bytes)) * u128::from(self.shape.packet_ps());
        let all = u128::from(self.period) * u128::from(interval_ps(self.shape.speed()));
        u32::try_from(busy * 1_000_000 / all).unwrap_or(u32::MAX)
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Twice => write!(f, "the same endpoint twice"),
            Self::OtherSpeed { first, this } => {
                write!(f, "{this:?} speed on a bus of {first:?} speed: each speed has a bus instance of its own")
            }
            Self::NoBudget => write!(f, "a budget of no bytes"),
            Self::PeriodNotPowerOfTwo { asked, shorter } => {
                write!(f, "a period of {asked} intervals is no power of two; {shorter} serves it at least as often")
            }
            Self::Period { asked, max } => write!(f, "a period of {asked} intervals: there are 1 to {max}"),
            Self::BudgetOverWire { asked_bytes, max_bytes } => {
                write!(
                    f,
                    "a budget of {asked_bytes} bytes: the wire carries {max_bytes} a period for such an endpoint, "
                )?;
                write!(f, "{} too few", asked_bytes - max_bytes)
            }
            Self::LowAsynchronous => write!(f, "bulk and control endpoints are of high criticality"),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { id, why } => write!(f, "endpoint {id}: {why}"),
            Self::Count { asked } => write!(f, "{asked} endpoints: a bus has 1 to {ENDPOINTS_MAX}"),
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

impl std::error::Error for Invalid {}
impl std::error::Error for Refusal {}
