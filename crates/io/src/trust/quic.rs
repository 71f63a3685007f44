//! QUIC between hosts that know each other's keys: a second transport for sessions, for networks that lose many packets
//! or change their addresses.
//!
//! Keys, certificates and ALPN are those of TLS over TCP (`tls.rs`). A connection carries one link: one stream that the
//! importer opens, lane 0. A link is a descriptor, while QUIC runs in an asynchronous runtime: a task carries bytes
//! between the stream and one end of a socket pair, whose other end is the link. That costs one more hop in each
//! direction, so TCP is the first choice.
//!
//! An importer finishes its handshake before the exporter has checked its key (RFC 8446 §2). So an exporter that
//! accepts it confirms that by an empty stream of its own.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{
    ClientConfig, Connection, ConnectionError, Endpoint, EndpointConfig, IdleTimeout, Incoming, RecvStream, SendStream,
    ServerConfig, TokioRuntime, TransportConfig, VarInt,
};
use rustls::{AlertDescription, Error};
use tokio::net::UnixStream;
use tokio::runtime::{self, Runtime};
use tokio::sync::Notify;
use tokio::time::timeout;
use tracing::debug;

use super::admission::Ticket;
use super::tls::{HandshakeError, KeyVerifier, NO_NAME, Protocol, Secured, Terms};
use crate::link::{Carrier, Link, plain_address};

/// After this silence a peer counts as lost, as over TCP: a session then tries for another link.
const IDLE_MAX: Duration = Duration::from_secs(4);
/// How often an idle link sends a keep-alive: two of them may be lost.
const KEEP_ALIVE: Duration = Duration::from_millis(1_200);
/// How long the last bytes of a link may take to arrive.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(2);
/// Codes of a transport error that stand for an alert of TLS (RFC 9001 §4.8).
const CRYPTO_ERROR: std::ops::Range<u64> = 0x100..0x200;

/// Handles the peers of a socket for paired hosts.
pub trait QuicAcceptor: Send + Sync + 'static {
    /// The terms for handshakes that begin now.
    fn terms(&self) -> Terms;

    /// Admits a peer from this address, which was validated; `None` refuses it. [`QuicAcceptor::met`] follows.
    fn enter(&self, from: SocketAddr) -> Option<Ticket>;

    /// Receives the result. It must not block: other peers are served on this thread.
    fn met(self: Arc<Self>, met: Result<Secured, HandshakeError>, from: SocketAddr, ticket: Ticket);
}

/// A UDP socket that a thread of its own serves until it is told to close. Links that were made through it live on.
#[derive(Clone, Debug)]
pub struct QuicServer {
    close: Arc<Notify>,
}

impl QuicServer {
    /// Serves peers at `socket`.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(socket: UdpSocket, acceptor: Arc<impl QuicAcceptor>) -> io::Result<Self> {
        let close = Arc::<Notify>::default();
        let for_thread = Arc::clone(&close);
        let runtime = runtime()?;
        thread::Builder::new().name("quic".into()).spawn(move || {
            runtime.block_on(async {
                if let Err(error) = serve(socket, &acceptor, &for_thread).await {
                    debug!(%error, "QUIC is not served");
                }
            });
        })?;
        Ok(Self { close })
    }

    /// Accepts no more peers.
    pub fn close(&self) {
        self.close.notify_one();
    }
}

fn runtime() -> io::Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build()
}

async fn serve(socket: UdpSocket, acceptor: &Arc<impl QuicAcceptor>, close: &Notify) -> io::Result<()> {
    let any = Arc::new(KeyVerifier::new(acceptor.terms().accepts));
    let config = server_config(&acceptor.terms(), &any).map_err(io::Error::other)?;
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(config), socket, Arc::new(TokioRuntime))?;
    let mut closing = pin!(close.notified());
    loop {
        let mut arriving = pin!(endpoint.accept());
        let next = poll_fn(|context| match closing.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => arriving.as_mut().poll(context),
        });
        let Some(incoming) = next.await else { break };
        // A peer with a forged source address does not answer: it costs nothing, and does not count against the
        // address.
        if !incoming.remote_address_validated() {
            if let Err(error) = incoming.retry() {
                error.into_incoming().ignore();
            }
            continue;
        }
        match acceptor.enter(plain_address(incoming.remote_address())) {
            None => incoming.refuse(),
            Some(ticket) => drop(tokio::spawn(meet(incoming, Arc::clone(acceptor), ticket))),
        }
    }
    endpoint.set_server_config(None);
    endpoint.wait_idle().await;
    Ok(())
}

async fn meet(incoming: Incoming, acceptor: Arc<impl QuicAcceptor>, ticket: Ticket) {
    let (from, terms) = (plain_address(incoming.remote_address()), acceptor.terms());
    let verifier = Arc::new(KeyVerifier::new(terms.accepts.clone()));
    let cut = Arc::<Notify>::default();
    let for_ticket = Arc::clone(&cut);
    ticket.on_cut(move || for_ticket.notify_one());
    let met = {
        let mut cut = pin!(cut.notified());
        let mut met = pin!(timeout(terms.limits.time_max, admitted(incoming, &terms, &verifier)));
        poll_fn(|context| match cut.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(HandshakeError::Lost(io::Error::other("others were let in instead")))),
            Poll::Pending => met.as_mut().poll(context).map(|met| met.unwrap_or(Err(HandshakeError::TooSlow))),
        })
        .await
    };
    match met {
        Ok((secured, bridge)) => {
            acceptor.met(Ok(secured), from, ticket);
            bridge.carry().await;
        }
        Err(error) => acceptor.met(Err(error), from, ticket),
    }
}

async fn admitted(
    incoming: Incoming,
    terms: &Terms,
    verifier: &Arc<KeyVerifier>,
) -> Result<(Secured, Bridge), HandshakeError> {
    let config = server_config(terms, verifier)?;
    let connecting = incoming.accept_with(Arc::new(config)).map_err(|error| explain(verifier, error))?;
    let connection = connecting.await.map_err(|error| explain(verifier, error))?;
    let mut welcome = connection.open_uni().await.map_err(|error| explain(verifier, error))?;
    // A stream that was just opened can be finished.
    let _ = welcome.finish();
    // The importer's stream is unknown until the importer sends something on it.
    Bridge::build(connection, None, verifier)
}

impl Terms {
    /// Connects to the host at `to`, to which `socket` may send. The socket's address may change while the link lives.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn connect_quic(&self, socket: UdpSocket, to: SocketAddr) -> Result<Secured, HandshakeError> {
        let (told, result) = mpsc::sync_channel(1);
        let (terms, runtime) = (self.clone(), runtime().map_err(HandshakeError::Lost)?);
        let carry = move || {
            runtime.block_on(async {
                let met = timeout(terms.limits.time_max, terms.dial(socket, to)).await;
                match met.unwrap_or(Err(HandshakeError::TooSlow)) {
                    Ok((secured, bridge, endpoint)) => {
                        // A caller that no longer waits has dropped the link, and the bridge sees its end.
                        let _ = told.send(Ok(secured));
                        bridge.carry().await;
                        endpoint.wait_idle().await;
                    }
                    Err(error) => drop(told.send(Err(error))),
                }
            });
        };
        thread::Builder::new().name("quic".into()).spawn(carry).map_err(HandshakeError::Lost)?;
        result.recv().unwrap_or_else(|error| Err(HandshakeError::Lost(io::Error::other(error))))
    }

    async fn dial(&self, socket: UdpSocket, to: SocketAddr) -> Result<(Secured, Bridge, Endpoint), HandshakeError> {
        let verifier = Arc::new(KeyVerifier::new(self.accepts.clone()));
        let crypto = QuicClientConfig::try_from(self.client_config(&verifier, self.identity.certified()));
        let mut config = ClientConfig::new(Arc::new(crypto.map_err(no_suite)?));
        config.transport_config(Arc::new(transport()));
        let endpoint = Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(TokioRuntime));
        let endpoint = endpoint.map_err(HandshakeError::Lost)?;
        let wrong = |error| HandshakeError::Lost(io::Error::other(error));
        let connecting = endpoint.connect_with(config, to, NO_NAME).map_err(wrong)?;
        let connection = connecting.await.map_err(|error| explain(&verifier, error))?;
        connection.accept_uni().await.map_err(|error| explain(&verifier, error))?;
        let stream = connection.open_bi().await.map_err(|error| explain(&verifier, error))?;
        let (secured, bridge) = Bridge::build(connection, Some(stream), &verifier)?;
        Ok((secured, bridge, endpoint))
    }
}

fn server_config(terms: &Terms, verifier: &Arc<KeyVerifier>) -> Result<ServerConfig, HandshakeError> {
    let crypto = QuicServerConfig::try_from(terms.server_config(verifier)).map_err(no_suite)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport())).migration(true);
    Ok(config)
}

fn no_suite(error: impl std::fmt::Display) -> HandshakeError {
    HandshakeError::Rules(Error::General(error.to_string()))
}

fn transport() -> TransportConfig {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(Some(IdleTimeout::try_from(IDLE_MAX).expect("a few seconds")));
    config.keep_alive_interval(Some(KEEP_ALIVE));
    // One stream for the link, and one to confirm acceptance.
    config.max_concurrent_bidi_streams(VarInt::from_u32(1)).max_concurrent_uni_streams(VarInt::from_u32(1));
    config.datagram_receive_buffer_size(None);
    config
}

fn explain(verifier: &KeyVerifier, error: ConnectionError) -> HandshakeError {
    let alert_in = |code: u64| CRYPTO_ERROR.contains(&code).then_some((code & 0xff) as u8);
    match error {
        ConnectionError::ConnectionClosed(close) => match alert_in(close.error_code.into()) {
            Some(alert) => HandshakeError::of_tls(Error::AlertReceived(AlertDescription::from(alert))),
            None => HandshakeError::Lost(io::Error::other(close.to_string())),
        },
        ConnectionError::TransportError(error) => match (verifier.objection(), alert_in(error.code.into())) {
            (Some(objection), _) => objection,
            (None, Some(_)) => HandshakeError::Rules(Error::General(error.to_string())),
            (None, None) => HandshakeError::Lost(io::Error::other(error)),
        },
        error => HandshakeError::Lost(io::Error::other(error)),
    }
}

/// Carries a link's bytes.
struct Bridge {
    connection: Connection,
    /// `None` until the peer, which opens it, sends something.
    stream: Option<(SendStream, RecvStream)>,
    end: UnixStream,
    road: Arc<Road>,
}

/// The connection, for the link's owner.
#[derive(Debug)]
struct Road {
    connection: Connection,
    is_lost: AtomicBool,
}

impl Carrier for Road {
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    fn round_trip(&self) -> Duration {
        self.connection.rtt()
    }
}

impl Bridge {
    /// Makes the link, and the bridge that carries its bytes.
    fn build(
        connection: Connection,
        stream: Option<(SendStream, RecvStream)>,
        verifier: &KeyVerifier,
    ) -> Result<(Secured, Self), HandshakeError> {
        let agreed = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
        let protocol = Protocol::named(agreed.and_then(|data| data.protocol).as_deref())?;
        let peer = verifier.seen().ok_or(HandshakeError::Stranger(None))?;
        let paired = || -> io::Result<(OwnedFd, UnixStream)> {
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            theirs.set_nonblocking(true)?;
            Ok((ours.into(), UnixStream::from_std(theirs)?))
        };
        let (ours, end) = paired().map_err(HandshakeError::Lost)?;
        let road = Arc::new(Road { connection: connection.clone(), is_lost: AtomicBool::new(false) });
        let carrier: Arc<dyn Carrier> = Arc::<Road>::clone(&road);
        let link = Link::bridged(ours, plain_address(connection.remote_address()).to_string(), carrier);
        Ok((Secured { link, peer, protocol }, Self { connection, stream, end, road }))
    }

    /// Carries bytes until both ends have finished, or the connection is lost.
    async fn carry(self) {
        let Self { connection, stream, mut end, road } = self;
        let stream = match stream {
            Some(stream) => Ok(stream),
            None => connection.accept_bi().await,
        };
        if let Ok((mut send, recv)) = stream {
            let mut stream = tokio::io::join(recv, &mut send);
            let carried = tokio::io::copy_bidirectional(&mut stream, &mut end).await;
            drop(stream);
            if carried.is_ok() {
                // What was sent last must arrive before the connection is closed.
                let _ = timeout(LAST_WORDS_TIME_MAX, send.stopped()).await;
            }
        }
        road.is_lost.store(!was_closed(connection.close_reason().as_ref()), Ordering::Release);
        connection.close(VarInt::from_u32(0), b"");
    }
}

/// Whether the peer or this end closed the connection. Silence does not count, nor does a packet that an attacker may
/// have sent.
fn was_closed(reason: Option<&ConnectionError>) -> bool {
    match reason {
        // A stateless reset is proved by a token: the peer is there, but no longer knows the connection.
        None | Some(ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_)) => true,
        Some(ConnectionError::Reset | ConnectionError::LocallyClosed) => true,
        Some(
            ConnectionError::TimedOut
            | ConnectionError::TransportError(_)
            | ConnectionError::VersionMismatch
            | ConnectionError::CidsExhausted,
        ) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::IoSlice;
    use std::net::Ipv4Addr;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::fuzzing::{Input, fuzz};
    use crate::trust::tls::Accepts;
    use crate::trust::{Admission, Fingerprint, Identity, limits};
    use farbus_model::Instant;

    type Met = Result<Secured, HandshakeError>;

    struct Host {
        identity: Arc<Identity>,
        accepts: Accepts,
        is_closed: AtomicBool,
        admission: Admission,
        met: Mutex<Sender<Met>>,
    }

    impl QuicAcceptor for Host {
        fn terms(&self) -> Terms {
            terms(&self.identity, self.accepts.clone())
        }

        fn enter(&self, from: SocketAddr) -> Option<Ticket> {
            assert_eq!(from.ip(), Ipv4Addr::LOCALHOST);
            let now = Instant::from_nanos(1);
            (!self.is_closed.load(Ordering::Acquire)).then(|| self.admission.enter(from.ip(), now).unwrap())
        }

        fn met(self: Arc<Self>, met: Met, _from: SocketAddr, _ticket: Ticket) {
            // A test that has ended does not look any more.
            let _ = self.met.lock().unwrap().send(met);
        }
    }

    fn terms(identity: &Arc<Identity>, accepts: Accepts) -> Terms {
        let identity = Arc::clone(identity);
        Terms { identity, accepts, protocols: vec![Protocol::Session], limits: limits::HANDSHAKE }
    }

    fn identity() -> (Arc<Identity>, Fingerprint) {
        let identity = Arc::new(Identity::generate());
        let fingerprint = identity.fingerprint();
        (identity, fingerprint)
    }

    fn socket() -> UdpSocket {
        UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    fn served_host(identity: &Arc<Identity>, accepts: Accepts) -> (Arc<Host>, QuicServer, SocketAddr, Receiver<Met>) {
        let (met, to_us) = channel();
        let (is_closed, met) = (AtomicBool::new(false), Mutex::new(met));
        let host =
            Arc::new(Host { identity: Arc::clone(identity), accepts, is_closed, admission: Admission::default(), met });
        let socket = socket();
        let at = socket.local_addr().unwrap();
        (Arc::clone(&host), QuicServer::start(socket, host).unwrap(), at, to_us)
    }

    fn pass(from: &Link, to: &Link, bytes: &[u8]) {
        let mut sent = 0;
        let mut arrived = Vec::new();
        let mut space = [0; 4096];
        while arrived.len() < bytes.len() {
            if sent < bytes.len() {
                sent += from.try_send(&[IoSlice::new(&bytes[sent..])]).unwrap().unwrap_or(0);
            }
            if let Some(count) = to.try_receive(&mut space).unwrap() {
                assert!(count > 0, "it is no end");
                arrived.extend_from_slice(&space[..count]);
            } else {
                thread::sleep(Duration::from_micros(100));
            }
        }
        assert!(arrived == bytes);
    }

    #[test]
    fn bytes_pass_both_ways_and_an_end_is_an_end() {
        let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
        let (host, server, at, met) = served_host(&theirs, Accepts::One(our_key));
        let near = terms(&ours, Accepts::One(their_key)).connect_quic(socket(), at).unwrap();
        let far = met.recv().unwrap().unwrap();
        assert_eq!((near.peer, far.peer), (their_key, our_key));
        assert_eq!((near.protocol, far.protocol), (Protocol::Session, Protocol::Session));
        assert!(near.link.is_encrypted() && far.link.is_encrypted());
        let bytes: Vec<u8> = (0..300_000u32).map(|at| (at * 31) as u8).collect();
        pass(&near.link, &far.link, &bytes);
        pass(&far.link, &near.link, &bytes);
        // Existing links continue when no more peers are accepted.
        host.is_closed.store(true, Ordering::Release);
        assert!(terms(&ours, Accepts::One(their_key)).connect_quic(socket(), at).is_err());
        server.close();
        pass(&near.link, &far.link, &bytes);
        drop(near);
        assert_eq!(far.link.receive(&mut [0; 8]).unwrap(), 0, "a farewell");
    }

    #[test]
    fn a_stranger_and_an_impostor_are_told_apart() {
        let ((ours, our_key), (theirs, their_key), (_, other_key)) = (identity(), identity(), identity());
        let (_host, _server, at, met) = served_host(&theirs, Accepts::One(other_key));
        let refused = terms(&ours, Accepts::One(their_key)).connect_quic(socket(), at).unwrap_err();
        assert!(matches!(refused, HandshakeError::Refused), "{refused:?}");
        let stranger = met.recv().unwrap().unwrap_err();
        assert!(matches!(stranger, HandshakeError::Stranger(Some(key)) if key == our_key), "{stranger:?}");
        let impostor = terms(&ours, Accepts::One(other_key)).connect_quic(socket(), at).unwrap_err();
        assert!(matches!(impostor, HandshakeError::Stranger(Some(key)) if key == their_key), "{impostor:?}");
    }

    /// Forwards datagrams between an importer and `to`, changes its own address when told, and loses one datagram in
    /// 20.
    fn roaming(to: SocketAddr) -> (SocketAddr, Arc<AtomicBool>, Arc<AtomicBool>) {
        let (here, moves, is_down) = (socket(), Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let at = here.local_addr().unwrap();
        here.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let (is_told, falls_silent) = (Arc::clone(&moves), Arc::clone(&is_down));
        thread::spawn(move || {
            let (mut there, mut near, mut count, mut space) = (socket(), None, 0u32, [0; 2048]);
            there.set_nonblocking(true).unwrap();
            loop {
                if is_told.swap(false, Ordering::AcqRel) {
                    there = socket();
                    there.set_nonblocking(true).unwrap();
                }
                let mut passes = || {
                    count = count.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (count >> 16) % 20 != 0 && !falls_silent.load(Ordering::Acquire)
                };
                while let Ok((bytes, from)) = here.recv_from(&mut space) {
                    near = Some(from);
                    if passes() {
                        let _ = there.send_to(&space[..bytes], to);
                    }
                    if bytes < 600 {
                        break;
                    }
                }
                while let (Ok((bytes, _)), Some(near)) = (there.recv_from(&mut space), near) {
                    if passes() {
                        let _ = here.send_to(&space[..bytes], near);
                    }
                }
            }
        });
        (at, moves, is_down)
    }

    #[test]
    fn link_outlives_an_address_change_with_5_percent_loss_but_not_silence() {
        let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
        let (_host, _server, at, met) = served_host(&theirs, Accepts::One(our_key));
        let (through, moves, is_down) = roaming(at);
        let near = terms(&ours, Accepts::One(their_key)).connect_quic(socket(), through).unwrap();
        let far = met.recv().unwrap().unwrap();
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 17) as u8).collect();
        for _ in 0..4 {
            pass(&near.link, &far.link, &bytes);
            moves.store(true, Ordering::Release);
            pass(&near.link, &far.link, &bytes);
            pass(&far.link, &near.link, &bytes);
        }
        is_down.store(true, Ordering::Release);
        let lost = far.link.receive(&mut [0; 8]).unwrap_err();
        assert_eq!(lost.kind(), io::ErrorKind::TimedOut, "a network that is away is no farewell");
        assert_eq!(near.link.receive(&mut [0; 8]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    /// Forwards datagrams between an importer and an exporter, keeps some of them, and sends others in their names.
    struct Wiretap {
        at: SocketAddr,
        to: SocketAddr,
        near: Arc<Mutex<Option<SocketAddr>>>,
        heard: Arc<Mutex<VecDeque<Vec<u8>>>>,
        here: UdpSocket,
        there: UdpSocket,
    }

    impl Wiretap {
        const HEARD_MAX: usize = 32;

        fn before(to: SocketAddr) -> Self {
            let (here, there) = (socket(), socket());
            let near = Arc::<Mutex<Option<SocketAddr>>>::default();
            let heard = Arc::<Mutex<VecDeque<Vec<u8>>>>::default();
            for is_out in [true, false] {
                let [from, onward] = [&here, &there].map(|socket| socket.try_clone().unwrap());
                let (from, onward) = if is_out { (from, onward) } else { (onward, from) };
                let (near, heard) = (Arc::clone(&near), Arc::clone(&heard));
                thread::spawn(move || {
                    let mut space = [0; 2048];
                    while let Ok((bytes, sender)) = from.recv_from(&mut space) {
                        if is_out {
                            *near.lock().unwrap() = Some(sender);
                        }
                        let mut heard = heard.lock().unwrap();
                        heard.push_back(space[..bytes].to_vec());
                        if heard.len() > Self::HEARD_MAX {
                            heard.pop_front();
                        }
                        drop(heard);
                        let to = if is_out { Some(to) } else { *near.lock().unwrap() };
                        let _ = to.map(|to| onward.send_to(&space[..bytes], to));
                    }
                });
            }
            Self { at: here.local_addr().unwrap(), to, near, heard, here, there }
        }

        /// A datagram that was heard, mostly changed.
        fn changed(&self, input: &mut Input<'_>) -> Vec<u8> {
            let heard = self.heard.lock().unwrap();
            let mut bytes = heard[input.below(heard.len() as u32) as usize].clone();
            for _ in 0..input.below(4) {
                let at = input.below(bytes.len() as u32) as usize;
                match input.below(6) {
                    // Form, version and connection identifiers (RFC 9000 §17).
                    0 => bytes[0] ^= 1 << input.below(8),
                    1 => (1..bytes.len().min(5)).for_each(|at| bytes[at] = input.pick(&[0, 1, 0x0a, 0xff])),
                    2 => (5..bytes.len().min(7)).for_each(|at| bytes[at] = input.byte()),
                    3 => bytes[at] = input.byte(),
                    4 => bytes.truncate(at + 1),
                    _ => {
                        let other = &heard[input.below(heard.len() as u32) as usize];
                        bytes.extend_from_slice(&other[..other.len().min(1400)]);
                    }
                }
            }
            bytes
        }

        fn send(&self, bytes: &[u8], to_exporter: bool) {
            let near = *self.near.lock().unwrap();
            let _ = match (to_exporter, near) {
                (true, _) => self.there.send_to(bytes, self.to),
                (false, Some(near)) => self.here.send_to(bytes, near),
                (false, None) => Ok(0),
            };
        }
    }

    #[test]
    fn fuzz_quic_datagrams() {
        let ((ours, our_key), (theirs, their_key)) = (identity(), identity());
        let (_host, _server, at, met) = served_host(&theirs, Accepts::One(our_key));
        let between = Wiretap::before(at);
        let connect = |to| {
            let near = terms(&ours, Accepts::One(their_key)).connect_quic(socket(), to).unwrap();
            // Others may have been refused meanwhile.
            let far = met.iter().find_map(Result::ok).expect("it serves");
            (near, far)
        };
        let (near, far) = connect(between.at);
        let stranger = socket();
        let count = std::cell::Cell::new(0u32);
        fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_quic_datagrams", |input| {
            while !input.is_empty() {
                let bytes = if input.once_in(8) {
                    let size = input.below(1400) as usize;
                    input.bytes(size)
                } else {
                    between.changed(input)
                };
                match input.below(3) {
                    0 => drop(stranger.send_to(&bytes, at)),
                    1 => between.send(&bytes, true),
                    _ => between.send(&bytes, false),
                }
            }
            let bytes: Vec<u8> = (0..200u32).map(|at| (at + count.get()) as u8).collect();
            pass(&near.link, &far.link, &bytes);
            pass(&far.link, &near.link, &bytes);
            count.set(count.get() + 1);
            if count.get() % 64 == 1 {
                let (near, far) = connect(at);
                pass(&near.link, &far.link, &bytes);
            }
        });
    }
}
