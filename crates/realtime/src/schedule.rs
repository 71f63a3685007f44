//! Which endpoint gets which interval of the bus: admission with mixed criticality, Algorithms 1 to 3 of West, Golchin and
//! Njavro (2023), in three modes ([`Mode`]).
//!
//! Asynchronous endpoints (`A`: control and bulk) get a reservation `t_A` of every interval, periodic ones of high
//! criticality (`H`) a place each or the whole set is refused, those of low criticality (`L`) a place if one is left.
//! An *interval* is a microframe, at full and low speed a frame.
//!
//! A request released at the start of an interval is done after the bound that is stated. One that comes in the middle of
//! an interval waits for the next first: add one interval.

mod bins;
mod reserve;
mod search;

use std::fmt;

use crate::bus::{Speed, TransferKind};
use crate::transfer::{Shape, asynchronous_share_ps, interval_ps};
use bins::{Bins, Slot};
use search::Item;

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
    /// The algorithms as the paper prints them: each periodic endpoint has its whole quantum in one interval of its period.
    /// Two quanta of 45.43 % do not fit 90 %, so the camera sets are refused that the paper's own experiments run.
    Printed {
        /// Step of Algorithm 2 in picoseconds; 0 is the smallest quantum of the set, as the paper advises.
        step_ps: u64,
    },
    /// A quantum is divided over its period like a fluid. That yields the paper's figures (68.1 %, 51.1 %), but no wire
    /// carries a part of a packet.
    Spread,
    /// Whole packets: a budget is divided over its period only as far as it must be, and the asynchronous reservation
    /// counts that a packet which would cross the end of an interval waits (Equation 6 ignores it). What this admits is kept.
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

/// A schedule: who has which intervals, and what is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    options: Options,
    requests: Vec<Request>,
    speed: Speed,
    reservation_ps: u64,
    reservation_max_ps: u64,
    bins: Bins,
    placements: Vec<Placement>,
    asynchronous: Vec<AsynchronousBound>,
    rejected: Vec<Rejected>,
    is_searched: bool,
}

/// What changed from one plan to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Periodic endpoints whose place is what it was.
    pub kept: Vec<u32>,
    /// Those that have a place and had none.
    pub placed: Vec<u32>,
    /// Those that had another place, or ask for something else now.
    pub moved: Vec<u32>,
    /// Those of low criticality that lost their place to high criticality.
    pub suspended: Vec<u32>,
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

/// A schedule for `requests`, all of one bus instance; Algorithm 1.
pub fn plan(requests: &[Request], options: Options) -> Result<Plan, Refusal> {
    let mut draft = Draft::of(requests, options)?;
    draft.place_high()?;
    draft.place_low();
    Ok(draft.into_plan())
}

/// A schedule for `requests` in the place of `previous`: who asks for the same as before keeps its place. Low criticality
/// gives way to high; only where high criticality has no place otherwise are places moved.
pub fn replan(previous: &Plan, requests: &[Request], options: Options) -> Result<(Plan, Change), Refusal> {
    let mut draft = Draft::of(requests, options)?;
    let kept = |request: &Request| {
        let is_same = previous.options.mode == options.mode && previous.requests.contains(request);
        is_same.then(|| previous.placement(request.id)).flatten()
    };
    draft.keep(kept, Criticality::High);
    if draft.first_fit_high().is_err() {
        draft = Draft::of(requests, options)?;
        draft.place_high()?;
    }
    draft.keep(kept, Criticality::Low);
    draft.is_running = true;
    draft.place_low();
    let plan = draft.into_plan();
    let change = plan.change_from(previous);
    Ok((plan, change))
}

/// A plan in the making.
struct Draft {
    options: Options,
    requests: Vec<Request>,
    high: Vec<Item>,
    low: Vec<Item>,
    empty: Bins,
    bins: Bins,
    reservation: reserve::Reservation,
    slots: Vec<(u32, Slot)>,
    rejected: Vec<Rejected>,
    is_searched: bool,
    /// What has a place is in use: it is not moved for low criticality.
    is_running: bool,
}

impl Draft {
    fn of(requests: &[Request], options: Options) -> Result<Self, Refusal> {
        let speed = check(requests)?;
        let reservation = reserve::reserve(requests, speed, options.mode)?;
        let items = |criticality| {
            let chosen = requests.iter().filter(|r| r.shape.is_periodic() && r.criticality == criticality);
            let mut items: Vec<_> = chosen.map(|request| Item::of(request, options.mode)).collect();
            items.sort_by_key(|item| (item.period, std::cmp::Reverse(item.slots[0].time_ps), item.id));
            items
        };
        let (high, low) = (items(Criticality::High), items(Criticality::Low));
        // The least common multiple of powers of two is the greatest.
        let count = high.iter().chain(&low).map(|item| item.period).max().unwrap_or(1);
        let bins = Bins::new(count, interval_ps(speed) - reservation.time_ps);
        Ok(Self {
            options,
            requests: requests.to_vec(),
            high,
            low,
            empty: bins.clone(),
            bins,
            reservation,
            slots: Vec::new(),
            rejected: Vec::new(),
            is_searched: false,
            is_running: false,
        })
    }

    fn has(&self, id: u32) -> bool {
        self.slots.iter().any(|(placed, _)| *placed == id)
    }

    /// Gives those of `criticality` the place they had, as far as it is free.
    fn keep(&mut self, had: impl Fn(&Request) -> Option<Placement>, criticality: Criticality) {
        for request in self.requests.iter().filter(|r| r.shape.is_periodic() && r.criticality == criticality) {
            let Some(place) = had(request) else { continue };
            let slot = Slot { start: place.start, every: place.every, packets: place.packets, time_ps: place.time_ps };
            if self.bins.take(&slot) {
                self.slots.push((request.id, slot));
            }
        }
    }

    /// Algorithm 3 for those of `H` that have no place yet.
    fn first_fit_high(&mut self) -> Result<(), Refusal> {
        for item in &self.high {
            if self.slots.iter().any(|(placed, _)| *placed == item.id) {
                continue;
            }
            match search::first_fit(item, &mut self.bins) {
                Some(slot) => self.slots.push((item.id, slot)),
                None => {
                    let missing_ps = search::missing_ps(item, &self.bins);
                    return Err(Refusal::High { id: item.id, missing_ps, is_proven: false });
                }
            }
        }
        Ok(())
    }

    fn place_high(&mut self) -> Result<(), Refusal> {
        let Err(refusal) = self.first_fit_high() else { return Ok(()) };
        let found = search::search(&self.high, &self.empty, self.options.work_max);
        match (found, refusal) {
            (search::Found::Places(slots), _) => {
                self.adopt(slots);
                Ok(())
            }
            (search::Found::Nothing { is_proven }, Refusal::High { id, missing_ps, .. }) => {
                Err(Refusal::High { id, missing_ps, is_proven })
            }
            (_, refusal) => Err(refusal),
        }
    }

    fn place_low(&mut self) {
        let mut admitted: Vec<Item> = self.high.clone();
        let (kept, new): (Vec<_>, Vec<_>) = self.low.clone().into_iter().partition(|item| self.has(item.id));
        admitted.extend(kept);
        for item in new {
            if let Some(slot) = search::first_fit(&item, &mut self.bins) {
                self.slots.push((item.id, slot));
                admitted.push(item);
                continue;
            }
            admitted.push(item);
            let work_max = if self.is_running { 0 } else { self.options.work_max };
            if let search::Found::Places(slots) = search::search(&admitted, &self.empty, work_max) {
                self.adopt(slots);
            } else if let Some(item) = admitted.pop() {
                self.rejected.push(Rejected { id: item.id, missing_ps: search::missing_ps(&item, &self.bins) });
            }
        }
    }

    fn adopt(&mut self, slots: Vec<(u32, Slot)>) {
        self.bins = self.empty.clone();
        for (_, slot) in &slots {
            let fits = self.bins.take(slot);
            debug_assert!(fits, "a search answers with what fits");
        }
        self.slots = slots;
        self.is_searched = true;
    }

    fn into_plan(self) -> Plan {
        let mut placements: Vec<_> = self.slots.into_iter().map(|(id, slot)| slot.placement(id)).collect();
        placements.sort_by_key(|place| place.id);
        Plan {
            options: self.options,
            speed: self.requests[0].shape.speed(),
            requests: self.requests,
            reservation_ps: self.reservation.time_ps,
            reservation_max_ps: self.reservation.max_ps,
            bins: self.bins,
            placements,
            asynchronous: self.reservation.bounds,
            rejected: self.rejected,
            is_searched: self.is_searched,
        }
    }
}

impl Plan {
    /// What was asked for.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// The speed of the bus.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    /// Bus time of each interval that is reserved for asynchronous endpoints, `t_A`, in picoseconds.
    pub fn reservation_ps(&self) -> u64 {
        self.reservation_ps
    }

    /// What it could have been at most, Equation 7, in picoseconds.
    pub fn reservation_max_ps(&self) -> u64 {
        self.reservation_max_ps
    }

    /// Places of the periodic endpoints, by id.
    pub fn placements(&self) -> &[Placement] {
        &self.placements
    }

    /// The place of one of them.
    pub fn placement(&self, id: u32) -> Option<Placement> {
        self.placements.iter().find(|place| place.id == id).copied()
    }

    /// What the asynchronous endpoints are promised.
    pub fn asynchronous(&self) -> &[AsynchronousBound] {
        &self.asynchronous
    }

    /// Endpoints of low criticality that have no place.
    pub fn rejected(&self) -> &[Rejected] {
        &self.rejected
    }

    /// Whether first-fit found nothing and the search did.
    pub fn is_searched(&self) -> bool {
        self.is_searched
    }

    /// After so many intervals everything repeats.
    pub fn cycle(&self) -> u32 {
        self.bins.count()
    }

    /// What is left of an interval for periodic endpoints, in picoseconds.
    pub fn free_ps(&self, interval: u32) -> u64 {
        self.bins.free_ps(interval % self.bins.count())
    }

    /// Intervals in which a budget of periodic endpoint `id` is through, from a start of its period: the period.
    pub fn periodic_latency_ns(&self, id: u32) -> Option<u64> {
        self.placement(id)?;
        let request = self.requests.iter().find(|request| request.id == id)?;
        Some(u64::from(request.period) * interval_ps(self.speed) / 1000)
    }

    fn change_from(&self, previous: &Plan) -> Change {
        let mut change = Change::default();
        for place in &self.placements {
            match previous.placement(place.id) {
                None => change.placed.push(place.id),
                Some(old) if old == *place => change.kept.push(place.id),
                Some(_) => change.moved.push(place.id),
            }
        }
        let rejected = self.rejected.iter().map(|rejected| rejected.id);
        change.suspended = rejected.filter(|&id| previous.placement(id).is_some()).collect();
        change
    }
}

/// Behind this gate nobody asks again. Answers with the speed of the bus.
fn check(requests: &[Request]) -> Result<Speed, Refusal> {
    let Some(first) = requests.first().filter(|_| requests.len() <= ENDPOINTS_MAX) else {
        return Err(Refusal::Count { asked: requests.len() });
    };
    let (first, mut ids) = (first.shape.speed(), std::collections::BTreeSet::new());
    for request in requests {
        let id = request.id;
        request.check().map_err(|why| Refusal::Invalid { id, why })?;
        let this = request.shape.speed();
        if this != first {
            return Err(Refusal::Invalid { id, why: Invalid::OtherSpeed { first, this } });
        }
        if !ids.insert(id) {
            return Err(Refusal::Invalid { id, why: Invalid::Twice });
        }
    }
    Ok(first)
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

/// The least that is kept for asynchronous transfers: what the specification says, whoever is there.
fn least_reservation_ps(speed: Speed) -> u64 {
    asynchronous_share_ps(speed)
}
