//! Paired hosts, found by their names here.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use farbus_io_net::link::Link;
use farbus_io_net::link::host_address::{DEFAULT_PORT, LOCAL, SECURE_PORT, address_with_port};
use farbus_io_net::trust::{
    AcceptedKeys, Fingerprint, HandshakeError, HostFolder, LinkProtocol, LinkTraffic, PairedHostList, Peer, QuicPool,
    SecureLink, StateError,
};
use tracing::info;

use crate::hosts::trust::TrustStore;

/// Why there is no link to a paired host.
#[derive(Debug)]
pub enum KnownHostError {
    /// The link was lost during the handshake.
    Lost {
        /// The name and address of the host.
        address: String,
        /// The error of the system.
        source: io::Error,
    },
    /// Another host answers at the address: it has another key, or none.
    Elsewhere {
        /// The name and address of the host.
        address: String,
        /// A sentence for a person.
        what: String,
    },
    /// The host does not trust this one, or is not to be trusted any more.
    Untrusted {
        /// The name and address of the host.
        address: String,
        /// A sentence for a person.
        what: String,
    },
    /// This host's own files cannot be used.
    Local(String),
}

/// A paired host, as it was named on a command line.
#[derive(Clone, Debug)]
pub struct KnownHost {
    trust: TrustStore,
    peer: Peer,
    /// The name and port as they were given.
    given_address: String,
    address: String,
    /// Whether `address` differs from the remembered one.
    is_elsewhere: bool,
    /// The address at which the host proved its key last, shared by all clones of this object.
    proved: Arc<Mutex<Option<SocketAddr>>>,
}

impl KnownHost {
    /// Finds the paired host that `address` (`NAME:PORT`) names; `None` if there is none of that name. The name of a
    /// paired host never means anything else: no host of that name in the DNS, and no plain connection. The port of
    /// plain USB/IP, which is the default of a missing one, stands for the remembered port.
    ///
    /// # Errors
    /// [`KnownHostError::Local`] if the list of paired hosts cannot be read: any name might be paired then.
    pub fn find(address: &str) -> Result<Option<Self>, KnownHostError> {
        if address.starts_with(LOCAL) {
            return Ok(None);
        }
        let Ok(folder) = HostFolder::of_user() else { return Ok(None) };
        let local = |error: StateError| KnownHostError::Local(error.to_string());
        let (name, _) = address.rsplit_once(':').unwrap_or((address, ""));
        let Some(peer) = PairedHostList::load(&folder).map_err(local)?.find(name).cloned() else { return Ok(None) };
        Ok(Some(Self::of(TrustStore::at(folder).map_err(local)?, peer, address)))
    }

    /// The host `peer`, which its owner named `address`, for a process that has the key of this host and may not read
    /// its files any more.
    #[must_use]
    pub fn beside(&self, peer: Peer, address: &str) -> Self {
        Self::of(self.trust.clone(), peer, address)
    }

    /// The host's entry in the list of paired hosts.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    fn of(trust: TrustStore, peer: Peer, address: &str) -> Self {
        let (_, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let remembered = peer.address.clone().unwrap_or_else(|| format!("{}:{SECURE_PORT}", peer.name));
        let at = match port.parse::<u16>() {
            Ok(port) if port != DEFAULT_PORT => {
                let host = remembered.rsplit_once(':').map_or(remembered.as_str(), |(host, _)| host);
                format!("{host}:{port}")
            }
            _ => remembered,
        };
        let (given_address, is_elsewhere, proved) = (address.to_owned(), false, Arc::default());
        Self { trust, peer, given_address, address: at, is_elsewhere, proved }
    }

    /// This paired host, reached at `address` (`HOST:PORT`) instead of its remembered address.
    #[must_use]
    pub fn looked_for_at(self, address: String) -> Self {
        Self { is_elsewhere: address != self.address, address, ..self }
    }

    /// This paired host, at the address that is remembered now. An address that a person gave stays until the host has
    /// proved its key there.
    #[must_use]
    pub fn as_remembered(&self) -> Self {
        if self.is_elsewhere && self.proved().is_none() {
            return self.clone();
        }
        // An unreadable list is reported where it is needed for trust.
        let now =
            Self::find(&self.given_address).ok().flatten().filter(|now| now.peer.fingerprint == self.peer.fingerprint);
        now.unwrap_or_else(|| self.clone())
    }

    /// Whether its address differs from the remembered one.
    pub fn is_looked_for_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// Notes that the host proved its key at this address.
    pub fn note_proved(&self, at: SocketAddr) {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    /// The address at which the host proved its key last.
    pub fn proved(&self) -> Option<SocketAddr> {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fingerprint of the host's key.
    pub fn fingerprint(&self) -> Fingerprint {
        self.peer.fingerprint
    }

    /// The address of the host: `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The name and port as they were given.
    pub fn given_address(&self) -> &str {
        &self.given_address
    }

    /// Encrypts `link`, which leads to the host's likely address, and checks the host's key.
    ///
    /// # Errors
    /// [`KnownHostError`].
    pub fn encrypt(&self, link: Link, protocol: LinkProtocol) -> Result<Link, KnownHostError> {
        let terms = self.trust.terms(AcceptedKeys::One(self.peer.fingerprint), &[protocol]);
        let at = link.peer().to_owned();
        match terms.connect(link) {
            Ok(SecureLink { mut link, .. }) => {
                link.set_peer(self.described_at(&at));
                Ok(link)
            }
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Makes a QUIC link to the host over `socket`, to its likely address `to`, and checks the host's key; or over a
    /// connection there that this process has already.
    ///
    /// # Errors
    /// [`KnownHostError`].
    pub fn encrypt_datagrams(
        &self,
        traffic: LinkTraffic,
        socket: UdpSocket,
        to: SocketAddr,
    ) -> Result<Link, KnownHostError> {
        static POOL: LazyLock<QuicPool> = LazyLock::new(QuicPool::default);
        let terms = self.trust.terms(AcceptedKeys::One(self.peer.fingerprint), &[LinkProtocol::Session]);
        let made = POOL.connect(&terms, traffic, socket, to);
        let SecureLink { mut link, .. } = made.map_err(|error| self.explain(error))?;
        link.set_peer(self.described_at(&to.to_string()));
        Ok(link)
    }

    /// The name of the host, and the address at which it is looked for first.
    pub fn described(&self) -> String {
        self.described_at(&self.address)
    }

    /// The name of the host, and the address where it was found.
    fn described_at(&self, at: &str) -> String {
        format!("{} ({at})", self.peer.name)
    }

    fn explain(&self, error: HandshakeError) -> KnownHostError {
        let address = self.described();
        match error {
            HandshakeError::Lost(source) => KnownHostError::Lost { address, source },
            HandshakeError::TooSlow => {
                let source = io::Error::new(io::ErrorKind::TimedOut, error.to_string());
                KnownHostError::Lost { address, source }
            }
            HandshakeError::Stranger(Some(_)) => KnownHostError::Elsewhere {
                what: format!(
                    "{error}: it is not the host that was paired as '{}'\n  \
                     if its key was changed on purpose: farbus unpair {}, and pair again",
                    self.peer.name, self.peer.name
                ),
                address,
            },
            HandshakeError::Stranger(None)
            | HandshakeError::Rules(_)
            | HandshakeError::NoProtocol
            | HandshakeError::TooMuch => KnownHostError::Elsewhere { address, what: error.to_string() },
            HandshakeError::Refused | HandshakeError::OutOfDate(_) | HandshakeError::OursOutOfDate => {
                KnownHostError::Untrusted { address, what: error.to_string() }
            }
        }
    }
}

/// Remembers that the paired host which `address` (`NAME:PORT`) names proved its key at `at`. Running sessions are not
/// affected: they keep their links, and reconnect to the address at which the host proved its key to them.
///
/// # Errors
/// The list of paired hosts cannot be changed.
pub fn remember(address: &str, at: SocketAddr) -> io::Result<()> {
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    let folder = HostFolder::of_user().map_err(io::Error::other)?;
    let at = match at {
        // An address of the link is of no use without its interface.
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => at.to_string(),
        at => SocketAddr::new(at.ip().to_canonical(), at.port()).to_string(),
    };
    let changed = PairedHostList::change(&folder, |peers| {
        peers.find_mut(name).filter(|peer| peer.address.as_ref() != Some(&at)).map(|peer| {
            peer.address = Some(at.clone());
            peer.name.clone()
        })
    });
    if let Some(host) = changed.map_err(io::Error::other)? {
        info!(host, address = at, "it has proved its key there: it is looked for there from now on");
    }
    Ok(())
}

/// The address that a person gave for a paired host (`HOST[:PORT]`), with the default port of paired hosts.
pub fn moved_to(moved: &str) -> String {
    address_with_port(moved, SECURE_PORT)
}
