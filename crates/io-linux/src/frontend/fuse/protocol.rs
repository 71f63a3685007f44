//! The protocol between the kernel and the server of a FUSE file system, as far as one file in one folder needs it
//! (Linux, `include/uapi/linux/fuse.h`, version 7.31). All numbers are in native byte order.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use farbus_model::Payload;
use rustix::io::Errno;

/// Bytes of a request before a write's data: `fuse_in_header` and `fuse_write_in`, 40 each.
pub(super) const HEAD_BYTES: usize = 80;
const HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: usize = 16;

const MAJOR: u32 = 7;
const MINOR: u32 = 31;
/// The first minor version whose answer to INIT has all its fields (Linux 3.15).
const MINOR_MIN: u32 = 23;

/// `FUSE_ASYNC_READ`, `FUSE_BIG_WRITES`, `FUSE_ASYNC_DIO` and `FUSE_MAX_PAGES`. `FUSE_WRITEBACK_CACHE` is left out:
/// without it writes go through the kernel's cache to the device at once, so their errors reach the writer and no dirty
/// page ever waits for this process to free memory.
const WANTED: u32 = 1 << 0 | 1 << 5 | 1 << 15 | 1 << 22;

/// `FOPEN_KEEP_CACHE`: an open does not discard the pages that the kernel has cached of the file.
const KEEP_CACHE: u32 = 1 << 1;

/// `FATTR_MODE`, `FATTR_UID`, `FATTR_GID`, `FATTR_SIZE`.
const SETS: [u32; 4] = [1 << 0, 1 << 1, 1 << 2, 1 << 3];

/// The folder, and the file in it.
pub(super) const FOLDER: u64 = 1;
pub(super) const FILE: u64 = 2;

/// How long the kernel may cache attributes, seconds: nothing changes without the kernel's knowledge.
const VALID_S: u64 = 365 * 24 * 3600;

/// The unit in which the kernel counts space, and in which a loop device discards.
const BLOCK_BYTES: u32 = 4096;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// The kernel sent a value that is not valid: field and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FuseFieldError(pub &'static str, pub u64);

/// A request: operation, node, and the number by which it is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FuseRequest {
    pub unique: u64,
    pub node: u64,
    pub op: FuseOperation,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum FuseOperation {
    Init {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
    },
    Lookup {
        name: Vec<u8>,
    },
    Getattr,
    Setattr {
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
    },
    Open,
    Read {
        offset: u64,
        size: u32,
    },
    Write {
        offset: u64,
        size: u32,
    },
    Statfs,
    /// A descriptor was closed: the last moment at which its program can be told of an error.
    Flush {
        handle: u64,
    },
    Fsync {
        handle: u64,
    },
    /// The last descriptor was closed, and the last page of a memory mapping was written.
    Release {
        handle: u64,
    },
    Fallocate {
        offset: u64,
        length: u64,
        mode: u32,
    },
    Opendir,
    Readdir {
        offset: u64,
        size: u32,
    },
    /// A folder was closed or synchronized: nothing to do.
    FolderDone,
    Destroy,
    /// A request without an answer.
    Forget,
    /// A request to add to the folder or remove from it.
    Change,
    /// A request that the kernel handles by itself if the server does not know it.
    Other,
}

/// The first 8 (4) bytes at `at`; zeros where the request ends before: the checks of each field then apply to them.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |bytes| u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
}

impl FuseRequest {
    /// Parses a request of `count` bytes, the first of which are in `head` and the others in `data`.
    pub fn parse(head: &[u8; HEAD_BYTES], data: &[u8], count: usize) -> Result<Self, FuseFieldError> {
        let length = u32_at(head, 0) as usize;
        if count < HEADER_BYTES || length != count || count > HEAD_BYTES + data.len() {
            return Err(FuseFieldError("length", length as u64));
        }
        let op = match u32_at(head, 4) {
            1 => FuseOperation::Lookup {
                name: rest_of(head, data, count).split(|&byte| byte == 0).next().unwrap_or(&[]).to_vec(),
            },
            2 | 42 => FuseOperation::Forget,
            3 => FuseOperation::Getattr,
            4 => {
                let rest = rest_of(head, data, count);
                let valid = u32_at(&rest, 0);
                let set = |which: usize| valid & SETS[which] != 0;
                FuseOperation::Setattr {
                    mode: set(0).then(|| u32_at(&rest, 68)),
                    uid: set(1).then(|| u32_at(&rest, 76)),
                    gid: set(2).then(|| u32_at(&rest, 80)),
                    size: set(3).then(|| u64_at(&rest, 16)),
                }
            }
            6 | 8..=13 | 35 | 45 => FuseOperation::Change,
            14 => FuseOperation::Open,
            15 => FuseOperation::Read { offset: u64_at(head, 48), size: u32_at(head, 56) },
            16 => {
                let size = u32_at(head, 56);
                if count != HEAD_BYTES + size as usize {
                    return Err(FuseFieldError("size", size.into()));
                }
                FuseOperation::Write { offset: u64_at(head, 48), size }
            }
            17 => FuseOperation::Statfs,
            18 => FuseOperation::Release { handle: u64_at(head, 40) },
            20 => FuseOperation::Fsync { handle: u64_at(head, 40) },
            25 => FuseOperation::Flush { handle: u64_at(head, 40) },
            26 => FuseOperation::Init {
                major: u32_at(head, 40),
                minor: u32_at(head, 44),
                max_readahead: u32_at(head, 48),
                flags: u32_at(head, 52),
            },
            27 => FuseOperation::Opendir,
            28 => FuseOperation::Readdir { offset: u64_at(head, 48), size: u32_at(head, 56) },
            29 | 30 => FuseOperation::FolderDone,
            38 => FuseOperation::Destroy,
            43 => {
                FuseOperation::Fallocate { offset: u64_at(head, 48), length: u64_at(head, 56), mode: u32_at(head, 64) }
            }
            _ => FuseOperation::Other,
        };
        Ok(Self { unique: u64_at(head, 8), node: u64_at(head, 16), op })
    }
}

/// What follows the header.
fn rest_of(head: &[u8; HEAD_BYTES], data: &[u8], count: usize) -> Vec<u8> {
    let (in_head, in_data) = (count.min(HEAD_BYTES), count.saturating_sub(HEAD_BYTES));
    [&head[HEADER_BYTES..in_head], &data[..in_data]].concat()
}

/// A node's attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseAttr {
    pub node: u64,
    pub size: u64,
    /// Permissions: 9 bits.
    pub perm: u32,
    pub owner: (u32, u32),
    /// Seconds and nanoseconds since 1970: when the disk was attached.
    pub time: (u64, u32),
}

/// An answer's body.
#[derive(Debug, Default)]
pub(super) struct FuseReplyBody(Vec<u8>);

impl FuseReplyBody {
    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends a `fuse_attr`: 88 bytes.
    fn attributes(self, of: &FuseAttr) -> Self {
        let (kind, links) = if of.node == FOLDER { (DIRECTORY, 2) } else { (REGULAR, 1) };
        let body = self.u64(of.node).u64(of.size).u64(of.size.div_ceil(512));
        let body = (0..3).fold(body, |body, _| body.u64(of.time.0));
        let body = (0..3).fold(body, |body, _| body.u32(of.time.1));
        body.u32(kind | of.perm).u32(links).u32(of.owner.0).u32(of.owner.1).u32(0).u32(BLOCK_BYTES).u32(0)
    }

    /// The answer to `FUSE_GETATTR` and `FUSE_SETATTR` (`fuse_attr_out`).
    pub fn attr(of: &FuseAttr) -> Self {
        Self::default().u64(VALID_S).u64(0).attributes(of)
    }

    /// The answer to `FUSE_LOOKUP` (`fuse_entry_out`): the node that was found.
    pub fn entry(of: &FuseAttr) -> Self {
        Self::default().u64(of.node).u64(0).u64(VALID_S).u64(VALID_S).u64(0).attributes(of)
    }

    /// `fuse_open_out`: the kernel names `handle` when it flushes, synchronizes or closes what was opened.
    pub fn opened(node: u64, handle: u64) -> Self {
        Self::default().u64(handle).u32(if node == FILE { KEEP_CACHE } else { 0 }).u32(0)
    }

    /// `fuse_statfs_out`: a full file system, the disk is all there is. A loop device takes its discard unit from here.
    pub fn statfs(size_bytes: u64) -> Self {
        let body = Self::default().u64(size_bytes.div_ceil(BLOCK_BYTES.into())).u64(0).u64(0).u64(2).u64(0);
        let body = body.u32(BLOCK_BYTES).u32(255).u32(BLOCK_BYTES);
        (0..7).fold(body, |body, _| body.u32(0))
    }

    /// `fuse_dirent` of each that comes after `offset` and fits.
    pub fn folder(name: &[u8], offset: u64, size: u32) -> Self {
        const DT_DIR: u32 = 4;
        const DT_REG: u32 = 8;
        let entries = [(FOLDER, DT_DIR, &b"."[..]), (FOLDER, DT_DIR, b".."), (FILE, DT_REG, name)];
        let mut body = Self::default();
        for (next, (node, kind, name)) in (1..).zip(entries).skip(offset.min(3) as usize) {
            if body.0.len() + (24 + name.len()).next_multiple_of(8) > size as usize {
                break;
            }
            body = body.u64(node).u64(next).u32(name.len() as u32).u32(kind);
            body.0.extend_from_slice(name);
            body.0.resize(body.0.len().next_multiple_of(8), 0);
        }
        body
    }

    /// `fuse_init_out`; `None` if the kernel is too old, or of an unknown major version.
    pub fn init(major: u32, minor: u32, max_readahead: u32, flags: u32, terms: &FuseInitLimits) -> Option<Self> {
        if major != MAJOR || minor < MINOR_MIN {
            return None;
        }
        let body =
            Self::default().u32(MAJOR).u32(MINOR).u32(max_readahead.max(terms.read_ahead_bytes)).u32(flags & WANTED);
        let congested = terms.background_max - terms.background_max / 4;
        let body = body.u16(terms.background_max).u16(congested).u32(terms.request_bytes_max);
        let pages = u16::try_from(terms.request_bytes_max / 4096).unwrap_or(u16::MAX).max(1);
        let body = body.u32(1).u16(pages).u16(0).u32(0);
        Some((0..7).fold(body, |body, _| body.u32(0)))
    }
}

/// The limits of the kernel's requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseInitLimits {
    /// The most bytes of one read or write.
    pub request_bytes_max: u32,
    /// The most requests that no program waits for: read-ahead and asynchronous direct I/O.
    pub background_max: u16,
    pub read_ahead_bytes: u32,
}

/// Sends answers to the kernel on the FUSE descriptor. An answer that the kernel does not take is lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct FuseReplySender<'a>(pub BorrowedFd<'a>);

/// The most runs of memory in one call: a request of 1 MiB that came in frames of 64 KiB has 17 at most.
const RUNS_MAX: usize = 32;

impl FuseReplySender<'_> {
    pub fn error(self, unique: u64, errno: Errno) {
        self.send(unique, -errno.raw_os_error(), [&[][..]].into_iter());
    }

    pub fn ok(self, unique: u64) {
        self.send(unique, 0, [&[][..]].into_iter());
    }

    pub fn body(self, unique: u64, body: &FuseReplyBody) {
        self.send(unique, 0, [&body.0[..]].into_iter());
    }

    /// Answers an `open`; returns whether the kernel took the answer. A file that is opened for a program that was
    /// killed meanwhile is never closed.
    pub fn opened(self, unique: u64, node: u64, handle: u64) -> bool {
        self.send(unique, 0, [&FuseReplyBody::opened(node, handle).0[..]].into_iter())
    }

    /// Answers a write (`fuse_write_out`): `size` bytes were written.
    pub fn written(self, unique: u64, size: u32) {
        self.send(unique, 0, [&size.to_ne_bytes()[..], &[0; 4]].into_iter());
    }

    pub fn data(self, unique: u64, payload: &Payload) {
        if payload.runs().take(RUNS_MAX).count() == RUNS_MAX {
            self.send(unique, 0, [payload.contiguous().as_ref()].into_iter());
        } else {
            self.send(unique, 0, payload.runs());
        }
    }

    fn send<'b>(self, unique: u64, error: i32, runs: impl Iterator<Item = &'b [u8]>) -> bool {
        let mut header = [0; OUT_HEADER_BYTES];
        let mut slices = [IoSlice::new(&[]); RUNS_MAX];
        let (mut count, mut length) = (1, OUT_HEADER_BYTES);
        for run in runs.filter(|run| !run.is_empty()) {
            slices[count] = IoSlice::new(run);
            length += run.len();
            count += 1;
        }
        header[..4].copy_from_slice(&u32::try_from(length).expect("an answer is short").to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        slices[0] = IoSlice::new(&header);
        // The program that asked may be gone, and so may the mount: then no program waits for the answer.
        let sent = rustix::io::writev(self.0, &slices[..count]);
        if let Err(errno) = sent
            && !matches!(errno, Errno::NOENT | Errno::NODEV | Errno::CONNABORTED)
        {
            tracing::warn!(%errno, unique, "the kernel does not take an answer");
        }
        sent.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, rest: &[u8]) -> ([u8; HEAD_BYTES], Vec<u8>, usize) {
        let count = HEADER_BYTES + rest.len();
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(count as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&42u64.to_ne_bytes());
        bytes[16..24].copy_from_slice(&FILE.to_ne_bytes());
        bytes.extend_from_slice(rest);
        bytes.resize(bytes.len().max(HEAD_BYTES), 0);
        (bytes[..HEAD_BYTES].try_into().unwrap(), bytes[HEAD_BYTES..].to_vec(), count)
    }

    fn parse(opcode: u32, rest: &[u8]) -> Result<FuseOperation, FuseFieldError> {
        let (head, data, count) = request(opcode, rest);
        FuseRequest::parse(&head, &data, count).map(|request| {
            assert_eq!((request.unique, request.node), (42, FILE));
            request.op
        })
    }

    #[test]
    fn requests_are_parsed_wherever_they_are_split() {
        for name in ["", "disk.img", &"n".repeat(255)] {
            let rest = [name.as_bytes(), &[0]].concat();
            assert_eq!(parse(1, &rest), Ok(FuseOperation::Lookup { name: name.as_bytes().to_vec() }));
        }
        let mut setattr = [0; 88];
        setattr[..4].copy_from_slice(&(SETS[0] | SETS[3]).to_ne_bytes());
        setattr[16..24].copy_from_slice(&99u64.to_ne_bytes());
        setattr[68..72].copy_from_slice(&0o600u32.to_ne_bytes());
        let expected = FuseOperation::Setattr { mode: Some(0o600), uid: None, gid: None, size: Some(99) };
        assert_eq!(parse(4, &setattr), Ok(expected));
        let mut write = vec![0; 40 + 3];
        write[8..16].copy_from_slice(&7u64.to_ne_bytes());
        write[16..20].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(parse(16, &write), Ok(FuseOperation::Write { offset: 7, size: 3 }));
        let handle = [7u64.to_ne_bytes(), [0; 8]].concat();
        assert_eq!(parse(20, &handle), Ok(FuseOperation::Fsync { handle: 7 }));
        assert_eq!(parse(25, &handle), Ok(FuseOperation::Flush { handle: 7 }));
        assert_eq!(parse(18, &handle), Ok(FuseOperation::Release { handle: 7 }));
        assert_eq!(parse(9999, &[]), Ok(FuseOperation::Other));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let (head, data, count) = request(16, &[0; 43]);
        assert_eq!(FuseRequest::parse(&head, &data, count), Err(FuseFieldError("size", 0)));
        assert_eq!(FuseRequest::parse(&head, &data, count - 1), Err(FuseFieldError("length", 83)));
        assert_eq!(FuseRequest::parse(&head, &data[..1], count), Err(FuseFieldError("length", 83)));
        assert!(FuseRequest::parse(&head, &data, 39).is_err());
    }

    #[test]
    fn answers_have_the_lengths_that_the_kernel_expects() {
        let of = FuseAttr { node: FILE, size: 1000, perm: 0o600, owner: (1, 2), time: (3, 4) };
        let terms = FuseInitLimits { request_bytes_max: 1 << 20, background_max: 64, read_ahead_bytes: 1 << 20 };
        assert_eq!(FuseReplyBody::attr(&of).0.len(), 16 + 88);
        assert_eq!(FuseReplyBody::entry(&of).0.len(), 40 + 88);
        assert_eq!((FuseReplyBody::opened(FILE, 1).0.len(), FuseReplyBody::statfs(1).0.len()), (16, 80));
        let init = FuseReplyBody::init(7, 40, 0, u32::MAX, &terms).unwrap().0;
        assert_eq!((init.len(), u32_at(&init, 12)), (64, WANTED));
        assert_eq!((&init[16..20], &init[28..30]), (&[64, 0, 48, 0][..], &[0, 1][..]));
        assert!(
            FuseReplyBody::init(8, 0, 0, 0, &terms).is_none() && FuseReplyBody::init(7, 22, 0, 0, &terms).is_none()
        );
        let whole = FuseReplyBody::folder(b"disk.img", 0, 4096).0;
        assert_eq!(whole.len(), 3 * 32);
        assert_eq!(FuseReplyBody::folder(b"disk.img", 2, 4096).0, whole[64..]);
        assert_eq!(FuseReplyBody::folder(b"disk.img", 0, 95).0, whole[..64]);
        assert!(FuseReplyBody::folder(b"disk.img", u64::MAX, 4096).0.is_empty());
    }

    /// A request is refused, or says no more than has arrived.
    #[test]
    fn fuzz_fuse_requests() {
        crate::fuzzing::fuzz(env!("CARGO_MANIFEST_DIR"), "fuzz_fuse_requests", |input| {
            let opcode = input.below(50);
            let rest = input.bytes(200);
            let (mut head, data, mut count) = request(opcode, &rest[..input.below(200) as usize]);
            if input.once_in(8) {
                count = input.below(400) as usize;
            }
            if input.once_in(8) {
                head[..4].copy_from_slice(&input.word().to_ne_bytes());
            }
            if opcode == 16 && !input.once_in(4) {
                head[56..60].copy_from_slice(&(count.saturating_sub(HEAD_BYTES) as u32).to_ne_bytes());
            }
            let Ok(FuseRequest { op, .. }) = FuseRequest::parse(&head, &data, count) else { return };
            assert!(count >= HEADER_BYTES && count <= HEAD_BYTES + data.len());
            match op {
                FuseOperation::Write { size, .. } => assert_eq!(HEAD_BYTES + size as usize, count),
                FuseOperation::Lookup { name } => assert!(name.len() <= count - HEADER_BYTES && !name.contains(&0)),
                _ => {}
            }
        });
    }
}
