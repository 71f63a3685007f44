//! A simulated xHCI controller, which places packets itself: the judge of a plan that it has never seen. R2.
//!
//! All that it is given of an endpoint is what a Configure Endpoint command gives: kind, packets, burst, interval and
//! Max ESIT Payload (xHCI 1.2, 6.2.3). It takes periodic endpoints up to the share that the specification gives them
//! (80 % of a microframe at high speed, else 90 %: USB 2.0 5.5.4, USB 3.2 8.12.4) or answers with a Bandwidth Error,
//! and it serves its own lists in its own order. The specification leaves open in which microframe of its interval an
//! endpoint is served (xHCI 4.14.2), so there is more than one [`PlacementPolicy`].
//!
//! Packets take the time of the wire. Up to high speed both directions share one, and a packet has fewer stuffed bits
//! than the worst case (USB 2.0 5.11.3) at random. At SuperSpeed each direction is a wire of its own, with ten bits a
//! byte, and carries the acknowledgements of the other (USB 3.2 7.2, 8.11, 8.12.6).

use std::collections::VecDeque;

use farbus_realtime::schedule::EndpointRequest;
use farbus_realtime::transfer::{BusDirection, PacketShape, asynchronous_share_ps, interval_ps};
use farbus_realtime::{BusSpeed, TransferKind};

use crate::random::SimulationRng;

/// Where a controller puts the packets of a periodic endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlacementPolicy {
    /// All packets of a period in one interval, always the same one: the emptiest when the endpoint is configured. An
    /// endpoint is never moved.
    Whole,
    /// As evenly over the period as whole packets can be, as Linux says of Intel's controllers (`xhci_check_bw_table`).
    Even,
    /// As many as fit in each interval, the endpoint that was configured first before the next: a list that is walked.
    Earliest,
}

/// The controller has no bandwidth for a periodic endpoint (xHCI 6.4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthError {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
}

/// A completed asynchronous request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XhciCompletion {
    /// The endpoint's number, as [`EndpointRequest::id`] gave it.
    pub id: u32,
    /// Intervals that it took, from the first that could have carried it to the last.
    pub intervals: u64,
}

/// One bus instance.
#[derive(Clone, Debug)]
pub struct XhciController {
    speed: BusSpeed,
    policy: PlacementPolicy,
    now: u64,
    /// Reserved of each interval of a cycle, on each wire, in picoseconds.
    reserved_ps: Vec<[u64; WIRES]>,
    periodic: Vec<PeriodicRing>,
    rings: Vec<BulkRing>,
    rounds: [RoundRobin; WIRES],
    /// What acknowledgements took of the next interval.
    over_ps: [u64; WIRES],
    missed: u64,
    completed: Vec<XhciCompletion>,
    random: SimulationRng,
}

const WIRES: usize = 2;
/// A byte of a SuperSpeed wire, ten bits of 200 ps.
const SYMBOL_PS: u64 = 2_000;
/// Symbols of a header packet; of a data packet beside its data; and of the link's answer, LGOOD and LCRD, to either.
const HEADER: u64 = 20;
const FRAMING: u64 = 32;
const ANSWER: u64 = 16;

/// What a packet takes of its own wire, and of the other.
#[derive(Clone, Copy, Debug)]
struct WirePacket {
    wire: usize,
    own_ps: u64,
    /// The part of `own_ps` that is there in the first packet of a burst only.
    first_ps: u64,
    /// The part of `own_ps` that stuffed bits take at the worst.
    stuffed_ps: u64,
    other_ps: u64,
}

#[derive(Clone, Copy, Debug)]
struct PeriodicRing {
    packet: WirePacket,
    burst_packets: u32,
    period: u64,
    /// Of each period.
    packets: u32,
    left: u32,
    /// The interval of each period that carries it, with [`PlacementPolicy::Whole`].
    offset: u64,
}

#[derive(Clone, Debug)]
struct BulkRing {
    id: u32,
    packet: WirePacket,
    packet_bytes: u32,
    burst_packets: u32,
    is_greedy: bool,
    /// Packets that are left of each transfer, and when it was queued.
    transfers: VecDeque<(u32, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RoundRobin {
    turn: usize,
    in_burst: u32,
}

impl WirePacket {
    fn of(shape: &PacketShape) -> Self {
        if shape.speed() != BusSpeed::Super {
            let bit_ps = 1_000_000_000_000 / shape.speed().signalling_bits_per_s();
            let stuffed_ps = u64::from(shape.packet_bytes()) * 8 / 6 * bit_ps;
            return Self { wire: 0, own_ps: shape.packet_ps(), first_ps: 0, stuffed_ps, other_ps: 0 };
        }
        let is_in = shape.direction() == BusDirection::In;
        let data = u64::from(shape.packet_bytes()) + FRAMING;
        let (own, first, other) = match (shape.kind(), is_in) {
            // One ACK packet asks for a burst.
            (TransferKind::Isochronous, true) => (data + ANSWER, ANSWER, ANSWER + HEADER),
            (TransferKind::Isochronous, false) => (data, 0, ANSWER),
            _ => (data + ANSWER, 0, ANSWER + HEADER),
        };
        Self {
            wire: usize::from(!is_in),
            own_ps: own * SYMBOL_PS,
            first_ps: first * SYMBOL_PS,
            stuffed_ps: 0,
            other_ps: other * SYMBOL_PS,
        }
    }

    /// The worst-case time of packet number `at` of a burst.
    fn worst_ps(&self, at: u32) -> u64 {
        if at == 0 { self.own_ps } else { self.own_ps - self.first_ps }
    }

    /// Its time this time.
    fn draw_ps(&self, at: u32, random: &mut SimulationRng) -> u64 {
        self.worst_ps(at) - random.below(self.stuffed_ps + 1)
    }
}

/// What the bus needs of an interval for itself: start of frame, or skip sets and a timestamp.
fn own_ps(speed: BusSpeed) -> u64 {
    match speed {
        BusSpeed::Low | BusSpeed::Full => 3_592_220,
        BusSpeed::High => 383_456,
        BusSpeed::Super => (177 * 2 + 20) * SYMBOL_PS,
    }
}

impl XhciController {
    /// A controller without endpoints. `cycle` is a multiple of all periods, in intervals.
    pub fn new(speed: BusSpeed, policy: PlacementPolicy, cycle: u32, random: SimulationRng) -> Self {
        Self {
            speed,
            policy,
            now: 0,
            reserved_ps: vec![[0; WIRES]; cycle as usize],
            periodic: Vec::new(),
            rings: Vec::new(),
            rounds: [RoundRobin::default(); WIRES],
            over_ps: [0; WIRES],
            missed: 0,
            completed: Vec::new(),
            random,
        }
    }

    /// The most of an interval that periodic endpoints take of a wire.
    fn periodic_ps_max(&self) -> u64 {
        interval_ps(self.speed) - asynchronous_share_ps(self.speed)
    }

    /// The Configure Endpoint command. Max ESIT Payload is the request's budget.
    pub fn configure(&mut self, request: &EndpointRequest) -> Result<(), BandwidthError> {
        let (id, shape) = (request.id, &request.shape);
        let (packet, burst_packets) = (WirePacket::of(shape), shape.burst_packets());
        if !shape.is_periodic() {
            self.rings.push(BulkRing {
                id,
                packet,
                packet_bytes: shape.packet_bytes(),
                burst_packets,
                is_greedy: false,
                transfers: VecDeque::new(),
            });
            return Ok(());
        }
        let mut ring = PeriodicRing {
            packet,
            burst_packets,
            period: request.period.into(),
            packets: shape.packets(request.budget_bytes),
            left: 0,
            offset: 0,
        };
        self.reserve(&mut ring).ok_or(BandwidthError { id })?;
        self.periodic.push(ring);
        Ok(())
    }

    /// Reserves bandwidth for a periodic endpoint.
    fn reserve(&mut self, ring: &mut PeriodicRing) -> Option<()> {
        let (wire, period) = (ring.packet.wire, ring.period as usize);
        if self.policy == PlacementPolicy::Whole {
            let fullest = |offset: usize| self.reserved_ps.iter().skip(offset).step_by(period).map(|ps| ps[wire]).max();
            ring.offset = (0..period).min_by_key(|&offset| fullest(offset))? as u64;
        }
        let mut reserved_ps = self.reserved_ps.clone();
        let all_ps = ring.time_ps(ring.packets);
        for (interval, ps) in reserved_ps.iter_mut().enumerate() {
            ps[wire] += match self.policy {
                // Only the sum is checked: what does not fit in one interval goes to the next.
                PlacementPolicy::Earliest => all_ps.div_ceil(ring.period),
                policy => ring.time_ps(ring.share_of(policy, interval as u64)),
            };
        }
        let fits = reserved_ps.iter().all(|ps| ps[wire] <= self.periodic_ps_max());
        fits.then(|| self.reserved_ps = reserved_ps)
    }

    /// Queues a transfer on asynchronous endpoint `id`.
    pub fn submit(&mut self, id: u32, bytes: u32) {
        let now = self.now;
        for ring in self.rings.iter_mut().filter(|ring| ring.id == id) {
            ring.transfers.push_back((bytes.div_ceil(ring.packet_bytes), now));
        }
    }

    /// Sets whether asynchronous endpoint `id` always has something to send.
    pub fn set_greedy(&mut self, id: u32, is_greedy: bool) {
        for ring in self.rings.iter_mut().filter(|ring| ring.id == id) {
            ring.is_greedy = is_greedy;
        }
    }

    /// Makes asynchronous endpoint `id` the last of its round: the worst turn.
    pub fn put_last(&mut self, id: u32) {
        if let Some(at) = self.rings.iter().position(|ring| ring.id == id) {
            let round = RoundRobin { turn: (at + 1) % self.rings.len(), in_burst: 0 };
            self.rounds[self.rings[at].packet.wire] = round;
        }
    }

    /// Periods of periodic endpoints that ended before all packets were sent.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Simulates one interval. Returns the transfers that it completed.
    pub fn step(&mut self) -> &[XhciCompletion] {
        self.completed.clear();
        let mut used_ps = std::mem::take(&mut self.over_ps);
        used_ps.iter_mut().for_each(|ps| *ps += own_ps(self.speed));
        self.serve_periodic(&mut used_ps);
        self.serve_asynchronous(&mut used_ps);
        self.over_ps = used_ps.map(|ps| ps.saturating_sub(interval_ps(self.speed)));
        self.now += 1;
        &self.completed
    }

    fn serve_periodic(&mut self, used_ps: &mut [u64; WIRES]) {
        let (now, policy, max_ps) = (self.now, self.policy, self.periodic_ps_max());
        let mut periodic_ps = [0; WIRES];
        for ring in &mut self.periodic {
            if now.is_multiple_of(ring.period) {
                self.missed += u64::from(ring.left > 0);
                ring.left = ring.packets;
            }
            let wire = ring.packet.wire;
            let wanted = if policy == PlacementPolicy::Earliest { ring.left } else { ring.share_of(policy, now) };
            for at in 0..wanted.min(ring.left) {
                let at = at % ring.burst_packets;
                let worst_ps = ring.packet.worst_ps(at);
                if periodic_ps[wire] + worst_ps > max_ps || used_ps[wire] + worst_ps > interval_ps(self.speed) {
                    break;
                }
                let took_ps = ring.packet.draw_ps(at, &mut self.random);
                periodic_ps[wire] += took_ps;
                used_ps[wire] += took_ps;
                used_ps[1 - wire] += ring.packet.other_ps;
                ring.left -= 1;
            }
        }
    }

    fn serve_asynchronous(&mut self, used_ps: &mut [u64; WIRES]) {
        let mut is_done = [false; WIRES];
        // The wires work at the same time: the one that is behind is next.
        while let Some(wire) = (0..WIRES).filter(|&wire| !is_done[wire]).min_by_key(|&wire| used_ps[wire]) {
            let Some(at) = self.next_ring(wire) else {
                is_done[wire] = true;
                continue;
            };
            let (ring, round) = (&mut self.rings[at], &mut self.rounds[wire]);
            if used_ps[wire] + ring.packet.worst_ps(round.in_burst) > interval_ps(self.speed) {
                is_done[wire] = true;
                continue;
            }
            used_ps[wire] += ring.packet.draw_ps(round.in_burst, &mut self.random);
            used_ps[1 - wire] += ring.packet.other_ps;
            round.in_burst += 1;
            if let Some((left, since)) = ring.transfers.front_mut() {
                *left -= 1;
                if *left == 0 {
                    self.completed.push(XhciCompletion { id: ring.id, intervals: self.now - *since + 1 });
                    ring.transfers.pop_front();
                }
            }
            if round.in_burst == ring.burst_packets {
                *round = RoundRobin { turn: at + 1, in_burst: 0 };
            }
        }
    }

    /// The ring of a wire whose turn it is, if one has packets.
    fn next_ring(&mut self, wire: usize) -> Option<usize> {
        let (count, round) = (self.rings.len(), &mut self.rounds[wire]);
        let turns = (0..count).map(|after| (round.turn + after) % count);
        let rings = &self.rings;
        let has_packets = |at: &usize| rings[*at].packet.wire == wire && rings[*at].has_packets();
        let at = turns.into_iter().find(has_packets)?;
        if at != round.turn {
            *round = RoundRobin { turn: at, in_burst: 0 };
        }
        Some(at)
    }
}

impl PeriodicRing {
    /// The worst-case time of `packets` in one interval.
    fn time_ps(&self, packets: u32) -> u64 {
        (0..packets).map(|at| self.packet.worst_ps(at % self.burst_packets)).sum()
    }

    /// How many packets of a period a controller that divides by `policy` puts into interval `now`.
    fn share_of(&self, policy: PlacementPolicy, now: u64) -> u32 {
        let (at, packets) = (now % self.period, u64::from(self.packets));
        match policy {
            PlacementPolicy::Whole => self.packets * u32::from(at == self.offset),
            PlacementPolicy::Even | PlacementPolicy::Earliest => {
                ((at + 1) * packets / self.period - at * packets / self.period) as u32
            }
        }
    }
}

impl BulkRing {
    fn has_packets(&self) -> bool {
        self.is_greedy || !self.transfers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use farbus_realtime::schedule::EndpointCriticality;

    use super::*;

    fn endpoint(id: u32, kind: TransferKind, burst: u32, mult: u32, period: u32) -> EndpointRequest {
        let shape = PacketShape::new(BusSpeed::Super, kind, BusDirection::In, 1024, burst, mult).unwrap();
        EndpointRequest {
            id,
            shape,
            budget_bytes: shape.quantum_bytes(),
            period,
            criticality: EndpointCriticality::High,
        }
    }

    fn controller(policy: PlacementPolicy) -> XhciController {
        XhciController::new(BusSpeed::Super, policy, 2, SimulationRng::new(1))
    }

    #[test]
    fn second_camera_of_table_2_needs_a_controller_that_divides_it() {
        let cameras = [1, 2].map(|period| endpoint(period, TransferKind::Isochronous, 10, 2, period));
        for (policy, taken) in [(PlacementPolicy::Whole, false), (PlacementPolicy::Even, true)] {
            let mut bus = controller(policy);
            bus.configure(&cameras[0]).unwrap();
            assert_eq!(bus.configure(&cameras[1]).is_ok(), taken, "{policy:?}");
            (0..9).for_each(|_| _ = bus.step());
            assert_eq!(bus.missed(), 0);
        }
    }

    #[test]
    fn full_wire_carries_57_packets_and_the_other_way_its_acknowledgements() {
        let mut bus = controller(PlacementPolicy::Whole);
        bus.configure(&endpoint(1, TransferKind::Bulk, 0, 0, 1)).unwrap();
        bus.submit(1, 1024 * 58);
        assert_eq!(bus.step(), []);
        assert_eq!(bus.step(), [XhciCompletion { id: 1, intervals: 2 }]);
        bus.submit(1, 1024 * 57);
        assert_eq!(bus.step(), [XhciCompletion { id: 1, intervals: 1 }]);
    }
}
