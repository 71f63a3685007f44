//! Classifies the end of a link: the other end closed it, or went silent.
//!
//! This is the one place that decides it: for every link (TCP, TLS, QUIC, Unix), for every call that may find the end
//! (sending, receiving, a greeting), and for every lane of a session.
//!
//! | what is seen | what it means |
//! |---|---|
//! | end of file: FIN, a TLS *close_notify*, a QUIC close | closed |
//! | `ECONNRESET`, `EPIPE`, `ECONNABORTED`: RST, or a send after it | closed |
//! | end of file inside TLS or inside a greeting | closed |
//! | `ETIMEDOUT`, a greeting that takes too long, QUIC's idle timeout | lost |
//! | `EHOSTUNREACH`, `ENETUNREACH`, `ENETDOWN`, and every other error | lost |
//!
//! The kernel ends the links of a process that is killed, so a closed link means that the process is gone or comes back
//! at once. A router that resets connections looks the same.

use std::io;

/// What the end of a link says about its other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The other end's kernel or program ended it: the other end is gone, or comes back at once.
    Closed,
    /// The other end is silent: it may still be there, behind a network that fails.
    Lost,
}

impl LinkEnd {
    /// Classifies `error`, which a call on a link returned. `WouldBlock` and `Interrupted` do not end a link, so
    /// callers handle them before.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => LinkEnd::Closed,
            // Silence. An error that says nothing about the other end counts as silence, which costs only time.
            _ => LinkEnd::Lost,
        }
    }

    /// The word for it in a log.
    pub const fn as_str(self) -> &'static str {
        match self {
            LinkEnd::Closed => "closed",
            LinkEnd::Lost => "lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::io::Errno;
    use rustix::net::sockopt::set_socket_linger;

    use super::*;
    use crate::link::{Link, LinkCarrier};

    #[test]
    fn every_error_of_a_link_is_either_closed_or_lost() {
        let closed = [Errno::CONNRESET, Errno::CONNABORTED, Errno::PIPE];
        let lost = [
            Errno::TIMEDOUT,
            Errno::HOSTUNREACH,
            Errno::HOSTDOWN,
            Errno::NETUNREACH,
            Errno::NETDOWN,
            Errno::NETRESET,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::IO,
            Errno::PROTO,
            Errno::ACCESS,
            Errno::PERM,
            Errno::NODEV,
            Errno::BADF,
        ];
        for errno in closed {
            assert_eq!(LinkEnd::of(&errno.into()), LinkEnd::Closed, "{errno:?}");
        }
        for errno in lost {
            assert_eq!(LinkEnd::of(&errno.into()), LinkEnd::Lost, "{errno:?}");
        }
        // TLS and the greeting: an end in the middle, silence, and bytes that are not the peer's.
        assert_eq!(LinkEnd::of(&io::ErrorKind::UnexpectedEof.into()), LinkEnd::Closed);
        assert_eq!(LinkEnd::of(&io::ErrorKind::TimedOut.into()), LinkEnd::Lost);
        assert_eq!(LinkEnd::of(&io::Error::new(io::ErrorKind::InvalidData, "a bad record")), LinkEnd::Lost);
    }

    fn connected() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::connect(&listener.local_addr().unwrap().to_string(), Duration::from_secs(5)).unwrap();
        (link, listener.accept().unwrap().0)
    }

    /// Sends until that fails; returns the error.
    fn failure_of_sending(link: &Link) -> io::Error {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            match link.try_send(&[IoSlice::new(&[0; 4096])]) {
                Err(error) => return error,
                Ok(_) => assert!(Instant::now() < until, "it goes on taking bytes"),
            }
        }
    }

    #[test]
    fn a_reset_that_is_found_while_sending_is_closed_as_one_found_while_receiving() {
        let reset = |stream: TcpStream| {
            set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
        };
        let (link, other) = connected();
        reset(other);
        assert_eq!(LinkEnd::of(&failure_of_sending(&link)), LinkEnd::Closed);
        let (link, other) = connected();
        reset(other);
        assert_eq!(LinkEnd::of(&link.receive(&mut [0; 8]).unwrap_err()), LinkEnd::Closed);
        // A second call after the first error was taken finds the same.
        assert_eq!(LinkEnd::of(&failure_of_sending(&link)), LinkEnd::Closed);
    }

    #[test]
    fn a_process_that_ends_without_reading_is_closed_while_sending() {
        let (link, other) = connected();
        link.try_send(&[IoSlice::new(b"never read")]).unwrap();
        drop(other);
        assert_eq!(LinkEnd::of(&failure_of_sending(&link)), LinkEnd::Closed);
    }

    #[derive(Debug, Default)]
    struct Road(AtomicBool);

    impl LinkCarrier for Road {
        fn is_lost(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }

        fn round_trip(&self) -> Duration {
            Duration::ZERO
        }
    }

    #[test]
    fn a_quic_connection_that_fell_silent_is_lost_however_its_end_is_found() {
        for is_lost in [false, true] {
            let expected = if is_lost { LinkEnd::Lost } else { LinkEnd::Closed };
            let link_and_end = || {
                let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
                let road = Arc::new(Road(AtomicBool::new(is_lost)));
                (Link::bridged(ours.into(), "test".into(), road), theirs)
            };
            let (link, theirs) = link_and_end();
            drop(theirs);
            assert_eq!(LinkEnd::of(&failure_of_sending(&link)), expected, "sending, lost: {is_lost}");
            // A Unix pair whose other end closes with bytes unread reports a reset.
            let (link, theirs) = link_and_end();
            link.try_send(&[IoSlice::new(b"never read")]).unwrap();
            drop(theirs);
            assert_eq!(LinkEnd::of(&link.receive(&mut [0; 8]).unwrap_err()), expected, "receiving, lost: {is_lost}");
            assert_eq!(LinkEnd::of(&failure_of_sending(&link)), expected, "after that, lost: {is_lost}");
        }
    }
}
