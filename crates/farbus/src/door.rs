//! Paired hosts at the door, and strangers before it.
//!
//! Whoever connects is met by a thread of its own, within limits of time, bytes and numbers (`farbus_io::trust::limits`); until
//! its key is known to be paired not a byte of it reaches a protocol of ours. Then the same thread is its session.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use farbus_io::link::{Clock, Connection, Link};
use farbus_io::trust::{
    Admission, Event, Fingerprint, HandshakeError, Outcome, Proof, Protocol, QuicDoor, QuicServer, Refusal, Secured,
    Terms,
};
use tracing::warn;

use crate::guest::Guest;
use crate::listening::Listening;
use crate::place::Origin;
use crate::trust::Trust;

/// A session's stack, and the handshake's before it: signatures in a debug build take the most.
const STACK_BYTES: usize = 512 << 10;

/// What is spoken over TCP, the best first.
const OVER_TCP: [Protocol; 3] = [Protocol::UsbIp, Protocol::Control, Protocol::Session];

/// What is behind a door.
pub trait Household: Send + Sync + 'static {
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

/// The door for paired hosts.
pub struct Door<H> {
    trust: Trust,
    household: Arc<H>,
    admission: Admission,
}

impl<H: Household> Door<H> {
    /// Where `household` listens.
    pub fn new(trust: Trust, household: Arc<H>) -> Self {
        Self { trust, household, admission: Admission::default() }
    }

    /// Lets in whoever comes, until the household or this way to it closes.
    pub fn accept_all(self: &Arc<Self>, listening: &Listening) {
        let is_over = || self.household.is_closing() || listening.is_closed();
        while !is_over() {
            match listening.accept() {
                Ok((link, Origin::Address(from))) => self.let_in(Connection { link, from }),
                // Paired hosts come from elsewhere: for this machine's programs there is a plain socket.
                Ok((_, Origin::User(_))) => {}
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

    /// Whether a stranger from there is met; then [`Door::judge`] has to follow.
    fn admits(&self, from: SocketAddr) -> bool {
        if let Err(refusal) = self.admission.enter(from.ip(), self.household.clock().now()) {
            // Once a flood, not once a connection: neither log is a place to write from outside.
            if matches!(refusal, Refusal::Failures { is_first: true }) {
                warn!(%from, "turned away: {refusal}; further ones are not mentioned");
                self.record_stranger(from, None, Outcome::Refused, &refusal.to_string());
            }
            return false;
        }
        true
    }

    /// Meets whoever connected, on a thread of its own; or closes the connection unread.
    fn let_in(self: &Arc<Self>, connection: Connection) {
        let from = connection.from;
        if !self.admits(from) {
            return;
        }
        let door = Arc::clone(self);
        self.on_a_thread(from, move || {
            let met = door.trust.terms_for_guests(&OVER_TCP).accept(connection.link);
            door.judge(met, from);
        });
    }

    fn on_a_thread(&self, from: SocketAddr, visit: impl FnOnce() + Send + 'static) {
        let spawned = thread::Builder::new().name("secure".into()).stack_size(STACK_BYTES).spawn(visit);
        if let Err(error) = spawned {
            warn!(%from, %error, "the connection was turned away");
            self.admission.leave(from.ip(), self.household.clock().now(), Proof::Untried);
        }
    }

    /// What came of a stranger: it is a guest, or was none.
    fn judge(&self, met: Result<Secured, HandshakeError>, from: SocketAddr) {
        let proof = match &met {
            Ok(_) => Proof::Given,
            Err(HandshakeError::Lost(_) | HandshakeError::TooSlow) => Proof::CutShort,
            Err(_) => Proof::Failed,
        };
        self.admission.leave(from.ip(), self.household.clock().now(), proof);
        match met {
            Ok(secured) => self.welcome(secured, from),
            Err(error) => {
                let fingerprint = match &error {
                    HandshakeError::Stranger(seen) => *seen,
                    HandshakeError::OutOfDate(seen) => Some(*seen),
                    _ => None,
                };
                warn!(%from, "refused: {error}");
                self.record_stranger(from, fingerprint, Outcome::Refused, &error.to_string());
            }
        }
    }

    fn welcome(&self, mut secured: Secured, from: SocketAddr) {
        // Unpaired since its handshake began: it gets nothing.
        let Some(peer) = self.trust.peer(&secured.peer) else { return };
        if self.household.is_closing() {
            return;
        }
        secured.link.set_peer(format!("{} ({from})", peer.name));
        let guest = Guest::new(self.trust.clone(), secured.peer, peer.name, from.to_string());
        if let Err(error) = Arc::clone(&self.household).receive(secured.link, guest, secured.protocol) {
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

impl<H: Household> QuicDoor for Door<H> {
    fn terms(&self) -> Terms {
        self.trust.terms_for_guests(&[Protocol::Session])
    }

    fn may_enter(&self, from: SocketAddr) -> bool {
        !self.household.is_closing() && self.admits(from)
    }

    fn met(self: Arc<Self>, met: Result<Secured, HandshakeError>, from: SocketAddr) {
        let door = Arc::clone(&self);
        self.on_a_thread(from, move || door.judge(met, from));
    }
}
