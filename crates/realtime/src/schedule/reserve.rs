//! The part of each interval that asynchronous endpoints need: Algorithm 2, Equations 5 to 8. Those of low criticality
//! are added to it one at a time, as far as there is room.

use crate::bus::BusSpeed;
use crate::transfer::{PacketShape, interval_ps};

use super::request::{AsynchronousBound, EndpointCriticality, EndpointRequest, ScheduleRefusal, SchedulingMode};

/// `t_A`, who shares it, and their bounds.
pub(super) struct AsynchronousReservation {
    pub(super) time_ps: u64,
    pub(super) max_ps: u64,
    pub(super) admitted: Vec<EndpointRequest>,
    pub(super) bounds: Vec<AsynchronousBound>,
    /// The admitted ones with the periods that low criticality must leave them: those of high criticality keep their
    /// bounds, which may be shorter than their periods.
    needing: Vec<EndpointRequest>,
}

/// The smallest reservation with which every asynchronous endpoint of high criticality has its budget each period.
pub(super) fn reserve(
    requests: &[EndpointRequest],
    speed: BusSpeed,
    mode: SchedulingMode,
) -> Result<AsynchronousReservation, ScheduleRefusal> {
    let admitted: Vec<_> = requests.iter().filter(|r| !r.shape.is_periodic() && is_high(r)).copied().collect();
    let left_ps = mode.carrying_ps(speed).saturating_sub(high_ps(requests, mode));
    let max_ps = left_ps.max(mode.asynchronous_share_ps(speed));
    let AsynchronousDemand { worst, exact_ps, time_ps } =
        AsynchronousDemand::of(&admitted, speed, mode, smallest_quantum_ps(requests));
    if let Some(id) = worst
        && exact_ps.max(time_ps) > max_ps
    {
        return Err(ScheduleRefusal::Asynchronous { id, needed_ps: exact_ps, available_ps: max_ps });
    }
    let bounds = bounds(&admitted, speed, time_ps, mode);
    let needing = admitted.iter().zip(&bounds).map(|(request, bound)| EndpointRequest {
        period: u32::try_from(bound.intervals).unwrap_or(request.period).min(request.period),
        ..*request
    });
    let needing = needing.collect();
    Ok(AsynchronousReservation { time_ps, max_ps, admitted, bounds, needing })
}

impl AsynchronousReservation {
    /// The reservation that has one more endpoint, of low criticality. No bound of high criticality gets longer by it.
    /// What several of them need does not depend on their order.
    pub(super) fn with(
        &self,
        request: &EndpointRequest,
        speed: BusSpeed,
        mode: SchedulingMode,
        smallest_quantum_ps: u64,
    ) -> Self {
        let and = |before: &[EndpointRequest]| before.iter().chain([request]).copied().collect::<Vec<_>>();
        let (admitted, needing) = (and(&self.admitted), and(&self.needing));
        let time_ps = AsynchronousDemand::of(&needing, speed, mode, smallest_quantum_ps).time_ps.max(self.time_ps);
        let bounds = bounds(&admitted, speed, time_ps, mode);
        Self { time_ps, max_ps: self.max_ps, admitted, bounds, needing }
    }
}

/// What asynchronous endpoints need of each interval.
struct AsynchronousDemand {
    /// The most demanding of them.
    worst: Option<u32>,
    exact_ps: u64,
    /// In steps, where the algorithm takes steps.
    time_ps: u64,
}

impl AsynchronousDemand {
    fn of(endpoints: &[EndpointRequest], speed: BusSpeed, mode: SchedulingMode, smallest_quantum_ps: u64) -> Self {
        let (pool, least_ps) = (AsynchronousPool::of(endpoints, mode), mode.asynchronous_share_ps(speed));
        // Equation 8 solved for the reservation: the time that the most demanding endpoint needs of each interval.
        let Some(worst) = endpoints.iter().max_by_key(|request| pool.share_ps(request)) else {
            return Self { worst: None, exact_ps: least_ps, time_ps: least_ps };
        };
        let exact_ps = pool.time_for_ps(pool.share_ps(worst), mode).max(least_ps);
        let time_ps = match mode {
            SchedulingMode::Spread | SchedulingMode::Sound | SchedulingMode::Controller => exact_ps,
            SchedulingMode::Printed { step_ps } => {
                let step_ps = if step_ps == 0 { smallest_quantum_ps } else { step_ps };
                // Lines 20 to 32 of Algorithm 2 in one division: the first step at which no endpoint misses its period.
                (exact_ps - least_ps).div_ceil(step_ps).saturating_mul(step_ps).saturating_add(least_ps)
            }
        };
        Self { worst: Some(worst.id), exact_ps, time_ps }
    }
}

/// The bounds of asynchronous `endpoints` with a reservation of `time_ps`.
pub(super) fn bounds(
    endpoints: &[EndpointRequest],
    speed: BusSpeed,
    time_ps: u64,
    mode: SchedulingMode,
) -> Vec<AsynchronousBound> {
    let (pool, interval_ps) = (AsynchronousPool::of(endpoints, mode), interval_ps(speed));
    let bound = |request: &EndpointRequest| {
        let intervals = pool.intervals(request, time_ps, mode);
        AsynchronousBound {
            id: request.id,
            passes: request.shape.passes(request.budget_bytes),
            intervals,
            latency_ns: intervals * (interval_ps / 1000),
        }
    };
    endpoints.iter().map(bound).collect()
}

/// The time of one pass over all asynchronous endpoints, and of their packets.
struct AsynchronousPool {
    pass_ps: u64,
    longest_packet_ps: u64,
    is_uniform: bool,
}

impl AsynchronousPool {
    fn of(endpoints: &[EndpointRequest], mode: SchedulingMode) -> Self {
        let packets_ps = || endpoints.iter().map(|request| mode.packet_ps(&request.shape));
        let longest_packet_ps = packets_ps().max().unwrap_or(0);
        let burst_ps = |shape: &PacketShape| u64::from(shape.burst_packets()) * mode.packet_ps(shape);
        Self {
            pass_ps: endpoints.iter().map(|request| burst_ps(&request.shape)).sum(),
            longest_packet_ps,
            is_uniform: packets_ps().all(|ps| ps == longest_packet_ps),
        }
    }

    /// Bus time until the budget is transferred if the whole bus were theirs: Equation 5.
    fn latency_ps(&self, request: &EndpointRequest) -> u128 {
        u128::from(request.shape.passes(request.budget_bytes)) * u128::from(self.pass_ps)
    }

    /// The part of each interval that must carry their packets so that the budget is transferred in its period.
    fn share_ps(&self, request: &EndpointRequest) -> u64 {
        u64::try_from(self.latency_ps(request).div_ceil(u128::from(request.period))).unwrap_or(u64::MAX)
    }

    /// The reservation with which `share_ps` of it certainly carry packets.
    fn time_for_ps(&self, share_ps: u64, mode: SchedulingMode) -> u64 {
        match mode {
            SchedulingMode::Printed { .. } | SchedulingMode::Spread => share_ps,
            SchedulingMode::Sound | SchedulingMode::Controller if self.is_uniform => {
                share_ps.div_ceil(self.longest_packet_ps).saturating_mul(self.longest_packet_ps)
            }
            // The next packet waits if it does not fit: the unused time is shorter than the longest packet.
            SchedulingMode::Sound | SchedulingMode::Controller => share_ps.saturating_add(self.longest_packet_ps - 1),
        }
    }

    /// The part of `time_ps` that certainly carries packets.
    fn carried_ps(&self, time_ps: u64, mode: SchedulingMode) -> u64 {
        match mode {
            SchedulingMode::Printed { .. } | SchedulingMode::Spread => time_ps,
            SchedulingMode::Sound | SchedulingMode::Controller if self.is_uniform => {
                time_ps - time_ps % self.longest_packet_ps
            }
            SchedulingMode::Sound | SchedulingMode::Controller => time_ps - (self.longest_packet_ps - 1),
        }
    }

    /// Intervals until the budget is transferred at the latest, `c` of Equation 6.
    fn intervals(&self, request: &EndpointRequest, time_ps: u64, mode: SchedulingMode) -> u64 {
        let carried_ps = u128::from(self.carried_ps(time_ps, mode));
        u64::try_from(self.latency_ps(request).div_ceil(carried_ps)).unwrap_or(u64::MAX)
    }
}

/// The most time of an interval that high criticality takes, `t_P` of Algorithm 2: as printed, and where a controller
/// chooses, all of its endpoints meet in one interval. Where budgets are divided it is their average, and the placement
/// checks the rest.
fn high_ps(requests: &[EndpointRequest], mode: SchedulingMode) -> u64 {
    let high = requests.iter().filter(|r| r.shape.is_periodic() && is_high(r));
    high.map(|request| match mode {
        SchedulingMode::Printed { .. } => request.shape.quantum_ps(),
        SchedulingMode::Controller => u64::from(request.shape.quantum_packets()) * request.shape.wire_ps(),
        SchedulingMode::Spread => request.shape.quantum_ps().div_ceil(u64::from(request.period)),
        SchedulingMode::Sound => {
            let packets = u64::from(request.shape.packets(request.budget_bytes));
            (packets * request.shape.packet_ps()).div_ceil(u64::from(request.period))
        }
    })
    .sum()
}

fn is_high(request: &EndpointRequest) -> bool {
    request.criticality == EndpointCriticality::High
}

pub(super) fn smallest_quantum_ps(requests: &[EndpointRequest]) -> u64 {
    requests.iter().map(|request| request.shape.quantum_ps()).min().unwrap_or(1)
}
