//! This host's key, its paired hosts, and the terms of encrypted links with them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use farbus_io_net::link::host_address::SECURE_PORT;
use farbus_io_net::trust::{
    AcceptedKeys, AuditEvent, AuditLog, AuditOutcome, AuditRecorder, Fingerprint, HandshakeTerms, HostFolder,
    HostIdentity, LinkProtocol, PairedHostList, Peer, StateError, host_name, limits, timestamp,
};
use tracing::error;

/// This host's key, and the hosts it is paired with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TrustStore {
    folder: HostFolder,
    identity: Arc<HostIdentity>,
    audit: Arc<dyn AuditRecorder>,
    name: String,
}

/// What a host does with a device or with a lease of it, for the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditedUse {
    /// Claims the device, or is refused.
    Attach,
    /// Observes the device while another host uses it.
    Observe,
    /// Releases the device.
    Detach,
    /// Gets a lease of the device, or is refused it.
    Lease,
    /// Gets its lease for longer, or does not.
    LeaseExtend,
    /// Has its lease no more.
    LeaseEnd,
    /// Books a lease ahead of time, or is refused it.
    Book,
    /// Gives its bookings up.
    BookEnd,
}

impl AuditedUse {
    /// Every use that the confined process may have recorded.
    pub const ALL: [Self; 8] = [
        Self::Attach,
        Self::Observe,
        Self::Detach,
        Self::Lease,
        Self::LeaseExtend,
        Self::LeaseEnd,
        Self::Book,
        Self::BookEnd,
    ];

    /// The word in the audit log for a connection.
    pub const CONNECT: &'static str = "connect";

    /// The word in the audit log.
    pub const fn as_str(self) -> &'static str {
        match self {
            AuditedUse::Attach => "attach",
            AuditedUse::Observe => "observe",
            AuditedUse::Detach => "detach",
            AuditedUse::Lease => "lease",
            AuditedUse::LeaseExtend => "lease-extend",
            AuditedUse::LeaseEnd => "lease-end",
            AuditedUse::Book => "book",
            AuditedUse::BookEnd => "book-end",
        }
    }
}

impl TrustStore {
    /// Opens the state folder of the user who runs this process. The key is generated if there is none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn open() -> Result<Self, StateError> {
        Self::at(HostFolder::of_user()?)
    }

    /// Whether the user has a key already.
    pub fn is_there() -> bool {
        HostFolder::of_user().is_ok_and(|folder| HostIdentity::is_there(&folder))
    }

    /// Opens a state folder. The key is generated if there is none.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn at(folder: HostFolder) -> Result<Self, StateError> {
        let identity = Arc::new(HostIdentity::load_or_create(&folder)?);
        let audit = Arc::new(AuditLog::new(folder.clone()));
        Ok(Self { folder, identity, audit, name: host_name() })
    }

    /// The state folder.
    pub fn folder(&self) -> &HostFolder {
        &self.folder
    }

    /// This host's name for itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fingerprint of this host's key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.identity.fingerprint()
    }

    /// The current list of paired hosts.
    ///
    /// # Errors
    /// [`StateError`]: then no host is to be trusted.
    pub fn peers(&self) -> Result<PairedHostList, StateError> {
        PairedHostList::load(&self.folder)
    }

    /// The names of the paired hosts by their keys, as of now. An unreadable list is reported where hosts are asked.
    pub fn names_by_key(&self) -> BTreeMap<String, String> {
        let peers = self.peers();
        peers.map_or_else(
            |_| BTreeMap::new(),
            |peers| peers.iter().map(|peer| (peer.fingerprint.to_string(), peer.name.clone())).collect(),
        )
    }

    /// The paired host with this key, as of now. `None`, with a line in the log, if the list cannot be read.
    pub fn peer(&self, fingerprint: &Fingerprint) -> Option<Peer> {
        match self.peers() {
            Ok(peers) => peers.of_key(fingerprint).cloned(),
            Err(error) => {
                error!(%error, "nobody is trusted while the list of paired hosts cannot be read");
                None
            }
        }
    }

    /// Changes the list of paired hosts.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn change<T>(&self, change: impl FnOnce(&mut PairedHostList) -> T) -> Result<T, StateError> {
        PairedHostList::change(&self.folder, change)
    }

    /// Adds a paired host under a name that no other host has, and returns the entry. A host that was paired before
    /// keeps its permissions.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn note(
        &self,
        name: &str,
        fingerprint: Fingerprint,
        address: String,
        allow: &[String],
    ) -> Result<Peer, StateError> {
        let noted = self.change(|peers| {
            let numbered = (2..).map(|number| format!("{name}-{number}"));
            let is_free = |name: &String| peers.find(name).is_none_or(|other| other.fingerprint == fingerprint);
            let name = std::iter::once(name.to_owned()).chain(numbered).find(is_free).expect("numbers do not end");
            let known = peers.of_key(&fingerprint);
            let known = known.map(|known| (known.allow.clone(), known.reserve_high.clone(), known.bound.clone()));
            let (mut grant, reserve_high, bound) = known.unwrap_or_default();
            allow.iter().for_each(|device| grant.add(device));
            let paired = timestamp(SystemTime::now());
            let peer = Peer { name, fingerprint, address: Some(address), paired, allow: grant, reserve_high, bound };
            peers.add(peer.clone()).map(|()| peer).expect("the name is free")
        })?;
        self.record(&AuditEvent {
            peer: Some(&noted.name),
            fingerprint: Some(fingerprint),
            address: noted.address.as_deref(),
            ..AuditEvent::new("pair", AuditOutcome::Ok)
        });
        Ok(noted)
    }

    /// This store, with an audit log that another process writes.
    #[must_use]
    pub fn recorded_by(self, audit: Arc<dyn AuditRecorder>) -> Self {
        Self { audit, ..self }
    }

    /// The audit log.
    pub fn audit(&self) -> Arc<dyn AuditRecorder> {
        Arc::clone(&self.audit)
    }

    /// Writes a line of the audit log.
    pub fn record(&self, event: &AuditEvent<'_>) {
        self.audit.record(event);
    }

    /// The terms of an encrypted link.
    pub fn terms(&self, accepts: AcceptedKeys, protocols: &[LinkProtocol]) -> HandshakeTerms {
        let identity = Arc::clone(&self.identity);
        HandshakeTerms { identity, accepts, protocols: protocols.to_vec(), limits: limits::HANDSHAKE }
    }

    /// The terms for incoming connections: the peer has to be in the list of paired hosts, which is read for each
    /// connection.
    pub fn terms_for_guests(&self, protocols: &[LinkProtocol]) -> HandshakeTerms {
        let for_gate = self.clone();
        let is_paired = move |key: &Fingerprint| for_gate.peer(key).is_some();
        self.terms(AcceptedKeys::Known(Arc::new(is_paired)), protocols)
    }
}

/// Where a host that connected from `from` most likely listens.
pub fn likely_address(from: SocketAddr) -> String {
    match from {
        // An address of the link is of no use without its interface.
        SocketAddr::V6(mut from) if from.ip().is_unicast_link_local() => {
            from.set_port(SECURE_PORT);
            from.to_string()
        }
        from => SocketAddr::new(from.ip().to_canonical(), SECURE_PORT).to_string(),
    }
}
