//! Section 6.1.1: 1 KiB messages go from one board through a router to another and back, beside two cameras on the
//! router's bus (Tables 2 to 4, Figure 10).
//!
//! What the paper leaves open is chosen so: a message is a packet, and those of one budget are one transfer. Both
//! boards send, a budget every other period each, within a microframe of each other: so their transfers meet on the
//! bus. Every thread looks once each 250 us for what has come, hands all of it on and waits for its next budget; all it
//! does is work of `LOOK_NS`; when it begins to do so a new boot draws. Beside them runs a task with what Equation 1
//! leaves, so that they are preempted.

use std::collections::VecDeque;

use farbus_realtime::pipe::{self, PathSegment};
use farbus_realtime::schedule::{BusSchedule, EndpointCriticality, ScheduleOptions, ScheduleRefusal, plan};
use farbus_realtime::transfer::BusDirection;
use farbus_realtime::vcpu::VcpuReserve;

use super::paper::RoundTripScenario;
use super::throughput::{bulk, camera};
use crate::bus::{AsynchronousCompletion, SimulatedController};
use crate::histogram::Histogram;
use crate::processor::{SimulatedProcessor, TaskId, TaskRole};
use crate::random::SimulationRng;

/// Every thread's period (Table 3).
const PERIOD_NS: u64 = 250_000;
/// How long a look takes, which is the budget of the thread.
const LOOK_NS: u64 = 25_000;
/// How long the competing task takes each `PERIOD_NS`.
const BESIDE_NS: u64 = 80_000;
const TOP_HALF_NS: u64 = 1_000;
const BOTTOM_HALF_NS: u64 = 5_000;
const BOTTOM_HALF_PPM: u32 = 100_000;
/// How often the systems boot again, so that one run covers many phases.
const BOOT_S: u64 = 2;

/// What a board sends to the router, and what it gets from there: `b1` and `b2` of the paper for one, `b3` and `b4` for
/// the other.
const SENDS: [u32; 2] = [11, 13];
const GETS: [u32; 2] = [12, 14];

// Tasks of a board, and of the router.
const RX: TaskId = 0;
const TX: TaskId = 1;
const BESIDE: TaskId = 2;
const BOTTOM_HALF: TaskId = 3;

/// What one run measured: the round trips, with their bound, and the cameras' missed periods.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundTripResults {
    /// Round trips of messages.
    pub latencies: Histogram,
    /// Equation 10 with the `c` of all that the cameras leave, in nanoseconds.
    pub bound_ns: u64,
    /// Periods in which a camera did not have its budget.
    pub missed: u64,
}

/// The plan of a scenario of Table 2 in mode `Sound`.
pub fn planned(scenario: &RoundTripScenario) -> Result<BusSchedule, ScheduleRefusal> {
    let cameras = [camera(1, EndpointCriticality::High, 1), camera(2, EndpointCriticality::High, 2)];
    let of = |ids: [u32; 2], direction| {
        ids.map(|id| bulk(id, direction, scenario.budget_bytes, scenario.period)).into_iter().flatten()
    };
    let bulks = of(SENDS, BusDirection::In).chain(of(GETS, BusDirection::Out));
    plan(&cameras.into_iter().flatten().chain(bulks).collect::<Vec<_>>(), ScheduleOptions::SOUND)
}

/// Equation 10, with Equation 6 for all that the cameras leave of the bus, as the paper has it.
pub fn bound_ns(scenario: &RoundTripScenario, plan: &BusSchedule) -> u64 {
    let bulks = || plan.requests().iter().filter(|request| !request.shape.is_periodic());
    let pass_ps: u64 = bulks().map(|r| u64::from(r.shape.burst_packets()) * r.shape.packet_ps()).sum();
    let passes = bulks().map(|r| u64::from(r.shape.passes(scenario.budget_bytes))).max().unwrap_or(0);
    let intervals = (passes * pass_ps).div_ceil(plan.reservation_max_ps());
    let server = PathSegment::Server { period_ns: PERIOD_NS };
    let transfer = |intervals| PathSegment::Transfer { intervals, interval_ns: 125_000, interrupt_every_ns: 0 };
    let (board, router) = ([server, transfer(1)], [transfer(intervals), server, server]);
    2 * pipe::worst_ns(&[&board[..], &router, &router, &board].concat())
}

/// Runs a scenario for `seconds` of bus time.
pub fn run(scenario: &RoundTripScenario, seconds: u64, seed: u64) -> Result<RoundTripResults, ScheduleRefusal> {
    let plan = planned(scenario)?;
    let bound_ns = bound_ns(scenario, &plan);
    let mut seen = RoundTripResults { latencies: Histogram::new(20_000), bound_ns, missed: 0 };
    let mut random = SimulationRng::new(seed);
    let mut left_s = seconds;
    while left_s > 0 {
        let mut world = RoundTripSimulation::boot(scenario, &plan, random.bits());
        for _ in 0..left_s.min(BOOT_S) * 8000 {
            world.step(&mut seen.latencies);
        }
        seen.missed += world.bus.periods().map(|periods| periods.missed).sum::<u64>();
        left_s -= left_s.min(BOOT_S);
    }
    Ok(seen)
}

/// The messages of one budget, under way.
#[derive(Clone, Copy, Debug)]
struct MessageBatch {
    /// The board that sent them first.
    origin: usize,
    is_pong: bool,
    since_ns: u64,
}

impl MessageBatch {
    /// The board they go to.
    fn target(&self) -> usize {
        if self.is_pong { self.origin } else { 1 - self.origin }
    }
}

/// A machine, with the messages that wait for each of its threads.
struct SimulatedMachine {
    processor: SimulatedProcessor,
    /// Transfers that the bottom half has not processed.
    for_bottom_half: VecDeque<MessageBatch>,
    for_rx: VecDeque<MessageBatch>,
    for_tx: VecDeque<MessageBatch>,
    /// When each thread looks first.
    first_ns: [u64; 3],
    begun: usize,
}

struct RoundTripSimulation<'a> {
    scenario: &'a RoundTripScenario,
    bus: SimulatedController,
    boards: [SimulatedMachine; 2],
    router: SimulatedMachine,
    /// Requests for a controller's next interval.
    outbox: Vec<(u32, MessageBatch)>,
    under_way: [VecDeque<MessageBatch>; 4],
    ended: Vec<AsynchronousCompletion>,
    next_send_ns: [u64; 2],
}

impl SimulatedMachine {
    fn new(has_bottom_half: bool, random: &mut SimulationRng) -> Self {
        let reserved = |budget_ns| TaskRole::Reserved(VcpuReserve { budget_ns, period_ns: PERIOD_NS });
        let mut roles = vec![reserved(LOOK_NS), reserved(LOOK_NS), reserved(BESIDE_NS)];
        if has_bottom_half {
            roles.push(TaskRole::BottomHalf { utilization_ppm: BOTTOM_HALF_PPM, period_ns: PERIOD_NS });
        }
        Self {
            processor: SimulatedProcessor::quest(&roles),
            for_bottom_half: VecDeque::new(),
            for_rx: VecDeque::new(),
            for_tx: VecDeque::new(),
            first_ns: [0; 3].map(|_| random.below(PERIOD_NS)),
            begun: 0,
        }
    }

    /// Runs up to `until_ns`; calls `looked` for each look that ended, and for each bottom half.
    fn run(&mut self, until_ns: u64, mut looked: impl FnMut(&mut Self, TaskId)) {
        loop {
            let waiting = || self.first_ns.iter().copied().filter(|&at_ns| at_ns != u64::MAX);
            let first_ns = if self.begun < 3 { waiting().min().unwrap_or(u64::MAX) } else { u64::MAX };
            if let Some(task) = self.processor.run(until_ns.min(first_ns)) {
                if task < BESIDE {
                    self.processor.give(task, LOOK_NS);
                }
                looked(self, task);
                continue;
            }
            if first_ns > until_ns || first_ns == u64::MAX {
                return;
            }
            if let Some(task) = self.first_ns.iter().position(|&at_ns| at_ns == first_ns) {
                self.first_ns[task] = u64::MAX;
                self.begun += 1;
                self.processor.give(task, if task == BESIDE { u64::MAX / 2 } else { LOOK_NS });
            }
        }
    }
}

impl<'a> RoundTripSimulation<'a> {
    fn boot(scenario: &'a RoundTripScenario, plan: &BusSchedule, seed: u64) -> Self {
        let mut random = SimulationRng::new(seed);
        let boards = [(); 2].map(|()| SimulatedMachine::new(false, &mut random));
        let router = SimulatedMachine::new(true, &mut random);
        let every_ns = 2 * u64::from(scenario.period) * 125_000;
        let first_ns = random.below(every_ns);
        let next_send_ns = [first_ns, first_ns + random.below(125_000)];
        Self {
            scenario,
            bus: SimulatedController::new(plan, 0, random),
            boards,
            router,
            outbox: Vec::new(),
            under_way: [const { VecDeque::new() }; 4],
            ended: Vec::new(),
            next_send_ns,
        }
    }

    /// Simulates one microframe.
    fn step(&mut self, latencies: &mut Histogram) {
        let end_ns = (self.bus.now() + 1) * self.bus.interval_ns();
        for (id, batch) in self.outbox.drain(..) {
            self.bus.submit(id, self.scenario.budget_bytes, 0);
            self.under_way[(id - SENDS[0]) as usize].push_back(batch);
        }
        self.ended.clear();
        self.ended.extend_from_slice(self.bus.step());
        for at in 0..self.ended.len() {
            let AsynchronousCompletion { id, at_ps, .. } = self.ended[at];
            let Some(batch) = self.under_way[(id - SENDS[0]) as usize].pop_front() else { continue };
            self.run_router(at_ps / 1000);
            self.router.processor.interrupt(TOP_HALF_NS);
            // A running bottom half finds it when it looks for more.
            if self.router.processor.jobs(BOTTOM_HALF) == 0 {
                self.router.processor.give(BOTTOM_HALF, BOTTOM_HALF_NS);
            }
            if SENDS.contains(&id) {
                self.router.for_bottom_half.push_back(batch);
            } else {
                let board = batch.target();
                self.run_board(board, at_ps / 1000, latencies);
                self.boards[board].for_rx.push_back(batch);
            }
        }
        self.run_router(end_ns);
        for board in 0..2 {
            while self.next_send_ns[board] < end_ns {
                let since_ns = self.next_send_ns[board];
                self.run_board(board, since_ns, latencies);
                self.boards[board].for_tx.push_back(MessageBatch { origin: board, is_pong: false, since_ns });
                self.next_send_ns[board] += 2 * u64::from(self.scenario.period) * 125_000;
            }
            self.run_board(board, end_ns, latencies);
        }
    }

    /// The receiver passes what it finds to the sender of the same machine.
    fn run_router(&mut self, until_ns: u64) {
        let outbox = &mut self.outbox;
        self.router.run(until_ns, |router, task| match task {
            BOTTOM_HALF => router.for_rx.append(&mut router.for_bottom_half),
            RX => router.for_tx.append(&mut router.for_rx),
            TX => outbox.extend(router.for_tx.drain(..).map(|batch| (GETS[batch.target()], batch))),
            _ => {}
        });
    }

    fn run_board(&mut self, at: usize, until_ns: u64, latencies: &mut Histogram) {
        let (outbox, messages) = (&mut self.outbox, u64::from(self.scenario.budget_bytes / 1024));
        self.boards[at].run(until_ns, |board, task| match task {
            RX => {
                while let Some(batch) = board.for_rx.pop_front() {
                    if batch.is_pong {
                        latencies.add(board.processor.now_ns() - batch.since_ns, messages);
                    } else {
                        board.for_tx.push_back(MessageBatch { is_pong: true, ..batch });
                    }
                }
            }
            TX => outbox.extend(board.for_tx.drain(..).map(|batch| (SENDS[at], batch))),
            _ => {}
        });
    }
}
