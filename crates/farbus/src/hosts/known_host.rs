//! Paired hosts, by the names that people call them.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};

use farbus_io::link::Link;
use farbus_io::trust::{Accepts, Fingerprint, Folder, HandshakeError, Peer, Peers, Protocol, Secured, StateError};

use tracing::info;

use crate::common::host_address::{DEFAULT_PORT, LOCAL, SECURE_PORT, address_with_port};
use crate::hosts::trust::Trust;

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
    /// Somebody else is there, who has another key or none.
    Elsewhere {
        /// Where it was looked for.
        address: String,
        /// A sentence for a person.
        what: String,
    },
    /// It does not trust this host, or is not to be trusted any more.
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
    /// Whether it is looked for where it is not remembered.
    is_elsewhere: bool,
    /// Where it proved its key last, to whoever has this or a clone of it.
    proved: Arc<Mutex<Option<SocketAddr>>>,
}

impl KnownHost {
    /// The paired host that `address` (`NAME:PORT`) names; `None` if it names none. A name that is paired is never
    /// anything else: not a host of that name in the DNS, not a plain connection. The port of plain USB/IP, which is
    /// what a missing one was filled in with, stands for the remembered one.
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
        let trust = Trust::at(folder).map_err(local)?;
        let (asked, is_elsewhere, proved) = (address.to_owned(), false, Arc::default());
        Ok(Some(Self { trust, peer, asked, address: at, is_elsewhere, proved }))
    }

    /// The same, looked for at `address` (`HOST:PORT`).
    #[must_use]
    pub fn looked_for_at(self, address: String) -> Self {
        Self { is_elsewhere: address != self.address, address, ..self }
    }

    /// The same, looked for where it is remembered now; where a person said, before it has proved its key there.
    #[must_use]
    pub fn as_remembered(&self) -> Self {
        if self.is_elsewhere && self.proved().is_none() {
            return self.clone();
        }
        // A list that cannot be read was complained about by whoever needs it to trust somebody.
        let now = Self::find(&self.asked).ok().flatten().filter(|now| now.peer.fingerprint == self.peer.fingerprint);
        now.unwrap_or_else(|| self.clone())
    }

    /// Whether it is looked for where it is not remembered.
    pub fn is_looked_for_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    /// It has proved its key there.
    pub fn note_proved(&self, at: SocketAddr) {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner) = Some(at);
    }

    /// Where it has.
    pub fn proved(&self) -> Option<SocketAddr> {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Remembers that the paired host which `asked` (`NAME:PORT`) names has proved its key at `at`. Nothing that runs is
/// moved by it: whoever has a link keeps it, and looks for a new one where the host proved its key to it before.
///
/// # Errors
/// If the list of paired hosts cannot be changed.
pub fn remember(asked: &str, at: SocketAddr) -> io::Result<()> {
    let name = asked.rsplit_once(':').map_or(asked, |(name, _)| name);
    let folder = Folder::of_user().map_err(io::Error::other)?;
    let at = SocketAddr::new(at.ip().to_canonical(), at.port()).to_string();
    let changed = Peers::change(&folder, |peers| {
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

/// Where a person says that a paired host is (`HOST[:PORT]`), with the port of paired hosts filled in.
pub fn moved_to(moved: &str) -> String {
    address_with_port(moved, SECURE_PORT)
}
