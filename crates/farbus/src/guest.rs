//! A paired host in a session: what it may do, and what is noted of it.

use farbus_io::trust::{Event, Fingerprint, Grant, Outcome, Peers};
use tracing::info;

use crate::trust::Trust;

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

    /// What it may use, as of now: nothing, once it is unpaired.
    pub fn allowed(&self) -> Grant {
        self.trust.peer(&self.fingerprint).map(|peer| peer.allow).unwrap_or_default()
    }

    /// Whether it may claim this device, as of now.
    pub fn may_claim(&self, device: &str) -> bool {
        let may = self.allowed().allows(device);
        if !may {
            info!(device, peer = self.name, "refused: not allowed");
            self.record_refused(device, "not allowed");
        }
        may
    }

    /// Whether it may reserve something for this device that others give way to, as of now.
    pub fn may_reserve_high(&self, device: &str) -> bool {
        let may = self.trust.peer(&self.fingerprint).is_some_and(|peer| peer.reserve_high.allows(device));
        if !may {
            self.record_refused(device, "high criticality not allowed");
        }
        may
    }

    /// Whether its session, with the device that it uses, may go on as far as `peers` says.
    pub fn may_stay(&self, peers: &Peers, device: Option<&str>) -> bool {
        let peer = peers.of_key(&self.fingerprint);
        peer.is_some_and(|peer| device.is_none_or(|device| peer.allow.allows(device)))
    }

    /// Notes that it has it.
    pub fn record_attached(&self, device: &str) {
        self.trust.record(&Event { device: Some(device), ..self.event("attach", Outcome::Ok) });
    }

    /// Notes that it looks on.
    pub fn record_observing(&self, device: &str) {
        self.trust.record(&Event { device: Some(device), ..self.event("observe", Outcome::Ok) });
    }

    /// Notes that it does not get it.
    pub fn record_refused(&self, device: &str, why: &str) {
        self.trust.record(&Event { device: Some(device), why: Some(why), ..self.event("attach", Outcome::Refused) });
    }

    /// Notes that it has it no more.
    pub fn record_detached(&self, device: &str) {
        self.trust.record(&Event { device: Some(device), ..self.event("detach", Outcome::Ok) });
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
