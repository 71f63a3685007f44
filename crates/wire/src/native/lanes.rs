//! The lanes of one session: the first, on which it begins, and further ones over links of their own.
//!
//! A request, its data, its cancellation and its answers use one lane, which the three highest bits of its tag name.
//! Frames without a request's tag use the first lane. Each lane counts, acknowledges and resumes for itself, so that
//! none waits for another; order is kept within a lane, and not between lanes.

use farbus_model::limits::LANES_MAX;
use farbus_model::{BufferPool, Instant};

use super::frame::{FrameHeader, FrameKind};
use super::lane::{Lane, LaneLimits, ReceivedFrame};
use super::message::OutboundMessage;
use crate::reject::ProtocolViolation;
use crate::snapshot::{FieldReader, SnapshotWriter};

/// Bits of a tag that distinguish the requests of one lane; the bits above name the lane.
const SLOT_BITS: u32 = 13;
/// Requests that tags can distinguish, on all lanes together.
pub const SLOTS_MAX: u16 = 1 << SLOT_BITS;

/// The tag of a request in this slot on this lane.
pub fn tag_of(lane: u8, slot: u16) -> u16 {
    debug_assert!(u16::from(lane) < LANES_MAX && slot < SLOTS_MAX, "lane {lane}, slot {slot}");
    u16::from(lane) << SLOT_BITS | slot
}

/// The lane and the slot of a tag.
pub fn split_tag(tag: u16) -> (u8, u16) {
    ((tag >> SLOT_BITS) as u8, tag & (SLOTS_MAX - 1))
}

/// Some of a session's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneSet(u8);

impl LaneSet {
    /// The first lane alone.
    pub const FIRST: LaneSet = LaneSet(1);

    /// Adds a lane.
    #[must_use]
    pub const fn with(self, lane: u8) -> Self {
        Self(self.0 | 1 << lane)
    }

    /// Whether the lane is in the set.
    pub fn contains(self, lane: u8) -> bool {
        self.0 & 1 << lane != 0
    }

    /// The lanes' numbers.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..LANES_MAX as u8).filter(move |&lane| self.contains(lane))
    }
}

/// All lanes of one end.
#[derive(Debug)]
pub struct LaneArray {
    first: SessionLane,
    further: Vec<SessionLane>,
}

/// A lane, and what its end of the session knows of it.
#[derive(Debug)]
pub struct SessionLane {
    /// Its number; that of the first lane is 0.
    pub number: u16,
    /// How many links it has had, or the number of its last one.
    pub link: u64,
    /// Whether both ends have it; of no meaning for the first, which is there as long as its session.
    pub has_begun: bool,
    /// Since when it has no link that carried what waited for it, if its end records that.
    pub lost_at: Option<Instant>,
    /// How many frames had passed ([`Lane::passed`]) when its end last looked, while `lost_at` is set.
    pub passed: u64,
    /// The lane itself.
    pub lane: Lane,
}

impl SessionLane {
    fn new(number: u16, limits: LaneLimits) -> Self {
        Self { number, link: 0, has_begun: false, lost_at: None, passed: 0, lane: Lane::new(limits) }
    }
}

impl LaneArray {
    /// Makes the first lane, without a link.
    pub fn new(limits: LaneLimits) -> Self {
        Self { first: SessionLane::new(0, limits), further: Vec::new() }
    }

    /// The first lane.
    pub fn first(&self) -> &Lane {
        &self.first.lane
    }

    /// The first lane.
    pub fn first_mut(&mut self) -> &mut Lane {
        &mut self.first.lane
    }

    /// The lane with this number, if there is one.
    pub fn get_mut(&mut self, number: u16) -> Option<&mut Lane> {
        self.known_mut(number).map(|known| &mut known.lane)
    }

    /// All lanes, the first one first.
    pub fn all(&self) -> impl Iterator<Item = &SessionLane> {
        std::iter::once(&self.first).chain(&self.further)
    }

    /// The lanes beside the first.
    pub fn further(&self) -> &[SessionLane] {
        &self.further
    }

    /// The first lane, with what its end of the session knows of it.
    pub fn known_first(&self) -> &SessionLane {
        &self.first
    }

    /// As [`LaneArray::known_first`], to be changed.
    pub fn known_first_mut(&mut self) -> &mut SessionLane {
        &mut self.first
    }

    /// The lane with this number and what is known of it, if there is one.
    pub fn known_mut(&mut self, number: u16) -> Option<&mut SessionLane> {
        match number {
            0 => Some(&mut self.first),
            _ => self.further.iter_mut().find(|further| further.number == number),
        }
    }

    /// The lane with this number and what is known of it. The lane is made with `limits` if it does not exist.
    pub fn known_or_new(&mut self, number: u16, limits: LaneLimits) -> &mut SessionLane {
        if self.known_mut(number).is_none() {
            self.further.push(SessionLane::new(number, limits));
        }
        self.known_mut(number).expect("it is there by now")
    }

    /// Drops the lanes that never began.
    pub fn forget_unbegun(&mut self) {
        self.further.retain(|further| further.has_begun);
    }

    /// The lanes that can take new requests: the first, and all others that have a link.
    pub fn usable(&self) -> LaneSet {
        let linked = self.further.iter().filter(|further| further.has_begun && further.lane.is_linked());
        let all = linked.fold(LaneSet::FIRST, |all, further| all.with(further.number as u8));
        match self.first.lane.is_linked() || all == LaneSet::FIRST {
            true => all,
            false => LaneSet(all.0 & !LaneSet::FIRST.0),
        }
    }

    /// Sends a message on the lane that its tag names.
    #[inline]
    pub fn send(&mut self, message: OutboundMessage) {
        match self.further.is_empty() {
            true => self.first.lane.send(message),
            false => self.lane_of(&message.head).send(message),
        }
    }

    /// As [`LaneArray::send`], for a message that may wait a little for others ([`Lane::send_deferrable`]).
    pub fn send_deferrable(&mut self, message: OutboundMessage) {
        self.lane_of(&message.head).send_deferrable(message);
    }

    fn lane_of(&mut self, head: &FrameHeader) -> &mut Lane {
        let lane = match head.kind {
            FrameKind::Request | FrameKind::Reply | FrameKind::Cancel => split_tag(head.tag).0,
            _ => 0,
        };
        // A lane that does not exist was never used: the other end used the tags of a session with one lane.
        let further = self.further.iter_mut().find(|further| further.number == lane.into());
        &mut further.unwrap_or(&mut self.first).lane
    }

    /// The next complete frame of this lane.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the peer broke the protocol; the session is over.
    #[inline]
    pub fn poll_arrived(
        &mut self,
        number: u16,
        pool: &mut BufferPool,
    ) -> Result<Option<ReceivedFrame>, ProtocolViolation> {
        match self.further.is_empty() && number == 0 {
            true => self.first.lane.poll_arrived(pool),
            false => self.poll_arrived_on(number, pool),
        }
    }

    fn poll_arrived_on(
        &mut self,
        number: u16,
        pool: &mut BufferPool,
    ) -> Result<Option<ReceivedFrame>, ProtocolViolation> {
        let Some(lane) = self.get_mut(number) else { return Ok(None) };
        let arrived = lane.poll_arrived(pool)?;
        if let Some(ReceivedFrame { head: FrameHeader { kind, tag, .. }, .. }) = arrived {
            let is_bound = matches!(kind, FrameKind::Request | FrameKind::Reply | FrameKind::Data | FrameKind::Cancel);
            let expected = if is_bound { split_tag(tag).0.into() } else { 0 };
            if expected != number {
                return Err(ProtocolViolation::new(
                    "lane",
                    number.into(),
                    "a request keeps to the lane that its tag says, all else to the first",
                ));
            }
        }
        Ok(arrived)
    }

    /// Bytes that wait to be cut on all lanes, without heads.
    #[inline]
    pub fn waiting_bytes(&self) -> usize {
        let further: usize = self.further.iter().map(|further| further.lane.waiting_bytes()).sum();
        self.first.lane.waiting_bytes() + further
    }

    /// Memory of what no link has taken yet, on all lanes ([`Lane::untaken_bytes`]).
    #[inline]
    pub fn untaken_bytes(&self) -> usize {
        let further: usize = self.further.iter().map(|further| further.lane.untaken_bytes()).sum();
        self.first.lane.untaken_bytes() + further
    }

    /// Memory of everything sent and not acknowledged, on all lanes.
    pub fn held_bytes(&self) -> usize {
        self.all().map(|known| known.lane.held_bytes()).sum()
    }

    /// Sets how many bytes may be unacknowledged on each lane.
    pub fn set_unacknowledged_bytes_max(&mut self, bytes: usize) {
        self.first.lane.set_unacknowledged_bytes_max(bytes);
        self.further.iter_mut().for_each(|further| further.lane.set_unacknowledged_bytes_max(bytes));
    }

    /// Takes the next message that waits on the first lane, for a caller that passes it on without a link.
    pub fn poll_message(&mut self) -> Option<OutboundMessage> {
        self.first.lane.poll_message()
    }

    /// Saves all lanes, as [`Lane::save`] does. The next link of each has a number that is higher by `links_between`.
    pub fn save(&mut self, now: Instant, links_between: u64, to: &mut SnapshotWriter) {
        self.first.lane.save(now, to);
        to.count(self.further.len());
        for SessionLane { number, link, has_begun, lane, .. } in &mut self.further {
            to.u16(*number);
            to.u64(*link + links_between);
            to.flag(*has_begun);
            lane.save(now, to);
        }
    }

    /// Makes lanes without links that continue from saved ones; `lost_at` is since when they have none.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: no lanes can have been in this state.
    pub fn restore(
        limits: LaneLimits,
        lost_at: Option<Instant>,
        from: &mut FieldReader<'_>,
    ) -> Result<Self, ProtocolViolation> {
        let mut lanes = Self::new(limits);
        lanes.first.lane = Lane::restore(limits, from)?;
        for _ in 0..from.count("lanes", 11)? {
            let (number, link, has_begun) = (from.u16("lane")?, from.u64("link")?, from.flag("begun")?);
            let is_new = lanes.further.iter().all(|further| further.number != number);
            if number == 0 || number >= LANES_MAX || !is_new || link > u64::MAX / 2 {
                return Err(ProtocolViolation::new(
                    "lane",
                    number.into(),
                    "each has a number of its own, from 1, and some links",
                ));
            }
            let lane = Lane::restore(limits, from)?;
            lanes.further.push(SessionLane { number, link, has_begun, lost_at, passed: 0, lane });
        }
        Ok(lanes)
    }
}
