//! Accepts encrypted connections and admits only paired hosts.
//!
//! Each connection gets its own thread and runs its handshake within limits of time, bytes and number
//! (`farbus_io_net::trust::limits`). No byte of the peer reaches a protocol of farbus before its key is known to be
//! paired. The same thread then serves the session.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io_net::link::{AcceptedConnection, BoottimeClock, Link};
use farbus_io_net::trust::{
    AdmissionRefusal, AdmissionTicket, AuditEvent, AuditOutcome, Fingerprint, HandshakeError, HandshakeTerms,
    KeyProofOutcome, LinkProtocol, PeerAdmission, QuicAcceptor, QuicServer, SecureLink,
};
use farbus_model::budget::MemoryAccount;
use tracing::{debug, warn};

use crate::common::socket_place::ConnectionOrigin;
use crate::exporter::access::listener::ExporterListener;
use crate::exporter::access::paired_host::PairedPeer;
use crate::hosts::trust::{AuditedUse, TrustStore};

/// The stack of a session's thread and of its handshake. Signatures in a debug build use the most.
const STACK_BYTES: usize = 512 << 10;

/// The protocols that are offered over TCP, the preferred one first.
const OVER_TCP: [LinkProtocol; 3] = [LinkProtocol::UsbIp, LinkProtocol::Control, LinkProtocol::Session];

/// Logged reason when a handshake is cut short to make room for another connection.
const GAVE_WAY: &str = "it proved no key while others waited";

/// Serves the paired hosts that a [`SecureListener`] admits.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// The clock of the handler's sessions.
    fn clock(&self) -> BoottimeClock;

    /// Whether the handler accepts no more connections.
    fn is_closing(&self) -> bool;

    /// The account of the paired host with this key.
    fn account(&self, host: &Fingerprint) -> Arc<MemoryAccount>;

    /// Serves a paired host until its connection ends, on the thread that ran its handshake.
    ///
    /// # Errors
    /// The host has too many connections or holds too much memory, or the system has no more descriptors.
    fn receive(self: Arc<Self>, link: Link, paired_peer: PairedPeer, protocol: LinkProtocol) -> io::Result<()>;
}

/// Accepts encrypted connections and passes those of paired hosts to its handler.
pub struct SecureListener<H> {
    trust: TrustStore,
    handler: Arc<H>,
    admission: PeerAdmission,
}

impl<H: ConnectionHandler> SecureListener<H> {
    /// Creates a listener that passes paired hosts to `handler`.
    pub fn new(trust: TrustStore, handler: Arc<H>) -> Self {
        let admission = PeerAdmission::default();
        // Addresses where paired hosts were seen last get places before unknown ones.
        let peers = trust.peers().unwrap_or_default();
        let addresses = peers.iter().filter_map(|peer| peer.address.as_deref()?.parse::<SocketAddr>().ok());
        addresses.for_each(|address| admission.note_proved(address.ip(), handler.clock().now()));
        Self { trust, handler, admission }
    }

    /// Accepts connections until the handler or `listening` closes.
    pub fn accept_all(self: &Arc<Self>, listening: &ExporterListener) {
        let is_over = || self.handler.is_closing() || listening.is_closed();
        while !is_over() {
            match listening.accept() {
                Ok((link, ConnectionOrigin::Address(from))) => self.let_in(AcceptedConnection { link, from }),
                // Paired hosts connect from other machines; this machine's programs have a plain socket.
                Ok((_, ConnectionOrigin::User(_) | ConnectionOrigin::Own(..))) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if is_over() => return,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves QUIC connections on `socket` until the returned server is closed.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn serve_datagrams(self: &Arc<Self>, socket: UdpSocket) -> io::Result<QuicServer> {
        QuicServer::start(socket, Arc::clone(self))
    }

    /// Reserves a place for a handshake with a peer at `from`. Returns `None` if the peer is turned away.
    fn admit(&self, from: SocketAddr) -> Option<AdmissionTicket> {
        match self.admission.enter(from.ip(), self.handler.clock().now()) {
            Ok(ticket) => Some(ticket),
            Err(refusal) => {
                if matches!(refusal, AdmissionRefusal::Failures { is_first: true }) {
                    warn!(%from, "turned away: {refusal}; further ones are not mentioned");
                } else {
                    debug!(%from, "turned away: {refusal}");
                }
                self.record_stranger(from, None, AuditOutcome::Refused, &refusal.to_string());
                None
            }
        }
    }

    /// Runs the handshake on a new thread, or closes the connection without reading from it.
    fn let_in(self: &Arc<Self>, connection: AcceptedConnection) {
        let from = connection.from;
        let Some(ticket) = self.admit(from) else { return };
        match connection.link.try_clone() {
            Ok(link) => ticket.on_cut(move || link.shut_down()),
            Err(error) => return warn!(%from, %error, "the connection was turned away"),
        }
        let listener = Arc::clone(self);
        self.on_a_thread(from, move || {
            let met = listener.trust.terms_for_guests(&OVER_TCP).accept(connection.link);
            listener.judge(met, from, ticket);
        });
    }

    fn on_a_thread(&self, from: SocketAddr, visit: impl FnOnce() + Send + 'static) {
        let spawned = thread::Builder::new().name("secure".into()).stack_size(STACK_BYTES).spawn(visit);
        if let Err(error) = spawned {
            // Dropping `visit` has released its ticket.
            warn!(%from, %error, "the connection was turned away");
        }
    }

    /// Serves the peer if its handshake succeeded; logs and records the refusal otherwise.
    fn judge(&self, met: Result<SecureLink, HandshakeError>, from: SocketAddr, ticket: AdmissionTicket) {
        let proof = match &met {
            Ok(_) => KeyProofOutcome::Given,
            Err(HandshakeError::Lost(_) | HandshakeError::TooSlow) => KeyProofOutcome::CutShort,
            Err(_) => KeyProofOutcome::Failed,
        };
        let gave_way = ticket.is_cut();
        ticket.leave(self.handler.clock().now(), proof);
        match met {
            Ok(secured) => self.welcome(secured, from),
            Err(error) => {
                let fingerprint = match &error {
                    HandshakeError::Stranger(seen) => *seen,
                    HandshakeError::OutOfDate(seen) => Some(*seen),
                    _ => None,
                };
                let why = if gave_way { GAVE_WAY.to_owned() } else { error.to_string() };
                warn!(%from, "refused: {why}");
                self.record_stranger(from, fingerprint, AuditOutcome::Refused, &why);
            }
        }
    }

    fn welcome(&self, mut secured: SecureLink, from: SocketAddr) {
        // The host was unpaired after its handshake began.
        let Some(peer) = self.trust.peer(&secured.peer) else { return };
        if self.handler.is_closing() {
            return;
        }
        secured.link.set_peer(format!("{} ({from})", peer.name));
        let paired_peer = PairedPeer::new(self.trust.clone(), secured.peer, peer.name, from.to_string());
        if let Err(error) = Arc::clone(&self.handler).receive(secured.link, paired_peer, secured.protocol) {
            warn!(%from, %error, "the connection was turned away");
        }
    }

    fn record_stranger(&self, from: SocketAddr, fingerprint: Option<Fingerprint>, outcome: AuditOutcome, why: &str) {
        let address = from.to_string();
        let peer = fingerprint.and_then(|key| self.trust.peer(&key)).map(|peer| peer.name);
        self.trust.record(&AuditEvent {
            peer: peer.as_deref(),
            fingerprint,
            address: Some(&address),
            why: Some(why),
            ..AuditEvent::new(AuditedUse::CONNECT, outcome)
        });
    }
}

impl<H: ConnectionHandler> QuicAcceptor for SecureListener<H> {
    fn terms(&self) -> HandshakeTerms {
        self.trust.terms_for_guests(&[LinkProtocol::Session])
    }

    fn enter(&self, from: SocketAddr) -> Option<AdmissionTicket> {
        if self.handler.is_closing() { None } else { self.admit(from) }
    }

    fn account(&self, peer: &Fingerprint) -> Arc<MemoryAccount> {
        self.handler.account(peer)
    }

    fn met(self: Arc<Self>, met: Result<SecureLink, HandshakeError>, from: SocketAddr, ticket: AdmissionTicket) {
        let listener = Arc::clone(&self);
        self.on_a_thread(from, move || listener.judge(met, from, ticket));
    }

    fn met_again(self: Arc<Self>, secured: SecureLink, from: SocketAddr) {
        let listener = Arc::clone(&self);
        self.on_a_thread(from, move || listener.welcome(secured, from));
    }
}
