//! The UDP socket of connections, on which datagrams leave and arrive many at a time.
//!
//! Without that each datagram, 1 to 2 KiB, is a system call and a way of its own through the kernel. quinn's socket
//! asks another one what the kernel can do, which a confined process cannot make; this one asks the socket itself. And
//! quinn keeps all datagrams that arrived together for as long as a link has not read one of them, while it accounts
//! for that one: here each is handed on by itself.

use std::collections::HashSet;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll, ready};

use quinn::udp::{RecvMeta, Transmit, UdpSocketState};
use quinn::{AsyncUdpSocket, UdpPoller};
use tokio::io::Interest;
use tracing::debug;

use crate::sys::udp;

/// Datagrams that one system call sends: at least so many leave the kernel as one (`UDP_MAX_SEGMENTS`, linux/udp.h).
const SENT_TOGETHER_MAX: usize = 64;
/// Bytes that one system call sends: those of one datagram of UDP by IPv4.
const SENT_BYTES_MAX: usize = 65_507;
/// Bytes of datagrams that arrive together: what an IP packet can tell of.
const JOINED_BYTES_MAX: usize = 64 << 10;
/// What the kernel may keep for the socket in each direction.
const KERNEL_BYTES: usize = 2 << 20;
/// Reads of one system call.
const READS_MAX: usize = 4;

/// A socket that sends and receives many datagrams of one size by one system call.
#[derive(Debug)]
pub struct JoiningUdpSocket {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    /// Datagrams that one system call may send; 1 if the kernel or the network adapter cannot split them.
    sent_together_max: AtomicUsize,
    /// Peers that take datagrams that were sent together. Others lose all but the first of those that arrive together.
    joining_peers: RwLock<HashSet<SocketAddr>>,
    received: Mutex<JoinedDatagrams>,
}

impl JoiningUdpSocket {
    /// Joins datagrams of `socket` as far as the kernel can.
    ///
    /// # Errors
    /// The socket's.
    pub fn new(socket: std::net::UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // As much as the kernel gives: what does not fit, while this process does something else, is lost.
        let _ = udp::set_buffers(&socket, KERNEL_BYTES);
        // A kernel before 5.0 joins none.
        let _ = udp::set_joining(&socket, true);
        let sent_together_max = if udp::can_split(&socket) { SENT_TOGETHER_MAX } else { 1 };
        Ok(Self {
            io: tokio::net::UdpSocket::from_std(socket)?,
            state,
            sent_together_max: AtomicUsize::new(sent_together_max),
            joining_peers: RwLock::default(),
            received: Mutex::default(),
        })
    }

    /// The peer at this address takes datagrams that were sent together, from now on or no longer.
    pub fn note_joining(&self, peer: SocketAddr, is_joining: bool) {
        let mut peers = self.joining_peers.write().unwrap_or_else(PoisonError::into_inner);
        if is_joining {
            peers.insert(peer);
        } else {
            peers.remove(&peer);
        }
    }

    fn is_joining(&self, peer: &SocketAddr) -> bool {
        self.joining_peers.read().unwrap_or_else(PoisonError::into_inner).contains(peer)
    }

    /// Sends datagrams by one system call. Those that cannot be sent count as lost on the way: that is how a datagram
    /// is found to be too large, too.
    fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.io.try_io(Interest::WRITABLE, || self.state.try_send((&self.io).into(), transmit)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            Err(error) => {
                // Some adapters say only now that they cannot split what leaves.
                if transmit.segment_size.is_some() && udp::tells_of_splitting(&error) {
                    self.sent_together_max.store(1, Ordering::Relaxed);
                }
                debug!(to = %transmit.destination, bytes = transmit.contents.len(), %error, "datagrams were not sent");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}

impl AsyncUdpSocket for JoiningUdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(WritabilityPoller { socket: self, writable: None })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment_bytes = transmit.segment_size.unwrap_or(SENT_BYTES_MAX).max(1);
        let together = if self.is_joining(&transmit.destination) { SENT_BYTES_MAX / segment_bytes } else { 1 };
        // What a peer gets twice, because the second of two calls must be made again, it drops.
        for contents in transmit.contents.chunks(together.max(1) * segment_bytes) {
            self.send(&Transmit { contents, ..transmit.clone() })?;
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        spaces: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let count = received.hand_on(spaces, metas);
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
            ready!(self.io.poll_recv_ready(context))?;
            match self.io.try_io(Interest::READABLE, || received.read(&self.state, &self.io)) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
                _ => {}
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.io.local_addr()
    }

    fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    fn max_transmit_segments(&self) -> usize {
        self.sent_together_max.load(Ordering::Relaxed)
    }
}

/// What was read and not handed on.
#[derive(Debug, Default)]
struct JoinedDatagrams {
    /// The bytes of [`READS_MAX`] reads, each with as much space; empty before the first.
    bytes: Vec<u8>,
    /// Of each read: what is left of it, and where that begins.
    reads: [(RecvMeta, usize); READS_MAX],
    /// How many reads there were, and the one that is handed on next.
    count: usize,
    next: usize,
}

impl JoinedDatagrams {
    /// Reads datagrams, where all earlier ones were handed on.
    fn read(&mut self, state: &UdpSocketState, socket: &tokio::net::UdpSocket) -> io::Result<()> {
        if self.bytes.is_empty() {
            // Not touched before it is used: a peer with small datagrams makes this process hold a few pages of it.
            self.bytes = vec![0; READS_MAX * JOINED_BYTES_MAX];
        }
        let mut metas = [RecvMeta::default(); READS_MAX];
        let mut pieces = self.bytes.chunks_mut(JOINED_BYTES_MAX);
        let mut spaces: [_; READS_MAX] = std::array::from_fn(|_| IoSliceMut::new(pieces.next().unwrap_or_default()));
        (self.count, self.next) = (0, 0);
        self.count = state.recv(socket.into(), &mut spaces, &mut metas)?;
        self.reads = metas.map(|meta| (meta, 0));
        Ok(())
    }

    /// Copies datagrams into `spaces`, one into each, and says how many. One that its space does not hold is lost.
    fn hand_on(&mut self, spaces: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]) -> usize {
        let mut count = 0;
        while self.next < self.count && count < spaces.len().min(metas.len()) {
            let (read, from) = &mut self.reads[self.next];
            let length = read.stride.max(1).min(read.len - *from);
            let start = self.next * JOINED_BYTES_MAX + *from;
            *from += length;
            if let Some(space) = spaces[count].get_mut(..length).filter(|space| !space.is_empty()) {
                space.copy_from_slice(&self.bytes[start..start + length]);
                metas[count] = RecvMeta { len: length, stride: length, ..*read };
                count += 1;
            }
            if *from == read.len {
                self.next += 1;
            }
        }
        count
    }
}

/// Wakes one task when the socket takes datagrams again.
struct WritabilityPoller {
    socket: Arc<JoiningUdpSocket>,
    writable: Option<Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>>,
}

impl UdpPoller for WritabilityPoller {
    fn poll_writable(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let socket = Arc::clone(&self.socket);
        let writable = self.writable.get_or_insert_with(|| Box::pin(async move { socket.io.writable().await }));
        let result = ready!(writable.as_mut().poll(context));
        self.writable = None;
        Poll::Ready(result)
    }
}

impl std::fmt::Debug for WritabilityPoller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WritabilityPoller").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::{Ipv4Addr, UdpSocket};

    use quinn::udp::BATCH_SIZE;

    use super::*;

    /// What `near` hands on, a datagram each.
    async fn received(near: &JoiningUdpSocket, count: usize, space: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        while all.len() < count {
            let mut bytes = vec![0; space * BATCH_SIZE];
            let mut metas = [RecvMeta::default(); BATCH_SIZE];
            let handed_on = poll_fn(|context| {
                let mut spaces: Vec<IoSliceMut<'_>> = bytes.chunks_mut(space).map(IoSliceMut::new).collect();
                near.poll_recv(context, &mut spaces, &mut metas)
            });
            let handed_on = handed_on.await.unwrap();
            for (meta, space) in metas[..handed_on].iter().zip(bytes.chunks(space)) {
                assert_eq!(meta.len, meta.stride, "one datagram each");
                all.push(space[..meta.len].to_vec());
            }
        }
        all
    }

    #[test]
    fn datagrams_that_leave_and_arrive_together_are_handed_on_one_by_one() {
        let runtime = super::super::setup::runtime().unwrap();
        runtime.block_on(async {
            let [near, far] =
                [(); 2].map(|()| JoiningUdpSocket::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap());
            assert_eq!(near.max_transmit_segments(), SENT_TOGETHER_MAX);
            assert_eq!(near.max_receive_segments(), 1);
            let destination = near.local_addr().unwrap();
            let contents: Vec<u8> = (0..45 * 1000 - 300).map(|at| (at / 1000) as u8).collect();
            far.io.writable().await.unwrap();
            far.note_joining(destination, true);
            let send = |contents: &[u8], segment_size| {
                let transmit = Transmit { destination, ecn: None, contents, segment_size, src_ip: None };
                far.try_send(&transmit).unwrap();
            };
            send(&contents, Some(1000));
            send(b"alone", None);
            let expected: Vec<Vec<u8>> = contents.chunks(1000).map(<[u8]>::to_vec).chain([b"alone".to_vec()]).collect();
            assert_eq!(received(&near, 46, 1472).await, expected);
            // What has no room is lost, and what comes behind it is not.
            send(&contents, Some(1000));
            send(b"alone", None);
            assert_eq!(received(&near, 2, 999).await, [contents[44_000..].to_vec(), b"alone".to_vec()]);
        });
    }

    #[test]
    fn adapter_that_splits_nothing_gets_datagrams_one_by_one_from_then_on() {
        let runtime = super::super::setup::runtime().unwrap();
        runtime.block_on(async {
            let socket = JoiningUdpSocket::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap();
            let destination = socket.local_addr().unwrap();
            socket.io.writable().await.unwrap();
            socket.note_joining(destination, true);
            // A kernel splits into so many, and an adapter without the skill refuses as the kernel does here.
            let contents = [0; 4096];
            let transmit =
                Transmit { destination, ecn: None, contents: &contents, segment_size: Some(1), src_ip: None };
            socket.try_send(&transmit).unwrap();
            assert_eq!(socket.max_transmit_segments(), 1);
        });
    }

    #[test]
    fn peer_that_has_not_said_that_it_joins_gets_datagrams_one_by_one() {
        let runtime = super::super::setup::runtime().unwrap();
        runtime.block_on(async {
            let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            udp::set_joining(&near, true).unwrap();
            let far = JoiningUdpSocket::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).unwrap();
            far.io.writable().await.unwrap();
            let destination = near.local_addr().unwrap();
            let contents = [7; 3000];
            let transmit =
                Transmit { destination, ecn: None, contents: &contents, segment_size: Some(1000), src_ip: None };
            for (is_joining, expected) in [(false, [1000; 3].as_slice()), (true, &[3000]), (false, &[1000; 3])] {
                far.note_joining(destination, is_joining);
                far.try_send(&transmit).unwrap();
                for bytes in expected {
                    assert_eq!(near.recv(&mut [0; 4096]).unwrap(), *bytes, "{is_joining}");
                }
            }
        });
    }
}
