//! Which endpoint gets which interval of the bus: admission with mixed criticality, Algorithms 1 to 3 of West, Golchin
//! and Njavro (2023), in four modes ([`SchedulingMode`]).
//!
//! Asynchronous endpoints (`A`: control and bulk) get a reservation `t_A` of every interval, periodic ones of high
//! criticality (`H`) a place each or the whole set is refused, those of low criticality (`L`) a place if one is left.
//! The paper's `L` has periodic endpoints only. Here an asynchronous endpoint may be of low criticality, too: it gets
//! its part of `t_A` if every interval still has room for it, and bounds of high criticality do not get longer by it.
//! An *interval* is a microframe, at full and low speed a frame.
//!
//! A request released at the start of an interval is done after the bound that is stated. One that comes in the middle
//! of an interval waits for the next first: add one interval.

mod bins;
mod request;
mod reserve;
mod search;

use crate::bus::BusSpeed;
use crate::transfer::interval_ps;

pub use request::{
    AsynchronousBound, ENDPOINTS_MAX, EndpointCriticality, EndpointPlacement, EndpointRequest, EndpointRequestError,
    PERIOD_MAX, RejectedEndpoint, ScheduleOptions, ScheduleRefusal, SchedulingMode, WORK_MAX,
};

use bins::{IntervalBins, IntervalSlot};
use search::DivisibleEndpoint;

/// A schedule: the intervals of each endpoint, and what is left of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BusSchedule {
    options: ScheduleOptions,
    requests: Vec<EndpointRequest>,
    speed: BusSpeed,
    reservation_ps: u64,
    reservation_max_ps: u64,
    bins: IntervalBins,
    placements: Vec<EndpointPlacement>,
    asynchronous: Vec<AsynchronousBound>,
    rejected: Vec<RejectedEndpoint>,
    is_searched: bool,
}

/// The difference between a plan and the previous one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleChange {
    /// Periodic endpoints whose place is unchanged.
    pub kept: Vec<u32>,
    /// Periodic endpoints that now have a place and had none.
    pub placed: Vec<u32>,
    /// Periodic endpoints that had another place, or have another request now.
    pub moved: Vec<u32>,
    /// Endpoints of low criticality that lost their place to high criticality.
    pub suspended: Vec<u32>,
}

/// A schedule for `requests`, all of one bus instance; Algorithm 1.
pub fn plan(requests: &[EndpointRequest], options: ScheduleOptions) -> Result<BusSchedule, ScheduleRefusal> {
    let mut draft = BusScheduleDraft::of(requests, options)?;
    draft.place_high()?;
    draft.place_low();
    Ok(draft.into_plan())
}

/// Makes a schedule for `requests` that replaces `previous`: an endpoint with the same request keeps its place. Low
/// criticality gives way to high; places are moved only where high criticality has no place otherwise.
pub fn replan(
    previous: &BusSchedule,
    requests: &[EndpointRequest],
    options: ScheduleOptions,
) -> Result<(BusSchedule, ScheduleChange), ScheduleRefusal> {
    let mut draft = BusScheduleDraft::of(requests, options)?;
    let kept = |request: &EndpointRequest| {
        let is_same = previous.options.mode == options.mode && previous.requests.contains(request);
        is_same.then(|| previous.placement(request.id)).flatten()
    };
    draft.keep_high(kept);
    if draft.first_fit_high().is_err() {
        draft = BusScheduleDraft::of(requests, options)?;
        draft.place_high()?;
    }
    for request in requests.iter().filter(|request| request.criticality == EndpointCriticality::Low) {
        if let Some(placement) = kept(request) {
            draft.take(placement);
        } else if is_low_asynchronous(request) && previous.requests.contains(request) && previous.has(request.id) {
            draft.add_asynchronous(request);
        }
    }
    draft.add_low();
    let plan = draft.into_plan();
    let change = plan.change_from(previous);
    Ok((plan, change))
}

/// A plan under construction.
struct BusScheduleDraft {
    options: ScheduleOptions,
    requests: Vec<EndpointRequest>,
    high: Vec<DivisibleEndpoint>,
    low: Vec<DivisibleEndpoint>,
    empty: IntervalBins,
    bins: IntervalBins,
    reservation: reserve::AsynchronousReservation,
    slots: Vec<(u32, IntervalSlot)>,
    rejected: Vec<RejectedEndpoint>,
    is_searched: bool,
}

impl BusScheduleDraft {
    fn of(requests: &[EndpointRequest], options: ScheduleOptions) -> Result<Self, ScheduleRefusal> {
        let speed = check(requests)?;
        let reservation = reserve::reserve(requests, speed, options.mode)?;
        let items = |criticality| {
            let chosen = requests.iter().filter(|r| r.shape.is_periodic() && r.criticality == criticality);
            let mut items: Vec<_> = chosen.map(|request| DivisibleEndpoint::of(request, options.mode)).collect();
            items.sort_by_key(|item| (item.period, std::cmp::Reverse(item.slots[0].time_ps), item.id));
            items
        };
        let (high, low) = (items(EndpointCriticality::High), items(EndpointCriticality::Low));
        // The least common multiple of powers of two is the greatest.
        let count = high.iter().chain(&low).map(|item| item.period).max().unwrap_or(1);
        let bins = IntervalBins::new(count, options.mode.carrying_ps(speed) - reservation.time_ps);
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
        })
    }

    fn has(&self, id: u32) -> bool {
        self.slots.iter().any(|(placed, _)| *placed == id)
            || self.reservation.admitted.iter().any(|request| request.id == id)
    }

    /// Adds an asynchronous endpoint of low criticality, or returns what is missing of the fullest interval.
    fn add_asynchronous(&mut self, request: &EndpointRequest) -> Option<u64> {
        let speed = request.shape.speed();
        let smallest_ps = reserve::smallest_quantum_ps(&self.requests);
        let reservation = self.reservation.with(request, speed, self.options.mode, smallest_ps);
        let more_ps = reservation.time_ps - self.reservation.time_ps;
        let more = IntervalSlot { start: 0, every: 1, packets: 0, time_ps: more_ps };
        if !self.bins.take(&more) {
            return Some(more_ps - self.bins.least_free_ps(0, 1));
        }
        let fits = self.empty.take(&more);
        debug_assert!(fits, "without places there is more room");
        self.reservation = reservation;
        None
    }

    /// Gives those of high criticality their previous place, as far as it is free.
    fn keep_high(&mut self, had: impl Fn(&EndpointRequest) -> Option<EndpointPlacement>) {
        let high = self.requests.iter().filter(|request| request.criticality == EndpointCriticality::High);
        let placements: Vec<_> = high.filter_map(had).collect();
        placements.into_iter().for_each(|placement| self.take(placement));
    }

    /// Takes a place if it is free.
    fn take(&mut self, placement: EndpointPlacement) {
        let slot = IntervalSlot {
            start: placement.start,
            every: placement.every,
            packets: placement.packets,
            time_ps: placement.time_ps,
        };
        if self.bins.take(&slot) {
            self.slots.push((placement.id, slot));
        }
    }

    /// Algorithm 3 for the endpoints of `H` that have no place yet.
    fn first_fit_high(&mut self) -> Result<(), ScheduleRefusal> {
        for item in &self.high {
            if self.slots.iter().any(|(placed, _)| *placed == item.id) {
                continue;
            }
            match search::first_fit(item, &mut self.bins) {
                Some(slot) => self.slots.push((item.id, slot)),
                None => {
                    let missing_ps = search::missing_ps(item, &self.bins);
                    return Err(ScheduleRefusal::High { id: item.id, missing_ps, is_proven: false });
                }
            }
        }
        Ok(())
    }

    fn place_high(&mut self) -> Result<(), ScheduleRefusal> {
        let Err(refusal) = self.first_fit_high() else { return Ok(()) };
        let found = search::search(&self.high, &self.empty, self.options.work_max);
        match (found, refusal) {
            (search::PlacementSearchOutcome::Places(slots), _) => {
                self.adopt(slots);
                Ok(())
            }
            (search::PlacementSearchOutcome::Nothing { is_proven }, ScheduleRefusal::High { id, missing_ps, .. }) => {
                Err(ScheduleRefusal::High { id, missing_ps, is_proven })
            }
            (_, refusal) => Err(refusal),
        }
    }

    /// Step 4 of Algorithm 1, then the asynchronous endpoints of low criticality.
    fn place_low(&mut self) {
        let mut admitted: Vec<DivisibleEndpoint> = self.high.clone();
        for item in self.low.clone() {
            if let Some(slot) = search::first_fit(&item, &mut self.bins) {
                self.slots.push((item.id, slot));
                admitted.push(item);
                continue;
            }
            admitted.push(item);
            if let search::PlacementSearchOutcome::Places(slots) =
                search::search(&admitted, &self.empty, self.options.work_max)
            {
                self.adopt(slots);
            } else if let Some(item) = admitted.pop() {
                self.rejected.push(RejectedEndpoint { id: item.id, missing_ps: search::missing_ps(&item, &self.bins) });
            }
        }
        self.add_low();
    }

    /// Adds those of low criticality that are in no list yet where room is left, in the order of the requests. Places
    /// in use are not moved for them.
    fn add_low(&mut self) {
        for request in self.requests.clone().iter().filter(|request| request.criticality == EndpointCriticality::Low) {
            let id = request.id;
            if self.has(id) || self.rejected.iter().any(|rejected| rejected.id == id) {
                continue;
            }
            let missing_ps = if is_low_asynchronous(request) {
                self.add_asynchronous(request)
            } else {
                let item = DivisibleEndpoint::of(request, self.options.mode);
                let slot = search::first_fit(&item, &mut self.bins);
                self.slots.extend(slot.map(|slot| (id, slot)));
                slot.is_none().then(|| search::missing_ps(&item, &self.bins))
            };
            self.rejected.extend(missing_ps.map(|missing_ps| RejectedEndpoint { id, missing_ps }));
        }
    }

    fn adopt(&mut self, slots: Vec<(u32, IntervalSlot)>) {
        self.bins = self.empty.clone();
        for (_, slot) in &slots {
            let fits = self.bins.take(slot);
            debug_assert!(fits, "a search answers with what fits");
        }
        self.slots = slots;
        self.is_searched = true;
    }

    fn into_plan(self) -> BusSchedule {
        let mut placements: Vec<_> = self.slots.into_iter().map(|(id, slot)| slot.placement(id)).collect();
        placements.sort_by_key(|placement| placement.id);
        BusSchedule {
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

impl BusSchedule {
    /// The requests of the plan.
    pub fn requests(&self) -> &[EndpointRequest] {
        &self.requests
    }

    /// The speed of the bus.
    pub fn speed(&self) -> BusSpeed {
        self.speed
    }

    /// Bus time of each interval that is reserved for asynchronous endpoints, `t_A`, in picoseconds.
    pub fn reservation_ps(&self) -> u64 {
        self.reservation_ps
    }

    /// The largest possible reservation, Equation 7, in picoseconds.
    pub fn reservation_max_ps(&self) -> u64 {
        self.reservation_max_ps
    }

    /// Gives the asynchronous endpoints all that the fullest interval has left, as Table 2 of the paper does: their
    /// bounds get shorter, and nothing can be added to the plan.
    pub fn reserve_rest(&mut self) {
        let all = IntervalSlot { start: 0, every: 1, packets: 0, time_ps: self.bins.least_free_ps(0, 1) };
        if self.bins.take(&all) {
            self.reservation_ps += all.time_ps;
            let admitted = |request: &&EndpointRequest| !request.shape.is_periodic() && self.has(request.id);
            let admitted: Vec<_> = self.requests.iter().filter(admitted).copied().collect();
            self.asynchronous = reserve::bounds(&admitted, self.speed, self.reservation_ps, self.options.mode);
        }
    }

    /// The places of the periodic endpoints, by id.
    pub fn placements(&self) -> &[EndpointPlacement] {
        &self.placements
    }

    /// The place of a periodic endpoint.
    pub fn placement(&self, id: u32) -> Option<EndpointPlacement> {
        self.placements.iter().find(|placement| placement.id == id).copied()
    }

    /// Whether an endpoint is admitted.
    pub fn has(&self, id: u32) -> bool {
        self.placement(id).is_some() || self.asynchronous.iter().any(|bound| bound.id == id)
    }

    /// The bounds of the admitted asynchronous endpoints.
    pub fn asynchronous(&self) -> &[AsynchronousBound] {
        &self.asynchronous
    }

    /// Endpoints of low criticality that have no place.
    pub fn rejected(&self) -> &[RejectedEndpoint] {
        &self.rejected
    }

    /// Whether first-fit found no place and the search did.
    pub fn is_searched(&self) -> bool {
        self.is_searched
    }

    /// The number of intervals after which the schedule repeats.
    pub fn cycle(&self) -> u32 {
        self.bins.count()
    }

    /// What is left of an interval for periodic endpoints, in picoseconds.
    pub fn free_ps(&self, interval: u32) -> u64 {
        self.bins.free_ps(interval % self.bins.count())
    }

    /// The time until a budget of periodic endpoint `id` is transferred, from the start of its period: the period.
    pub fn periodic_latency_ns(&self, id: u32) -> Option<u64> {
        self.placement(id)?;
        let request = self.requests.iter().find(|request| request.id == id)?;
        Some(u64::from(request.period) * interval_ps(self.speed) / 1000)
    }

    fn change_from(&self, previous: &BusSchedule) -> ScheduleChange {
        let mut change = ScheduleChange::default();
        for placement in &self.placements {
            match previous.placement(placement.id) {
                None => change.placed.push(placement.id),
                Some(old) if old == *placement => change.kept.push(placement.id),
                Some(_) => change.moved.push(placement.id),
            }
        }
        let rejected = self.rejected.iter().map(|rejected| rejected.id);
        change.suspended = rejected.filter(|&id| previous.has(id)).collect();
        change
    }
}

fn is_low_asynchronous(request: &EndpointRequest) -> bool {
    !request.shape.is_periodic() && request.criticality == EndpointCriticality::Low
}

/// Checks the requests, and returns the speed of the bus.
fn check(requests: &[EndpointRequest]) -> Result<BusSpeed, ScheduleRefusal> {
    let Some(first) = requests.first().filter(|_| requests.len() <= ENDPOINTS_MAX) else {
        return Err(ScheduleRefusal::Count { wanted: requests.len() });
    };
    let (first, mut ids) = (first.shape.speed(), std::collections::BTreeSet::new());
    for request in requests {
        let id = request.id;
        request.check().map_err(|why| ScheduleRefusal::Invalid { id, why })?;
        let this = request.shape.speed();
        if this != first {
            return Err(ScheduleRefusal::Invalid { id, why: EndpointRequestError::OtherSpeed { first, this } });
        }
        if !ids.insert(id) {
            return Err(ScheduleRefusal::Invalid { id, why: EndpointRequestError::Twice });
        }
    }
    Ok(first)
}
