//! Connections of the kit over TCP and over sockets of this machine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use farbus_conform::{LinkLoss, PeerLink, PeerNetwork, ReceiveOutcome};
use farbus_control::host_address::{LOCAL, address_of, with_interface};
use farbus_model::Instant;

use crate::clock::KitClock;

/// A peer at `HOST:PORT` or `unix:PATH`.
pub struct NetworkPeer {
    address: String,
    patience: Duration,
    clock: KitClock,
}

impl NetworkPeer {
    pub fn at(host: &str, patience: Duration) -> Self {
        Self { address: address_of(host), patience, clock: KitClock::start() }
    }

    fn connect(&self) -> io::Result<PeerSocket> {
        if let Some(path) = self.address.strip_prefix(LOCAL) {
            return Ok(PeerSocket::Local(UnixStream::connect(path)?));
        }
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        let addresses = match with_interface(&self.address) {
            Some(host_and_port) => host_and_port.to_socket_addrs()?,
            None => self.address.to_socket_addrs()?,
        };
        for address in addresses {
            match TcpStream::connect_timeout(&address, self.patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(PeerSocket::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl PeerNetwork for NetworkPeer {
    fn dial(&mut self) -> Result<Box<dyn PeerLink>, LinkLoss> {
        let socket = self.connect().map_err(|error| LinkLoss(format!("{}: {error}", self.address)))?;
        Ok(Box::new(PeerConnection { socket, clock: self.clock }))
    }

    fn pause(&mut self, span: Duration) {
        thread::sleep(span);
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

enum PeerSocket {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl PeerSocket {
    /// A limit of 0 would be none.
    fn set_limits(&self, span: Duration) -> io::Result<()> {
        let span = Some(span.max(Duration::from_millis(1)));
        match self {
            PeerSocket::Tcp(stream) => stream.set_read_timeout(span).and_then(|()| stream.set_write_timeout(span)),
            PeerSocket::Local(stream) => stream.set_read_timeout(span).and_then(|()| stream.set_write_timeout(span)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            PeerSocket::Tcp(stream) => stream.write(bytes),
            PeerSocket::Local(stream) => stream.write(bytes),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            PeerSocket::Tcp(stream) => stream.read(into),
            PeerSocket::Local(stream) => stream.read(into),
        }
    }
}

struct PeerConnection {
    socket: PeerSocket,
    clock: KitClock,
}

/// Whether the time was over, or a signal came.
fn is_time(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl PeerLink for PeerConnection {
    fn send(&mut self, bytes: &[u8], within: Duration) -> Result<usize, LinkLoss> {
        let end = self.clock.now() + within;
        let mut sent = 0;
        while sent < bytes.len() {
            let left = end.since(self.clock.now());
            if left.is_zero() {
                break;
            }
            let count = self.socket.set_limits(left).and_then(|()| self.socket.write(&bytes[sent..]));
            match count {
                Ok(0) => return Err(LinkLoss("the connection is closed".to_owned())),
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_time(&error) => break,
                Err(error) => return Err(LinkLoss(error.to_string())),
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, into: &mut [u8], within: Duration) -> ReceiveOutcome {
        let end = self.clock.now() + within;
        loop {
            let left = end.since(self.clock.now());
            if left.is_zero() {
                return ReceiveOutcome::Silence;
            }
            match self.socket.set_limits(left).and_then(|()| self.socket.read(into)) {
                Ok(0) => return ReceiveOutcome::Closed,
                Ok(count) => return ReceiveOutcome::Bytes(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_time(&error) => return ReceiveOutcome::Silence,
                // A reset is an end, too.
                Err(_) => return ReceiveOutcome::Closed,
            }
        }
    }
}
