//! Links to hosts: found, connected and, to a paired host, encrypted.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use farbus_io_net::link::{Link, LinkError, PLAIN_SILENCE, SegmentSize};
use farbus_io_net::trust::{LinkProtocol, LinkTraffic, Peer};

use super::error::{ClientError, local, lost};
use crate::broker::SystemAccess;
use crate::common::socket_place::SocketLocation;
use crate::hosts::known_host::{KnownHost, moved_to};
use crate::hosts::reach::{ANSWER_TIME_MAX, AddressHints, ReachedAddress};
use crate::importer::dial::{ConnectionProof, DialUrgency, PairedDialFailure as NotFound, search};
use crate::importer::options::transport::LinkTransport as Transport;
use crate::importer::session::connection::DialCallback;

/// Makes links to hosts, through the rights of this process or those of its broker.
#[derive(Clone, Debug)]
pub struct HostConnector {
    system: SystemAccess,
    /// What the links of sessions run over.
    transport: Transport,
    /// A host that was looked up while the files that say who it is could be read; `None` for one that is not paired.
    pinned: Option<(String, Option<Arc<KnownHost>>)>,
}

impl HostConnector {
    /// A connector that looks up each host when it is needed.
    pub fn new(system: SystemAccess, transport: Transport) -> Self {
        Self { system, transport, pinned: None }
    }

    /// A connector that looks up one host (`HOST:PORT`) now and needs no files later.
    ///
    /// # Errors
    /// [`ClientError::Local`] if the list of paired hosts cannot be read.
    pub fn for_host(address: &str, system: SystemAccess, transport: Transport) -> Result<Self, ClientError> {
        let known = KnownHost::find(address)?.map(Arc::new);
        Ok(Self { system, transport, pinned: Some((address.to_owned(), known)) })
    }

    /// As [`HostConnector::for_host`], for a paired host that is now at `moved` (`HOST[:PORT]`). Once it has proved its
    /// key there, that address is remembered.
    ///
    /// # Errors
    /// [`ClientError::Local`] if it is not a paired host: then nothing would tell a false address from a right one.
    pub fn for_host_at(
        address: &str,
        moved: &str,
        system: SystemAccess,
        transport: Transport,
    ) -> Result<Self, ClientError> {
        let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
        let unknown = || {
            let what = "is not a paired host, so --address says nothing about it\n  see: farbus peers";
            ClientError::Local(format!("'{name}' {what}"))
        };
        let known = KnownHost::find(address)?.ok_or_else(unknown)?.looked_for_at(moved_to(moved));
        Ok(Self { system, transport, pinned: Some((address.to_owned(), Some(Arc::new(known)))) })
    }

    /// A connector to another host, through `system`. `peer` is its entry in the list of paired hosts, if it has one.
    ///
    /// # Errors
    /// [`ClientError::Local`]: this process does not have the key of this machine, and may not read it.
    pub fn to_another(&self, address: &str, system: SystemAccess, peer: Option<Peer>) -> Result<Self, ClientError> {
        let known = match (peer, &self.pinned) {
            (None, _) => None,
            (Some(peer), Some((_, Some(pinned)))) => Some(pinned.beside(peer, address)),
            (Some(_), _) => Some(KnownHost::find(address).ok().flatten().ok_or_else(|| {
                let what = "is a paired host, and this attachment began with a host that is not, so without this \
                            machine's key\n  attach it again with --no-sandbox, or from a paired host";
                ClientError::Local(format!("{address} {what}"))
            })?),
        };
        Ok(Self { system, transport: self.transport, pinned: Some((address.to_owned(), known.map(Arc::new))) })
    }

    /// The rights that it uses.
    pub fn system(&self) -> &SystemAccess {
        &self.system
    }

    /// The paired host that an address names, if it names one.
    ///
    /// # Errors
    /// [`ClientError::Local`] if the list of paired hosts cannot be read.
    pub fn known(&self, address: &str) -> Result<Option<Arc<KnownHost>>, ClientError> {
        match &self.pinned {
            Some((pinned, known)) if pinned == address => Ok(known.clone()),
            _ => Ok(KnownHost::find(address)?.map(Arc::new)),
        }
    }

    /// A link for USB/IP. To the name of a paired host it is encrypted, and never plain. Waits for `time_max` at most,
    /// as each receive on the link does.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect(&self, address: &str, time_max: Duration) -> Result<Link, ClientError> {
        let link = match self.known(address)? {
            Some(known) => self.connect_encrypted(&known, LinkProtocol::UsbIp, time_max)?,
            None => self.system.connect(address, time_max, SegmentSize::OfNetworks).map_err(ClientError::Link)?,
        };
        link.set_receive_timeout(Some(time_max)).map_err(|source| lost(address, source))?;
        link.limit_silence(PLAIN_SILENCE).map_err(|source| lost(address, source))?;
        Ok(link)
    }

    /// An encrypted link over TCP to a paired host, wherever it is found and proves its key.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_encrypted(
        &self,
        known: &KnownHost,
        protocol: LinkProtocol,
        time_max: Duration,
    ) -> Result<Link, ClientError> {
        self.connect_tcp(known, protocol, time_max, DialUrgency::Awaited, SegmentSize::OfNetworks)
    }

    fn connect_tcp(
        &self,
        known: &KnownHost,
        protocol: LinkProtocol,
        time_max: Duration,
        urgency: DialUrgency,
        segments: SegmentSize,
    ) -> Result<Link, ClientError> {
        let found = search(known, &self.system, ConnectionProof::Connected, urgency, |hints| {
            let hints = AddressHints { segments, ..hints.clone() };
            let connected = self.system.connect_known(known, time_max, &hints);
            let (link, ReachedAddress { place: location, is_new }) = connected.map_err(NotFound::NoConnection)?;
            let SocketLocation::Address(at) = location else { unreachable!("a paired host has an address") };
            let link = known.encrypt(link, protocol).map_err(|error| NotFound::NotMet(error, at))?;
            Ok((link, at, is_new))
        });
        found.map_err(|failure| not_found(known, failure))
    }

    /// An encrypted link over QUIC to a paired host. Only the handshake tells whether a host is there.
    fn connect_quic(&self, known: &KnownHost, traffic: LinkTraffic, urgency: DialUrgency) -> Result<Link, ClientError> {
        let found = search(known, &self.system, ConnectionProof::Datagrams, urgency, |hints| {
            let (socket, to, is_new) = self.system.datagrams(known, hints).map_err(NotFound::NoConnection)?;
            let link = known.encrypt_datagrams(traffic, socket, to).map_err(|error| NotFound::NotMet(error, to))?;
            Ok((link, to, is_new))
        });
        found.map_err(|failure| not_found(known, failure))
    }

    /// Connects to an exporter for a session with this traffic. Returns what makes the session's links, of which the
    /// first is made already, and the exporter's name for people.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn dial(&self, address: &str, traffic: LinkTraffic) -> Result<(DialCallback, String), ClientError> {
        let known = self.known(address)?;
        let described = known.as_ref().map_or_else(|| address.to_owned(), |known| known.described());
        let mut connect = self.session_links(address, known, traffic)?;
        // The first link says best why the exporter cannot be reached.
        let mut first = Some(connect(DialUrgency::Awaited, SegmentSize::OfNetworks)?);
        let mut redial = as_dial(connect);
        Ok((Box::new(move |segments| first.take().map_or_else(|| redial(segments), Ok)), described))
    }

    /// One link for a session, with segments of this size.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn connect_session(&self, address: &str, segments: SegmentSize) -> Result<Link, ClientError> {
        let known = self.known(address)?;
        self.session_links(address, known, LinkTraffic::Prompt)?(DialUrgency::Awaited, segments)
    }

    /// What makes links for a session that exists already.
    ///
    /// # Errors
    /// [`ClientError::Local`].
    pub fn redial(&self, address: &str, traffic: LinkTraffic) -> Result<DialCallback, ClientError> {
        let known = self.known(address)?;
        Ok(Box::new(as_dial(self.session_links(address, known, traffic)?)))
    }

    /// Makes the links of a session one after the other. It uses its own connection to the broker, so that waiting for
    /// a link delays no other thread.
    ///
    /// A session that has lost its link tries until its grace is over, and a thousand of them do so at once: they say
    /// [`DialUrgency::Repeated`].
    fn session_links(
        &self,
        address: &str,
        known: Option<Arc<KnownHost>>,
        traffic: LinkTraffic,
    ) -> Result<impl FnMut(DialUrgency, SegmentSize) -> Result<Link, ClientError> + Send + 'static, ClientError> {
        if self.transport == Transport::Quic && known.is_none() {
            let what = format!("QUIC is for paired hosts, and {address} is none: see 'farbus pair'");
            return Err(ClientError::Local(what));
        }
        let apart = Self { system: self.system.apart().map_err(local)?, ..self.clone() };
        let address = address.to_owned();
        Ok(move |urgency: DialUrgency, segments: SegmentSize| match &known {
            Some(known) if apart.transport == Transport::Quic => apart.connect_quic(known, traffic, urgency),
            Some(known) => apart.connect_tcp(known, LinkProtocol::Session, ANSWER_TIME_MAX, urgency, segments),
            None => apart.system.connect(&address, ANSWER_TIME_MAX, segments).map_err(ClientError::Link),
        })
    }
}

/// This end's address of a link over TCP.
pub(crate) fn local_address(link: &Link) -> Option<SocketAddr> {
    rustix::net::getsockname(link.as_fd()).ok()?.try_into().ok()
}

fn not_found(known: &KnownHost, failure: NotFound) -> ClientError {
    match failure {
        NotFound::NoConnection(error) => ClientError::Link(LinkError { address: known.address().to_owned(), ..error }),
        NotFound::NotMet(error, _) => error.into(),
    }
}

/// A session tries again for a link unless the exporter refused it, which is the kind `PermissionDenied`.
fn as_dial(
    mut connect: impl FnMut(DialUrgency, SegmentSize) -> Result<Link, ClientError> + Send + 'static,
) -> impl FnMut(SegmentSize) -> io::Result<Link> + Send + 'static {
    move |segments| {
        connect(DialUrgency::Repeated, segments).map_err(|error| {
            let kind = match &error {
                ClientError::Untrusted { .. } => io::ErrorKind::PermissionDenied,
                _ => io::ErrorKind::Other,
            };
            io::Error::new(kind, error.to_string())
        })
    }
}
