//! The TLS and QUIC listener for paired hosts, and what a connection may cost before it proves a key.
//!
//! Whoever connects is met by a thread of its own, within limits of time, bytes and numbers
//! (`farbus_io::trust::limits`); until its key is known to be paired not a byte of it reaches a protocol of ours. Then
//! the same thread is its session.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io::link::{Clock, Connection, Link};
use farbus_io::trust::{
    Admission, Event, Fingerprint, HandshakeError, Outcome, Proof, Protocol, QuicAcceptor, QuicServer, Refusal,
    Secured, Terms, Ticket,
};
use tracing::{debug, warn};

use crate::common::socket_place::Origin;
use crate::exporter::access::listener::Listening;
use crate::exporter::access::paired_host::Guest;
use crate::hosts::trust::Trust;

/// A session's stack, and the handshake's before it: signatures in a debug build take the most.
const STACK_BYTES: usize = 512 << 10;

/// What is spoken over TCP, the best first.
const OVER_TCP: [Protocol; 3] = [Protocol::UsbIp, Protocol::Control, Protocol::Session];

/// Why a connection was cut that had to give way to another.
const GAVE_WAY: &str = "it proved no key while others waited";

/// Serves the connections that a [`SecureListener`] accepts.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// The time there.
    fn clock(&self) -> Clock;

    /// Whether nobody is let in any more.
    fn is_closing(&self) -> bool;

    /// The whole visit of a paired host, on the thread that met it.
    ///
    /// # Errors
    /// There is no room for it.
    fn receive(self: Arc<Self>, link: Link, guest: Guest, protocol: Protocol) -> io::Result<()>;
}

/// Accepts connections of paired hosts.
pub struct SecureListener<H> {
    trust: Trust,
    handler: Arc<H>,
    admission: Admission,
}

impl<H: ConnectionHandler> SecureListener<H> {
    /// Where `handler` listens.
    pub fn new(trust: Trust, handler: Arc<H>) -> Self {
        let admission = Admission::default();
        // Where paired hosts were seen last they most likely are.
        let peers = trust.peers().unwrap_or_default();
        let addresses = peers.iter().filter_map(|peer| peer.address.as_deref()?.parse::<SocketAddr>().ok());
        addresses.for_each(|address| admission.note_proved(address.ip(), handler.clock().now()));
        Self { trust, handler, admission }
    }

    /// Lets in whoever comes, until the household or this way to it closes.
    pub fn accept_all(self: &Arc<Self>, listening: &Listening) {
        let is_over = || self.handler.is_closing() || listening.is_closed();
        while !is_over() {
            match listening.accept() {
                Ok((link, Origin::Address(from))) => self.let_in(Connection { link, from }),
                // Paired hosts come from elsewhere: for this machine's programs there is a plain socket.
                Ok((_, Origin::User(_) | Origin::Own(..))) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) if is_over() => return,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Serves whoever comes to `socket` by QUIC, until the answer is closed.
    ///
    /// # Errors
    /// If the system has no more threads or descriptors.
    pub fn serve_datagrams(self: &Arc<Self>, socket: UdpSocket) -> io::Result<QuicServer> {
        QuicServer::start(socket, Arc::clone(self))
    }

    /// The place of a stranger from there; `None` if it is not met.
    fn admit(&self, from: SocketAddr) -> Option<Ticket> {
        match self.admission.enter(from.ip(), self.handler.clock().now()) {
            Ok(ticket) => Some(ticket),
            Err(refusal) => {
                if matches!(refusal, Refusal::Failures { is_first: true }) {
                    warn!(%from, "turned away: {refusal}; further ones are not mentioned");
                } else {
                    debug!(%from, "turned away: {refusal}");
                }
                self.record_stranger(from, None, Outcome::Refused, &refusal.to_string());
                None
            }
        }
    }

    /// Meets whoever connected, on a thread of its own; or closes the connection unread.
    fn let_in(self: &Arc<Self>, connection: Connection) {
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
            // Its place was given back with the visit.
            warn!(%from, %error, "the connection was turned away");
        }
    }

    /// What came of a stranger: it is a guest, or was none.
    fn judge(&self, met: Result<Secured, HandshakeError>, from: SocketAddr, ticket: Ticket) {
        let proof = match &met {
            Ok(_) => Proof::Given,
            Err(HandshakeError::Lost(_) | HandshakeError::TooSlow) => Proof::CutShort,
            Err(_) => Proof::Failed,
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
                self.record_stranger(from, fingerprint, Outcome::Refused, &why);
            }
        }
    }

    fn welcome(&self, mut secured: Secured, from: SocketAddr) {
        // Unpaired since its handshake began: it gets nothing.
        let Some(peer) = self.trust.peer(&secured.peer) else { return };
        if self.handler.is_closing() {
            return;
        }
        secured.link.set_peer(format!("{} ({from})", peer.name));
        let guest = Guest::new(self.trust.clone(), secured.peer, peer.name, from.to_string());
        if let Err(error) = Arc::clone(&self.handler).receive(secured.link, guest, secured.protocol) {
            warn!(%from, %error, "the connection was turned away");
        }
    }

    fn record_stranger(&self, from: SocketAddr, fingerprint: Option<Fingerprint>, outcome: Outcome, why: &str) {
        let address = from.to_string();
        let peer = fingerprint.and_then(|key| self.trust.peer(&key)).map(|peer| peer.name);
        self.trust.record(&Event {
            peer: peer.as_deref(),
            fingerprint,
            address: Some(&address),
            why: Some(why),
            ..Event::new("connect", outcome)
        });
    }
}

impl<H: ConnectionHandler> QuicAcceptor for SecureListener<H> {
    fn terms(&self) -> Terms {
        self.trust.terms_for_guests(&[Protocol::Session])
    }

    fn enter(&self, from: SocketAddr) -> Option<Ticket> {
        if self.handler.is_closing() { None } else { self.admit(from) }
    }

    fn met(self: Arc<Self>, met: Result<Secured, HandshakeError>, from: SocketAddr, ticket: Ticket) {
        let listener = Arc::clone(&self);
        self.on_a_thread(from, move || listener.judge(met, from, ticket));
    }
}
