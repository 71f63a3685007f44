//! Accepts the connections of importers, and hands their links on.

use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use farbus_model::budget::MemoryAccount;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, Incoming, ServerConfig, VarInt};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::bridge::{ProvedPeer, QuicBridge, explain};
use super::ending::{QuicThreadMark, is_ending};
use super::room::ConnectionMemoryCharge;
use super::setup::{endpoint, hear_skills, no_suite, runtime, say_skills, transport};
use super::socket::JoiningUdpSocket;
use crate::link::plain_address;
use crate::trust::Fingerprint;
use crate::trust::limits::{QUIC_EXPORTER_BYTES_MIN, QUIC_LINKS_MAX};
use crate::trust::links::admission::AdmissionTicket;
use crate::trust::links::tls::{HandshakeError, HandshakeTerms, KeyVerifier, SecureLink};

/// How long an exporter keeps a connection that carries no link: its importer, which closes it, may be about to make
/// one.
const EMPTY_TIME_MAX: Duration = Duration::from_secs(10);

/// Handles the peers of a socket for paired hosts.
pub trait QuicAcceptor: Send + Sync + 'static {
    /// The terms for handshakes that begin now.
    fn terms(&self) -> HandshakeTerms;

    /// Admits a peer from this address, which was validated; `None` refuses it. [`QuicAcceptor::met`] follows.
    fn enter(&self, from: SocketAddr) -> Option<AdmissionTicket>;

    /// The account of a peer that has proved this key: what its connection may make this process hold is taken from it.
    fn account(&self, peer: &Fingerprint) -> Arc<MemoryAccount>;

    /// Receives the result, with the connection's first link. It must not block: other peers are served on this thread.
    fn met(self: Arc<Self>, met: Result<SecureLink, HandshakeError>, from: SocketAddr, ticket: AdmissionTicket);

    /// Receives a further link of a connection whose peer has proved its key. It must not block, either.
    fn met_again(self: Arc<Self>, secured: SecureLink, from: SocketAddr);
}

/// A UDP socket that a thread of its own serves until it is told to close. Links that were made through it live on.
#[derive(Clone, Debug)]
pub struct QuicServer {
    is_closed: watch::Sender<bool>,
}

impl QuicServer {
    /// Serves peers at `socket`.
    ///
    /// # Errors
    /// The system has no more threads or descriptors.
    pub fn start(socket: UdpSocket, acceptor: Arc<impl QuicAcceptor>) -> io::Result<Self> {
        Self::start_with(socket, acceptor, QUIC_LINKS_MAX)
    }

    /// With so many links a connection at most. Earlier versions accept one.
    pub(in crate::trust) fn start_with(
        socket: UdpSocket,
        acceptor: Arc<impl QuicAcceptor>,
        links_max: u32,
    ) -> io::Result<Self> {
        let is_closed = watch::Sender::new(false);
        let closing = ServerCloseSignal(is_closed.clone());
        let runtime = runtime()?;
        let carrying = QuicThreadMark::begin();
        thread::Builder::new().name("quic".into()).spawn(move || {
            let _carrying = carrying;
            runtime.block_on(async {
                if let Err(error) = serve(socket, &acceptor, &closing, links_max).await {
                    debug!(%error, "QUIC is not served");
                }
            });
        })?;
        Ok(Self { is_closed })
    }

    /// Accepts no more peers, and no more links of those that are here: another process may.
    pub fn close(&self) {
        self.is_closed.send_replace(true);
    }
}

/// Tells when a server is closed, or the process ends.
#[derive(Clone)]
struct ServerCloseSignal(watch::Sender<bool>);

impl ServerCloseSignal {
    async fn is_over(&self) {
        let mut receiver = self.0.subscribe();
        let (mut closed, mut ending) = (pin!(receiver.wait_for(|is_closed| *is_closed)), pin!(is_ending()));
        poll_fn(|context| {
            let is_over = closed.as_mut().poll(context).is_ready() || ending.as_mut().poll(context).is_ready();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

async fn serve(
    socket: UdpSocket,
    acceptor: &Arc<impl QuicAcceptor>,
    closing: &ServerCloseSignal,
    links_max: u32,
) -> io::Result<()> {
    let any = Arc::new(KeyVerifier::new(acceptor.terms().accepts));
    let config = server_config(&acceptor.terms(), &any, links_max).map_err(io::Error::other)?;
    let (endpoint, socket) = endpoint(socket, Some(config))?;
    let mut over = pin!(closing.is_over());
    loop {
        let mut arriving = pin!(endpoint.accept());
        let next = poll_fn(|context| match over.as_mut().poll(context) {
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
            Some(ticket) => {
                let ends = (Arc::clone(acceptor), Arc::clone(&socket), closing.clone());
                drop(tokio::spawn(meet(incoming, ends, ticket, links_max)));
            }
        }
    }
    endpoint.set_server_config(None);
    endpoint.wait_idle().await;
    Ok(())
}

async fn meet(
    incoming: Incoming,
    (acceptor, socket, closing): (Arc<impl QuicAcceptor>, Arc<JoiningUdpSocket>, ServerCloseSignal),
    ticket: AdmissionTicket,
    links_max: u32,
) {
    let (from, terms) = (plain_address(incoming.remote_address()), acceptor.terms());
    let verifier = Arc::new(KeyVerifier::new(terms.accepts.clone()));
    let cut = Arc::<Notify>::default();
    let for_ticket = Arc::clone(&cut);
    ticket.on_cut(move || for_ticket.notify_one());
    let met = {
        let mut cut = pin!(cut.notified());
        let mut met = pin!(timeout(terms.limits.time_max, admitted(incoming, &terms, &verifier, links_max)));
        poll_fn(|context| match cut.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(HandshakeError::Lost(io::Error::other("others were let in instead")))),
            Poll::Pending => met.as_mut().poll(context).map(|met| met.unwrap_or(Err(HandshakeError::TooSlow))),
        })
        .await
    };
    match met {
        Ok((connection, proved, secured, first)) => {
            let _charge = ConnectionMemoryCharge::take(&connection, &acceptor.account(&secured.peer));
            Arc::clone(&acceptor).met(Ok(secured), from, ticket);
            let mut carried = pin!(carry_all(&connection, proved, first, &acceptor, &closing));
            // An importer of an earlier version says nothing.
            let mut heard = pin!(hear_skills(&connection));
            let (mut is_heard, mut joining) = (false, None);
            poll_fn(|context| {
                if !is_heard && let Poll::Ready(skills) = heard.as_mut().poll(context) {
                    is_heard = true;
                    joining = skills.is_ok_and(|is_joining| is_joining).then(|| connection.remote_address());
                    joining.iter().for_each(|importer| socket.note_joining(*importer, true));
                }
                carried.as_mut().poll(context)
            })
            .await;
            joining.iter().for_each(|importer| socket.note_joining(*importer, false));
        }
        Err(error) => acceptor.met(Err(error), from, ticket),
    }
}

type AdmittedConnection = (Connection, ProvedPeer, SecureLink, QuicBridge);

async fn admitted(
    incoming: Incoming,
    terms: &HandshakeTerms,
    verifier: &Arc<KeyVerifier>,
    links_max: u32,
) -> Result<AdmittedConnection, HandshakeError> {
    let config = server_config(terms, verifier, links_max)?;
    let connecting = incoming.accept_with(Arc::new(config)).map_err(|error| explain(verifier, error))?;
    let connection = connecting.await.map_err(|error| explain(verifier, error))?;
    say_skills(&connection).await.map_err(|error| explain(verifier, error))?;
    let proved = ProvedPeer::by(&connection, verifier)?;
    // The importer's stream is unknown until the importer sends something on it.
    let (secured, first) = QuicBridge::build(&connection, proved).map_err(HandshakeError::Lost)?;
    Ok((connection, proved, secured, first))
}

/// What a connection does next.
enum ConnectionStep {
    /// The importer opened this stream.
    Stream(quinn::SendStream, quinn::RecvStream),
    /// A link ended.
    Ended,
    /// The connection is lost or closed, or carries nothing, or nothing more is accepted.
    Over,
}

/// Carries the links of an importer's connection, until it is over.
async fn carry_all(
    connection: &Connection,
    proved: ProvedPeer,
    first: QuicBridge,
    acceptor: &Arc<impl QuicAcceptor>,
    closing: &ServerCloseSignal,
) {
    let (mut first, mut links, mut over) = (Some(first), JoinSet::new(), pin!(closing.is_over()));
    loop {
        let next = {
            let (mut arriving, mut waited) = (pin!(connection.accept_bi()), pin!(sleep(EMPTY_TIME_MAX)));
            poll_fn(|context| {
                if over.as_mut().poll(context).is_ready() {
                    return Poll::Ready(ConnectionStep::Over);
                }
                if let Poll::Ready(stream) = arriving.as_mut().poll(context) {
                    return Poll::Ready(
                        stream.map_or(ConnectionStep::Over, |(send, recv)| ConnectionStep::Stream(send, recv)),
                    );
                }
                match links.poll_join_next(context) {
                    Poll::Ready(Some(_)) => Poll::Ready(ConnectionStep::Ended),
                    Poll::Ready(None) => waited.as_mut().poll(context).map(|()| ConnectionStep::Over),
                    Poll::Pending => Poll::Pending,
                }
            })
            .await
        };
        match next {
            ConnectionStep::Stream(send, recv) => {
                let bridge = match first.take() {
                    Some(bridge) => bridge,
                    None => match QuicBridge::build(connection, proved) {
                        Ok((secured, bridge)) => {
                            let from = plain_address(connection.remote_address());
                            Arc::clone(acceptor).met_again(secured, from);
                            bridge
                        }
                        // Dropping the stream tells the importer.
                        Err(error) => {
                            debug!(%error, "a link was turned away");
                            continue;
                        }
                    },
                };
                links.spawn(bridge.carry(send, recv));
            }
            ConnectionStep::Ended => {}
            ConnectionStep::Over => break,
        }
    }
    drop(first);
    // They end by themselves if the connection did. A further link ends at once.
    while !links.is_empty() {
        let mut arriving = pin!(connection.accept_bi());
        poll_fn(|context| match links.poll_join_next(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending if connection.close_reason().is_some() => Poll::Pending,
            Poll::Pending => arriving.as_mut().poll(context).map(drop),
        })
        .await;
    }
    connection.close(VarInt::from_u32(0), b"");
}

fn server_config(
    terms: &HandshakeTerms,
    verifier: &Arc<KeyVerifier>,
    links_max: u32,
) -> Result<ServerConfig, HandshakeError> {
    let crypto = QuicServerConfig::try_from(terms.server_config(verifier)).map_err(no_suite)?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    let mut transport = transport(links_max, QUIC_EXPORTER_BYTES_MIN as u32);
    transport.send_window(QUIC_EXPORTER_BYTES_MIN as u64);
    config.transport_config(Arc::new(transport)).migration(true);
    Ok(config)
}
