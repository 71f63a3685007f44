//! What is left of a plan on a controller that has never seen it: random sets of endpoints and the paper's own, planned
//! in each [`SchedulingMode`] and then run by an [`XhciController`] of each [`PlacementPolicy`]. R2.

use farbus_realtime::schedule::{BusSchedule, EndpointCriticality, EndpointRequest, ScheduleOptions, WORK_MAX, plan};
use farbus_realtime::transfer::{BusDirection, PacketShape};
use farbus_realtime::{BusSpeed, TransferKind};

pub use farbus_realtime::schedule::SchedulingMode;

use super::paper::{ROUND_TRIPS, THROUGHPUT};
use super::{round_trips, throughput};
use crate::random::SimulationRng;
use crate::xhci::{PlacementPolicy, XhciController};

/// The modes that are judged.
pub const MODES: [SchedulingMode; 4] =
    [SchedulingMode::Printed { step_ps: 0 }, SchedulingMode::Spread, SchedulingMode::Sound, SchedulingMode::Controller];

/// The controllers that judge.
pub const POLICIES: [PlacementPolicy; 3] = [PlacementPolicy::Whole, PlacementPolicy::Even, PlacementPolicy::Earliest];

/// What became of the sets that one mode admits on one kind of controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JudgedSets {
    /// Sets that the mode admits, as far as their endpoints of high criticality are concerned.
    pub admitted: u64,
    /// Of these: the controller has no bandwidth for an admitted endpoint.
    pub refused: u64,
    /// The controller takes all, and a periodic endpoint does not have its budget in its period.
    pub missed: u64,
    /// The controller takes all, and an asynchronous endpoint has its budget later than its bound.
    pub late: u64,
    /// Nothing of these three.
    pub kept: u64,
}

/// How often an asynchronous endpoint asks for its budget.
pub const REQUESTS: u32 = 3;

/// What became of one set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// The controller has no bandwidth for an endpoint.
    pub is_refused: bool,
    /// Periods in which a periodic endpoint did not have its budget.
    pub missed: u64,
    /// Budgets of asynchronous endpoints that took longer than their bound.
    pub late: u64,
}

impl JudgedSets {
    fn add(&mut self, judgement: Judgement) {
        self.admitted += 1;
        self.refused += u64::from(judgement.is_refused);
        self.missed += u64::from(judgement.missed > 0);
        self.late += u64::from(judgement.late > 0);
        self.kept += u64::from(judgement == Judgement::default());
    }
}

/// A set of endpoints as real devices have them, from nearly none to more than a bus carries.
pub fn random_set(random: &mut SimulationRng) -> Vec<EndpointRequest> {
    let speed = random.one_of(&[BusSpeed::Full, BusSpeed::High, BusSpeed::High, BusSpeed::Super, BusSpeed::Super]);
    let (isochronous_bytes, interrupt_bytes, bulk_bytes): (&[u32], &[u32], u32) = match speed {
        BusSpeed::Low | BusSpeed::Full => (&[96, 192, 512], &[8, 64], 64),
        BusSpeed::High => (&[192, 512, 1024], &[8, 64, 512], 512),
        // Bursts are of whole packets (USB 3.2 9.6.6).
        BusSpeed::Super => (&[1024], &[1024], 1024),
    };
    let mut requests = Vec::new();
    for id in 0..random.below(6) as u32 {
        let is_stream = random.once_in(2);
        let (kind, bytes) = match is_stream {
            true => (TransferKind::Isochronous, random.one_of(isochronous_bytes)),
            false => (TransferKind::Interrupt, random.one_of(interrupt_bytes)),
        };
        let (burst, mult) = match (speed, is_stream) {
            (BusSpeed::Super, true) => (random.below(12) as u32, random.below(3) as u32),
            (BusSpeed::Super, false) => (random.below(3) as u32, 0),
            (BusSpeed::High, _) => (0, random.below(3) as u32),
            _ => (0, 0),
        };
        let period = random.one_of(&[1, 1, 2, 4, 8]);
        let criticality = random.one_of(&[EndpointCriticality::High, EndpointCriticality::Low]);
        requests.extend(endpoint(id, (speed, kind), random, (bytes, burst, mult), period, criticality));
    }
    for id in 0..random.below(4) as u32 {
        let burst = if speed == BusSpeed::Super { random.below(4) as u32 } else { 0 };
        let period = 1 + random.below(40) as u32;
        let kind = (speed, TransferKind::Bulk);
        let made = endpoint(100 + id, kind, random, (bulk_bytes, burst, 0), period, EndpointCriticality::High);
        let packets = u64::from(period) * if speed == BusSpeed::Super { 30 } else { 8 };
        requests.extend(made.map(|request| EndpointRequest {
            budget_bytes: bulk_bytes * (1 + random.below(packets) as u32),
            ..request
        }));
    }
    requests
}

fn endpoint(
    id: u32,
    (speed, kind): (BusSpeed, TransferKind),
    random: &mut SimulationRng,
    (packet_bytes, burst, mult): (u32, u32, u32),
    period: u32,
    criticality: EndpointCriticality,
) -> Option<EndpointRequest> {
    let direction = random.one_of(&[BusDirection::In, BusDirection::In, BusDirection::Out]);
    let shape = PacketShape::new(speed, kind, direction, packet_bytes, burst, mult).ok()?;
    Some(EndpointRequest { id, shape, budget_bytes: shape.quantum_bytes(), period, criticality })
}

/// The sets of Tables 2 and 5.
pub fn paper_sets() -> Vec<Vec<EndpointRequest>> {
    let trips = ROUND_TRIPS.iter().map(round_trips::planned);
    let all = trips.chain(THROUGHPUT.iter().map(throughput::planned));
    all.flatten().map(|plan| plan.requests().to_vec()).collect()
}

/// Runs what `plan` admits on a controller that does not know it. The endpoints are configured in a random order. Each
/// asynchronous endpoint asks [`REQUESTS`] times for its budget, last in its round, while the others always have
/// something to send.
///
/// With `has_stranger` a bulk endpoint of the same bus that has reserved nothing always has something to send, too.
pub fn judge(plan: &BusSchedule, policy: PlacementPolicy, has_stranger: bool, random: &mut SimulationRng) -> Judgement {
    let mut admitted: Vec<_> = plan.requests().iter().filter(|request| plan.has(request.id)).collect();
    for at in (1..admitted.len()).rev() {
        admitted.swap(at, random.below(at as u64 + 1) as usize);
    }
    let cycle = admitted.iter().filter(|r| r.shape.is_periodic()).map(|r| r.period).max().unwrap_or(1);
    let mut bus = XhciController::new(plan.speed(), policy, cycle, SimulationRng::new(random.bits()));
    if admitted.iter().any(|request| bus.configure(request).is_err()) {
        return Judgement { is_refused: true, ..Judgement::default() };
    }
    if has_stranger && let Some(stranger) = stranger(plan) {
        // A controller refuses no bulk endpoint.
        let taken = bus.configure(&stranger).is_ok();
        debug_assert!(taken);
        bus.set_greedy(stranger.id, true);
    }
    let mut late = 0;
    for bound in plan.asynchronous() {
        let Some(victim) = admitted.iter().find(|request| request.id == bound.id) else { continue };
        plan.asynchronous().iter().for_each(|other| bus.set_greedy(other.id, other.id != victim.id));
        (0..random.below(u64::from(cycle))).for_each(|_| _ = bus.step());
        for _ in 0..REQUESTS {
            bus.put_last(victim.id);
            bus.submit(victim.id, victim.budget_bytes);
            let is_kept = (0..bound.intervals).any(|_| bus.step().iter().any(|done| done.id == victim.id));
            late += u64::from(!is_kept);
            // A late one is finished before the next asks; one that never ends would be seen as late three times.
            (0..if is_kept { random.below(3) } else { bound.intervals }).for_each(|_| _ = bus.step());
        }
    }
    (0..2 * cycle).for_each(|_| _ = bus.step());
    Judgement { is_refused: false, missed: bus.missed(), late }
}

/// A bulk endpoint in the direction of the first that has a bound.
fn stranger(plan: &BusSchedule) -> Option<EndpointRequest> {
    let id = plan.asynchronous().first()?.id;
    let known = plan.requests().iter().find(|request| request.id == id)?;
    Some(EndpointRequest { id: u32::MAX, ..*known })
}

/// Plans each of `sets` in `mode` and judges what is admitted.
pub fn judge_all(
    sets: &[Vec<EndpointRequest>],
    mode: SchedulingMode,
    policy: PlacementPolicy,
    has_stranger: bool,
    seed: u64,
) -> JudgedSets {
    let (mut random, mut judged) = (SimulationRng::new(seed), JudgedSets::default());
    for requests in sets {
        if let Ok(plan) = plan(requests, ScheduleOptions { mode, work_max: WORK_MAX }) {
            judged.add(judge(&plan, policy, has_stranger, &mut random));
        }
    }
    judged
}

/// `count` random sets.
pub fn random_sets(count: u64, seed: u64) -> Vec<Vec<EndpointRequest>> {
    (0..count).map(|at| random_set(&mut SimulationRng::new(seed.wrapping_add(at)))).collect()
}
