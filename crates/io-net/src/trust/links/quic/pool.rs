//! The connections of an importer, which its links share.
//!
//! A host may use a thousand devices of another: each in a session and on a link of its own, on few connections.
//! Links are spread over up to [`CONNECTIONS_MAX`] connections of their kind of traffic; a further link is put on the
//! one that has fewest. Disks never share one with what somebody waits for. An exporter of an earlier version accepts
//! one link a connection, and gets a connection for each. A connection that has lost its last link is closed.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Instant;

use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, VarInt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::bridge::{ProvedPeer, QuicBridge, explain};
use super::ending::QuicThreadMark;
use super::setup::{endpoint, hear_skills, no_suite, runtime, say_skills, transport};
use crate::trust::Fingerprint;
use crate::trust::limits::{QUIC_BYTES_MAX, QUIC_LINKS_MAX};
use crate::trust::links::tls::{AcceptedKeys, HandshakeError, HandshakeTerms, KeyVerifier, NO_NAME, SecureLink};

/// Connections to a host for each kind of traffic.
const CONNECTIONS_MAX: usize = 4;

/// What a link is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LinkTraffic {
    /// USB devices: small requests that somebody waits for, and packets of time.
    #[default]
    Prompt,
    /// Disks and streams.
    Bulk,
}

/// The connections that a process has made. Dropping it closes none.
#[derive(Debug)]
pub struct QuicPool {
    hosts: Mutex<HashMap<QuicPoolKey, ConnectionGroup>>,
    /// A connection was made, or not.
    made: Condvar,
    connections_max: usize,
}

/// Whose links share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct QuicPoolKey {
    ours: Fingerprint,
    theirs: Fingerprint,
    to: SocketAddr,
    traffic: LinkTraffic,
}

#[derive(Debug, Default)]
struct ConnectionGroup {
    open: Vec<PooledQuicConnection>,
    /// How many are being made.
    making: usize,
}

/// A connection whose thread makes links on it.
#[derive(Clone, Debug)]
struct PooledQuicConnection {
    /// Nothing is received any more once the connection is over.
    asks: UnboundedSender<QuicLinkRequest>,
    links: Arc<AtomicUsize>,
}

/// A link that somebody waits for, on a connection.
struct QuicLinkRequest {
    slot: QuicLinkSlot,
    tell: SyncSender<Result<SecureLink, QuicLinkFailure>>,
}

/// A link's place on a connection, until it is dropped.
struct QuicLinkSlot(Arc<AtomicUsize>);

impl QuicLinkSlot {
    fn on(links: &Arc<AtomicUsize>) -> Self {
        links.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(links))
    }
}

impl Drop for QuicLinkSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a connection carries no further link.
#[derive(Debug)]
enum QuicLinkFailure {
    /// The exporter accepts no more of them on it.
    Full,
    /// This machine has no more descriptors.
    Lost(io::Error),
}

/// Where a further link goes.
enum QuicLinkTarget {
    Shared(PooledQuicConnection),
    New,
}

impl Default for QuicPool {
    fn default() -> Self {
        Self::of(CONNECTIONS_MAX)
    }
}

impl QuicPool {
    /// With so many connections to a host for each kind of traffic.
    pub(in crate::trust) fn of(connections_max: usize) -> Self {
        Self { hosts: Mutex::default(), made: Condvar::new(), connections_max }
    }

    /// Makes a link to the host at `to`, to which `socket` may send, or which a connection of this pool leads to
    /// already. The socket's address may change while the link lives.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn connect(
        &self,
        terms: &HandshakeTerms,
        traffic: LinkTraffic,
        socket: UdpSocket,
        to: SocketAddr,
    ) -> Result<SecureLink, HandshakeError> {
        let AcceptedKeys::One(theirs) = terms.accepts else {
            return begin(terms, socket, to).map(|(secured, _)| secured);
        };
        let key = QuicPoolKey { ours: terms.identity.fingerprint(), theirs, to, traffic };
        let until = Instant::now() + terms.limits.time_max;
        let mut full = Vec::new();
        while let QuicLinkTarget::Shared(shared) = self.target(key, &full, until)? {
            match shared.link() {
                Some(Ok(secured)) => return Ok(secured),
                Some(Err(QuicLinkFailure::Lost(error))) => return Err(HandshakeError::Lost(error)),
                Some(Err(QuicLinkFailure::Full)) => full.push(shared),
                // It is over, and gone from the list when the next place is looked for.
                None => {}
            }
        }
        let begun = begin(terms, socket, to);
        let mut hosts = self.hosts();
        let connections = hosts.entry(key).or_default();
        connections.making -= 1;
        let made = begun.map(|(secured, shared)| {
            connections.open.push(shared);
            secured
        });
        if connections.open.is_empty() && connections.making == 0 {
            hosts.remove(&key);
        }
        drop(hosts);
        self.made.notify_all();
        made
    }

    /// How many connections carry links now.
    #[cfg(test)]
    pub(in crate::trust) fn connections(&self) -> usize {
        let open = |connections: &ConnectionGroup| connections.open.iter().filter(|s| !s.asks.is_closed()).count();
        self.hosts().values().map(open).sum()
    }

    /// Where the next link goes, but for connections that are full. A new connection counts as being made.
    fn target(
        &self,
        key: QuicPoolKey,
        full: &[PooledQuicConnection],
        until: Instant,
    ) -> Result<QuicLinkTarget, HandshakeError> {
        let mut hosts = self.hosts();
        loop {
            hosts.retain(|_, connections| {
                connections.open.retain(|shared| !shared.asks.is_closed());
                connections.making > 0 || !connections.open.is_empty()
            });
            let connections = hosts.entry(key).or_default();
            let has_room = |shared: &&PooledQuicConnection| {
                let is_full = full.iter().any(|full| Arc::ptr_eq(&full.links, &shared.links));
                !is_full && shared.links.load(Ordering::Acquire) < QUIC_LINKS_MAX as usize
            };
            let least = connections.open.iter().filter(has_room).min_by_key(|s| s.links.load(Ordering::Acquire));
            // All are full if there is none: those of an earlier version are with one link.
            let is_new = connections.open.len() + connections.making < self.connections_max
                || (least.is_none() && !connections.open.is_empty());
            if is_new {
                connections.making += 1;
                return Ok(QuicLinkTarget::New);
            }
            if let Some(shared) = least {
                return Ok(QuicLinkTarget::Shared(shared.clone()));
            }
            // The first ones are being made.
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(HandshakeError::TooSlow);
            }
            hosts = self.made.wait_timeout(hosts, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn hosts(&self) -> MutexGuard<'_, HashMap<QuicPoolKey, ConnectionGroup>> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PooledQuicConnection {
    /// A further link; `None` if the connection is over.
    fn link(&self) -> Option<Result<SecureLink, QuicLinkFailure>> {
        let (tell, result) = sync_channel(1);
        self.asks.send(QuicLinkRequest { slot: QuicLinkSlot::on(&self.links), tell }).ok()?;
        result.recv().ok()
    }
}

/// Makes a connection with its first link, on a thread of its own.
fn begin(
    terms: &HandshakeTerms,
    socket: UdpSocket,
    to: SocketAddr,
) -> Result<(SecureLink, PooledQuicConnection), HandshakeError> {
    let (tell, result) = sync_channel(1);
    let (terms, runtime) = (terms.clone(), runtime().map_err(HandshakeError::Lost)?);
    let carrying = QuicThreadMark::begin();
    let carry = move || {
        let _carrying = carrying;
        runtime.block_on(async {
            let met = timeout(terms.limits.time_max, dial(&terms, socket, to)).await;
            match met.unwrap_or(Err(HandshakeError::TooSlow)) {
                Ok((connection, proved, stream, endpoint)) => {
                    let (asks, requests) = unbounded_channel();
                    let shared = PooledQuicConnection { asks, links: Arc::default() };
                    let slot = QuicLinkSlot::on(&shared.links);
                    match QuicBridge::build(&connection, proved).map_err(HandshakeError::Lost) {
                        Ok((secured, bridge)) => {
                            // A caller that no longer waits has dropped the link, and the bridge sees its end.
                            let _ = tell.send(Ok((secured, shared)));
                            carry_all(&connection, proved, (slot, bridge, stream), requests).await;
                        }
                        Err(error) => drop(tell.send(Err(error))),
                    }
                    connection.close(VarInt::from_u32(0), b"");
                    endpoint.wait_idle().await;
                }
                Err(error) => drop(tell.send(Err(error))),
            }
        });
    };
    thread::Builder::new().name("quic".into()).spawn(carry).map_err(HandshakeError::Lost)?;
    result.recv().unwrap_or_else(|error| Err(HandshakeError::Lost(io::Error::other(error))))
}

type QuicStream = (SendStream, RecvStream);

async fn dial(
    terms: &HandshakeTerms,
    socket: UdpSocket,
    to: SocketAddr,
) -> Result<(Connection, ProvedPeer, QuicStream, Endpoint), HandshakeError> {
    let verifier = Arc::new(KeyVerifier::new(terms.accepts.clone()));
    let crypto = QuicClientConfig::try_from(terms.client_config(&verifier, terms.identity.certified()));
    let mut config = ClientConfig::new(Arc::new(crypto.map_err(no_suite)?));
    // The exporter opens no links.
    config.transport_config(Arc::new(transport(0, QUIC_BYTES_MAX)));
    let (endpoint, socket) = endpoint(socket, None).map_err(HandshakeError::Lost)?;
    let wrong = |error| HandshakeError::Lost(io::Error::other(error));
    let connecting = endpoint.connect_with(config, to, NO_NAME).map_err(wrong)?;
    let connection = connecting.await.map_err(|error| explain(&verifier, error))?;
    let is_joining = hear_skills(&connection).await.map_err(|error| explain(&verifier, error))?;
    socket.note_joining(connection.remote_address(), is_joining);
    say_skills(&connection).await.map_err(|error| explain(&verifier, error))?;
    let stream = connection.open_bi().await.map_err(|error| explain(&verifier, error))?;
    let proved = ProvedPeer::by(&connection, &verifier)?;
    Ok((connection, proved, stream, endpoint))
}

/// Carries the links of a connection and makes those that are asked for, until there is none.
async fn carry_all(
    connection: &Connection,
    proved: ProvedPeer,
    (slot, bridge, (send, recv)): (QuicLinkSlot, QuicBridge, QuicStream),
    mut requests: UnboundedReceiver<QuicLinkRequest>,
) {
    let mut links = JoinSet::new();
    let carry = |links: &mut JoinSet<()>, slot: QuicLinkSlot, bridge: QuicBridge, (send, recv): QuicStream| {
        links.spawn(async move {
            bridge.carry(send, recv).await;
            drop(slot);
        });
    };
    carry(&mut links, slot, bridge, (send, recv));
    while !links.is_empty() {
        let ask = poll_fn(|context| match (requests.poll_recv(context), links.poll_join_next(context)) {
            (Poll::Ready(Some(ask)), _) => Poll::Ready(Some(ask)),
            (_, Poll::Ready(_)) => Poll::Ready(None),
            (Poll::Ready(None) | Poll::Pending, Poll::Pending) => Poll::Pending,
        });
        let Some(QuicLinkRequest { slot, tell }) = ask.await else { continue };
        let mut opening = pin!(connection.open_bi());
        let made = match poll_fn(|context| Poll::Ready(opening.as_mut().poll(context))).await {
            Poll::Pending => Err(QuicLinkFailure::Full),
            // It is lost, and so are its links.
            Poll::Ready(Err(_)) => continue,
            Poll::Ready(Ok(stream)) => {
                QuicBridge::build(connection, proved).map_err(QuicLinkFailure::Lost).map(|(secured, bridge)| {
                    carry(&mut links, slot, bridge, stream);
                    secured
                })
            }
        };
        // A caller that no longer waits has dropped the link.
        let _ = tell.send(made);
    }
    // Who asks from now on, or has asked, needs another connection.
    requests.close();
}
