//! Which peers may use which devices, beyond what `peers.toml` allows paired hosts; and the audit log of each use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use farbus_io_net::local::events::{Event, EventKind, publish};
use farbus_io_net::trust::{AuditEvent as Recorded, AuditOutcome, AuditRecorder, Fingerprint, Peer};
use farbus_session::claims::lease::LeaseHost;
use farbus_session::claims::{DeviceClaims, UseEnding, shortened};
use farbus_session::leases::LeaseHostKey;

use crate::common::ordered_mutex::{ALONE, OrderedMutex};
use crate::exporter::access::local_users::LocalPeers;
use crate::exporter::access::paired_host::PairedPeer;
use crate::exporter::access::quota::PeerIdentity;
use crate::exporter::session::entry::SessionEntry;
use crate::exporter::state::registry::DeviceRegistry;
use crate::hosts::trust::{AuditedUse, TrustStore};

/// Permissions of peers. One lock, of the devices that only one host may use; it is held alone.
pub struct DevicePermissions {
    registry: Arc<DeviceRegistry>,
    /// Which users of this machine are served.
    pub local_peers: Arc<LocalPeers>,
    /// Devices that only one host may use, by name, whatever else others are allowed.
    lent: OrderedMutex<BTreeMap<String, ExclusiveUse>, ALONE>,
    /// Whether a host that may use a device may observe it while another host uses it.
    is_observable: AtomicBool,
    /// Who writes the audit log for users that prove no key.
    pub recorder: OnceLock<Arc<dyn AuditRecorder>>,
    /// This host's key and its paired hosts, if it serves them.
    trust: OnceLock<TrustStore>,
}

/// The only host that may use a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveUse {
    /// This host, through the programs of its served users.
    Own,
    /// The paired host with this key.
    To(Fingerprint),
    /// No host, for now.
    Nobody,
}

impl ExclusiveUse {
    /// Whether the device is for this peer. Of this machine's programs, only those of served users count as this
    /// host.
    fn is_for(self, peer_identity: PeerIdentity, local_peers: &LocalPeers) -> bool {
        match (self, peer_identity) {
            (ExclusiveUse::To(key), PeerIdentity::Host(host)) => key == host,
            (ExclusiveUse::Own, PeerIdentity::User(user) | PeerIdentity::Own(_, user)) => local_peers.serves(user),
            _ => false,
        }
    }
}

impl DevicePermissions {
    /// No device is restricted to one host, and none may be observed.
    pub fn new(registry: Arc<DeviceRegistry>, local_peers: Arc<LocalPeers>) -> Self {
        Self {
            registry,
            local_peers,
            lent: OrderedMutex::default(),
            is_observable: AtomicBool::new(false),
            recorder: OnceLock::new(),
            trust: OnceLock::new(),
        }
    }

    /// Sets the devices that only one host may use. All other devices lose that restriction.
    pub fn lend(&self, lent: BTreeMap<String, ExclusiveUse>) {
        *self.lent.lock().unwrap_or_else(PoisonError::into_inner) = lent;
    }

    /// Whether a device that only one host may use is this peer's; `None` if the device has no such restriction.
    pub fn lent_to(&self, peer_identity: PeerIdentity, device: &str) -> Option<bool> {
        let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner).get(device).copied();
        lent.map(|lent| lent.is_for(peer_identity, &self.local_peers))
    }

    /// Sets this host's key and its paired hosts. Only the first call has an effect.
    pub fn set_trust(&self, trust: TrustStore) {
        let _ = self.trust.set(trust);
    }

    /// The paired host with this key.
    pub fn peer(&self, key: &Fingerprint) -> Option<Peer> {
        self.trust.get()?.peer(key)
    }

    /// The name of the host with this key here, for people.
    pub fn name_of(&self, key: LeaseHostKey) -> String {
        let (Some(key), Some(trust)) = (key.map(Fingerprint::from_bytes), self.trust.get()) else {
            return "a host without a key".to_owned();
        };
        match trust.peer(&key) {
            Some(peer) => peer.name,
            None if key == trust.fingerprint() => "this host".to_owned(),
            None => key.to_string(),
        }
    }

    /// The key of the session's host, by which a successor is recognized. The programs of this machine's served users
    /// are this host: their user is known from the kernel, so they prove no key. `None` if the peer's host is unknown.
    pub fn key_of(&self, session: &SessionEntry) -> LeaseHostKey {
        let is_own = || ExclusiveUse::Own.is_for(session.peer_identity, &self.local_peers);
        let key = match &session.paired_peer {
            Some(paired_peer) => Some(paired_peer.fingerprint()),
            None => self.trust.get().map(TrustStore::fingerprint).filter(|_| is_own()),
        };
        key.map(|key| *key.as_bytes())
    }

    /// Whether a peer, which is this paired host if `peer` is set, may use a device.
    pub fn may_use(&self, peer_identity: PeerIdentity, peer: Option<&Peer>, device: &str) -> bool {
        let registry = &self.registry;
        let may = || peer.is_some_and(|peer| peer.may_use(registry.permitted_as(device), registry.id_of(device)));
        self.lent_to(peer_identity, device).unwrap_or_else(may)
    }

    /// Why a paired host may use no device of this name, whether there is one or not; `None` if it may use one.
    pub fn forbids(&self, paired_peer: &PairedPeer, device: &str) -> Option<String> {
        let peer = paired_peer.peer();
        let is_own = self.lent_to(PeerIdentity::Host(paired_peer.fingerprint()), device) == Some(true);
        if is_own || peer.as_ref().is_some_and(|peer| peer.may_use(device, self.registry.id_of(device))) {
            return None;
        }
        let host = peer.map_or_else(|| "YOUR-HOST".to_owned(), |peer| peer.name);
        let device = shortened(device);
        Some(format!(
            "this host may use no device called '{device}' there\n  its owner lets it: farbus allow {host} '{device}'"
        ))
    }

    /// The bus ids of all devices that a peer may use, as [`DevicePermissions::may_use`] says of one: the registry is
    /// read once, however many there are.
    pub fn usable_by(&self, peer_identity: PeerIdentity, peer: Option<&Peer>) -> BTreeSet<String> {
        let registry = &self.registry;
        let mut names = registry.names();
        names.retain(|bus_id, (name, id)| {
            let may = || peer.is_some_and(|peer| peer.may_use(registry.permitted_at(bus_id, name), *id));
            self.lent_to(peer_identity, name).unwrap_or_else(may)
        });
        names.into_keys().collect()
    }

    /// Whether a host that may use a device may observe it while another host uses it.
    pub fn is_observable(&self) -> bool {
        self.is_observable.load(Ordering::Acquire)
    }

    /// Sets whether a host that may use a device may observe it while another host uses it.
    pub fn set_observable(&self, is_observable: bool) {
        self.is_observable.store(is_observable, Ordering::Release);
    }

    /// Records in the audit log what the peer of `session` does with a device, or why it may not.
    pub fn record(&self, session: &SessionEntry, use_of: AuditedUse, bus_id: &str, allowed: Result<(), &str>) {
        let device = self.registry.device_name(bus_id);
        let device = device.as_deref().unwrap_or(bus_id);
        let outcome = if allowed.is_ok() { AuditOutcome::Ok } else { AuditOutcome::Refused };
        publish_use(session, use_of, device, allowed);
        match &session.paired_peer {
            Some(paired_peer) => paired_peer.record(use_of.as_str(), outcome, device, allowed.err()),
            None => {
                let Some(recorder) = self.recorder.get() else { return };
                recorder.record(&Recorded {
                    address: Some(&session.peer),
                    device: Some(device),
                    why: allowed.err(),
                    ..Recorded::new(use_of.as_str(), outcome)
                });
            }
        }
    }

    /// Records in the audit log what becomes of a lease of a device: `why` says until when, or why not.
    pub fn record_lease(&self, use_of: AuditedUse, outcome: AuditOutcome, bus_id: &str, who: &LeaseHost, why: &str) {
        let Some(recorder) = self.recorder.get() else { return };
        let peers = self.trust.get().filter(|_| who.is_paired()).and_then(|trust| trust.peers().ok());
        let key = peers.and_then(|peers| peers.find(who.name()).map(|peer| peer.fingerprint));
        let device = self.registry.device_name(bus_id);
        let who = Some(who.name());
        recorder.record(&Recorded {
            peer: who.filter(|_| key.is_some()),
            fingerprint: key,
            address: who.filter(|_| key.is_none()),
            device: device.as_deref().or(Some(bus_id)),
            why: Some(why),
            ..Recorded::new(use_of.as_str(), outcome)
        });
    }

    /// Publishes, and records in the audit log, that the lease of a device has ended, if it had one.
    pub fn record_lease_end(&self, bus_id: &str, ending: UseEnding) {
        let lease = self.registry.lock().claims_mut(bus_id).and_then(DeviceClaims::take_ended_lease);
        let device = self.registry.device_name(bus_id);
        let event = Event::of(EventKind::LeaseEnded, device.as_deref().unwrap_or(bus_id)).how(ending.as_str());
        match lease {
            Some(lease) => {
                publish(event.host(lease.who.name()));
                self.record_lease(AuditedUse::LeaseEnd, AuditOutcome::Ok, bus_id, &lease.who, ending.as_str());
            }
            // A use that was preempted is over as a lease is.
            None if ending == UseEnding::Preempted => publish(event),
            None => {}
        }
    }
}

/// Publishes a use of a device. The end of a use is published where it is known how it ended.
fn publish_use(session: &SessionEntry, use_of: AuditedUse, device: &str, allowed: Result<(), &str>) {
    let event = match (use_of, allowed) {
        (_, Err(why)) => Event::of(EventKind::Refused, device).why(why),
        (AuditedUse::Attach, Ok(())) => Event::of(EventKind::Used, device),
        (AuditedUse::Observe, Ok(())) => Event::of(EventKind::Observed, device),
        // What becomes of a lease is published where it does.
        (_, Ok(())) => return,
    };
    publish(event.host(session.peer.as_str()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_s_own_device_is_only_for_local_users_who_are_served() {
        let peers = LocalPeers::default();
        let us = farbus_io_net::local::runtime_folder::owner();
        let loopback = [127, 0, 0, 1].into();
        for own in [PeerIdentity::User(us), PeerIdentity::User(0), PeerIdentity::Own(loopback, us)] {
            assert!(ExclusiveUse::Own.is_for(own, &peers), "{own:?}");
        }
        for other in
            [PeerIdentity::User(us + 4000), PeerIdentity::Own(loopback, us + 4000), PeerIdentity::Address(loopback)]
        {
            assert!(!ExclusiveUse::Own.is_for(other, &peers), "{other:?}");
        }
    }
}
