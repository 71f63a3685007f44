//! Connections of the kit over TCP and over sockets of this machine.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use farbus_conform::{Link, Lost, Network, Received};
use farbus_control::host_address::{LOCAL, address_of};
use farbus_model::Instant;

use crate::clock::Clock;

/// A peer at `HOST:PORT` or `unix:PATH`.
pub struct Peer {
    address: String,
    patience: Duration,
    clock: Clock,
}

impl Peer {
    pub fn at(host: &str, patience: Duration) -> Self {
        Self { address: address_of(host), patience, clock: Clock::start() }
    }

    fn connect(&self) -> io::Result<Socket> {
        if let Some(path) = self.address.strip_prefix(LOCAL) {
            return Ok(Socket::Local(UnixStream::connect(path)?));
        }
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, self.patience) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Socket::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Network for Peer {
    fn dial(&mut self) -> Result<Box<dyn Link>, Lost> {
        let socket = self.connect().map_err(|error| Lost(format!("{}: {error}", self.address)))?;
        Ok(Box::new(Connection { socket, clock: self.clock }))
    }

    fn pause(&mut self, span: Duration) {
        thread::sleep(span);
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

enum Socket {
    Tcp(TcpStream),
    Local(UnixStream),
}

impl Socket {
    /// A limit of 0 would be none.
    fn set_limits(&self, span: Duration) -> io::Result<()> {
        let span = Some(span.max(Duration::from_millis(1)));
        match self {
            Socket::Tcp(stream) => stream.set_read_timeout(span).and_then(|()| stream.set_write_timeout(span)),
            Socket::Local(stream) => stream.set_read_timeout(span).and_then(|()| stream.set_write_timeout(span)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Local(stream) => stream.write(bytes),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Local(stream) => stream.read(into),
        }
    }
}

struct Connection {
    socket: Socket,
    clock: Clock,
}

/// Whether the time was over, or a signal came.
fn is_time(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

impl Link for Connection {
    fn send(&mut self, bytes: &[u8], within: Duration) -> Result<usize, Lost> {
        let end = self.clock.now() + within;
        let mut sent = 0;
        while sent < bytes.len() {
            let left = end.since(self.clock.now());
            if left.is_zero() {
                break;
            }
            let count = self.socket.set_limits(left).and_then(|()| self.socket.write(&bytes[sent..]));
            match count {
                Ok(0) => return Err(Lost("the connection is closed".to_owned())),
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_time(&error) => break,
                Err(error) => return Err(Lost(error.to_string())),
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, into: &mut [u8], within: Duration) -> Received {
        let end = self.clock.now() + within;
        loop {
            let left = end.since(self.clock.now());
            if left.is_zero() {
                return Received::Silence;
            }
            match self.socket.set_limits(left).and_then(|()| self.socket.read(into)) {
                Ok(0) => return Received::Closed,
                Ok(count) => return Received::Bytes(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_time(&error) => return Received::Silence,
                // A reset is an end, too.
                Err(_) => return Received::Closed,
            }
        }
    }
}
