//! A simulated host controller with one bus instance: which packets each interval carries. R2.
//!
//! It serves what [`schedule::plan`](farbus_realtime::schedule::plan) admitted, as the plan says, and counts missed
//! budgets.

use std::collections::VecDeque;

use farbus_realtime::schedule::{BusSchedule, EndpointRequest};
use farbus_realtime::transfer::{asynchronous_share_ps, interval_ps};

use crate::random::SimulationRng;

/// Requests that one asynchronous endpoint may have waiting.
pub const WAITING_MAX: usize = 1024;

/// A bus instance.
#[derive(Clone, Debug)]
pub struct SimulatedController {
    interval_ps: u64,
    /// The most time of an interval that periodic endpoints may use.
    periodic_ps_max: u64,
    now: u64,
    periodic: Vec<PeriodicEndpoint>,
    rings: Vec<TransferRing>,
    turn: usize,
    in_burst: u32,
    completed: Vec<AsynchronousCompletion>,
    /// How many thousandths shorter than the worst case packets may be.
    variation_permille: u32,
    random: SimulationRng,
}

/// A completed asynchronous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsynchronousCompletion {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
    /// The tag that [`SimulatedController::submit`] was given.
    pub tag: u64,
    /// When its last packet was sent, in picoseconds from the start of the simulation.
    pub at_ps: u64,
    /// Intervals that it took, from the first that could have carried it to the last.
    pub intervals: u64,
}

/// The periods of a periodic endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodCounts {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
    /// Completed periods, the missed ones included.
    pub kept: u64,
    /// Completed periods in which the budget was not transferred in full.
    pub missed: u64,
}

/// A periodic endpoint, which has a budget of packets ready at the start of each period.
#[derive(Clone, Copy, Debug)]
struct PeriodicEndpoint {
    id: u32,
    packet_ps: u64,
    period: u64,
    budget_packets: u32,
    left_packets: u32,
    placement: Option<PeriodicPlacement>,
    periods: PeriodCounts,
}

#[derive(Clone, Copy, Debug)]
struct PeriodicPlacement {
    start: u64,
    every: u64,
    packets: u32,
}

/// The transfer ring of an asynchronous endpoint.
#[derive(Clone, Debug)]
struct TransferRing {
    id: u32,
    packet_ps: u64,
    packet_bytes: u32,
    burst_packets: u32,
    moved_packets: u64,
    is_greedy: bool,
    waiting: VecDeque<QueuedTransfer>,
}

#[derive(Clone, Copy, Debug)]
struct QueuedTransfer {
    left_packets: u32,
    tag: u64,
    since: u64,
}

impl SimulatedController {
    /// Makes a bus that serves what `plan` admitted. Its packets are up to `variation_permille` thousandths shorter
    /// than the worst case, at random.
    pub fn new(plan: &BusSchedule, variation_permille: u32, random: SimulationRng) -> Self {
        let interval_ps = interval_ps(plan.speed());
        let periodic_ps_max = interval_ps - asynchronous_share_ps(plan.speed());
        let mut controller = Self {
            interval_ps,
            periodic_ps_max,
            now: 0,
            periodic: Vec::new(),
            rings: Vec::new(),
            turn: 0,
            in_burst: 0,
            completed: Vec::new(),
            variation_permille: variation_permille.min(1000),
            random,
        };
        controller.adopt(plan);
        controller
    }

    /// Serves `plan` from now on. Endpoints that it has already keep their pending packets; an endpoint without a place
    /// is not served. Periods begin at multiples of their length, so a plan is exchanged at a multiple of its cycle.
    pub fn adopt(&mut self, plan: &BusSchedule) {
        let (old_periodic, mut old_rings) = (std::mem::take(&mut self.periodic), std::mem::take(&mut self.rings));
        for request in plan.requests() {
            if request.shape.is_periodic() {
                let old = old_periodic.iter().find(|old| old.id == request.id);
                self.periodic.push(PeriodicEndpoint::new(request, plan, old));
            } else if plan.asynchronous().iter().all(|bound| bound.id != request.id) {
                // Of low criticality, and not admitted: the host holds its requests back.
            } else if let Some(at) = old_rings.iter().position(|old| old.id == request.id) {
                self.rings.push(old_rings.swap_remove(at));
            } else {
                self.rings.push(TransferRing::new(request));
            }
        }
        // Rate-monotonic among those that meet in an interval; the order does not matter if all fit.
        self.periodic.sort_by_key(|endpoint| endpoint.period);
        (self.turn, self.in_burst) = (0, 0);
    }

    /// How many intervals were simulated or skipped since the start.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The length of an interval in nanoseconds.
    pub fn interval_ns(&self) -> u64 {
        self.interval_ps / 1000
    }

    /// Submits a request of asynchronous endpoint `id`. Returns false if there is no such endpoint, or too many
    /// requests wait there.
    pub fn submit(&mut self, id: u32, bytes: u32, tag: u64) -> bool {
        let since = self.now;
        let Some(ring) = self.rings.iter_mut().find(|ring| ring.id == id) else { return false };
        if bytes == 0 || ring.waiting.len() >= WAITING_MAX {
            return false;
        }
        let left_packets = bytes.div_ceil(ring.packet_bytes);
        ring.waiting.push_back(QueuedTransfer { left_packets, tag, since });
        true
    }

    /// Sets whether asynchronous endpoint `id` always has something to send, or only its submitted requests.
    pub fn set_greedy(&mut self, id: u32, is_greedy: bool) {
        for ring in self.rings.iter_mut().filter(|ring| ring.id == id) {
            ring.is_greedy = is_greedy;
        }
    }

    /// Makes asynchronous endpoint `id` the last of the round: the worst place.
    pub fn put_last(&mut self, id: u32) {
        if let Some(at) = self.rings.iter().position(|ring| ring.id == id) {
            (self.turn, self.in_burst) = ((at + 1) % self.rings.len(), 0);
        }
    }

    /// Whether no asynchronous endpoint has anything to send.
    pub fn is_idle(&self) -> bool {
        self.rings.iter().all(|ring| !ring.has_packets())
    }

    /// The periods of every periodic endpoint so far.
    pub fn periods(&self) -> impl Iterator<Item = PeriodCounts> {
        self.periodic.iter().map(|endpoint| endpoint.periods)
    }

    /// Packets that asynchronous endpoint `id` has moved.
    pub fn moved_packets(&self, id: u32) -> u64 {
        self.rings.iter().find(|ring| ring.id == id).map_or(0, |ring| ring.moved_packets)
    }

    /// Skips an interval without asynchronous requests, whose periodic traffic does not matter.
    pub fn skip(&mut self) {
        debug_assert!(self.is_idle(), "it has something to do");
        self.now += 1;
    }

    /// Simulates one interval. Returns the requests that it completed.
    pub fn step(&mut self) -> &[AsynchronousCompletion] {
        self.completed.clear();
        let used_ps = self.serve_periodic();
        self.serve_asynchronous(used_ps);
        self.now += 1;
        &self.completed
    }

    fn serve_periodic(&mut self) -> u64 {
        let mut used_ps = 0;
        for endpoint in &mut self.periodic {
            endpoint.begin_period(self.now);
            let Some(placement) = endpoint.placement.filter(|placement| self.now % placement.every == placement.start)
            else {
                continue;
            };
            for _ in 0..placement.packets.min(endpoint.left_packets) {
                if used_ps + endpoint.packet_ps > self.periodic_ps_max.min(self.interval_ps) {
                    return used_ps;
                }
                used_ps += packet_ps(endpoint.packet_ps, self.variation_permille, &mut self.random);
                endpoint.left_packets -= 1;
            }
        }
        used_ps
    }

    fn serve_asynchronous(&mut self, mut used_ps: u64) {
        let mut quiet = 0;
        while quiet < self.rings.len() {
            let ring = &mut self.rings[self.turn];
            if !ring.has_packets() {
                quiet += 1;
                self.pass_on();
                continue;
            }
            // The controller does not know in advance how long the packet will be.
            if used_ps + ring.packet_ps > self.interval_ps {
                return;
            }
            quiet = 0;
            used_ps += packet_ps(ring.packet_ps, self.variation_permille, &mut self.random);
            ring.moved_packets += 1;
            self.in_burst += 1;
            if let Some(first) = ring.waiting.front_mut() {
                first.left_packets -= 1;
                if first.left_packets == 0 {
                    self.completed.push(AsynchronousCompletion {
                        id: ring.id,
                        tag: first.tag,
                        at_ps: self.now * self.interval_ps + used_ps,
                        intervals: self.now - first.since + 1,
                    });
                    ring.waiting.pop_front();
                }
            }
            if self.in_burst == ring.burst_packets {
                self.pass_on();
            }
        }
    }

    fn pass_on(&mut self) {
        self.turn = if self.turn + 1 == self.rings.len() { 0 } else { self.turn + 1 };
        self.in_burst = 0;
    }
}

fn packet_ps(worst_ps: u64, variation_permille: u32, random: &mut SimulationRng) -> u64 {
    if variation_permille == 0 {
        return worst_ps;
    }
    worst_ps - worst_ps * random.below(u64::from(variation_permille) + 1) / 1000
}

impl PeriodicEndpoint {
    fn new(request: &EndpointRequest, plan: &BusSchedule, old: Option<&Self>) -> Self {
        let id = request.id;
        let placement = plan.placement(id).map(|placement| PeriodicPlacement {
            start: u64::from(placement.start),
            every: u64::from(placement.every),
            packets: placement.packets,
        });
        Self {
            id,
            packet_ps: request.shape.packet_ps(),
            period: u64::from(request.period),
            budget_packets: request.shape.packets(request.budget_bytes),
            left_packets: old.map_or(0, |old| old.left_packets),
            placement,
            periods: old.map_or(PeriodCounts { id, kept: 0, missed: 0 }, |old| old.periods),
        }
    }

    /// An endpoint without a place has no period.
    fn begin_period(&mut self, now: u64) {
        if now.is_multiple_of(self.period) && self.placement.is_some() {
            // The first period of a place has no earlier one to be checked.
            if now > 0 {
                self.periods.kept += 1;
                self.periods.missed += u64::from(self.left_packets > 0);
            }
            self.left_packets = self.budget_packets;
        }
        if self.placement.is_none() {
            self.left_packets = 0;
        }
    }
}

impl TransferRing {
    fn new(request: &EndpointRequest) -> Self {
        Self {
            id: request.id,
            packet_ps: request.shape.packet_ps(),
            packet_bytes: request.shape.packet_bytes(),
            burst_packets: request.shape.burst_packets(),
            moved_packets: 0,
            is_greedy: false,
            waiting: VecDeque::new(),
        }
    }

    fn has_packets(&self) -> bool {
        self.is_greedy || !self.waiting.is_empty()
    }
}
