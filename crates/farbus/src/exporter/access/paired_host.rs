//! A paired host in a session: what it may do, and what the audit log records of it.

use farbus_io_net::trust::{AuditEvent, AuditOutcome, DeviceId, Fingerprint, PairedHostList, Peer};
use tracing::info;

use crate::hosts::trust::TrustStore;

/// A paired host in a session.
#[derive(Clone)]
pub struct PairedPeer {
    trust: TrustStore,
    fingerprint: Fingerprint,
    name: String,
    address: String,
}

impl PairedPeer {
    /// Creates the paired peer for a link whose peer has proved `fingerprint`.
    pub fn new(trust: TrustStore, fingerprint: Fingerprint, name: String, address: String) -> Self {
        Self { trust, fingerprint, name, address }
    }

    /// The host's name here, and the address it connects from.
    pub fn identity(&self) -> (&str, &str) {
        (&self.name, &self.address)
    }

    /// Whether both are the same host, by their keys.
    pub fn is_same_host(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The current entry of the host in the list of peers; `None` once it is unpaired.
    pub fn peer(&self) -> Option<Peer> {
        self.trust.peer(&self.fingerprint)
    }

    /// Whether the host may currently claim the device with this name and id, which permissions mean by the name
    /// `permitted_as`. A refusal is logged and recorded.
    pub fn may_claim(&self, device: &str, permitted_as: &str, id: Option<DeviceId>) -> bool {
        let may = self.peer().is_some_and(|peer| peer.may_use(permitted_as, id));
        if !may {
            info!(device, peer = self.name, "refused: not allowed");
            self.record_refused(device, "not allowed");
        }
        may
    }

    /// Whether the host may currently reserve with high criticality for this device, which permissions mean by the name
    /// `permitted_as`. A refusal is recorded.
    pub fn may_reserve_high(&self, device: &str, permitted_as: &str, id: Option<DeviceId>) -> bool {
        let may = self.peer().is_some_and(|peer| peer.may_reserve_high(permitted_as, id));
        if !may {
            self.record_refused(device, "high criticality not allowed");
        }
        may
    }

    /// Whether `peers` still allows the host's session, and the device that it uses if there is one.
    pub fn may_stay(&self, peers: &PairedHostList, device: Option<(&str, Option<DeviceId>)>) -> bool {
        let peer = peers.of_key(&self.fingerprint);
        peer.is_some_and(|peer| device.is_none_or(|(device, id)| peer.may_use(device, id)))
    }

    /// Records a use of a device, or its refusal and the reason, in the audit log.
    pub fn record(&self, verb: &str, outcome: AuditOutcome, device: &str, why: Option<&str>) {
        self.trust.record(&AuditEvent { device: Some(device), why, ..self.event(verb, outcome) });
    }

    /// Records that the host was refused the device.
    pub fn record_refused(&self, device: &str, why: &str) {
        self.record("attach", AuditOutcome::Refused, device, Some(why));
    }

    fn event<'a>(&'a self, verb: &'a str, outcome: AuditOutcome) -> AuditEvent<'a> {
        AuditEvent {
            peer: Some(&self.name),
            fingerprint: Some(self.fingerprint),
            address: Some(&self.address),
            ..AuditEvent::new(verb, outcome)
        }
    }
}
