//! An exporter in memory, on a clock that moves when somebody waits.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use farbus_conform::player::{ConnId, MockExporter};
use farbus_conform::{LinkLoss, PeerLink, PeerNetwork, ReceiveOutcome};
use farbus_model::Instant;

/// An exporter, and a clock that moves when somebody waits.
pub struct World {
    pub player: MockExporter,
    pub now: Instant,
    /// Changes what clients send before the exporter sees it; emptied bytes never arrive.
    pub incoming: fn(&mut Vec<u8>),
    /// Serves one connection at a time, the oldest.
    pub is_single: bool,
    /// Forgets to give the device back when its user leaves with requests under way, or within one.
    pub is_forgetful: bool,
    /// Keeps the connection of a client that leaves within a header.
    pub stays_in_header: bool,
    pub open: BTreeSet<ConnId>,
}

impl World {
    pub fn new(player: MockExporter) -> Self {
        let open = BTreeSet::new();
        Self {
            player,
            now: Instant::ZERO,
            incoming: |_| {},
            is_single: false,
            is_forgetful: false,
            stays_in_header: false,
            open,
        }
    }

    fn is_served(&self, id: ConnId) -> bool {
        !self.is_single || self.open.first() == Some(&id)
    }
}

impl World {
    /// Lets the player do what is due until `end`, or until `is_enough`.
    fn wait(&mut self, end: Instant, mut is_enough: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if is_enough(self) {
                return true;
            }
            match self.player.poll_timeout().filter(|moment| *moment < end) {
                Some(moment) => {
                    self.now = self.now.max(moment);
                    self.player.handle_timeout(self.now);
                }
                None => {
                    self.now = self.now.max(end);
                    return false;
                }
            }
        }
    }
}

#[derive(Clone)]
pub struct Memory(pub Rc<RefCell<World>>);

struct Ended {
    world: Memory,
    id: ConnId,
    /// The last bytes sent were no whole header.
    is_within: bool,
}

impl PeerNetwork for Memory {
    fn dial(&mut self) -> Result<Box<dyn PeerLink>, LinkLoss> {
        let id = self.0.borrow_mut().player.connect();
        self.0.borrow_mut().open.insert(id);
        Ok(Box::new(Ended { world: self.clone(), id, is_within: false }))
    }

    fn pause(&mut self, span: Duration) {
        let mut world = self.0.borrow_mut();
        let end = world.now + span;
        world.wait(end, |_| false);
    }

    fn now(&self) -> Instant {
        self.0.borrow().now
    }
}

impl PeerLink for Ended {
    fn send(&mut self, bytes: &[u8], within: Duration) -> Result<usize, LinkLoss> {
        let world = &mut *self.world.0.borrow_mut();
        if world.player.is_over(self.id) {
            return Err(LinkLoss("closed".to_owned()));
        }
        let end = world.now + within;
        self.is_within = bytes.len() < 48 && !matches!(bytes.len(), 8 | 40);
        let (mut taken, id) = (0, self.id);
        let mut changed = bytes.to_vec();
        (world.incoming)(&mut changed);
        if changed.len() != bytes.len() || !world.is_served(id) {
            return Ok(bytes.len());
        }
        world.wait(end, |world| {
            taken += world.player.receive(id, &changed[taken..], world.now);
            taken == changed.len()
        });
        Ok(taken)
    }

    fn receive(&mut self, into: &mut [u8], within: Duration) -> ReceiveOutcome {
        let world = &mut *self.world.0.borrow_mut();
        let (end, id) = (world.now + within, self.id);
        let came = world.wait(end, |world| !world.player.transmit(id).is_empty() || world.player.is_over(id));
        let bytes = world.player.transmit(id);
        let count = bytes.len().min(into.len());
        if count == 0 {
            return if came { ReceiveOutcome::Closed } else { ReceiveOutcome::Silence };
        }
        into[..count].copy_from_slice(&bytes[..count]);
        world.player.transmitted(id, count);
        ReceiveOutcome::Bytes(count)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let world = &mut *self.world.0.borrow_mut();
        if world.stays_in_header && self.is_within {
            return;
        }
        world.open.remove(&self.id);
        if !world.is_forgetful || world.player.in_flight(self.id) == 0 {
            world.player.close(self.id, world.now);
        }
    }
}
