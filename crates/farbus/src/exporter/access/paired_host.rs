//! A paired host in a session: what it may do, and what is noted of it.

use farbus_io::trust::{DeviceId, Event, Fingerprint, Outcome, Peer, Peers};
use tracing::info;

use crate::hosts::trust::Trust;

/// A paired host in a session.
#[derive(Clone)]
pub struct Guest {
    trust: Trust,
    fingerprint: Fingerprint,
    name: String,
    address: String,
}

impl Guest {
    /// Over a link whose peer has proved its key.
    pub fn new(trust: Trust, fingerprint: Fingerprint, name: String, address: String) -> Self {
        Self { trust, fingerprint, name, address }
    }

    /// What it is called, and where it comes from.
    pub fn identity(&self) -> (&str, &str) {
        (&self.name, &self.address)
    }

    /// Whether both are one host, by its key.
    pub fn is_same_host(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    /// Its key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// What is known of it, as of now: nothing, once it is unpaired.
    pub fn peer(&self) -> Option<Peer> {
        self.trust.peer(&self.fingerprint)
    }

    /// Whether it may claim the device of this name and this id, as of now.
    pub fn may_claim(&self, device: &str, id: Option<DeviceId>) -> bool {
        let may = self.peer().is_some_and(|peer| peer.may_use(device, id));
        if !may {
            info!(device, peer = self.name, "refused: not allowed");
            self.record_refused(device, "not allowed");
        }
        may
    }

    /// Whether it may reserve something for this device that others give way to, as of now.
    pub fn may_reserve_high(&self, device: &str, id: Option<DeviceId>) -> bool {
        let may = self.peer().is_some_and(|peer| peer.may_reserve_high(device, id));
        if !may {
            self.record_refused(device, "high criticality not allowed");
        }
        may
    }

    /// Whether its session, with the device that it uses, may go on as far as `peers` says.
    pub fn may_stay(&self, peers: &Peers, device: Option<(&str, Option<DeviceId>)>) -> bool {
        let peer = peers.of_key(&self.fingerprint);
        peer.is_some_and(|peer| device.is_none_or(|(device, id)| peer.may_use(device, id)))
    }

    /// Notes what it does with a device, or is refused, and why.
    pub fn record(&self, verb: &str, outcome: Outcome, device: &str, why: Option<&str>) {
        self.trust.record(&Event { device: Some(device), why, ..self.event(verb, outcome) });
    }

    /// Notes that it does not get it.
    pub fn record_refused(&self, device: &str, why: &str) {
        self.record("attach", Outcome::Refused, device, Some(why));
    }

    fn event<'a>(&'a self, verb: &'a str, outcome: Outcome) -> Event<'a> {
        Event {
            peer: Some(&self.name),
            fingerprint: Some(self.fingerprint),
            address: Some(&self.address),
            ..Event::new(verb, outcome)
        }
    }
}
