//! Relays with a delay: every byte of a connection arrives a fixed time after it was sent, in order, and any number of
//! bytes may be under way; so does every datagram that is not lost.

use std::{
    collections::{HashMap, hash_map::Entry},
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Bytes that are taken at a time.
const PIECE_BYTES: usize = 256 * 1024;

/// Returns an address that leads to `server` with this delay each way, for any number of connections.
pub fn late(server: SocketAddr, each_way: Duration) -> Result<SocketAddr> {
    relay(server, each_way, None)
}

/// Like [`late`], and each way of each connection carries no more than this rate.
pub fn late_and_narrow(server: SocketAddr, each_way: Duration, bits_per_s: u64) -> Result<SocketAddr> {
    relay(server, each_way, Some(bits_per_s))
}

fn relay(server: SocketAddr, each_way: Duration, bits_per_s: Option<u64>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(server) else { continue };
            for (from, to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))] {
                if let (Ok(from), Ok(to)) = (from, to) {
                    carry(from, to, each_way, bits_per_s);
                }
            }
        }
    });
    Ok(address)
}

fn carry(mut from: TcpStream, mut to: TcpStream, span: Duration, bits_per_s: Option<u64>) {
    let (sent, arrives) = mpsc::channel::<(Instant, Vec<u8>)>();
    let _ = to.set_nodelay(true);
    thread::spawn(move || {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        for (due, bytes) in arrives {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                return;
            }
        }
        let _ = to.shutdown(std::net::Shutdown::Write);
    });
    thread::spawn(move || {
        let mut piece = vec![0; PIECE_BYTES];
        // When the link has sent all that it was given.
        let mut is_free = Instant::now();
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let takes =
                bits_per_s.map_or(Duration::ZERO, |rate| Duration::from_nanos(count as u64 * 8_000_000_000 / rate));
            is_free = is_free.max(Instant::now()) + takes;
            if sent.send((is_free + span, piece[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

/// The way of datagrams.
#[derive(Clone, Copy, Debug)]
pub struct DatagramPath {
    pub each_way: Duration,
    /// So many of a thousand are lost, at random, but in each run the same ones.
    pub lost_per_mille: u64,
    /// Larger ones are lost, too.
    pub bytes_max: usize,
}

/// What the kernel keeps for a relay that is not there in time, bytes.
const RELAY_BYTES: usize = 4 << 20;
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// Returns an address that leads datagrams to `server` by this way, from any number of peers.
///
/// # Errors
/// The system has no more sockets.
pub fn late_datagrams(server: SocketAddr, path: DatagramPath) -> Result<SocketAddr> {
    let near = relay_socket()?;
    let address = near.local_addr()?;
    thread::spawn(move || {
        let mut peers: HashMap<SocketAddr, mpsc::Sender<(Instant, Vec<u8>)>> = HashMap::new();
        let mut is_lost = path.losses();
        let mut space = vec![0; DATAGRAM_BYTES_MAX];
        while let Ok((count, peer)) = near.recv_from(&mut space) {
            if is_lost(count) {
                continue;
            }
            let to_server = match peers.entry(peer) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => match relayed(&near, peer, server, path) {
                    Ok(to_server) => new.insert(to_server),
                    Err(_) => continue,
                },
            };
            // A relay that ended loses it.
            let _ = to_server.send((Instant::now() + path.each_way, space[..count].to_vec()));
        }
    });
    Ok(address)
}

fn relay_socket() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RELAY_BYTES)?;
    Ok(socket)
}

/// Relays between a peer and the server; what is put into the channel goes to the server.
fn relayed(
    near: &UdpSocket,
    peer: SocketAddr,
    server: SocketAddr,
    path: DatagramPath,
) -> io::Result<mpsc::Sender<(Instant, Vec<u8>)>> {
    let far = relay_socket()?;
    far.connect(server)?;
    let (to_server, out) = mpsc::channel();
    let (to_peer, back) = mpsc::channel();
    let (near, far_out) = (near.try_clone()?, far.try_clone()?);
    hand_on(out, move |bytes| far_out.send(bytes).map(drop));
    hand_on(back, move |bytes| near.send_to(bytes, peer).map(drop));
    thread::spawn(move || {
        let mut is_lost = path.losses();
        let mut space = vec![0; DATAGRAM_BYTES_MAX];
        // A server that is not there yet, or no longer, is an error of one datagram.
        loop {
            let Ok(count) = far.recv(&mut space) else { continue };
            let is_over =
                !is_lost(count) && to_peer.send((Instant::now() + path.each_way, space[..count].to_vec())).is_err();
            if is_over {
                return;
            }
        }
    });
    Ok(to_server)
}

/// Sends each datagram when it is due.
fn hand_on(
    arrives: mpsc::Receiver<(Instant, Vec<u8>)>,
    mut send: impl FnMut(&[u8]) -> io::Result<()> + Send + 'static,
) {
    thread::spawn(move || {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        for (due, bytes) in arrives {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // As if the network had lost it.
            let _ = send(&bytes);
        }
    });
}

impl DatagramPath {
    /// Whether the next datagram, of so many bytes, is lost.
    fn losses(self) -> impl FnMut(usize) -> bool {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        move |bytes| {
            // xorshift64 (Marsaglia, 2003).
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            bytes > self.bytes_max || random % 1000 < self.lost_per_mille
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relayed_bytes_arrive_whole_and_no_earlier_than_the_delay() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = late(listener.local_addr().unwrap(), Duration::from_millis(20)).unwrap();
        thread::spawn(move || {
            let (mut link, _) = listener.accept().unwrap();
            let mut bytes = [0; 5];
            link.read_exact(&mut bytes).unwrap();
            link.write_all(&bytes).unwrap();
        });
        let began = Instant::now();
        let mut link = TcpStream::connect(address).unwrap();
        link.write_all(b"there").unwrap();
        let mut back = Vec::new();
        link.read_to_end(&mut back).unwrap();
        assert_eq!(back, b"there");
        assert!(began.elapsed() >= Duration::from_millis(40), "{:?}", began.elapsed());
    }

    #[test]
    fn narrow_relay_takes_as_long_as_its_rate() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = late_and_narrow(listener.local_addr().unwrap(), Duration::ZERO, 8_000_000).unwrap();
        let sender = thread::spawn(move || listener.accept().unwrap().0.write_all(&[7; 50_000]).unwrap());
        let (began, mut back) = (Instant::now(), Vec::new());
        TcpStream::connect(address).unwrap().read_to_end(&mut back).unwrap();
        sender.join().unwrap();
        assert_eq!(back.len(), 50_000);
        assert!(began.elapsed() >= Duration::from_millis(49), "{:?}", began.elapsed());
    }

    #[test]
    fn relayed_datagrams_are_late_and_some_are_lost() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let path = DatagramPath { each_way: Duration::from_millis(20), lost_per_mille: 100, bytes_max: 1000 };
        let address = late_datagrams(server.local_addr().unwrap(), path).unwrap();
        let near = UdpSocket::bind("127.0.0.1:0").unwrap();
        near.connect(address).unwrap();
        let began = Instant::now();
        near.send(&[0; 1001]).unwrap();
        for _ in 0..200 {
            near.send(&[7; 10]).unwrap();
        }
        let (count, peer) = server.recv_from(&mut [0; 2000]).unwrap();
        assert!(count == 10 && began.elapsed() >= Duration::from_millis(20), "{count} {:?}", began.elapsed());
        let mut arrived = 1;
        while let Ok(10) = server.recv(&mut [0; 2000]) {
            arrived += 1;
        }
        assert!((160..200).contains(&arrived), "{arrived}");
        near.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        for _ in 0..100 {
            server.send_to(b"back", peer).unwrap();
        }
        assert_eq!(near.recv(&mut [0; 9]).unwrap(), 4);
        assert!(began.elapsed() >= Duration::from_millis(40));
    }
}
