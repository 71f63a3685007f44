//! One endpoint's stream: a few URBs that are submitted again as they end, and a bounded row of packets ahead.
//!
//! | stream | the row holds | when it is full |
//! |---|---|---|
//! | isochronous IN | what came and the connection has no room for | the oldest is dropped, and counted: it is too late anyway |
//! | interrupt IN, bulk IN | the same | no URB is submitted until there is room: the device keeps what it has to say |
//! | isochronous OUT | what the guest sent and no URB has taken | the oldest is dropped, and counted |
//!
//! Isochronous OUT begins when half of the packets that it may have are there, and again after it has run dry.

use std::collections::VecDeque;

use farbus_model::{BufferPool, Direction, Done, EpAddr, IsoPacket, Payload, Status, Urb, UrbFlags, UrbId};
use farbus_wire::usbredir::message::DataPacket;
use farbus_wire::usbredir::{Message, Outcome, Packet};

/// Failures one behind the other that a stream lives through. A bus may lose a packet now and then; a device that
/// answers nothing else has failed.
const FAILURES_MAX: u32 = 16;

/// Packets in a row that may be windows on a link's receive buffer: further ones would hold one buffer each, of a
/// quarter of a megabyte, for a few bytes.
const BORROWED_MAX: usize = 8;

/// What kind of stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Isochronous, so many packets a URB.
    Iso {
        /// Packets in each URB.
        packets_per_urb: usize,
    },
    /// Interrupt IN.
    Interrupt,
    /// Bulk IN, received ahead.
    Bulk {
        /// The stream within the endpoint, or 0.
        stream: u32,
    },
}

/// A packet in the row.
#[derive(Debug)]
struct Ahead {
    outcome: Outcome,
    payload: Payload,
}

/// What became of a URB.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The stream goes on.
    GoesOn,
    /// The stream goes on, and the guest is told that something failed.
    Failed(Outcome),
    /// The stream is over.
    Stopped,
}

/// One endpoint's stream.
#[derive(Debug)]
pub struct Stream {
    endpoint: EpAddr,
    kind: Kind,
    /// Room of an IN packet or transfer, bytes.
    packet_bytes: u32,
    /// URBs at a time.
    urbs_max: usize,
    /// Packets in the row.
    ahead_max: usize,
    in_flight: VecDeque<UrbId>,
    ahead: VecDeque<Ahead>,
    ahead_bytes: usize,
    /// Isochronous OUT: there was enough to begin.
    has_begun: bool,
    /// Its guest is on its way elsewhere: no URB is submitted, and those that are withdrawn are missed by nobody.
    is_paused: bool,
    next_id: u64,
    failures: u32,
    dropped: u64,
}

impl Stream {
    /// A stream that has nothing yet.
    pub fn new(endpoint: EpAddr, kind: Kind, packet_bytes: u32, urbs_max: usize, ahead_max: usize) -> Self {
        Self {
            endpoint,
            kind,
            packet_bytes,
            urbs_max,
            ahead_max,
            in_flight: VecDeque::new(),
            ahead: VecDeque::new(),
            ahead_bytes: 0,
            has_begun: false,
            is_paused: false,
            next_id: 0,
            failures: 0,
            dropped: 0,
        }
    }

    /// What kind it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Which way it goes.
    pub fn direction(&self) -> Direction {
        self.endpoint.direction()
    }

    /// Room of a packet.
    pub fn packet_bytes(&self) -> u32 {
        self.packet_bytes
    }

    /// An interrupt stream is asked so far ahead from now on.
    pub fn reach(&mut self, urbs: usize) {
        if self.kind == Kind::Interrupt {
            self.urbs_max = urbs;
        }
    }

    /// Stops submitting, or goes on.
    pub fn pause(&mut self, is_paused: bool) {
        self.is_paused = is_paused;
    }

    /// What a guest says to begin one like it.
    pub fn beginning(&self) -> Message {
        let endpoint = self.endpoint;
        match self.kind {
            Kind::Iso { packets_per_urb } => Message::StartIsoStream {
                endpoint,
                packets_per_urb: packets_per_urb as u8,
                urbs: (self.ahead_max / packets_per_urb) as u8,
            },
            Kind::Interrupt => Message::StartInterruptReceiving(endpoint),
            Kind::Bulk { stream } => Message::StartBulkReceiving {
                stream,
                bytes_per_transfer: self.packet_bytes,
                endpoint,
                transfers: self.urbs_max as u8,
            },
        }
    }

    /// What its guest has sent and no URB has taken.
    pub fn take_unsent(&mut self) -> Vec<Message> {
        if self.direction() == Direction::In {
            return Vec::new();
        }
        self.ahead_bytes = 0;
        let (endpoint, outcome) = (self.endpoint, Outcome::Success);
        let packet = |Ahead { payload, .. }| {
            Message::Iso(DataPacket { endpoint, outcome, length: payload.len() as u32, stream: 0, payload })
        };
        self.ahead.drain(..).map(packet).collect()
    }

    /// Its URBs that owe an answer.
    pub fn in_flight(&self) -> impl Iterator<Item = UrbId> {
        self.in_flight.iter().copied()
    }

    /// Bytes in its row.
    pub fn ahead_bytes(&self) -> usize {
        self.ahead_bytes
    }

    /// Takes the packets that were dropped since it was asked last.
    pub fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// How many of its URBs may be submitted now. `is_due`: an isochronous IN stream goes on whether there is room or
    /// not, once each time something happened.
    pub fn urbs_wanted(&mut self, is_due: bool) -> usize {
        if self.is_paused {
            return 0;
        }
        let free = self.urbs_max.saturating_sub(self.in_flight.len());
        let has_room = self.ahead.len() < self.ahead_max;
        match (self.kind, self.direction()) {
            (Kind::Iso { packets_per_urb }, Direction::Out) => {
                self.has_begun |= self.ahead.len() >= (packets_per_urb * self.urbs_max).max(1);
                if self.has_begun { free.min(self.ahead.len() / packets_per_urb) } else { 0 }
            }
            (Kind::Iso { .. }, Direction::In) if has_room || is_due => free,
            (Kind::Interrupt | Kind::Bulk { .. }, _) => free.min(self.ahead_max.saturating_sub(self.ahead.len())),
            _ => 0,
        }
    }

    /// The next URB, under this name; [`Stream::urbs_wanted`] has said that there may be one.
    pub fn urb(&mut self, id: UrbId, pool: &mut BufferPool) -> Urb {
        self.in_flight.push_back(id);
        let Kind::Iso { packets_per_urb } = self.kind else {
            return Urb::data_in(id, self.endpoint, self.packet_bytes);
        };
        let flags = UrbFlags { iso_asap: true, ..UrbFlags::default() };
        let mut place = 0;
        let mut packet = |length: u32| {
            let packet = IsoPacket { offset: place, length, ..IsoPacket::default() };
            place += length;
            packet
        };
        match self.direction() {
            Direction::In => {
                let iso: Vec<IsoPacket> = (0..packets_per_urb).map(|_| packet(self.packet_bytes)).collect();
                Urb { iso, flags, ..Urb::data_in(id, self.endpoint, place) }
            }
            Direction::Out => {
                let row: Vec<Ahead> = self.ahead.drain(..packets_per_urb).collect();
                let iso = row.iter().map(|ahead| packet(ahead.payload.len() as u32)).collect();
                let mut bytes = pool.take(place as usize);
                let mut at = 0;
                row.iter().for_each(|ahead| at += ahead.payload.copy_to(&mut bytes[at..]));
                self.ahead_bytes -= at;
                Urb { iso, flags, ..Urb::data_out(id, self.endpoint, bytes.into()) }
            }
        }
    }

    /// A packet that the guest sends.
    pub fn push(&mut self, mut payload: Payload) {
        // It waits here longer than its receive buffer should.
        payload.own();
        self.put(Ahead { outcome: Outcome::Success, payload });
    }

    fn put(&mut self, mut ahead: Ahead) {
        if self.ahead.len() >= BORROWED_MAX {
            ahead.payload.own();
        }
        self.ahead_bytes += ahead.payload.len();
        self.ahead.push_back(ahead);
        if matches!(self.kind, Kind::Iso { .. }) && self.ahead.len() > self.ahead_max {
            self.drop_oldest();
        }
    }

    /// Makes room. Only isochronous packets may be lost.
    pub fn drop_oldest(&mut self) {
        if let Some(oldest) = self.ahead.pop_front() {
            self.ahead_bytes -= oldest.payload.len();
            self.dropped += 1;
        }
    }

    /// One of its URBs has ended. `None`: it is not of this stream, but of one before it on this endpoint.
    pub fn handle_done(&mut self, done: Done) -> Option<Ended> {
        let at = self.in_flight.iter().position(|id| *id == done.id)?;
        self.in_flight.remove(at);
        Some(match done.status {
            Status::Ok | Status::Short => self.take_in(done),
            // What came before it was withdrawn did come; of what has its moment the next is as good.
            Status::Cancelled if self.is_paused && done.actual > 0 && !matches!(self.kind, Kind::Iso { .. }) => {
                self.take_in(done)
            }
            Status::Cancelled if self.is_paused => Ended::GoesOn,
            Status::Stall
            | Status::Cancelled
            | Status::Shutdown
            | Status::Gone
            | Status::Invalid
            | Status::NoCredit => Ended::Stopped,
            status => self.fail(status.into()),
        })
    }

    fn fail(&mut self, outcome: Outcome) -> Ended {
        self.failures += 1;
        if self.failures > FAILURES_MAX {
            return Ended::Stopped;
        }
        match self.direction() {
            Direction::Out => Ended::Failed(outcome),
            Direction::In => {
                self.put(Ahead { outcome, payload: Payload::Empty });
                Ended::GoesOn
            }
        }
    }

    fn take_in(&mut self, done: Done) -> Ended {
        let mut payload = done.payload;
        match (self.kind, self.direction()) {
            (Kind::Iso { .. }, Direction::In) => {
                for packet in &done.iso {
                    let payload = payload.split_front(packet.actual as usize);
                    self.put(Ahead { outcome: packet.status.into(), payload });
                }
            }
            (Kind::Iso { packets_per_urb }, Direction::Out) => {
                if self.in_flight.is_empty() && self.ahead.len() < packets_per_urb {
                    self.has_begun = false;
                }
                if let Some(packet) = done.iso.iter().find(|packet| Outcome::from(packet.status) != Outcome::Success) {
                    return self.fail(packet.status.into());
                }
            }
            (Kind::Interrupt | Kind::Bulk { .. }, _) => self.put(Ahead { outcome: Outcome::Success, payload }),
        }
        self.failures = 0;
        Ended::GoesOn
    }

    /// Whether [`Stream::poll_packet`] has one.
    pub fn has_packets(&self) -> bool {
        self.direction() == Direction::In && !self.ahead.is_empty()
    }

    /// The next packet for the guest.
    pub fn poll_packet(&mut self) -> Option<Packet> {
        if self.direction() == Direction::Out {
            return None;
        }
        let Ahead { outcome, payload } = self.ahead.pop_front()?;
        self.ahead_bytes -= payload.len();
        let id = self.next_id;
        self.next_id += 1;
        let (endpoint, length) = (self.endpoint, payload.len() as u32);
        let packet = DataPacket { endpoint, outcome, length, stream: 0, payload };
        let message = match self.kind {
            Kind::Iso { .. } => Message::Iso(packet),
            Kind::Interrupt => Message::Interrupt(packet),
            Kind::Bulk { stream } => Message::BufferedBulk(DataPacket { stream, ..packet }),
        };
        Some(Packet { id, message })
    }
}
