//! The protocol between the kernel and the server of a FUSE file system, as far as a tree of folders, links, files
//! without a fixed length, and files that take ioctls needs it (Linux, `include/uapi/linux/fuse.h`, version 7.31). All
//! numbers are in native byte order.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

/// Bytes of a request at most: an ioctl's argument has 14 bits for its length.
const REQUEST_BYTES_MAX: usize = 64 << 10;
const HEADER_BYTES: usize = 40;

const MAJOR: u32 = 7;
const MINOR: u32 = 31;
/// The first minor version whose answer to INIT has all its fields (Linux 3.15).
const MINOR_MIN: u32 = 23;
/// The flags of INIT that are accepted: `FUSE_PARALLEL_DIROPS`, several requests at once in one folder.
const WANTED: u32 = 1 << 18;
/// The most bytes of a write; nothing here is written.
const WRITE_BYTES_MAX: u32 = 4096;

/// `FOPEN_DIRECT_IO`: a file's length is not known before it is read.
const DIRECT_IO: u32 = 1 << 0;
/// `FUSE_IOCTL_32BIT`: the caller has pointers of 32 bits.
const IOCTL_32BIT: u32 = 1 << 3;
/// `FUSE_POLL_SCHEDULE_NOTIFY`: a program waits and is to be woken when the file becomes ready.
const SCHEDULE_NOTIFY: u32 = 1 << 0;
/// `FUSE_NOTIFY_POLL`: the message that wakes a program that waits in poll.
const NOTIFY_POLL: i32 = 1;

/// A number by which a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A request of a program, which the kernel passes on.
#[derive(Debug, PartialEq, Eq)]
pub struct TreeRequest {
    /// Names it in the answer.
    pub id: RequestId,
    /// What it is about; 1 is the root.
    pub node: u64,
    /// The thread that asks; 0 if it is in another PID namespace.
    pub thread: u32,
    /// What is asked.
    pub op: TreeOperation,
}

/// What is asked.
#[derive(Debug, PartialEq, Eq)]
pub enum TreeOperation {
    /// What is called so in the folder?
    Lookup(Vec<u8>),
    /// What is the node like?
    Attributes,
    /// Where does the link lead?
    ReadLink,
    /// Open the file.
    Open {
        /// For writing, too.
        is_writable: bool,
    },
    /// Read from a file.
    Read {
        /// The position of the first byte in the file.
        offset: u64,
        /// How many bytes at most.
        size: u32,
    },
    /// List a folder.
    List {
        /// How many entries were listed before.
        offset: u64,
        /// How many bytes at most.
        size: u32,
    },
    /// Carry out an ioctl on an open file.
    Ioctl {
        /// The open file.
        handle: u64,
        /// The request number, with direction and size encoded (asm-generic/ioctl.h).
        command: u32,
        /// Its argument: a number, or an address of the program.
        argument: u64,
        /// The program has pointers of 32 bits.
        is_narrow: bool,
    },
    /// What can be done with the open file now?
    Poll {
        /// The open file.
        handle: u64,
        /// How a program that waits is named ([`TreeServer::wake`]); `None` if it does not wait.
        waiter: Option<u64>,
    },
    /// The program that made that request got a signal.
    Interrupt(RequestId),
    /// The last descriptor of the open file was closed.
    Release {
        /// The open file.
        handle: u64,
    },
    /// Open a folder, to list it.
    OpenFolder,
    /// How much fits in the file system?
    Size,
    /// Something for which there is nothing to do.
    Done,
    /// A request that changes the tree.
    Change,
    /// A request without an answer.
    Forget,
    /// A request that the kernel handles by itself if the server does not know it.
    Unknown,
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeNodeKind {
    /// A folder, which can be listed.
    Folder,
    /// A file that can be read.
    File,
    /// A file that can be opened for writing, and takes ioctls.
    Device,
    /// A symbolic link.
    Link,
}

impl TreeNodeKind {
    fn mode(self) -> u32 {
        match self {
            TreeNodeKind::Folder => 0o040_555,
            TreeNodeKind::File => 0o100_444,
            TreeNodeKind::Device => 0o100_666,
            TreeNodeKind::Link => 0o120_777,
        }
    }
}

/// A node, as the kernel is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeNodeAttributes {
    /// Its number: 1 is the root.
    pub node: u64,
    /// What it is.
    pub kind: TreeNodeKind,
    /// What programs see as its length.
    pub size: u64,
}

/// The server's end of a FUSE file system.
#[derive(Debug)]
pub struct TreeServer {
    kernel: OwnedFd,
    owner: (u32, u32),
    buffer: Vec<u8>,
}

impl TreeServer {
    /// Serves what was mounted with this descriptor of `/dev/fuse`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(kernel: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&kernel, true)?;
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        Ok(Self { kernel, owner, buffer: vec![0; REQUEST_BYTES_MAX] })
    }

    /// The next request that needs an answer of the caller; `None` if there is none now.
    ///
    /// # Errors
    /// `NotConnected`: nothing is mounted any more.
    pub fn receive(&mut self) -> io::Result<Option<TreeRequest>> {
        loop {
            let count = match rustix::io::read(&self.kernel, &mut self.buffer) {
                Ok(count) => count,
                // ENOENT: the program that asked was killed before its request was read.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::NODEV) => return Err(io::ErrorKind::NotConnected.into()),
                Err(errno) => return Err(errno.into()),
            };
            let bytes = &self.buffer[..count];
            if is_init(bytes) {
                self.greet(RequestId(u64_at(bytes, 8)), u32_at(bytes, 40), u32_at(bytes, 44), u32_at(bytes, 52));
                continue;
            }
            match parse(bytes) {
                Some(TreeRequest { op: TreeOperation::Forget, .. }) => {}
                Some(TreeRequest { id, op: TreeOperation::Done, .. }) => self.done(id),
                Some(TreeRequest { id, op: TreeOperation::OpenFolder, .. }) => self.answer(id, &[&[0; 16]]),
                Some(TreeRequest { id, op: TreeOperation::Size, .. }) => self.answer(id, &[&[0; 80]]),
                Some(TreeRequest { id, op: TreeOperation::Change, .. }) => {
                    self.fail(id, Errno::ROFS.raw_os_error() as u16)
                }
                Some(TreeRequest { id, op: TreeOperation::Unknown, .. }) => {
                    self.fail(id, Errno::NOSYS.raw_os_error() as u16)
                }
                Some(request) => return Ok(Some(request)),
                None => return Err(io::Error::new(io::ErrorKind::InvalidData, "the kernel sent no request of FUSE")),
            }
        }
    }

    fn greet(&self, id: RequestId, major: u32, minor: u32, flags: u32) {
        if major != MAJOR || minor < MINOR_MIN {
            return self.fail(id, Errno::PROTO.raw_os_error() as u16);
        }
        let mut body = Vec::with_capacity(64);
        let words = [MAJOR, MINOR, 0, flags & WANTED, 0, WRITE_BYTES_MAX, 1];
        words.into_iter().for_each(|word| body.extend(word.to_ne_bytes()));
        body.resize(64, 0);
        self.answer(id, &[&body]);
    }

    /// The request fails with this error number of Linux, positive.
    pub fn fail(&self, id: RequestId, number: u16) {
        self.send(id, -i32::from(number), &[]);
    }

    /// The request is carried out.
    pub fn done(&self, id: RequestId) {
        self.answer(id, &[]);
    }

    /// Answers [`TreeOperation::Lookup`]: what was found. It may be another one at the next look.
    pub fn found(&self, id: RequestId, attributes: &TreeNodeAttributes) {
        let mut body = Vec::with_capacity(128);
        [attributes.node, 0, 0, 0, 0].into_iter().for_each(|word| body.extend(word.to_ne_bytes()));
        self.put_attributes(&mut body, attributes);
        self.answer(id, &[&body]);
    }

    /// Answers [`TreeOperation::Attributes`] with a `fuse_attr_out`. The kernel does not cache it.
    pub fn attributes(&self, id: RequestId, attributes: &TreeNodeAttributes) {
        let mut body = vec![0; 16];
        self.put_attributes(&mut body, attributes);
        self.answer(id, &[&body]);
    }

    /// Appends a `fuse_attr`: 88 bytes.
    fn put_attributes(&self, body: &mut Vec<u8>, of: &TreeNodeAttributes) {
        let wide = [of.node, of.size, 0, 0, 0, 0];
        wide.into_iter().for_each(|word| body.extend(word.to_ne_bytes()));
        let words = [0, 0, 0, of.kind.mode(), 1, self.owner.0, self.owner.1, 0, 4096, 0];
        words.into_iter().for_each(|word| body.extend(word.to_ne_bytes()));
    }

    /// Answers [`TreeOperation::Open`]: requests on what was opened have this handle. Returns whether the kernel took
    /// it: a file that is opened for a program that was killed meanwhile is never closed.
    pub fn opened(&self, id: RequestId, handle: u64) -> bool {
        self.send(id, 0, &[&handle.to_ne_bytes(), &DIRECT_IO.to_ne_bytes(), &[0; 4]])
    }

    /// Answers [`TreeOperation::Read`] and [`TreeOperation::ReadLink`].
    pub fn data(&self, id: RequestId, bytes: &[u8]) {
        self.answer(id, &[bytes]);
    }

    /// Answers [`TreeOperation::List`] with the entries that come after the first `offset` and fit.
    pub fn list<'a>(
        &self,
        id: RequestId,
        (offset, size): (u64, u32),
        entries: impl Iterator<Item = (&'a str, TreeNodeAttributes)>,
    ) {
        let mut body = Vec::new();
        for (next, (name, attributes)) in (1u64..).zip(entries).skip(usize::try_from(offset).unwrap_or(usize::MAX)) {
            if body.len() + (24 + name.len()).next_multiple_of(8) > size as usize {
                break;
            }
            body.extend(attributes.node.to_ne_bytes());
            body.extend(next.to_ne_bytes());
            body.extend((name.len() as u32).to_ne_bytes());
            body.extend((attributes.kind.mode() >> 12).to_ne_bytes());
            body.extend_from_slice(name.as_bytes());
            body.resize(body.len().next_multiple_of(8), 0);
        }
        self.answer(id, &[&body]);
    }

    /// Answers [`TreeOperation::Ioctl`] with what the ioctl returns: a number, or an error number of Linux below zero.
    pub fn ioctl(&self, id: RequestId, result: i32) {
        self.answer(id, &[&result.to_ne_bytes(), &[0; 12]]);
    }

    /// Answers [`TreeOperation::Poll`] with the events of `poll(2)`.
    pub fn polled(&self, id: RequestId, events: u32) {
        self.answer(id, &[&events.to_ne_bytes(), &[0; 4]]);
    }

    /// Wakes a program that waits in `poll`: it asks again.
    pub fn wake(&self, waiter: u64) {
        let mut message = Vec::with_capacity(24);
        message.extend(24u32.to_ne_bytes());
        message.extend(NOTIFY_POLL.to_ne_bytes());
        message.extend(0u64.to_ne_bytes());
        message.extend(waiter.to_ne_bytes());
        // Nobody may wait any more.
        let _ = rustix::io::write(&self.kernel, &message);
    }

    fn answer(&self, id: RequestId, parts: &[&[u8]]) {
        self.send(id, 0, parts);
    }

    fn send(&self, id: RequestId, error: i32, parts: &[&[u8]]) -> bool {
        let length = 16 + parts.iter().map(|part| part.len()).sum::<usize>();
        let mut header = [0; 16];
        header[..4].copy_from_slice(&(length as u32).to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&id.0.to_ne_bytes());
        let mut slices = vec![IoSlice::new(&header)];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let sent = rustix::io::writev(&self.kernel, &slices);
        // The program that asked may be gone, and so may the mount.
        if let Err(errno) = sent
            && !matches!(errno, Errno::NOENT | Errno::NODEV | Errno::CONNABORTED)
        {
            tracing::warn!(%errno, request = id.0, "the kernel does not take an answer");
        }
        sent.is_ok()
    }
}

impl AsFd for TreeServer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel.as_fd()
    }
}

/// The first 8 (4) bytes at `at`; zeros where the request ends before.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
}

fn is_init(bytes: &[u8]) -> bool {
    bytes.len() >= HEADER_BYTES && u32_at(bytes, 4) == 26
}

/// Parses a request; `None` if it is none.
fn parse(bytes: &[u8]) -> Option<TreeRequest> {
    if bytes.len() < HEADER_BYTES || u32_at(bytes, 0) as usize != bytes.len() {
        return None;
    }
    let handle = u64_at(bytes, 40);
    let op = match u32_at(bytes, 4) {
        1 => TreeOperation::Lookup(bytes[HEADER_BYTES..].split(|&byte| byte == 0).next().unwrap_or(&[]).to_vec()),
        2 | 42 => TreeOperation::Forget,
        3 => TreeOperation::Attributes,
        // Truncating what is opened for writing, as `echo > FILE` does.
        4 => TreeOperation::Attributes,
        5 => TreeOperation::ReadLink,
        // O_ACCMODE: reading only is 0.
        14 => TreeOperation::Open { is_writable: u32_at(bytes, 40) & 3 != 0 },
        15 => TreeOperation::Read { offset: u64_at(bytes, 48), size: u32_at(bytes, 56) },
        17 => TreeOperation::Size,
        27 => TreeOperation::OpenFolder,
        18 => TreeOperation::Release { handle },
        25 | 29 | 30 => TreeOperation::Done,
        28 => TreeOperation::List { offset: u64_at(bytes, 48), size: u32_at(bytes, 56) },
        36 => TreeOperation::Interrupt(RequestId(handle)),
        39 => TreeOperation::Ioctl {
            handle,
            is_narrow: u32_at(bytes, 48) & IOCTL_32BIT != 0,
            command: u32_at(bytes, 52),
            argument: u64_at(bytes, 56),
        },
        40 => TreeOperation::Poll {
            handle,
            waiter: (u32_at(bytes, 56) & SCHEDULE_NOTIFY != 0).then(|| u64_at(bytes, 48)),
        },
        6 | 8..=13 | 16 | 20 | 35 | 45 => TreeOperation::Change,
        _ => TreeOperation::Unknown,
    };
    Some(TreeRequest { id: RequestId(u64_at(bytes, 8)), node: u64_at(bytes, 16), thread: u32_at(bytes, 32), op })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&((HEADER_BYTES + rest.len()) as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&42u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&7u64.to_ne_bytes());
        bytes[32..36].copy_from_slice(&99u32.to_ne_bytes());
        bytes.extend_from_slice(rest);
        bytes
    }

    fn op(opcode: u32, rest: &[u8]) -> TreeOperation {
        let TreeRequest { id, node, thread, op } = parse(&request(opcode, rest)).unwrap();
        assert_eq!((id, node, thread), (RequestId(42), 7, 99));
        op
    }

    #[test]
    fn requests_are_what_the_kernels_header_says() {
        assert_eq!(op(1, b"busnum\0"), TreeOperation::Lookup(b"busnum".to_vec()));
        assert_eq!(op(14, &[2, 0, 0, 0, 0, 0, 0, 0]), TreeOperation::Open { is_writable: true });
        assert_eq!(op(14, &[0; 8]), TreeOperation::Open { is_writable: false });
        let mut ioctl = [0; 32];
        ioctl[..8].copy_from_slice(&5u64.to_ne_bytes());
        ioctl[8..12].copy_from_slice(&IOCTL_32BIT.to_ne_bytes());
        ioctl[12..16].copy_from_slice(&0x802c_550au32.to_ne_bytes());
        ioctl[16..24].copy_from_slice(&0x1234_5678u64.to_ne_bytes());
        let expected = TreeOperation::Ioctl { handle: 5, command: 0x802c_550a, argument: 0x1234_5678, is_narrow: true };
        assert_eq!(op(39, &ioctl), expected);
        let mut poll = [0; 24];
        poll[..8].copy_from_slice(&5u64.to_ne_bytes());
        poll[8..16].copy_from_slice(&6u64.to_ne_bytes());
        assert_eq!(op(40, &poll), TreeOperation::Poll { handle: 5, waiter: None });
        poll[16] = 1;
        assert_eq!(op(40, &poll), TreeOperation::Poll { handle: 5, waiter: Some(6) });
        assert_eq!(op(36, &5u64.to_ne_bytes()), TreeOperation::Interrupt(RequestId(5)));
    }

    #[test]
    fn bytes_that_are_no_request_are_refused_and_short_ones_read_as_zeros() {
        assert_eq!(parse(&[]), None);
        assert_eq!(parse(&[0; HEADER_BYTES]), None, "the length is another");
        for opcode in 0..64 {
            for length in 0..24 {
                assert!(parse(&request(opcode, &vec![0xff; length])).is_some(), "{opcode} {length}");
            }
        }
    }

    /// The kernel is not hostile, but programs choose much of what it passes on.
    #[test]
    fn fuzz_tree_requests() {
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_tree_requests", |input| {
            let mut bytes = request(input.below(50), &[]);
            bytes.extend(input.bytes(64));
            bytes.truncate(HEADER_BYTES + input.below(64) as usize);
            let length = if input.once_in(8) { input.word() } else { bytes.len() as u32 };
            bytes[..4].copy_from_slice(&length.to_ne_bytes());
            let parsed = parse(&bytes);
            assert_eq!(parsed.is_some(), length as usize == bytes.len());
            if let Some(TreeRequest { op: TreeOperation::Lookup(name), .. }) = parsed {
                assert!(name.len() <= bytes.len() - HEADER_BYTES && !name.contains(&0));
            }
        });
    }
}
