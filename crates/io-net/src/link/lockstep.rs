//! Sends on a Unix socket so that its end tells which bytes the other end has not read.
//!
//! A virtual machine's emulator that has stopped reads nothing more (QEMU's `usbredir_chardev_can_read`), and ends its
//! connection later. What it has read by then moves along with it; the rest has to be sent again where it goes. TCP
//! does not tell one from the other. A Unix socket does, if one chunk at most is on its way:
//!
//! | the chunk | the connection | it was |
//! |---|---|---|
//! | is in the socket's queue (`SIOCOUTQ`) | goes on | not read yet |
//! | is in the queue no more | goes on | read |
//! | | ended with `ECONNRESET` | not read: Linux says so to the end whose bytes are dropped (`unix_release_sock`) |
//! | | ended otherwise | read |
//!
//! QEMU reads 4096 bytes at a time (`CHR_READ_BUF_LEN`, chardev/char-socket.c) and passes all of them on, so a chunk of
//! that size is read as a whole or not at all.

use std::io::{self, IoSlice};

use rustix::net::{AddressFamily, sockopt};

use super::Link;
use crate::sys::unread::is_all_read;

/// The longest chunk, bytes: what QEMU reads at once.
pub const CHUNK_BYTES_MAX: usize = 4096;

/// What was sent on a Unix socket and may not have been read.
#[derive(Debug, Default)]
pub struct LockstepSender {
    /// The last chunk, until it is known to have been read.
    chunk: Vec<u8>,
    /// Whether the other end has closed its socket with bytes unread.
    is_reset: bool,
}

impl LockstepSender {
    /// Begins on `link`; `None` if it is not a plain Unix socket, where nothing tells what was read.
    ///
    /// What was sent before must have been read before the first chunk is sent: see [`is_all_read`].
    pub fn on(link: &Link) -> Option<Self> {
        let is_local = sockopt::socket_domain(link).is_ok_and(|family| family == AddressFamily::UNIX);
        (is_local && !link.is_encrypted()).then(Self::default)
    }

    /// Sends one chunk of `runs` if the one before it was read, and returns its length; `None` if it was not, or the
    /// socket takes nothing.
    ///
    /// # Errors
    /// The connection has ended, at the latest after the chunk before was read. Receive until its end, and then ask
    /// [`LockstepSender::into_unread`].
    pub fn try_send(&mut self, link: &Link, runs: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        if !self.is_read(link)? {
            return Ok(None);
        }
        for run in runs {
            let room = CHUNK_BYTES_MAX - self.chunk.len();
            self.chunk.extend_from_slice(&run[..run.len().min(room)]);
        }
        if self.chunk.is_empty() {
            return Ok(None);
        }
        let sent = link.try_send(&[IoSlice::new(&self.chunk)]);
        self.chunk.truncate(sent.as_ref().map_or(0, |sent| sent.unwrap_or(0)));
        sent
    }

    /// Whether all that was sent was read, so that the next chunk can be sent.
    ///
    /// # Errors
    /// The other end has closed its socket without reading it.
    pub fn is_read(&mut self, link: &Link) -> io::Result<bool> {
        if self.is_reset {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.chunk.is_empty() {
            return Ok(true);
        }
        if !is_all_read(link)? {
            return Ok(false);
        }
        // The queue is also empty when the other end was closed and its kernel dropped the chunk: the error is set
        // before that, so it has to be looked at afterwards.
        self.hear(link)?;
        self.chunk.clear();
        Ok(true)
    }

    /// Takes the socket's error, which is there only once.
    fn hear(&mut self, link: &Link) -> io::Result<()> {
        match sockopt::socket_error(link)? {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = io::Error::from(errno);
                self.note(&error);
                Err(error)
            }
        }
    }

    /// Another call on the socket has returned this error.
    pub fn note(&mut self, error: &io::Error) {
        self.is_reset |= error.kind() == io::ErrorKind::ConnectionReset;
    }

    /// The connection has ended, or its other end has stopped for good, and everything that the other end sent was
    /// received: the bytes that it did not read.
    pub fn into_unread(mut self, link: &Link) -> Vec<u8> {
        // As in `is_read`: the queue first, then the error.
        let is_queued = !is_all_read(link).unwrap_or(false);
        // An error that a call has taken before was noted then.
        let _ = self.hear(link);
        if is_queued || self.is_reset { self.chunk } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Link, UnixStream, LockstepSender) {
        let (link, theirs) = Link::pair("test").unwrap();
        let lockstep = LockstepSender::on(&link).expect("it is a Unix socket");
        (link, theirs.into(), lockstep)
    }

    /// Receives until the end; returns what was received before it.
    fn received(link: &Link, lockstep: &mut LockstepSender) -> Vec<u8> {
        let (mut all, mut space) = (Vec::new(), [0; 64]);
        loop {
            match link.try_receive(&mut space) {
                Ok(Some(0)) => return all,
                Ok(Some(count)) => all.extend(&space[..count]),
                Ok(None) => panic!("the connection goes on"),
                Err(error) => {
                    lockstep.note(&error);
                    return all;
                }
            }
        }
    }

    #[test]
    fn next_chunk_goes_only_after_the_one_before_was_read() {
        let (link, mut theirs, mut lockstep) = pair();
        let (long, short) = (vec![1; 3000], vec![2; 3000]);
        let runs = [IoSlice::new(&long), IoSlice::new(&short)];
        assert_eq!(lockstep.try_send(&link, &runs).unwrap(), Some(CHUNK_BYTES_MAX));
        assert_eq!(lockstep.try_send(&link, &runs).unwrap(), None, "it is unread");
        theirs.read_exact(&mut [0; 4000]).unwrap();
        assert!(!lockstep.is_read(&link).unwrap(), "96 bytes of it are left");
        theirs.read_exact(&mut [0; 96]).unwrap();
        assert_eq!(lockstep.try_send(&link, &[IoSlice::new(b"end")]).unwrap(), Some(3));
        assert_eq!(lockstep.try_send(&link, &[]).unwrap(), None);
    }

    #[test]
    fn end_tells_whether_the_last_chunk_was_read_however_it_is_found() {
        for was_read in [false, true] {
            for finds in ["receiving", "sending", "looking", "asking"] {
                let (link, mut theirs, mut lockstep) = pair();
                lockstep.try_send(&link, &[IoSlice::new(b"before")]).unwrap();
                theirs.read_exact(&mut [0; 6]).unwrap();
                lockstep.try_send(&link, &[IoSlice::new(b"last")]).unwrap();
                if was_read {
                    theirs.read_exact(&mut [0; 4]).unwrap();
                }
                theirs.write_all(b"farewell").unwrap();
                drop(theirs);
                match finds {
                    "sending" => assert!(lockstep.try_send(&link, &[IoSlice::new(b"more")]).is_err()),
                    "looking" => assert_eq!(lockstep.is_read(&link).is_ok(), was_read),
                    _ => {}
                }
                if finds != "asking" {
                    assert_eq!(received(&link, &mut lockstep), b"farewell", "{finds}, read: {was_read}");
                }
                let expected: &[u8] = if was_read { b"" } else { b"last" };
                assert_eq!(lockstep.into_unread(&link), expected, "{finds}, read: {was_read}");
            }
        }
    }

    #[test]
    fn end_that_has_stopped_and_stays_connected_has_not_read_what_is_in_its_queue() {
        for was_read in [false, true] {
            let (link, mut theirs, mut lockstep) = pair();
            lockstep.try_send(&link, &[IoSlice::new(b"last")]).unwrap();
            if was_read {
                theirs.read_exact(&mut [0; 4]).unwrap();
            }
            let expected: &[u8] = if was_read { b"" } else { b"last" };
            assert_eq!(lockstep.into_unread(&link), expected, "read: {was_read}");
        }
    }

    #[test]
    fn nothing_is_unread_where_nothing_was_sent_and_tcp_is_refused() {
        let (link, theirs, lockstep) = pair();
        drop(theirs);
        assert!(lockstep.into_unread(&link).is_empty());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        assert!(LockstepSender::on(&Link::over_tcp(stream.into(), address).unwrap()).is_none());
    }
}
