//! Carries the bytes of a link between its stream and the end of a socket pair.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, ConnectionError, RecvStream, SendStream};
use rustls::{AlertDescription, Error};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::{ReadHalf, WriteHalf};
use tokio::time::{sleep, timeout};

use super::ending::is_ending;
use crate::link::{Link, LinkCarrier, plain_address};
use crate::trust::Fingerprint;
use crate::trust::links::tls::{HandshakeError, KeyVerifier, LinkProtocol, SecureLink};

/// How long the last bytes of a link may take to arrive.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a link of which this end has finished goes on to receive: sessions need 2 s for a farewell.
const HALF_CLOSED_TIME_MAX: Duration = Duration::from_secs(4);
/// How much is carried at a time, outward and inward.
const CARRIED_BYTES: usize = 32 << 10;
const CARRIED_CHUNKS: usize = 32;
/// Codes of a transport error that stand for an alert of TLS (RFC 9001 §4.8).
const CRYPTO_ERROR: std::ops::Range<u64> = 0x100..0x200;

/// What the handshake of a connection has shown.
#[derive(Clone, Copy, Debug)]
pub struct ProvedPeer {
    peer: Fingerprint,
    protocol: LinkProtocol,
}

impl ProvedPeer {
    /// # Errors
    /// The peer has shown no key, or agreed to no protocol.
    pub fn by(connection: &Connection, verifier: &KeyVerifier) -> Result<Self, HandshakeError> {
        let agreed = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
        let protocol = LinkProtocol::named(agreed.and_then(|data| data.protocol).as_deref())?;
        let peer = verifier.seen().ok_or(HandshakeError::Stranger(None))?;
        Ok(Self { peer, protocol })
    }
}

/// Carries a link's bytes.
pub struct QuicBridge {
    end: UnixStream,
    road: Arc<QuicCarrier>,
}

/// The connection, for the link's owner.
#[derive(Debug)]
struct QuicCarrier {
    connection: Connection,
    is_lost: AtomicBool,
}

impl LinkCarrier for QuicCarrier {
    fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    fn round_trip(&self) -> Duration {
        self.connection.rtt()
    }
}

impl QuicBridge {
    /// Makes a link on a connection, and the bridge that carries its bytes.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn build(connection: &Connection, proved: ProvedPeer) -> io::Result<(SecureLink, Self)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        let (ours, end) = (OwnedFd::from(ours), UnixStream::from_std(theirs)?);
        let road = Arc::new(QuicCarrier { connection: connection.clone(), is_lost: AtomicBool::new(false) });
        let carrier: Arc<dyn LinkCarrier> = Arc::<QuicCarrier>::clone(&road);
        let link = Link::bridged(ours, plain_address(connection.remote_address()).to_string(), carrier);
        Ok((SecureLink { link, peer: proved.peer, protocol: proved.protocol }, Self { end, road }))
    }

    /// Carries bytes until both ends have finished, the connection is lost, or the process ends: then what was sent on
    /// the link is the last of it.
    pub async fn carry(self, mut send: SendStream, recv: RecvStream) {
        let Self { mut end, road } = self;
        let is_whole = {
            let (near_out, near_in) = end.split();
            let (mut out, mut inward) = (pin!(outward(near_out, &mut send)), pin!(inward(recv, near_in)));
            let (mut is_over, mut half_closed) = ([false; 2], None);
            poll_fn(|context| {
                for (at, is_over) in is_over.iter_mut().enumerate().filter(|(_, is_over)| !**is_over) {
                    let ended = if at == 0 { out.as_mut().poll(context) } else { inward.as_mut().poll(context) };
                    match ended {
                        Poll::Ready(Ok(StreamEnding::Here)) => *is_over = true,
                        Poll::Ready(Ok(StreamEnding::WithTheProcess)) => return Poll::Ready(true),
                        Poll::Ready(Err(_)) => return Poll::Ready(false),
                        Poll::Pending => {}
                    }
                }
                match is_over {
                    [true, true] => Poll::Ready(true),
                    // A peer that goes on to send, or says nothing, keeps nothing here.
                    [true, false] => {
                        let left = half_closed.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED_TIME_MAX)));
                        left.as_mut().poll(context).map(|()| false)
                    }
                    _ => Poll::Pending,
                }
            })
            .await
        };
        if is_whole {
            // What was sent last must arrive before the connection is closed.
            let _ = timeout(LAST_WORDS_TIME_MAX, send.stopped()).await;
        }
        // Before the end is dropped, which the link's owner sees.
        road.is_lost.store(!was_closed(road.connection.close_reason().as_ref()), Ordering::Release);
    }
}

/// Why bytes in one direction end.
enum StreamEnding {
    /// Their sender has finished.
    Here,
    /// The process ends.
    WithTheProcess,
}

/// Carries what is sent on a link, and says when it was the last.
async fn outward(mut from: ReadHalf<'_>, to: &mut SendStream) -> io::Result<StreamEnding> {
    let (mut space, mut ending) = (vec![0; CARRIED_BYTES], pin!(is_ending()));
    let ended = loop {
        let mut space = ReadBuf::new(&mut space);
        let read = poll_fn(|context| match Pin::new(&mut from).poll_read(context, &mut space) {
            Poll::Ready(read) => Poll::Ready(Some(read)),
            // All that was sent before has been read.
            Poll::Pending => ending.as_mut().poll(context).map(|()| None),
        });
        let Some(read) = read.await else { break StreamEnding::WithTheProcess };
        read?;
        if space.filled().is_empty() {
            break StreamEnding::Here;
        }
        to.write_all(space.filled()).await?;
    };
    to.finish().map_err(io::Error::other)?;
    Ok(ended)
}

/// Carries what arrives for a link, and says when it was the last.
///
/// A chunk is what one datagram had of the stream, 1 to 2 KiB: all that are there are written by one system call.
async fn inward(mut from: RecvStream, mut to: WriteHalf<'_>) -> io::Result<StreamEnding> {
    let mut chunks: [_; CARRIED_CHUNKS] = Default::default();
    while let Some(count) = from.read_chunks(&mut chunks).await? {
        let mut runs = chunks.each_ref().map(|chunk| IoSlice::new(chunk));
        let mut runs = &mut runs[..count];
        while !runs.is_empty() {
            let written = to.write_vectored(runs).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut runs, written);
        }
        // An idle link holds no datagram.
        chunks = Default::default();
    }
    to.shutdown().await?;
    Ok(StreamEnding::Here)
}

/// Whether the peer or this end closed the connection, or a link that it carried. Silence does not count, nor does a
/// packet that an attacker may have sent.
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

/// The error of a handshake, as TLS over TCP has it.
pub fn explain(verifier: &KeyVerifier, error: ConnectionError) -> HandshakeError {
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
