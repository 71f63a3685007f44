//! Chooses the lane of a session for each request.
//!
//! | request | lane |
//! |---|---|
//! | control, interrupt, isochronous | the first, where no lost frame of a bulk request blocks them |
//! | bulk | one other lane per endpoint, if there are others: the lane keeps the endpoint's order |
//! | block read or flush | the lane with the fewest bytes in flight |
//! | block change | the same, unless a change of the same bytes is in flight: then that change's lane |
//!
//! A lane without a link gets no new requests as long as another lane has a link. Its own requests wait for its next
//! link.

use farbus_model::{EpAddr, TransferDirection};
use farbus_wire::native::LaneSet;
use farbus_wire::native::lanes::SLOTS_MAX;

use crate::ProtocolViolation;

/// Most requests in flight, whatever the credit: limited by the tags.
pub(super) const REQUESTS_MAX: u16 = SLOTS_MAX;
const LANES_MAX: usize = farbus_model::limits::LANES_MAX as usize;

/// Bytes in flight, by lane.
#[derive(Debug)]
pub(super) struct LaneLoads {
    usable: LaneSet,
    /// Number of requests in flight on lanes other than the first.
    elsewhere: usize,
    bytes: [u64; LANES_MAX],
}

impl Default for LaneLoads {
    fn default() -> Self {
        Self { usable: LaneSet::FIRST, elsewhere: 0, bytes: [0; LANES_MAX] }
    }
}

/// Weight of a request besides its data, so that many small requests are spread, too.
const REQUEST_BYTES: u64 = 512;

impl LaneLoads {
    /// Sets the lanes for new requests.
    pub fn set_usable(&mut self, usable: LaneSet) {
        self.usable = usable;
    }

    /// Whether only the first lane is in use and allowed.
    pub fn is_first_alone(&self) -> bool {
        self.usable == LaneSet::FIRST && self.elsewhere == 0
    }

    /// The usable lane with the fewest bytes in flight.
    pub fn least(&self) -> u8 {
        self.usable.iter().min_by_key(|&lane| self.bytes[usize::from(lane)]).unwrap_or(0)
    }

    /// A request of this many bytes begins on a lane.
    pub fn add(&mut self, lane: u8, bytes: u64) {
        self.bytes[usize::from(lane)] += bytes + REQUEST_BYTES;
        self.elsewhere += usize::from(lane != 0);
    }

    /// A request has ended.
    pub fn remove(&mut self, lane: u8, bytes: u64) {
        self.bytes[usize::from(lane)] -= bytes + REQUEST_BYTES;
        self.elsewhere -= usize::from(lane != 0);
    }

    /// No requests are in flight any more.
    pub fn clear(&mut self) {
        (self.bytes, self.elsewhere) = ([0; LANES_MAX], 0);
    }
}

/// The lanes of a device's endpoints.
#[derive(Debug)]
pub(super) struct EndpointLanes {
    usable: LaneSet,
    lanes: [EndpointLane; 32],
}

/// The lane of one endpoint.
#[derive(Clone, Copy, Debug, Default)]
struct EndpointLane {
    lane: u8,
    in_flight: u16,
}

impl Default for EndpointLanes {
    fn default() -> Self {
        Self { usable: LaneSet::FIRST, lanes: [EndpointLane::default(); 32] }
    }
}

/// An endpoint's index among all 32.
fn index(endpoint: EpAddr) -> usize {
    usize::from(endpoint.number()) & 15 | if endpoint.direction() == TransferDirection::In { 16 } else { 0 }
}

impl EndpointLanes {
    /// Sets the lanes for new requests.
    pub fn set_usable(&mut self, usable: LaneSet) {
        self.usable = usable;
    }

    /// A request begins at this endpoint; returns its lane.
    pub fn enter(&mut self, endpoint: EpAddr, is_bulk: bool) -> u8 {
        let at = index(endpoint);
        if self.lanes[at].in_flight == 0 {
            self.lanes[at].lane = self.choose(at, is_bulk);
        }
        self.lanes[at].in_flight += 1;
        self.lanes[at].lane
    }

    fn choose(&self, at: usize, is_bulk: bool) -> u8 {
        if !is_bulk || self.usable == LaneSet::FIRST {
            return 0;
        }
        let before = self.lanes[at].lane;
        if before != 0 && self.usable.contains(before) {
            return before;
        }
        // An endpoint keeps its lane, whose link has adapted to its traffic.
        let taken = |lane: u8| self.lanes.iter().filter(|endpoint_lane| endpoint_lane.lane == lane).count();
        self.usable.iter().filter(|&lane| lane != 0).min_by_key(|&lane| taken(lane)).unwrap_or(0)
    }

    /// A request at this endpoint has ended.
    pub fn leave(&mut self, endpoint: EpAddr) {
        self.lanes[index(endpoint)].in_flight -= 1;
    }

    /// No endpoint has requests in flight any more.
    pub fn clear(&mut self) {
        self.lanes.iter_mut().for_each(|endpoint_lane| endpoint_lane.in_flight = 0);
    }

    /// Records a request of a snapshot that is in flight on this lane.
    ///
    /// # Errors
    /// [`ProtocolViolation`]: the endpoint has requests in flight on another lane.
    pub fn enter_again(&mut self, endpoint: EpAddr, lane: u8) -> Result<(), ProtocolViolation> {
        let endpoint_lane = &mut self.lanes[index(endpoint)];
        if usize::from(lane) >= LANES_MAX || (endpoint_lane.in_flight > 0 && endpoint_lane.lane != lane) {
            return Err(ProtocolViolation::new("lane", lane.into(), "an endpoint has one at a time"));
        }
        *endpoint_lane = EndpointLane { lane, in_flight: endpoint_lane.in_flight + 1 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: LaneSet = LaneSet::FIRST.with(1).with(2);

    #[test]
    fn block_requests_go_to_the_least_loaded_linked_lane() {
        let mut loads = LaneLoads::default();
        loads.add(0, 4096);
        assert_eq!(loads.least(), 0, "there is no other");
        loads.set_usable(ALL);
        let lanes: Vec<u8> = (0..5)
            .map(|_| {
                let lane = loads.least();
                loads.add(lane, 4096);
                lane
            })
            .collect();
        assert_eq!(lanes, [1, 2, 0, 1, 2]);
        loads.set_usable(LaneSet::FIRST.with(2));
        loads.remove(1, 4096);
        loads.remove(1, 4096);
        assert_eq!(loads.least(), 0);
        loads.set_usable(ALL);
        assert_eq!(loads.least(), 1);
    }

    #[test]
    fn endpoint_changes_its_lane_only_with_nothing_in_flight() {
        let (out, back, keys) = (EpAddr::from_byte(0x02), EpAddr::from_byte(0x81), EpAddr::from_byte(0x83));
        let mut endpoints = EndpointLanes::default();
        assert_eq!(endpoints.enter(out, true), 0);
        endpoints.set_usable(ALL);
        assert_eq!(endpoints.enter(out, true), 0, "behind the one before");
        assert_eq!([endpoints.enter(back, true), endpoints.enter(keys, false)], [1, 0]);
        endpoints.leave(out);
        endpoints.leave(out);
        assert_eq!(endpoints.enter(out, true), 2, "the other has one endpoint");
        endpoints.set_usable(LaneSet::FIRST.with(1));
        assert_eq!(endpoints.enter(out, true), 2, "its lane waits for a link, and so does it");
        endpoints.leave(out);
        endpoints.leave(out);
        assert_eq!(endpoints.enter(out, true), 1);
        assert_eq!(endpoints.enter_again(out, 2).unwrap_err().field, "lane");
    }
}
