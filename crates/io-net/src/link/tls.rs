//! TLS on a link: decrypts where bytes are received and encrypts where they are sent, on the thread that owns the link.
//!
//! Two things differ from a plain socket, and the link's users have to know both. Decrypted bytes may wait here while
//! the socket has none ([`Link::has_received`](super::Link::has_received)); encrypted bytes may wait here while the
//! socket is full ([`Link::try_flush`](super::Link::try_flush)). Both buffers are bounded.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farbus_model::SessionLimits;
use rustix::net::RecvFlags;
use rustls::Connection;

use super::clock::BoottimeClock;
use super::socket::{receive_from, send_to};
use super::wait::{PollInterest, wait};

/// How many encrypted bytes are taken from the socket at once: as many as a session's own receive buffer holds.
///
/// Most links of a host that uses a thousand devices carry little. The allocator takes so large a buffer of zeros from
/// the system, which gives a page when it is first written: a link that carries little has one or two of them.
const INCOMING_BYTES: usize = 256 << 10;
/// How many encrypted bytes may wait for the socket. Eight records: encrypted and sent while they are in the cache.
const OUTGOING_BYTES_MAX: usize = 128 << 10;
/// What rustls holds besides: a handshake message in pieces (64 KiB), and decrypted data that was not taken, a record
/// of 16 KiB beyond its limit of as much.
const RUSTLS_BYTES_MAX: usize = 96 << 10;
const _: () = assert!(INCOMING_BYTES + OUTGOING_BYTES_MAX + RUSTLS_BYTES_MAX <= SessionLimits::DEFAULT.link_bytes);

/// The limits of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct HandshakeLimits {
    /// How long it may take from its first byte to its last.
    pub time_max: Duration,
    /// How many bytes the peer may send before its key is known.
    pub bytes_max: usize,
}

/// Why a handshake failed.
#[derive(Debug)]
pub enum HandshakeFailure {
    /// The link was closed or lost.
    Lost(io::Error),
    /// The peer broke a rule of TLS, showed a certificate that is not accepted, or refused ours.
    Tls(rustls::Error),
    /// It took too long.
    TooSlow,
    /// The peer sent more than a handshake needs.
    TooMuch,
}

/// The TLS side of a link. The two locks let another thread close the connection while the owner is blocked in a
/// receive.
pub(super) struct LinkTls {
    connection: Mutex<Connection>,
    incoming: Mutex<TlsReceiveBuffer>,
    /// Whether bytes may wait here: the last receive filled all the room it was given.
    may_hold_more: AtomicBool,
}

/// Bytes from the socket that TLS has not processed.
struct TlsReceiveBuffer {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

impl LinkTls {
    pub fn new(mut connection: Connection) -> Self {
        connection.set_buffer_limit(Some(OUTGOING_BYTES_MAX));
        let incoming = TlsReceiveBuffer { bytes: vec![0; INCOMING_BYTES].into(), from: 0, to: 0 };
        Self {
            connection: Mutex::new(connection),
            incoming: Mutex::new(incoming),
            // What the peer sent with its last handshake message may be here already.
            may_hold_more: AtomicBool::new(true),
        }
    }

    /// Runs the handshake to its end.
    pub fn shake_hands(&self, fd: &OwnedFd, limits: HandshakeLimits) -> Result<(), HandshakeFailure> {
        let clock = BoottimeClock::start();
        let until = clock.now() + limits.time_max;
        let (mut connection, mut incoming) = (lock(&self.connection), lock(&self.incoming));
        let mut received = 0;
        loop {
            flush(&mut connection, fd).map_err(HandshakeFailure::Lost)?;
            if !connection.is_handshaking() && !connection.wants_write() {
                return Ok(());
            }
            if incoming.is_empty() {
                let now = clock.now();
                if now >= until {
                    return Err(HandshakeFailure::TooSlow);
                }
                let mut interests = [PollInterest::new(fd.as_fd(), connection.wants_write())];
                wait(&mut interests, Some(until - now)).map_err(HandshakeFailure::Lost)?;
                if !interests[0].readable {
                    continue;
                }
                match incoming.fill(fd, RecvFlags::DONTWAIT) {
                    Ok(0) => return Err(HandshakeFailure::Lost(cut_off())),
                    Ok(count) => received += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(HandshakeFailure::Lost(error)),
                }
            }
            while connection.is_handshaking() && !incoming.is_empty() {
                // TLS's own limit for an incomplete message.
                incoming.feed(&mut connection).map_err(|_| HandshakeFailure::TooMuch)?;
                if let Err(error) = connection.process_new_packets() {
                    // The alert tells the peer why.
                    let _ = flush(&mut connection, fd);
                    return Err(HandshakeFailure::Tls(error));
                }
            }
            if connection.is_handshaking() && received > limits.bytes_max {
                return Err(HandshakeFailure::TooMuch);
            }
        }
    }

    /// Queries the finished handshake.
    pub fn ask<T>(&self, question: impl FnOnce(&Connection) -> T) -> T {
        question(&lock(&self.connection))
    }

    pub fn receive(&self, fd: &OwnedFd, to: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        let mut incoming = lock(&self.incoming);
        loop {
            if let Some(count) = self.decrypt(fd, &mut incoming, to)? {
                return Ok(count);
            }
            if incoming.fill(fd, flags)? == 0 {
                return Err(cut_off());
            }
        }
    }

    /// Hands out decrypted bytes, and decrypts what is there. `None`: more must be read from the socket.
    fn decrypt(&self, fd: &OwnedFd, incoming: &mut TlsReceiveBuffer, to: &mut [u8]) -> io::Result<Option<usize>> {
        let mut connection = lock(&self.connection);
        let mut count = 0;
        loop {
            match connection.reader().read(&mut to[count..]) {
                // A close, or no room left. What came before a close is handed out first.
                Ok(0) => return Ok(self.handed_out(count, to.len())),
                Ok(more) => {
                    count += more;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            if incoming.is_empty() {
                return Ok(if count > 0 { self.handed_out(count, to.len()) } else { None });
            }
            incoming.feed(&mut connection)?;
            let processed = connection.process_new_packets();
            // An alert, or the answer to a key update.
            flush(&mut connection, fd)?;
            if let Err(error) = processed {
                // The error remains, and is returned again when what came before it has been taken.
                return if count > 0 {
                    Ok(Some(count))
                } else {
                    Err(io::Error::new(io::ErrorKind::InvalidData, error))
                };
            }
        }
    }

    fn handed_out(&self, count: usize, room: usize) -> Option<usize> {
        self.may_hold_more.store(count == room, Ordering::Relaxed);
        Some(count)
    }

    pub fn has_received(&self) -> bool {
        self.may_hold_more.load(Ordering::Relaxed)
    }

    /// Records that nothing more can be had without the socket.
    pub fn is_drained(&self) {
        self.may_hold_more.store(false, Ordering::Relaxed);
    }

    pub fn try_send(&self, fd: &OwnedFd, runs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut connection = lock(&self.connection);
        flush(&mut connection, fd)?;
        let taken = connection.writer().write_vectored(runs)?;
        flush(&mut connection, fd)?;
        Ok((taken > 0).then_some(taken))
    }

    pub fn try_flush(&self, fd: &OwnedFd) -> io::Result<bool> {
        flush(&mut lock(&self.connection), fd)
    }

    /// Tells the peer that the link is being closed, as far as the socket takes it.
    pub fn say_farewell(&self, fd: &OwnedFd) {
        let Ok(mut connection) = self.connection.try_lock() else { return };
        connection.send_close_notify();
        let _ = flush(&mut connection, fd);
    }
}

impl TlsReceiveBuffer {
    fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// Takes what the socket has; only when the buffer is empty.
    fn fill(&mut self, fd: &OwnedFd, flags: RecvFlags) -> io::Result<usize> {
        debug_assert!(self.is_empty(), "what is there is looked at first");
        // If receiving fails, nothing is there.
        (self.from, self.to) = (0, 0);
        self.to = receive_from(fd, &mut self.bytes, flags)?;
        Ok(self.to)
    }

    /// Gives TLS its next piece.
    fn feed(&mut self, connection: &mut Connection) -> io::Result<()> {
        self.from += connection.read_tls(&mut &self.bytes[self.from..self.to])?;
        Ok(())
    }
}

/// Sends encrypted bytes; returns whether all are sent.
fn flush(connection: &mut Connection, fd: &OwnedFd) -> io::Result<bool> {
    while connection.wants_write() {
        match connection.write_tls(&mut NonblockingSocket(fd)) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// A socket that never blocks.
struct NonblockingSocket<'a>(&'a OwnedFd);

impl Write for NonblockingSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        send_to(self.0, &[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, runs: &[IoSlice<'_>]) -> io::Result<usize> {
        send_to(self.0, runs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cut_off() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the encrypted link was cut without a farewell")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A thread that panicked with the lock ends its own session; ending the link is still allowed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for LinkTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkTls").finish_non_exhaustive()
    }
}
