//! On which of a session's lanes a request goes.
//!
//! | what | where |
//! |---|---|
//! | control, interrupt, isochronous | the first: nothing lost of what is large is in its way |
//! | bulk | its endpoint's, one of the others, if there are others: the order of an endpoint is that of its lane |
//! | blocks, read or flushed | where the least is under way |
//! | blocks, changed | the same; but behind a change of the same bytes, if there is one, on its lane |
//!
//! A lane without a link gets nothing new, as long as another has one; what it has waits for its next link.

use farbus_model::{Direction, EpAddr};
use farbus_wire::native::LaneSet;
use farbus_wire::native::lanes::SLOTS_MAX;

use crate::Reject;

/// Requests that are in flight at most, whatever the credit: a tag tells no more apart.
pub(super) const REQUESTS_MAX: u16 = SLOTS_MAX;
const LANES_MAX: usize = farbus_model::limits::LANES_MAX as usize;

/// Bytes under way, by lane.
#[derive(Debug)]
pub(super) struct Loads {
    usable: LaneSet,
    /// Requests under way on others than the first.
    elsewhere: usize,
    bytes: [u64; LANES_MAX],
}

impl Default for Loads {
    fn default() -> Self {
        Self { usable: LaneSet::FIRST, elsewhere: 0, bytes: [0; LANES_MAX] }
    }
}

/// What a request weighs beside its data: many small ones are spread, too.
const REQUEST_BYTES: u64 = 512;

impl Loads {
    /// New requests go on these.
    pub fn set_usable(&mut self, usable: LaneSet) {
        self.usable = usable;
    }

    /// Whether nothing is, or may be, on any but the first.
    pub fn is_first_alone(&self) -> bool {
        self.usable == LaneSet::FIRST && self.elsewhere == 0
    }

    /// Where the least is under way.
    pub fn least(&self) -> u8 {
        self.usable.iter().min_by_key(|&lane| self.bytes[usize::from(lane)]).unwrap_or(0)
    }

    /// A request of so many bytes begins on a lane.
    pub fn add(&mut self, lane: u8, bytes: u64) {
        self.bytes[usize::from(lane)] += bytes + REQUEST_BYTES;
        self.elsewhere += usize::from(lane != 0);
    }

    /// It has ended.
    pub fn remove(&mut self, lane: u8, bytes: u64) {
        self.bytes[usize::from(lane)] -= bytes + REQUEST_BYTES;
        self.elsewhere -= usize::from(lane != 0);
    }

    /// Nothing is under way.
    pub fn clear(&mut self) {
        (self.bytes, self.elsewhere) = ([0; LANES_MAX], 0);
    }
}

/// Where the endpoints of a device have their requests.
#[derive(Debug)]
pub(super) struct Endpoints {
    usable: LaneSet,
    places: [Place; 32],
}

/// An endpoint's.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    lane: u8,
    in_flight: u16,
}

impl Default for Endpoints {
    fn default() -> Self {
        Self { usable: LaneSet::FIRST, places: [Place::default(); 32] }
    }
}

/// An endpoint's place among all 32.
fn index(endpoint: EpAddr) -> usize {
    usize::from(endpoint.number()) & 15 | if endpoint.direction() == Direction::In { 16 } else { 0 }
}

impl Endpoints {
    /// New requests go on these.
    pub fn set_usable(&mut self, usable: LaneSet) {
        self.usable = usable;
    }

    /// A request begins at this endpoint: on which lane.
    pub fn enter(&mut self, endpoint: EpAddr, is_bulk: bool) -> u8 {
        let at = index(endpoint);
        if self.places[at].in_flight == 0 {
            self.places[at].lane = self.choose(at, is_bulk);
        }
        self.places[at].in_flight += 1;
        self.places[at].lane
    }

    fn choose(&self, at: usize, is_bulk: bool) -> u8 {
        if !is_bulk || self.usable == LaneSet::FIRST {
            return 0;
        }
        let before = self.places[at].lane;
        if before != 0 && self.usable.contains(before) {
            return before;
        }
        // Endpoints that have one keep it: its path is known to it by now.
        let taken = |lane: u8| self.places.iter().filter(|place| place.lane == lane).count();
        self.usable.iter().filter(|&lane| lane != 0).min_by_key(|&lane| taken(lane)).unwrap_or(0)
    }

    /// A request at this endpoint is nobody's any more.
    pub fn leave(&mut self, endpoint: EpAddr) {
        self.places[index(endpoint)].in_flight -= 1;
    }

    /// None has any.
    pub fn clear(&mut self) {
        self.places.iter_mut().for_each(|place| place.in_flight = 0);
    }

    /// A request of another process is in flight there.
    ///
    /// # Errors
    /// [`Reject`]: the endpoint has others elsewhere.
    pub fn enter_again(&mut self, endpoint: EpAddr, lane: u8) -> Result<(), Reject> {
        let place = &mut self.places[index(endpoint)];
        if usize::from(lane) >= LANES_MAX || (place.in_flight > 0 && place.lane != lane) {
            return Err(Reject::new("lane", lane.into(), "an endpoint has one at a time"));
        }
        *place = Place { lane, in_flight: place.in_flight + 1 };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: LaneSet = LaneSet::FIRST.with(1).with(2);

    #[test]
    fn blocks_go_where_the_least_is_under_way_and_nowhere_without_a_link() {
        let mut loads = Loads::default();
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
    fn an_endpoint_changes_its_lane_only_when_nothing_of_it_is_under_way() {
        let (out, back, keys) = (EpAddr::from_byte(0x02), EpAddr::from_byte(0x81), EpAddr::from_byte(0x83));
        let mut endpoints = Endpoints::default();
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
