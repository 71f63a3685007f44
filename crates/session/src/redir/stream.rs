//! One endpoint's stream: a few URBs that are submitted again as they complete, and a bounded queue of packets.
//!
//! | stream | the queue holds | when it is full |
//! |---|---|---|
//! | isochronous IN | packets for which the connection has no room | the oldest is dropped and counted: it is too late anyway |
//! | interrupt IN, bulk IN | packets for which the connection has no room | no URB is submitted until there is room: the device keeps its data |
//! | isochronous OUT | packets of the guest that no URB has taken | the oldest is dropped and counted |
//!
//! Isochronous OUT starts when the queue is half full, and again after it has run empty. While the guest moves, what
//! its URBs have not sent returns to the queue and moves with it, and the stream goes on there with what it has: until
//! the queue holds enough for a whole URB, a URB takes less.

use std::collections::{BTreeMap, VecDeque};

use farbus_model::{
    BufferPool, EpAddr, IsoPacket, Payload, TransferDirection, Urb, UrbCompletion, UrbFlags, UrbId, UrbStatus,
};
use farbus_wire::usbredir::message::DataPacket;
use farbus_wire::usbredir::{RedirMessage, RedirPacket, RedirStatus};

/// Consecutive failures after which a stream ends. A bus may lose a packet now and then; a device that only fails is
/// broken.
const FAILURES_MAX: u32 = 16;

/// Number of queued packets that may be windows on a link's receive buffer. Each further one would keep a buffer of a
/// quarter of a megabyte alive for a few bytes.
const BORROWED_MAX: usize = 8;

/// The kind of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointStreamKind {
    /// Isochronous, IN or OUT.
    Iso {
        /// Packets in each URB.
        packets_per_urb: usize,
    },
    /// Interrupt IN, received before the guest asks.
    Interrupt,
    /// Bulk IN, received ahead.
    Bulk {
        /// The stream within the endpoint, or 0.
        stream: u32,
    },
}

/// A packet in the queue.
#[derive(Debug)]
struct QueuedPacket {
    outcome: RedirStatus,
    payload: Payload,
}

/// A submitted URB.
#[derive(Debug)]
struct StreamUrb {
    id: UrbId,
    /// Isochronous OUT: its packets.
    row: Vec<QueuedPacket>,
}

/// The result of a completed URB.
#[derive(Debug, PartialEq, Eq)]
pub enum StreamUrbResult {
    /// The stream continues.
    GoesOn,
    /// The stream continues, and the guest must be told of a failure.
    Failed(RedirStatus),
    /// The stream ends.
    Stopped,
}

/// One endpoint's stream.
#[derive(Debug)]
pub struct EndpointStream {
    endpoint: EpAddr,
    kind: EndpointStreamKind,
    /// Size of an IN packet or transfer, bytes.
    packet_bytes: u32,
    /// Most URBs in flight.
    urbs_max: usize,
    /// Most packets in the queue.
    ahead_max: usize,
    in_flight: VecDeque<StreamUrb>,
    /// Isochronous OUT during a pause: what cancelled URBs have not sent.
    unsent: BTreeMap<UrbId, Vec<QueuedPacket>>,
    ahead: VecDeque<QueuedPacket>,
    ahead_bytes: usize,
    /// Isochronous OUT: whether there were enough packets to start.
    has_begun: bool,
    /// Isochronous OUT: whether URBs take what there is. Two are in flight then: one that is sent, and the next.
    is_hasty: bool,
    /// The guest is about to move: no URB is submitted, and cancelled URBs end silently.
    is_paused: bool,
    next_id: u64,
    failures: u32,
    dropped: u64,
}

impl EndpointStream {
    /// A stream without URBs or packets.
    pub fn new(
        endpoint: EpAddr,
        kind: EndpointStreamKind,
        packet_bytes: u32,
        urbs_max: usize,
        ahead_max: usize,
    ) -> Self {
        Self {
            endpoint,
            kind,
            packet_bytes,
            urbs_max,
            ahead_max,
            in_flight: VecDeque::new(),
            unsent: BTreeMap::new(),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            has_begun: false,
            is_hasty: false,
            is_paused: false,
            next_id: 0,
            failures: 0,
            dropped: 0,
        }
    }

    /// The transfer type, with what the guest stated when it started the stream.
    pub fn kind(&self) -> EndpointStreamKind {
        self.kind
    }

    /// Whether packets come from the device or go to it.
    pub fn direction(&self) -> TransferDirection {
        self.endpoint.direction()
    }

    /// Size of a packet, bytes.
    pub fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    /// Sets how many URBs an interrupt stream keeps in flight.
    pub fn reach(&mut self, urbs: usize) {
        if self.kind == EndpointStreamKind::Interrupt {
            self.urbs_max = urbs;
        }
    }

    /// Pauses or continues submitting.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
        self.put_back();
    }

    /// Puts what cancelled URBs have not sent before the queue, in its order.
    fn put_back(&mut self) {
        for ahead in std::mem::take(&mut self.unsent).into_values().rev().flat_map(|row| row.into_iter().rev()) {
            self.ahead.push_front(ahead);
        }
        while self.ahead.len() > self.ahead_max {
            self.drop_oldest();
        }
    }

    /// The stream went on elsewhere before: it does not wait until the queue is half full.
    pub fn go_on(&mut self) {
        (self.has_begun, self.is_hasty) = (true, true);
    }

    /// The message by which a guest starts a stream like this one.
    pub fn beginning(&self) -> RedirMessage {
        let endpoint = self.endpoint;
        match self.kind {
            EndpointStreamKind::Iso { packets_per_urb } => RedirMessage::StartIsoStream {
                endpoint,
                packets_per_urb: packets_per_urb as u8,
                urbs: (self.ahead_max / packets_per_urb) as u8,
            },
            EndpointStreamKind::Interrupt => RedirMessage::StartInterruptReceiving(endpoint),
            EndpointStreamKind::Bulk { stream } => RedirMessage::StartBulkReceiving {
                stream,
                bytes_per_transfer: self.packet_bytes,
                endpoint,
                transfers: self.urbs_max as u8,
            },
        }
    }

    /// The guest's packets that no URB has taken.
    pub fn take_unsent(&mut self) -> Vec<RedirMessage> {
        if self.direction() == TransferDirection::In {
            return Vec::new();
        }
        self.put_back();
        self.ahead_bytes -= self.ahead.iter().map(|ahead| ahead.payload.len()).sum::<usize>();
        let (endpoint, outcome) = (self.endpoint, RedirStatus::Success);
        let packet = |QueuedPacket { payload, .. }| {
            RedirMessage::Iso(DataPacket { endpoint, outcome, length: payload.len() as u32, stream: 0, payload })
        };
        self.ahead.drain(..).map(packet).collect()
    }

    /// Its URBs in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = UrbId> {
        self.in_flight.iter().map(|urb| urb.id)
    }

    /// Bytes in its queue, and of the packets that its URBs carry out.
    pub fn ahead_bytes(&self) -> usize {
        self.ahead_bytes
    }

    /// Takes the number of packets dropped since the last call.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// How many URBs may be submitted now. With `is_due`, an isochronous IN stream continues even without room; set it
    /// once for each event.
    pub fn urbs_wanted(&mut self, is_due: bool) -> usize {
        if self.is_paused {
            return 0;
        }
        let free = self.urbs_max.saturating_sub(self.in_flight.len());
        let has_room = self.ahead.len() < self.ahead_max;
        match (self.kind, self.direction()) {
            (EndpointStreamKind::Iso { packets_per_urb }, TransferDirection::Out) => {
                self.has_begun |= self.ahead.len() >= (packets_per_urb * self.urbs_max).max(1);
                self.is_hasty &= self.ahead.len() < packets_per_urb;
                if self.is_hasty {
                    return usize::from(!self.ahead.is_empty() && self.in_flight.len() < 2);
                }
                if self.has_begun { free.min(self.ahead.len() / packets_per_urb) } else { 0 }
            }
            (EndpointStreamKind::Iso { .. }, TransferDirection::In) if has_room || is_due => free,
            (EndpointStreamKind::Interrupt | EndpointStreamKind::Bulk { .. }, _) => {
                free.min(self.ahead_max.saturating_sub(self.ahead.len()))
            }
            _ => 0,
        }
    }

    /// The next URB, with this id. Call it only as often as [`EndpointStream::urbs_wanted`] said.
    pub fn urb(&mut self, id: UrbId, pool: &mut BufferPool) -> Urb {
        let flags = UrbFlags { iso_asap: true, ..UrbFlags::default() };
        let mut position = 0;
        let mut packet = |length: u32| {
            let packet = IsoPacket { offset: position, length, ..IsoPacket::default() };
            position += length;
            packet
        };
        let (urb, row) = match (self.kind, self.direction()) {
            (EndpointStreamKind::Iso { packets_per_urb }, TransferDirection::In) => {
                let iso: Vec<IsoPacket> = (0..packets_per_urb).map(|_| packet(self.packet_bytes)).collect();
                (Urb { iso, flags, ..Urb::data_in(id, self.endpoint, position) }, Vec::new())
            }
            (EndpointStreamKind::Iso { packets_per_urb }, TransferDirection::Out) => {
                let row: Vec<QueuedPacket> = self.ahead.drain(..packets_per_urb.min(self.ahead.len())).collect();
                let iso = row.iter().map(|ahead| packet(ahead.payload.len() as u32)).collect();
                let mut bytes = pool.take(position as usize);
                let mut at = 0;
                row.iter().for_each(|ahead| at += ahead.payload.copy_to(&mut bytes[at..]));
                (Urb { iso, flags, ..Urb::data_out(id, self.endpoint, bytes.into()) }, row)
            }
            _ => (Urb::data_in(id, self.endpoint, self.packet_bytes), Vec::new()),
        };
        self.in_flight.push_back(StreamUrb { id, row });
        urb
    }

    /// Queues a packet of the guest.
    pub fn push(&mut self, mut payload: Payload) {
        // The packet waits longer here than a receive buffer should.
        payload.own();
        self.put(QueuedPacket { outcome: RedirStatus::Success, payload });
    }

    fn put(&mut self, mut ahead: QueuedPacket) {
        if self.ahead.len() >= BORROWED_MAX {
            ahead.payload.own();
        }
        self.ahead_bytes += ahead.payload.len();
        self.ahead.push_back(ahead);
        if matches!(self.kind, EndpointStreamKind::Iso { .. }) && self.ahead.len() > self.ahead_max {
            self.drop_oldest();
        }
    }

    /// Drops the oldest packet to make room. Only for isochronous streams.
    pub fn drop_oldest(&mut self) {
        if let Some(oldest) = self.ahead.pop_front() {
            self.ahead_bytes -= oldest.payload.len();
            self.dropped += 1;
        }
    }

    /// Handles a completed URB. `None`: it belongs to an earlier stream of this endpoint.
    pub fn handle_done(&mut self, done: UrbCompletion) -> Option<StreamUrbResult> {
        let at = self.in_flight.iter().position(|urb| urb.id == done.id)?;
        let mut row = self.in_flight.remove(at)?.row;
        let sent = match done.status {
            UrbStatus::Cancelled if self.is_paused => done.iso.iter().take_while(|packet| is_sent(packet)).count(),
            _ => row.len(),
        };
        self.ahead_bytes -= row.drain(..sent.min(row.len())).map(|ahead| ahead.payload.len()).sum::<usize>();
        self.unsent.extend((!row.is_empty()).then_some((done.id, row)));
        Some(match done.status {
            UrbStatus::Ok | UrbStatus::Short => self.take_in(done),
            // Data that came before the cancel is delivered, except for isochronous streams, where the next packet is
            // as good.
            UrbStatus::Cancelled
                if self.is_paused && done.actual > 0 && !matches!(self.kind, EndpointStreamKind::Iso { .. }) =>
            {
                self.take_in(done)
            }
            UrbStatus::Cancelled if self.is_paused => StreamUrbResult::GoesOn,
            UrbStatus::Stall
            | UrbStatus::Cancelled
            | UrbStatus::Shutdown
            | UrbStatus::Gone
            | UrbStatus::Invalid
            | UrbStatus::NoCredit => StreamUrbResult::Stopped,
            status => self.fail(status.into()),
        })
    }

    fn fail(&mut self, outcome: RedirStatus) -> StreamUrbResult {
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            return StreamUrbResult::Stopped;
        }
        match self.direction() {
            TransferDirection::Out => StreamUrbResult::Failed(outcome),
            TransferDirection::In => {
                self.put(QueuedPacket { outcome, payload: Payload::Empty });
                StreamUrbResult::GoesOn
            }
        }
    }

    fn take_in(&mut self, done: UrbCompletion) -> StreamUrbResult {
        let mut payload = done.payload;
        match (self.kind, self.direction()) {
            (EndpointStreamKind::Iso { .. }, TransferDirection::In) => {
                for packet in &done.iso {
                    let payload = payload.split_front(packet.actual as usize);
                    self.put(QueuedPacket { outcome: packet.status.into(), payload });
                }
            }
            (EndpointStreamKind::Iso { packets_per_urb }, TransferDirection::Out) => {
                if self.in_flight.is_empty() && self.ahead.len() < packets_per_urb && !self.is_hasty {
                    self.has_begun = false;
                }
                if let Some(packet) =
                    done.iso.iter().find(|packet| RedirStatus::from(packet.status) != RedirStatus::Success)
                {
                    return self.fail(packet.status.into());
                }
            }
            (EndpointStreamKind::Interrupt | EndpointStreamKind::Bulk { .. }, _) => {
                self.put(QueuedPacket { outcome: RedirStatus::Success, payload })
            }
        }
        self.failures = 0;
        StreamUrbResult::GoesOn
    }

    /// Whether [`EndpointStream::poll_packet`] has a packet.
    pub fn has_packets(&self) -> bool {
        self.direction() == TransferDirection::In && !self.ahead.is_empty()
    }

    /// The next packet for the guest.
    pub fn poll_packet(&mut self) -> Option<RedirPacket> {
        if self.direction() == TransferDirection::Out {
            return None;
        }
        let QueuedPacket { outcome, payload } = self.ahead.pop_front()?;
        self.ahead_bytes -= payload.len();
        let id = self.next_id;
        self.next_id += 1;
        let (endpoint, length) = (self.endpoint, payload.len() as u32);
        let packet = DataPacket { endpoint, outcome, length, stream: 0, payload };
        let message = match self.kind {
            EndpointStreamKind::Iso { .. } => RedirMessage::Iso(packet),
            EndpointStreamKind::Interrupt => RedirMessage::Interrupt(packet),
            EndpointStreamKind::Bulk { stream } => RedirMessage::BufferedBulk(DataPacket { stream, ..packet }),
        };
        Some(RedirPacket { id, message })
    }
}

/// Whether an isochronous OUT packet of a cancelled URB has reached the device.
fn is_sent(packet: &IsoPacket) -> bool {
    packet.status == UrbStatus::Ok && packet.actual == packet.length
}
