//! Section 6.1.2: four bulk endpoints beside four cameras, of which one is of high criticality (Tables 5 and 6).

use farbus_realtime::schedule::{BusSchedule, EndpointCriticality, ScheduleOptions, ScheduleRefusal, plan};
use farbus_realtime::transfer::{BusDirection, PacketShape, PacketShapeError};
use farbus_realtime::{BusSpeed, TransferKind};

pub use farbus_realtime::schedule::EndpointRequest;

use super::paper::ThroughputScenario;
use crate::bus::SimulatedController;
use crate::random::SimulationRng;

/// The load of the bulk endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkLoad {
    /// Their budget each period, and no more.
    Reserved,
    /// Always something to send.
    Always,
}

/// The rate of the bulk endpoints in each second, in Mb/s, and which other endpoints were served.
#[derive(Clone, Debug, PartialEq)]
pub struct ThroughputResults {
    /// One value for each second and endpoint.
    pub mbps: Vec<f64>,
    /// Requests that took longer than their period.
    pub late: u64,
    /// Completed periods of cameras.
    pub periods: u64,
    /// Periods in which a camera did not have its budget.
    pub missed: u64,
    /// Cameras that were admitted, 1 to 4.
    pub cameras: Vec<u32>,
}

/// A camera of the paper: 33 packets each `period` microframes.
pub fn camera(id: u32, criticality: EndpointCriticality, period: u32) -> Result<EndpointRequest, PacketShapeError> {
    let shape = PacketShape::new(BusSpeed::Super, TransferKind::Isochronous, BusDirection::In, 1024, 10, 2)?;
    Ok(EndpointRequest { id, shape, budget_bytes: shape.quantum_bytes(), period, criticality })
}

/// A bulk endpoint of the paper.
pub fn bulk(
    id: u32,
    direction: BusDirection,
    budget_bytes: u32,
    period: u32,
) -> Result<EndpointRequest, PacketShapeError> {
    let shape = PacketShape::new(BusSpeed::Super, TransferKind::Bulk, direction, 1024, 0, 0)?;
    Ok(EndpointRequest { id, shape, budget_bytes, period, criticality: EndpointCriticality::High })
}

/// Ids of the four bulk endpoints.
pub const BULKS: [u32; 4] = [11, 12, 13, 14];

/// The plan of a scenario of Table 5 in mode `Sound`.
pub fn planned(scenario: &ThroughputScenario) -> Result<BusSchedule, ScheduleRefusal> {
    let low = EndpointCriticality::Low;
    let cameras = [(1, EndpointCriticality::High, 1), (2, low, 2), (3, low, 4), (4, low, 8)];
    let cameras = cameras.into_iter().filter_map(|(id, criticality, period)| camera(id, criticality, period).ok());
    let bulks = BULKS.into_iter();
    let bulks = bulks.filter_map(|id| bulk(id, BusDirection::In, scenario.budget_bytes, scenario.period).ok());
    plan(&cameras.chain(bulks).collect::<Vec<_>>(), ScheduleOptions::SOUND)
}

/// Runs a scenario for `seconds` of bus time. Packets are up to `variation_permille` shorter than by Equation 3.
pub fn run(
    scenario: &ThroughputScenario,
    load: BulkLoad,
    seconds: u64,
    variation_permille: u32,
    seed: u64,
) -> Result<ThroughputResults, ScheduleRefusal> {
    let plan = planned(scenario)?;
    let cameras = plan.placements().iter().map(|placement| placement.id).collect();
    let mut bus = SimulatedController::new(&plan, variation_permille, SimulationRng::new(seed));
    let per_second = 1_000_000_000 / bus.interval_ns();
    BULKS.into_iter().for_each(|id| bus.set_greedy(id, load == BulkLoad::Always));
    let (mut mbps, mut late, mut moved_before) = (Vec::new(), 0, [0; BULKS.len()]);
    for _ in 0..seconds {
        for interval in 0..per_second {
            if load == BulkLoad::Reserved && interval.is_multiple_of(u64::from(scenario.period)) {
                BULKS.into_iter().for_each(|id| _ = bus.submit(id, scenario.budget_bytes, 0));
            }
            let is_late = |intervals: u64| intervals > u64::from(scenario.period);
            late += bus.step().iter().filter(|done| is_late(done.intervals)).count() as u64;
        }
        for (id, before) in BULKS.into_iter().zip(&mut moved_before) {
            let moved = bus.moved_packets(id);
            mbps.push((moved - *before) as f64 * 1024.0 * 8.0 / 1e6);
            *before = moved;
        }
    }
    let periods = || bus.periods().filter(|periods| plan.placement(periods.id).is_some());
    Ok(ThroughputResults {
        mbps,
        late,
        periods: periods().map(|periods| periods.kept).sum(),
        missed: periods().map(|periods| periods.missed).sum(),
        cameras,
    })
}
