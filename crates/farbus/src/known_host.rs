//! Paired hosts, by the names that people call them.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use farbus_io::link::Link;
use farbus_io::trust::{Accepts, Fingerprint, Folder, HandshakeError, Peer, Peers, Protocol, Secured, StateError};

use crate::address::{DEFAULT_PORT, LOCAL, SECURE_PORT, address_with_port};
use crate::trust::Trust;

/// Why there is no link to a paired host.
#[derive(Debug)]
pub enum KnownHostError {
    /// The link was lost in the handshake.
    Lost {
        /// To whom.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// It is another host, or does not know this one.
    Untrusted {
        /// Who.
        address: String,
        /// A sentence for a person.
        what: String,
    },
    /// This host's own files.
    Local(String),
}

/// A paired host, named on a command line.
#[derive(Clone, Debug)]
pub struct KnownHost {
    trust: Trust,
    peer: Peer,
    /// As it was named.
    asked: String,
    address: String,
}

impl KnownHost {
    /// The paired host that `address` (`NAME:PORT`) names; `None` if it names none. A name that is paired is never anything
    /// else: not a host of that name in the DNS, not a plain connection. The port of plain USB/IP, which is what a missing
    /// one was filled in with, stands for the remembered one.
    ///
    /// # Errors
    /// [`KnownHostError::Local`] if the list of paired hosts cannot be read: then no name is known not to be paired.
    pub fn find(address: &str) -> Result<Option<Self>, KnownHostError> {
        if address.starts_with(LOCAL) {
            return Ok(None);
        }
        let Ok(folder) = Folder::of_user() else { return Ok(None) };
        let local = |error: StateError| KnownHostError::Local(error.to_string());
        let (name, port) = address.rsplit_once(':').unwrap_or((address, ""));
        let Some(peer) = Peers::load(&folder).map_err(local)?.find(name).cloned() else { return Ok(None) };
        let remembered = peer.address.clone().unwrap_or_else(|| format!("{}:{SECURE_PORT}", peer.name));
        let at = match port.parse::<u16>() {
            Ok(port) if port != DEFAULT_PORT => {
                let host = remembered.rsplit_once(':').map_or(remembered.as_str(), |(host, _)| host);
                format!("{host}:{port}")
            }
            _ => remembered,
        };
        Ok(Some(Self { trust: Trust::at(folder).map_err(local)?, peer, asked: address.to_owned(), address: at }))
    }

    /// Its key's.
    pub fn fingerprint(&self) -> Fingerprint {
        self.peer.fingerprint
    }

    /// Where it was seen last: `HOST:PORT`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// As it was named.
    pub fn asked(&self) -> &str {
        &self.asked
    }

    /// Makes a connection to where it may be an encrypted link to it.
    ///
    /// # Errors
    /// [`KnownHostError`].
    pub fn encrypt(&self, link: Link, protocol: Protocol) -> Result<Link, KnownHostError> {
        let terms = self.trust.terms(Accepts::One(self.peer.fingerprint), &[protocol]);
        match terms.connect(link) {
            Ok(Secured { mut link, .. }) => {
                link.set_peer(self.described());
                Ok(link)
            }
            Err(error) => Err(self.explain(error)),
        }
    }

    /// Makes a link to it over datagrams, which go from `socket` to where it may be.
    ///
    /// # Errors
    /// [`KnownHostError`].
    pub fn encrypt_datagrams(&self, socket: UdpSocket, to: SocketAddr) -> Result<Link, KnownHostError> {
        let terms = self.trust.terms(Accepts::One(self.peer.fingerprint), &[Protocol::Session]);
        let Secured { mut link, .. } = terms.connect_quic(socket, to).map_err(|error| self.explain(error))?;
        link.set_peer(self.described());
        Ok(link)
    }

    /// Its name and where it is.
    pub fn described(&self) -> String {
        format!("{} ({})", self.peer.name, self.address)
    }

    fn explain(&self, error: HandshakeError) -> KnownHostError {
        let address = self.described();
        match error {
            HandshakeError::Lost(source) => KnownHostError::Lost { address, source },
            HandshakeError::Stranger(Some(_)) => KnownHostError::Untrusted {
                what: format!(
                    "{error}: it is not the host that was paired as '{}'\n  \
                     if its key was changed on purpose: farbus unpair {}, and pair again",
                    self.peer.name, self.peer.name
                ),
                address,
            },
            error => KnownHostError::Untrusted { address, what: error.to_string() },
        }
    }
}

/// Remembers that the paired host which `target` (`NAME:PORT`) names is now at `moved` (`HOST[:PORT]`).
///
/// # Errors
/// [`KnownHostError::Local`] if it names no paired host: then there is nothing that would tell a false address from a right one.
pub fn remember_address(target: &str, moved: &str) -> Result<(), KnownHostError> {
    let local = |error: StateError| KnownHostError::Local(error.to_string());
    let name = target.rsplit_once(':').map_or(target, |(name, _)| name);
    let address = address_with_port(moved, SECURE_PORT);
    let trust = Trust::open().map_err(local)?;
    let found = trust.change(|peers| peers.find_mut(name).map(|peer| peer.address = Some(address)));
    found.map_err(local)?.ok_or_else(|| {
        KnownHostError::Local(format!(
            "'{name}' is not a paired host, so --address says nothing about it\n  see: farbus peers"
        ))
    })
}
