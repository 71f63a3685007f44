//! Messages between two processes of one program, together with descriptors.
//!
//! The transport is a Unix socket pair that keeps messages apart: each message is received whole or refused, and no
//! other process has access. One process may hold rights that the other has given up.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// The most bytes of one message. A request is a line, an answer a line and a descriptor.
pub const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// The most descriptors that may come with bytes on a stream: a disk, the file of its users' changes, and a lease.
pub const STREAM_FDS_MAX: usize = 3;

/// Sends bytes on a Unix stream, and descriptors with the first of them. Returns how many bytes were sent.
///
/// # Errors
/// `InvalidInput` for more than [`STREAM_FDS_MAX`] descriptors; the system's error.
pub fn send_on_stream(stream: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    if fds.len() > STREAM_FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors at once"));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAM_FDS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is room for them");
    }
    Ok(net::sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes from a Unix stream, and the descriptors that come with them; surplus ones are closed. Returns how
/// many bytes came: 0 at the end.
///
/// # Errors
/// The system's error; `WouldBlock` after the socket's timeout.
pub fn receive_on_stream(stream: BorrowedFd<'_>, to: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(STREAM_FDS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match net::recvmsg(stream, &mut [IoSliceMut::new(to)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            let room = STREAM_FDS_MAX.saturating_sub(fds.len());
            fds.extend(came.take(room));
        }
    }
    Ok(received.bytes)
}

/// One end of the pair.
#[derive(Debug)]
pub struct MessageSocket {
    fd: OwnedFd,
}

/// A received message: its bytes, and the descriptor that came with it.
#[derive(Debug)]
pub struct PassedMessage {
    /// The message's bytes, whole.
    pub bytes: Vec<u8>,
    /// The descriptor, if there was one.
    pub fd: Option<OwnedFd>,
}

impl MessageSocket {
    /// Makes both ends. Neither outlives an `exec` unless it is made a child's standard input.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { fd: ours }, theirs))
    }

    /// Wraps an end that this process was given.
    pub fn over(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// The descriptor, to be passed to another process.
    pub fn into_descriptor(self) -> OwnedFd {
        self.fd
    }

    /// A duplicate of the descriptor, for a process that continues in the place of this one: both must not send.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }

    /// Sends a message, and a descriptor with it.
    ///
    /// # Errors
    /// `InvalidInput` for a message that is too long; the system's error.
    pub fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a message has 1 byte to 16 KiB"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: &[_] = &fd.into_iter().collect::<Vec<_>>();
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "there is room for one descriptor");
        }
        net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits so long at most until [`MessageSocket::receive`] need not wait. Returns whether that is so.
    ///
    /// # Errors
    /// The system's error.
    pub fn is_ready_within(&self, time: Duration) -> io::Result<bool> {
        let time = Timespec::try_from(time).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], Some(&time)) {
            Err(Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }

    /// Waits for a message; `None` when the other end is closed.
    ///
    /// # Errors
    /// The system's error; `InvalidData` for a message that was too long.
    pub fn receive(&self) -> io::Result<Option<PassedMessage>> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut runs = [IoSliceMut::new(&mut bytes)];
        let received = loop {
            match net::recvmsg(&self.fd, &mut runs, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                other => break other?,
            }
        };
        let mut fds = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let fd = fds.next().and_then(|mut fds| fds.next());
        drop(fds);
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is longer than 16 KiB"));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        bytes.truncate(received.bytes);
        Ok(Some(PassedMessage { bytes, fd }))
    }
}

impl AsFd for MessageSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Seek, Write};

    #[test]
    fn messages_stay_apart_and_a_descriptor_comes_along() {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        let theirs = MessageSocket::over(theirs);
        let (pipe_out, pipe_in) = rustix::pipe::pipe().unwrap();
        ours.send(b"one", None).unwrap();
        ours.send(b"two", Some(pipe_in.as_fd())).unwrap();
        let first = theirs.receive().unwrap().unwrap();
        assert_eq!((first.bytes.as_slice(), first.fd.is_none()), (b"one".as_slice(), true));
        let second = theirs.receive().unwrap().unwrap();
        assert_eq!(second.bytes, b"two");
        drop(pipe_in);
        File::from(second.fd.unwrap()).write_all(b"through").unwrap();
        let mut text = String::new();
        File::from(pipe_out).read_to_string(&mut text).unwrap();
        assert_eq!(text, "through", "and it was the last of its kind");
        drop(ours);
        assert!(theirs.receive().unwrap().is_none());
    }

    #[test]
    fn message_that_is_too_long_is_refused_at_both_ends() {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        assert_eq!(ours.send(&vec![0; MESSAGE_BYTES_MAX + 1], None).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(ours.send(&[], None).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        net::send(&ours.fd, &long, SendFlags::empty()).unwrap();
        assert_eq!(MessageSocket::over(theirs).receive().unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn descriptors_come_with_the_bytes_of_a_stream_and_no_more_than_may() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = File::from(rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        let fds = [file.as_fd(); STREAM_FDS_MAX + 1];
        assert_eq!(send_on_stream(ours.as_fd(), b"x", &fds).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        send_on_stream(ours.as_fd(), b"one", &fds[..2]).unwrap();
        send_on_stream(ours.as_fd(), b"two", &fds[..2]).unwrap();
        drop(ours);
        let (mut bytes, mut fds) = ([0; 16], Vec::new());
        let mut heard = 0;
        loop {
            match receive_on_stream(theirs.as_fd(), &mut bytes[heard..], &mut fds).unwrap() {
                0 => break,
                count => heard += count,
            }
        }
        assert_eq!((&bytes[..heard], fds.len()), (b"onetwo".as_slice(), STREAM_FDS_MAX));
    }

    #[test]
    fn a_file_that_is_passed_is_the_same_file() {
        let (ours, theirs) = MessageSocket::pair().unwrap();
        let mut file = File::from(rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.write_all(b"12345").unwrap();
        ours.send(b"x", Some(file.as_fd())).unwrap();
        let parcel = MessageSocket::over(theirs).receive().unwrap().unwrap();
        assert_eq!(File::from(parcel.fd.unwrap()).stream_position().unwrap(), 5);
    }
}
